package sqlite

import (
	"context"
	"database/sql"
	"os"

	"github.com/pawl-go/pawl/persist"
)

// Describe returns facts about the store, see persist.Describer. It counts records in the indices,
// and returns the errors of LoadAll.
func (s *Store) Describe(ctx context.Context) (d persist.Description, err error) {
	if err := s.calls.enter(); err != nil {
		return d, err
	}
	defer s.calls.leave()
	if d.Schema, err = s.sql.schemaVersion(ctx, s.reader); err != nil {
		return d, readable(ctx, err)
	}
	var journal string
	if err := s.reader.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return d, readable(ctx, err)
	}
	// The store refuses connections that write with less than synchronous=FULL.
	d.Settings = []persist.Setting{{Name: "journal_mode", Value: journal}, {Name: "synchronous", Value: "FULL or EXTRA"}}
	if journal != "wal" {
		d.Settings[0].Advice = "another program has left WAL mode: stop it, and open the store again"
	}
	if d.Size, err = s.size(ctx); err != nil {
		return d, readable(ctx, err)
	}
	if d.Kinds, err = s.countKinds(ctx); err != nil {
		return d, readable(ctx, err)
	}
	return d, nil
}

// size returns the number of bytes in the pages of the database, and in its log.
func (s *Store) size(ctx context.Context) (size int64, err error) {
	err = s.reader.QueryRowContext(ctx, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").Scan(&size)
	if err != nil {
		return 0, err
	}
	home, err := homeOf(ctx, s.reader)
	if err != nil {
		return 0, err
	}
	if info, err := os.Stat(home.file.path + "-wal"); err == nil {
		size += info.Size()
	}
	return size, nil
}

// countKinds counts the records of each kind.
func (s *Store) countKinds(ctx context.Context) ([]persist.KindCount, error) {
	scan := func(rows *sql.Rows) (k persist.KindCount, err error) {
		err = rows.Scan(&k.Kind, &k.Records, &k.Tombstones)
		return k, err
	}
	return queryAll(ctx, s.reader, scan, `SELECT r.kind, count(*), coalesce(t.n, 0) FROM "`+s.sql.prefix+`records" r
		LEFT JOIN (SELECT kind, count(*) n FROM "`+s.sql.prefix+`records" WHERE deleted = 1 GROUP BY kind) t ON t.kind = r.kind
		GROUP BY r.kind ORDER BY r.kind`)
}
