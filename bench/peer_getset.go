package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"path/filepath"
	"sync"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/mattn/go-sqlite3"
)

// onGetSet gets the state, changes it and sets it. Each half is safe: in memory by a mutex, in a
// database by a statement. Nothing excludes other writers between the two halves.
type onGetSet struct {
	get  func(ctx context.Context) (map[string]int64, error)
	put  func(ctx context.Context, all map[string]int64) error
	done func()
}

func openGetSet(b *bench, store string) (numbers, error) {
	switch store {
	case "SQLite":
		path, err := b.folder()
		if err != nil {
			return nil, err
		}
		return getSetRow(openPool("sqlite3", "file:"+filepath.Join(path, "getset.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000"))
	case "PostgreSQL":
		url, err := b.database()
		if err != nil {
			return nil, err
		}
		return getSetRow(openPool("pgx", url))
	}
	return getSetMap(), nil
}

func getSetMap() *onGetSet {
	var (
		mu    sync.Mutex // protects state
		state = map[string]int64{}
	)
	return &onGetSet{
		get: func(context.Context) (map[string]int64, error) {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(state), nil
		},
		put: func(_ context.Context, all map[string]int64) error {
			mu.Lock()
			defer mu.Unlock()
			state = all
			return nil
		},
		done: func() {},
	}
}

// getSetRow keeps the state as JSON in a row.
func getSetRow(db *sql.DB, err error) (*onGetSet, error) {
	if err != nil {
		return nil, err
	}
	for _, s := range []string{"CREATE TABLE sessions (id text PRIMARY KEY, state text NOT NULL)", "INSERT INTO sessions VALUES ('shared', '{}')"} {
		if _, err := db.Exec(s); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	return &onGetSet{
		get: func(ctx context.Context) (all map[string]int64, err error) {
			var text []byte
			if err := db.QueryRowContext(ctx, "SELECT state FROM sessions WHERE id = 'shared'").Scan(&text); err != nil {
				return nil, err
			}
			return all, json.Unmarshal(text, &all)
		},
		put: func(ctx context.Context, all map[string]int64) error {
			text, err := json.Marshal(all)
			if err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, "UPDATE sessions SET state = $1 WHERE id = 'shared'", string(text))
			return err
		},
		done: func() { _ = db.Close() },
	}, nil
}

func (g *onGetSet) change(ctx context.Context, f func(all map[string]int64)) error {
	all, err := g.get(ctx)
	if err != nil {
		return err
	}
	f(all)
	return g.put(ctx, all)
}

func (g *onGetSet) add(ctx context.Context, name string) error {
	return g.change(ctx, func(all map[string]int64) { all[name]++ })
}

func (g *onGetSet) set(ctx context.Context, name string) error {
	return g.change(ctx, func(all map[string]int64) { all[name] = 1 })
}

func (g *onGetSet) all(ctx context.Context) (map[string]int64, error) { return g.get(ctx) }
func (g *onGetSet) close()                                            { g.done() }

// connections is the size of a peer's pool: large enough not to be a bottleneck, and small enough for
// the default limits of a server.
const connections = 20

func openPool(driver, source string) (*sql.DB, error) {
	db, err := sql.Open(driver, source)
	if err == nil {
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
	}
	return db, err
}
