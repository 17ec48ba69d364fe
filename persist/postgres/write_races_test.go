package postgres

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// TestBatchesOfNextVersionsRace: batches of two stores on the same records, while other
// transactions lock records and change leases, lose and repeat no commit, and write no locked
// record.
//
// Proves STORE-2.
func TestBatchesOfNextVersionsRace(t *testing.T) {
	url := pgtest.URL(t)
	const keys, writers = 6, 12
	stores := []*Store{openAt(t, url, Config{}), openAt(t, url, Config{})}
	id := func(i int) string { return fmt.Sprint("k", i) }
	for i := range keys {
		must(t, stores[0], put(id(i), 0))
	}
	for _, s := range stores {
		s.queue.maxDirect = 0
	}
	until := time.Now().Add(2 * time.Second)
	var landed [keys]atomic.Uint64
	var all sync.WaitGroup
	for n := range writers {
		s := stores[n%2]
		all.Go(func() {
			for time.Now().Before(until) {
				i := rand.N(keys)
				c := put(id(i), load(t, s, id(i)).Version)
				c.Writes[0].Recent = []string{}
				_, err := s.Commit(t.Context(), c)
				var conflict *persist.Conflict
				if err == nil {
					landed[i].Add(1)
				} else if !errors.As(err, &conflict) {
					t.Error(err)
				}
			}
		})
	}
	for n := range 2 {
		conn := pgtest.Connect(t, url)
		all.Go(func() {
			for time.Now().Before(until) {
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				key := id(rand.N(keys))
				var before, after int64
				err = tx.QueryRow(t.Context(), "SELECT version FROM pawl_records WHERE id = $1 FOR SHARE", key).Scan(&before)
				time.Sleep(time.Duration(rand.N(15)) * time.Millisecond)
				if err == nil {
					err = tx.QueryRow(t.Context(), "SELECT version FROM pawl_records WHERE id = $1", key).Scan(&after)
				}
				if err == nil && n == 0 {
					_, err = tx.Exec(t.Context(), "UPDATE pawl_records SET token = token + 1 WHERE id = $1", key)
				}
				if err == nil && before != after {
					t.Errorf("%s: %d became %d under a lock", key, before, after)
				}
				if err != nil {
					_ = tx.Rollback(t.Context())
				} else if err = tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i := range keys {
		require.Equal(t, 1+landed[i].Load(), load(t, stores[0], id(i)).Version, id(i))
	}
}
