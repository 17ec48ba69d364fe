package stores_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// BenchmarkFirst shows where the time of a first request with a key goes, on PostgreSQL:
//
//   - by hand: an INSERT that claims the key, and an UPDATE with the response;
//   - commits: the two commits of the store, which claim and record;
//   - calls: the same after a read, as idempotency.Do calls the store;
//   - Do: idempotency.Do.
func BenchmarkFirst(b *testing.B) {
	b.Run("by hand", func(b *testing.B) {
		once := onceByHand(b)
		for n := 0; b.Loop(); n++ {
			once(fmt.Sprint(n))
		}
	})
	for name, reads := range map[string]bool{"commits": false, "calls": true} {
		b.Run(name, func(b *testing.B) {
			store := stores.OpenFor(b, stores.Postgres.New(b))
			for n := 0; b.Loop(); n++ {
				key := persist.Key{Kind: "request", ID: fmt.Sprint(n)}
				if reads {
					_, err := store.Load(b.Context(), key)
					require.ErrorIs(b, err, persist.ErrNotFound)
				}
				onceInStore(b, store, key)
			}
		})
	}
	b.Run("Do", func(b *testing.B) {
		rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(b, stores.Postgres.New(b))})
		require.NoError(b, err)
		defer rt.Close(context.Background())
		keys, err := idempotency.New(rt, idempotency.Config{})
		require.NoError(b, err)
		for n := 0; b.Loop(); n++ {
			op := idempotency.Op{Principal: "ann", Name: "order", Key: fmt.Sprint(n)}
			_, _, err := idempotency.Do(b.Context(), keys, op, func(context.Context) (string, error) { return "done", nil })
			require.NoError(b, err)
		}
	})
}

// onceInStore claims key with a lease, and then records a response and gives the lease back.
func onceInStore(b *testing.B, store persist.Store, key persist.Key) {
	const print = `"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"`
	ctx, claim, record := patient{context.Background()}, "0123456789abcdef.1", "0123456789abcdef.2"
	_, err := store.Commit(ctx, persist.Commit{ID: claim, Writes: []persist.Write{{
		Key: key, Version: 1, TTL: time.Hour, Doc: []byte(`{"print":` + print + `}`),
		Acquire: &persist.Acquire{Holder: "worker", For: time.Minute},
	}}})
	require.NoError(b, err)
	_, err = store.Commit(ctx, persist.Commit{
		ID: record,
		Writes: []persist.Write{{
			Key: key, Expected: 1, Version: 2, TTL: time.Hour, Recent: []string{claim},
			Doc: []byte(`{"print":` + print + `,"done":true,"body":"ImRvbmUi"}`),
		}},
		Guards: []persist.Guard{{Key: key, Token: 1, Release: true}},
	})
	require.NoError(b, err)
}

// onceByHand returns a function that claims a key in a table, and records a response.
func onceByHand(b *testing.B) (once func(key string)) {
	const (
		create = `CREATE TABLE requests (key text PRIMARY KEY, holder text NOT NULL, until bigint NOT NULL, expires bigint NOT NULL, response text)`
		index  = `CREATE INDEX requests_expires ON requests (expires)`
		claim  = `INSERT INTO requests (key, holder, until, expires) VALUES ($1, $2, $3, $4) ON CONFLICT (key) DO UPDATE
			SET holder = excluded.holder, until = excluded.until, expires = excluded.expires
			WHERE requests.response IS NULL AND requests.until < $5`
		record = `UPDATE requests SET response = $1 WHERE key = $2 AND holder = $3 AND response IS NULL`
	)
	pool, err := pgxpool.New(b.Context(), stores.Postgres.New(b))
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	exec := func(text string, args ...any) {
		_, err := pool.Exec(b.Context(), text, args...)
		require.NoError(b, err)
	}
	exec(create)
	exec(index)
	return func(key string) {
		now := time.Now()
		exec(claim, key, "worker", now.Add(time.Minute).UnixMilli(), now.Add(time.Hour).UnixMilli(), now.UnixMilli())
		exec(record, `"done"`, key, "worker")
	}
}
