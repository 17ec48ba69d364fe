package stores_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// BenchmarkLone shows where the time of a lone commit goes. Each change is one commit of the same record:
//
//   - by hand: an UPDATE of a table with a version;
//   - store: Store.Commit, on the goroutine of the caller;
//   - handed over: the same on another goroutine;
//   - verb: IncState, which adds the queue and its worker.
//
// On a disk in memory (TMPDIR=/dev/shm) the rest is processor time.
func BenchmarkLone(b *testing.B) {
	for _, s := range []stores.Store{stores.SQLite, stores.Postgres} {
		b.Run(s.Name, func(b *testing.B) {
			b.Run("by hand", func(b *testing.B) {
				update := updateByHand(b, s)
				for version := int64(1); b.Loop(); version++ {
					update(version)
				}
			})
			b.Run("store", func(b *testing.B) {
				commit := commits(b, s)
				for b.Loop() {
					commit()
				}
			})
			b.Run("handed over", func(b *testing.B) {
				commit, next, done := commits(b, s), make(chan struct{}), make(chan struct{})
				go func() {
					for range next {
						commit()
						done <- struct{}{}
					}
				}()
				for b.Loop() {
					next <- struct{}{}
					<-done
				}
				close(next)
			})
			b.Run("verb", func(b *testing.B) {
				rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(b, s.New(b))})
				require.NoError(b, err)
				defer rt.Close(context.Background())
				scope := pawl.Kind[struct{ N int }]{Name: "counter"}.Scope(rt, "a")
				for b.Loop() {
					_, err := scope.IncState(b.Context(), "N", 1)
					require.NoError(b, err)
				}
			})
		})
	}
}

// patient is a context that a store need not leave before its deadline.
type patient struct{ context.Context }

func (patient) Patient() {}

// commits returns a function that changes one record of a new store, as a scope does that no other
// process writes.
func commits(b *testing.B, s stores.Store) (commit func()) {
	store := stores.OpenFor(b, s.New(b))
	w := persist.Write{Key: persist.Key{Kind: "counter", ID: "a"}, Doc: []byte(`{"N":1}`)}
	return func() {
		w.Expected, w.Version = w.Version, w.Version+1
		id := fmt.Sprintf("0123456789abcdef.%d", w.Version)
		_, err := store.Commit(patient{context.Background()}, persist.Commit{ID: id, Writes: []persist.Write{w}})
		require.NoError(b, err)
		w.Recent = persist.Remember(w.Recent, id)
	}
}

// updateByHand returns a function that replaces a version of the one row of a new table.
func updateByHand(b *testing.B, s stores.Store) (update func(version int64)) {
	const (
		create = "CREATE TABLE counters (id text PRIMARY KEY, version bigint, doc text)"
		insert = "INSERT INTO counters VALUES ('a', 1, '{}')"
		change = "UPDATE counters SET version = $1 + 1, doc = $2 WHERE id = $3 AND version = $1"
	)
	if s.Name == stores.Postgres.Name {
		pool, err := pgxpool.New(b.Context(), s.New(b))
		require.NoError(b, err)
		b.Cleanup(pool.Close)
		for _, text := range []string{create, insert} {
			_, err := pool.Exec(b.Context(), text)
			require.NoError(b, err)
		}
		return func(version int64) {
			tag, err := pool.Exec(b.Context(), change, version, `{"N":1}`, "a")
			require.NoError(b, err)
			require.EqualValues(b, 1, tag.RowsAffected())
		}
	}
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(b.TempDir(), "counters.db")+"?_journal_mode=WAL&_synchronous=FULL")
	require.NoError(b, err)
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	for _, text := range []string{create, insert} {
		_, err := db.Exec(text)
		require.NoError(b, err)
	}
	prepared, err := db.Prepare(change)
	require.NoError(b, err)
	return func(version int64) {
		result, err := prepared.Exec(version, `{"N":1}`, "a")
		require.NoError(b, err)
		n, err := result.RowsAffected()
		require.NoError(b, err)
		require.EqualValues(b, 1, n)
	}
}
