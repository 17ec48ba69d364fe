package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// migrations are applied in the order of their names; the n-th leads to schema version n. The
// effect of a released migration never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

var migrationNames, _ = fs.Glob(migrations, "migrations/*.sql") // the error would be that of the pattern

// verify returns the first schema of the search path. It returns an error if commits would not be
// durable in this database, or texts would not be returned unchanged.
func verify(ctx context.Context, conn *pgconn.PgConn) (current string, err error) {
	answers, err := roundTrip(ctx, conn, query(`SELECT coalesce(current_schema(), ''), current_setting('server_version_num'),
		current_setting('server_encoding'), current_setting('client_encoding'), current_setting('fsync')`))
	if err != nil {
		return "", failed(ctx, err)
	}
	row := answers[0][0]
	current = row.string()
	const oldest = 120000
	if version, err := strconv.Atoi(row.string()); err != nil || version < oldest {
		return "", errors.New("postgres: the server is older than PostgreSQL 12")
	}
	for _, setting := range []struct{ name, want string }{{"server_encoding", "UTF8"}, {"client_encoding", "UTF8"}, {"fsync", "on"}} {
		if got := row.string(); got != setting.want {
			return "", fmt.Errorf("postgres: %s must be %s, got %s", setting.name, setting.want, got)
		}
	}
	return current, nil
}

// migrate brings the tables to the schema version of this release. Several processes may call it at
// the same time. It returns persist.ErrNewerSchema if a newer release has migrated the tables.
func (s *Store) migrate(ctx context.Context, conn *pgconn.PgConn) error {
	// Usually there is nothing to do. Then no lock and no right to create tables is needed.
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	version, err := s.schemaVersion(bounded, conn)
	if err != nil {
		return failed(bounded, err)
	}
	switch {
	case s.config.Existing && version == 0:
		return fmt.Errorf("postgres: %w: the database has no table %s", persist.ErrMissingStore, s.names.of("meta"))
	case s.config.Existing && version < len(migrationNames):
		return fmt.Errorf("postgres: %w: its schema version is %d, this release needs %d", persist.ErrOlderSchema, version, len(migrationNames))
	case version != len(migrationNames):
		err = s.migrateTo(ctx, conn)
		undo(ctx, conn)
	}
	return err
}

// migrateTo applies the missing migrations in one transaction.
func (s *Store) migrateTo(ctx context.Context, conn *pgconn.PgConn) error {
	_, err := roundTrip(ctx, conn, begin,
		query(`SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', '0', true),
			pg_catalog.set_config('synchronous_commit', 'on', true)`).
			string(s.lifetime()),
		query("SELECT pg_catalog.pg_advisory_xact_lock($1)").int(s.names.migrationLock()))
	if err != nil {
		return failed(ctx, err)
	}
	version, err := s.schemaVersion(ctx, conn)
	if err != nil {
		return failed(ctx, err)
	}
	if version > len(migrationNames) {
		return fmt.Errorf("postgres: %w: schema version %d, this release knows %d", persist.ErrNewerSchema, version, len(migrationNames))
	}
	if err := s.createSchema(ctx, conn); err != nil {
		return fmt.Errorf("postgres: create schema: %w", failed(ctx, err))
	}
	for _, file := range migrationNames[version:] {
		text, err := migrations.ReadFile(file)
		if err != nil {
			return fmt.Errorf("postgres: %w", err)
		}
		if err := conn.Exec(ctx, s.names.expand(string(text))).Close(); err != nil {
			return fmt.Errorf("postgres: migrate: %s: %w", file, failed(ctx, err))
		}
	}
	_, err = roundTrip(ctx, conn, query("UPDATE "+s.names.of("meta")+" SET value = $1 WHERE name = 'schema'").int(int64(len(migrationNames))), commit)
	if err != nil {
		return fmt.Errorf("postgres: migrate: %w", failed(ctx, err))
	}
	return nil
}

// createSchema creates the store's schema if it does not exist. IF NOT EXISTS would need the right
// to create schemas even if it exists.
func (s *Store) createSchema(ctx context.Context, conn *pgconn.PgConn) error {
	exists := query("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1").string(s.names.schema)
	answers, err := roundTrip(ctx, conn, exists)
	if err != nil || len(answers[0]) > 0 {
		return err
	}
	// Stores with other prefixes have other migration locks, and may create it at the same time.
	answers, err = roundTrip(ctx, conn, query("SELECT pg_catalog.pg_advisory_xact_lock($1)").int(s.names.schemaLock()), exists)
	if err != nil || len(answers[1]) > 0 {
		return err
	}
	_, err = roundTrip(ctx, conn, query("CREATE SCHEMA "+quote(s.names.schema)))
	return err
}

// schemaVersion returns the schema version of the tables, or 0 if there are none.
func (s *Store) schemaVersion(ctx context.Context, conn *pgconn.PgConn) (int, error) {
	answers, err := roundTrip(ctx, conn, query(`SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`).string(s.names.schema).string(s.names.prefix+"meta"))
	if err != nil || len(answers[0]) == 0 {
		return 0, err
	}
	answers, err = roundTrip(ctx, conn, query("SELECT value FROM "+s.names.of("meta")+" WHERE name = 'schema'"))
	if err != nil || len(answers[0]) == 0 {
		return 0, err
	}
	return int(answers[0][0].int()), nil
}

// failed returns the error of a call that commits nothing: that of ctx if it ended, or err
// explained.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return explain(err)
}
