package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

const benchRows, benchWriters = 10_000, 64

// BenchmarkCommit compares commits of random rows through the store with a transaction for each
// write.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, benchWriters} {
		b.Run(fmt.Sprintf("store/writers=%d", writers), func(b *testing.B) {
			s, err := Open(b.Context(), b.TempDir()+"/state.db", Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var versions [benchRows]atomic.Uint64
			testkit.Parallel(b, writers, func(_, i int) error {
				row := i * 7919 % benchRows
				expected := versions[row].Load()
				c := put(fmt.Sprint(row), expected)
				_, err := s.Commit(context.Background(), c)
				if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
					return nil
				}
				versions[row].CompareAndSwap(expected, expected+1)
				return err
			})
		})
		b.Run(fmt.Sprintf("naive/writers=%d", writers), func(b *testing.B) {
			path := b.TempDir() + "/naive.db"
			if _, err := prepareFile(path, false); err != nil {
				b.Fatal(err)
			}
			db, err := sql.Open(driverName, dataSource(path, "_busy_timeout=60000&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate"))
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("CREATE TABLE rows (kind TEXT, id TEXT, version INTEGER, doc TEXT, PRIMARY KEY (kind, id))"); err != nil {
				b.Fatal(err)
			}
			testkit.Parallel(b, writers, func(_, i int) error { return naive(db, fmt.Sprint(i*7919%benchRows)) })
		})
	}
}

// naive reads a row and writes it in a transaction of its own.
func naive(db *sql.DB, id string) error {
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int64
	err = tx.QueryRow("SELECT version FROM rows WHERE kind = 'thing' AND id = ?", id).Scan(&version)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	_, err = tx.Exec("INSERT INTO rows VALUES ('thing', ?, ?, '{}') ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, doc = excluded.doc", id, version+1)
	if err != nil {
		return err
	}
	return tx.Commit()
}
