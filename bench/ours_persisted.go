package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// Pawl on its stores. Each store is opened as docs/stores.md shows, with the zero Config. On
// PostgreSQL it has the default pool of pgxpool.

// documents is the kind of the documents. Every call gets a new handle, as is recommended.
var documents = pawl.Kind[document]{Name: "document"}

// atomically counts with AtomicState. The comparisons use it.
var atomically = pawlStrategy("Pawl", atomicAdd)

// observed is atomically with an observer that counts the conflicts. An observer gets every event of
// every call, so comparisons without conflicts do not use it.
var observed = func() strategy {
	s := pawlStrategy("Pawl", atomicAdd, pawl.EventConflicted)
	s.key = "Pawl, observed"
	return s
}()

func atomicAdd(rt *pawl.Runtime) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		_, err := documents.Scope(rt, id).AtomicState(ctx, func(_ context.Context, d *document) error {
			d.Count++
			return nil
		})
		return err
	}
}

// byIncrement counts with IncState.
var byIncrement = pawlStrategy("Pawl, IncState", func(rt *pawl.Runtime) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		_, err := documents.Scope(rt, id).IncState(ctx, "count", 1)
		return err
	}
})

// pawlStrategy returns a strategy whose runtime counts events of these types as conflicts.
func pawlStrategy(key string, how func(rt *pawl.Runtime) (add func(context.Context, string) error), counts ...pawl.EventType) strategy {
	reopen := func(ctx context.Context, place string) (*contender, error) {
		c, rt, err := openPawl(ctx, place, counts)
		if err != nil {
			return nil, err
		}
		c.add = how(rt)
		return c, nil
	}
	return strategy{
		key:    key,
		name:   func(string) string { return key },
		reopen: reopen,
		open: func(b *bench, store string) (*contender, error) {
			place, err := b.placeIn(store)
			if err != nil {
				return nil, err
			}
			c, rt, err := openPawl(b.ctx, place, counts)
			if err != nil {
				return nil, err
			}
			c.add = how(rt)
			return c, nil
		},
	}
}

// openPawl opens the store at a place, and a runtime on it. The runtime counts events of these types
// as conflicts.
func openPawl(ctx context.Context, place string, counts []pawl.EventType) (c *contender, rt *pawl.Runtime, err error) {
	var store persist.Store
	c = &contender{place: place}
	var finish func() // closes the connection of count
	switch {
	case strings.HasPrefix(place, "postgres"):
		if store, err = postgres.Open(ctx, place, postgres.Config{}); err != nil {
			return nil, nil, err
		}
		c.count, finish, err = countInPostgres(ctx, place)
	case strings.HasSuffix(place, "/"):
		if store, err = fs.Open(ctx, place, fs.Config{}); err != nil {
			return nil, nil, err
		}
		c.count, finish = countInFiles(place), func() {}
	default:
		if store, err = sqlite.Open(ctx, place, sqlite.Config{}); err != nil {
			return nil, nil, err
		}
		c.count, finish, err = countInSQLite(place)
	}
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	config := pawl.Config{Store: store, Kinds: []pawl.AnyKind{documents}}
	if len(counts) > 0 {
		config.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if slices.Contains(counts, e.Type) {
				c.conflicts.Add(1)
			}
		})
	}
	rt, err = pawl.Open(config)
	if err != nil {
		finish()
		return nil, nil, errors.Join(err, store.Close())
	}
	c.read = func(ctx context.Context, id string) error {
		_, err := documents.Scope(rt, id).Snapshot(ctx)
		return err
	}
	c.fill = func(ctx context.Context, documents iter.Seq2[string, string]) error {
		return fillStore(ctx, store, documents)
	}
	c.close = func() {
		_ = rt.Close(context.Background())
		_ = store.Close()
		finish()
	}
	return c, rt, nil
}

// fillStore writes documents, up to 1,000 in a commit.
func fillStore(ctx context.Context, s persist.Store, all iter.Seq2[string, string]) error {
	const batchSize = 1000
	commit := persist.Commit{}
	send := func() error {
		if len(commit.Writes) == 0 {
			return nil
		}
		commit.ID = "fill." + commit.Writes[0].ID
		_, err := s.Commit(ctx, commit)
		commit.Writes = commit.Writes[:0]
		return err
	}
	for id, doc := range all {
		commit.Writes = append(commit.Writes, persist.Write{Key: pawl.Key{Kind: documents.Name, ID: id}, Version: 1, Doc: json.RawMessage(doc)})
		if len(commit.Writes) == batchSize {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// The documents are counted without Pawl, in the tables and files of its stores.

func countInPostgres(ctx context.Context, url string) (count func(context.Context, string) (int64, error), finish func(), err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, rows string) (n int64, err error) {
		err = pool.QueryRow(ctx, countSQL(rows, "pawl_state", pgNumber)).Scan(&n)
		return n, err
	}, pool.Close, nil
}

func countInSQLite(path string) (count func(context.Context, string) (int64, error), finish func(), err error) {
	db, err := sql.Open(sqlite.Driver, "file:"+path)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, rows string) (n int64, err error) {
		err = db.QueryRowContext(ctx, countSQL(rows, "pawl_records", liteNumber)).Scan(&n)
		return n, err
	}, func() { _ = db.Close() }, nil
}

func countInFiles(folder string) func(context.Context, string) (int64, error) {
	return func(_ context.Context, rows string) (int64, error) {
		return countFiles(filepath.Join(folder, "records", documents.Name), rows, func(text []byte) (document, error) {
			var r struct{ Content struct{ Doc document } }
			err := json.Unmarshal(text, &r)
			return r.Content.Doc, err
		})
	}
}
