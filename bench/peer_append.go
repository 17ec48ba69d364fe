package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
)

// An append by hand: a table of events with the primary key (stream, version), and one statement that
// inserts at the highest version plus one. Two writers of a stream can choose the same version. The
// second one then waits for the commit of the first, and inserts nothing. It tries again at once,
// because it has waited already, and never gives up.
//
// ON CONFLICT DO NOTHING saves the peer an error for each version that is taken (23505), which would
// end the transaction, go into the server's log and leave a dead row.

// inserting is the name of the contender.
const inserting = "INSERT at max(version) + 1"

const (
	pgEvents    = `CREATE TABLE events (stream text, version bigint, data jsonb NOT NULL, PRIMARY KEY (stream, version))`
	liteEvents  = `CREATE TABLE events (stream TEXT, version INTEGER, data TEXT NOT NULL, PRIMARY KEY (stream, version)) WITHOUT ROWID`
	insertEvent = `INSERT INTO events (stream, version, data) SELECT $1, coalesce(max(version) + 1, 0), $2 FROM events WHERE stream = $1`
	unlessTaken = ` ON CONFLICT DO NOTHING`
	countTable  = `SELECT count(*) FROM events WHERE stream = $1`
)

// openEventTable opens the table in a store. With 0 connections the pool has the default size, as in
// Pawl's store.
func openEventTable(connections int) func(b *bench, store string) (*appender, error) {
	return func(b *bench, store string) (*appender, error) {
		place, err := b.placeIn(store)
		if err != nil {
			return nil, err
		}
		if store == inSQLite {
			return openLiteEvents(b.ctx, place)
		}
		return openPgEvents(b.ctx, place, connections)
	}
}

// openPgEvents uses pgx with a pool, which prepares every statement once for each connection.
func openPgEvents(ctx context.Context, url string, connections int) (*appender, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(cmp.Or(connections, pgConnections))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, pgEvents); err != nil {
		pool.Close()
		return nil, err
	}
	return &appender{
		append: func(ctx context.Context, name string, m message) error {
			data, err := json.Marshal(m)
			if err != nil {
				return err
			}
			for {
				tag, err := pool.Exec(ctx, insertEvent+unlessTaken, name, data)
				if err != nil || tag.RowsAffected() == 1 {
					return err
				}
			}
		},
		count: func(ctx context.Context, name string) (n int64, err error) {
			err = pool.QueryRow(ctx, countTable, name).Scan(&n)
			return n, err
		},
		close: pool.Close,
	}, nil
}

// openLiteEvents uses one connection, so that writers wait for their turn in this process and choose no
// version twice. Its durability is that of Pawl's store: WAL with synchronous=FULL.
func openLiteEvents(ctx context.Context, path string) (*appender, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	var insert *sql.Stmt
	if _, err = db.ExecContext(ctx, liteEvents); err == nil {
		insert, err = db.PrepareContext(ctx, insertEvent)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &appender{
		append: func(ctx context.Context, name string, m message) error {
			data, err := json.Marshal(m)
			if err != nil {
				return err
			}
			_, err = insert.ExecContext(ctx, name, string(data))
			return err
		},
		count: func(ctx context.Context, name string) (n int64, err error) {
			err = db.QueryRowContext(ctx, countTable, name).Scan(&n)
			return n, err
		},
		close: func() { _ = db.Close() },
	}, nil
}
