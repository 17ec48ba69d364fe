package sqlite

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// migrations are applied in the order of their names; the n-th leads to schema version n. A
// released migration never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

var migrationNames, _ = fs.Glob(migrations, "migrations/*.sql") // the error would be that of the pattern

// migrate brings the tables to the schema version of this release. Several processes may do so at
// once. It returns an error that wraps persist.ErrNewerSchema for the tables of a newer release.
func (w *writer) migrate(ctx context.Context) error {
	// Usually there is nothing to do, and no reason to wait for the write lock.
	var version int
	err := w.patiently(ctx, time.Now(), func() (err error) {
		version, err = w.sql.schemaVersion(ctx, w.conn)
		return err
	})
	if err != nil || version == len(migrationNames) {
		return err
	}
	err = w.patiently(ctx, time.Now(), func() error {
		_, err := w.conn.ExecContext(ctx, textBegin)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.migrateTo(ctx, migrationNames); err != nil {
		_, rollback := w.conn.ExecContext(background, textRollback)
		return errors.Join(fmt.Errorf("sqlite: migrate: %w", err), rollback)
	}
	return nil
}

// migrateTo applies the missing migrations of names and commits.
func (w *writer) migrateTo(ctx context.Context, names []string) error {
	version, err := w.sql.schemaVersion(ctx, w.conn)
	if err != nil {
		return err
	}
	if version > len(names) {
		return fmt.Errorf("%w: its schema version is %d, this release knows %d", persist.ErrNewerSchema, version, len(names))
	}
	for _, name := range names[version:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := w.conn.ExecContext(ctx, strings.ReplaceAll(string(text), "{prefix}", w.sql.prefix)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if _, err := w.conn.ExecContext(ctx, `UPDATE "`+w.sql.prefix+`meta" SET value = ? WHERE name = 'schema'`, len(names)); err != nil {
		return err
	}
	_, err = w.conn.ExecContext(ctx, textCommit)
	return err
}

// checkExisting returns an error that wraps persist.ErrMissingStore if there are no tables, and one
// that wraps persist.ErrOlderSchema if they need a migration.
func (s statements) checkExisting(ctx context.Context, on executor) error {
	version, err := s.schemaVersion(ctx, on)
	if err != nil {
		return readable(ctx, err)
	}
	switch {
	case version == 0:
		return fmt.Errorf("sqlite: %w: the database has no table %smeta", persist.ErrMissingStore, s.prefix)
	case version < len(migrationNames):
		return fmt.Errorf("sqlite: %w: its schema version is %d, this release needs %d", persist.ErrOlderSchema, version, len(migrationNames))
	}
	return nil
}

// schemaVersion returns the schema version of the tables, 0 if there are none.
func (s statements) schemaVersion(ctx context.Context, on executor) (version int, err error) {
	var tables int
	err = on.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", s.prefix+"meta").Scan(&tables)
	if err != nil || tables == 0 {
		return 0, err
	}
	err = on.QueryRowContext(ctx, `SELECT value FROM "`+s.prefix+`meta" WHERE name = 'schema'`).Scan(&version)
	return version, err
}
