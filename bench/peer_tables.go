package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/mattn/go-sqlite3" // the driver that Pawl's store has, too
)

// The documents of the peers: a table of id, document and version, or a folder of files.
// peer_naive.go and peer_forupdate.go change them.

// table has the documents of the peers in one store.
type table interface {
	read(ctx context.Context, id string) (doc []byte, version int64, err error)

	// swap replaces the document if its version is unchanged (peer_naive.go).
	swap(ctx context.Context, id string, doc []byte, version int64) (swapped bool, err error)

	// update changes the document under a lock (peer_forupdate.go).
	update(ctx context.Context, id string, change func(doc []byte) ([]byte, error)) error

	create(ctx context.Context) error
	fill(ctx context.Context, documents iter.Seq2[string, string]) error
	count(ctx context.Context, rows string) (int64, error) // as contender.count
	place() string
	close()
}

// tableIn returns the table that the peers share in a store, opened and created the first time.
func (b *bench) tableIn(store string, connections int) (table, error) {
	var tables [2]table // the second has the connections that were asked for
	for i, n := range []int{0, connections} {
		name := fmt.Sprintf("%s, %d connections", store, n)
		if tables[i] = b.tables[name]; tables[i] != nil {
			continue
		}
		var err error
		if i == 0 {
			tables[i], err = b.newTable(store)
		} else {
			tables[i], err = openTable(b.ctx, tables[0].place(), n)
		}
		if err != nil {
			return nil, err
		}
		b.cleanup(tables[i].close)
		if b.tables == nil {
			b.tables = map[string]table{}
		}
		b.tables[name] = tables[i]
	}
	return tables[1], nil
}

func (b *bench) newTable(store string) (table, error) {
	place, err := b.placeIn(store)
	if err != nil {
		return nil, err
	}
	t, err := openTable(b.ctx, place, 0)
	if err != nil {
		return nil, err
	}
	if err := t.create(b.ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// openTable opens the table at a place: a URL, a folder with a trailing slash, or a database file.
// With 0 connections the pool has the size that the documentation of the driver recommends.
func openTable(ctx context.Context, place string, connections int) (table, error) {
	switch {
	case strings.HasPrefix(place, "postgres"):
		return openPgTable(ctx, place, connections)
	case strings.HasSuffix(place, "/"):
		return fileTable{place}, nil
	}
	return openLiteTable(ctx, place, connections)
}

// PostgreSQL: pgx with a pool, which prepares every statement once for each connection by itself.

type pgTable struct {
	pool *pgxpool.Pool
	url  string
}

// pgConnections is the default of pgxpool on two cores, which Pawl's store has as well. With 64
// writers on one row, fewer connections mean fewer conflicts for the naive loop. On many rows, more
// connections make it faster, so it is measured with 64 as well (P4).
const pgConnections = 4

func openPgTable(ctx context.Context, url string, connections int) (table, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(cmp.Or(connections, pgConnections))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return pgTable{pool, url}, nil
}

// create uses jsonb and the same fill factor as Pawl's own table.
func (t pgTable) create(ctx context.Context) error {
	_, err := t.pool.Exec(ctx, `CREATE TABLE documents (id text PRIMARY KEY, doc jsonb NOT NULL, version bigint NOT NULL) WITH (fillfactor = 85)`)
	return err
}

func (t pgTable) fill(ctx context.Context, documents iter.Seq2[string, string]) error {
	var rows [][]any
	for id, doc := range documents {
		rows = append(rows, []any{id, doc, 1})
	}
	_, err := t.pool.CopyFrom(ctx, pgx.Identifier{"documents"}, []string{"id", "doc", "version"}, pgx.CopyFromRows(rows))
	return err
}

func (t pgTable) read(ctx context.Context, id string) (doc []byte, version int64, err error) {
	err = t.pool.QueryRow(ctx, `SELECT doc, version FROM documents WHERE id = $1`, id).Scan(&doc, &version)
	return doc, version, err
}

func (t pgTable) count(ctx context.Context, rows string) (n int64, err error) {
	err = t.pool.QueryRow(ctx, countSQL(rows, "documents", pgNumber)).Scan(&n)
	return n, err
}

func (t pgTable) place() string { return t.url }
func (t pgTable) close()        { t.pool.Close() }

// SQLite: WAL with synchronous=FULL, as in Pawl's store, so that acknowledged updates survive a power
// failure.

type liteTable struct {
	db   *sql.DB
	path string

	reading, swapping, updating *sql.Stmt // prepared once
}

func openLiteTable(ctx context.Context, path string, connections int) (table, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	// One connection, as the driver's documentation recommends against "database is locked". With
	// more connections, writers poll for the lock of the file. P3 and P4 also measure 64.
	db.SetMaxOpenConns(cmp.Or(connections, 1))
	db.SetMaxIdleConns(cmp.Or(connections, 1))
	t := &liteTable{db: db, path: path}
	if err = t.create(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for statement, text := range map[**sql.Stmt]string{
		&t.reading:  `SELECT doc, version FROM documents WHERE id = ?`,
		&t.swapping: `UPDATE documents SET doc = ?, version = version + 1 WHERE id = ? AND version = ?`,
		&t.updating: `UPDATE documents SET doc = ?, version = version + 1 WHERE id = ?`,
	} {
		if err == nil {
			*statement, err = db.PrepareContext(ctx, text)
		}
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return t, nil
}

func (t *liteTable) create(ctx context.Context) error {
	_, err := t.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, doc TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID`)
	return err
}

func (t *liteTable) fill(ctx context.Context, documents iter.Seq2[string, string]) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	insert, err := tx.PrepareContext(ctx, `INSERT INTO documents VALUES (?, ?, 1)`)
	if err != nil {
		return err
	}
	for id, doc := range documents {
		if _, err := insert.ExecContext(ctx, id, doc); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (t *liteTable) read(ctx context.Context, id string) (doc []byte, version int64, err error) {
	err = t.reading.QueryRowContext(ctx, id).Scan(&doc, &version)
	return doc, version, err
}

func (t *liteTable) count(ctx context.Context, rows string) (n int64, err error) {
	err = t.db.QueryRowContext(ctx, countSQL(rows, "documents", liteNumber)).Scan(&n)
	return n, err
}

func (t *liteTable) place() string { return t.path }
func (t *liteTable) close()        { _ = t.db.Close() }

// Files: each document is a file that contains its version, with an empty lock file beside it. A
// write creates a new file, syncs it, renames it over the old one, and syncs the folder.

type fileTable struct{ folder string }

type fileDocument struct {
	Version int64           `json:"version"`
	Doc     json.RawMessage `json:"doc"`
}

func (t fileTable) path(id string) string { return t.folder + id + ".json" }

func (t fileTable) create(context.Context) error { return nil }

func (t fileTable) fill(_ context.Context, documents iter.Seq2[string, string]) error {
	for id, doc := range documents {
		text, err := json.Marshal(fileDocument{1, json.RawMessage(doc)})
		if err != nil {
			return err
		}
		if err := os.WriteFile(t.path(id), text, 0o600); err != nil { // not synced: this part is not measured
			return err
		}
	}
	return nil
}

func (t fileTable) read(_ context.Context, id string) (doc []byte, version int64, err error) {
	text, err := os.ReadFile(t.path(id))
	if err != nil {
		return nil, 0, err
	}
	var d fileDocument
	err = json.Unmarshal(text, &d)
	return d.Doc, d.Version, err
}

// write replaces a document durably. The caller holds its lock.
func (t fileTable) write(id string, doc []byte, version int64) error {
	text, err := json.Marshal(fileDocument{version, doc})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(t.folder, id+".*.tmp")
	if err != nil {
		return err
	}
	_, err = temp.Write(text)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), t.path(id))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	folder, err := os.Open(t.folder)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// locked runs f with the lock of a document held.
func (t fileTable) locked(id string, f func() error) error {
	lock := flock.New(t.folder + id + ".lock")
	if err := lock.Lock(); err != nil {
		return err
	}
	return errors.Join(f(), lock.Unlock())
}

func (t fileTable) count(ctx context.Context, rows string) (n int64, err error) {
	return countFiles(t.folder, rows, func(text []byte) (d document, err error) {
		err = json.Unmarshal(text, &struct{ Doc *document }{&d})
		return d, err
	})
}

func (t fileTable) place() string { return t.folder }
func (t fileTable) close()        {}

// countFiles implements contender.count over the files of a folder.
func countFiles(folder, rows string, decode func(text []byte) (document, error)) (int64, error) {
	paths, err := filepath.Glob(filepath.Join(folder, rows+".json"))
	if err != nil {
		return 0, err
	}
	var count, balance int64
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		d, err := decode(text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		count += d.Count
		balance += d.Balance
	}
	return count - max(balance, -balance), nil
}
