package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// expire puts n visits into store that have expired.
func expire(t *testing.T, store persist.Store, n int) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		c := persist.Commit{ID: fmt.Sprint("test.", from)}
		for i := from; i < min(n, from+1000); i++ {
			c.Writes = append(c.Writes, persist.Write{Key: persist.Key{Kind: "visit", ID: fmt.Sprint(i)}, Version: 1, Doc: json.RawMessage(`{"page":"","n":1}`), TTL: time.Microsecond})
		}
		_, err := store.Commit(t.Context(), c)
		require.NoError(t, err)
	}
}

// oneByOne is a store that cannot commit several keys at once.
type oneByOne struct{ persist.Store }

func (s oneByOne) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if len(c.Keys()) > 1 {
		return time.Time{}, persist.ErrUnsupported
	}
	return s.Store.Commit(ctx, c)
}

// TestSweepBatchesThatFit: a batch that is larger than what the store takes in one commit is no reason to clear nothing, ever.
//
// Proves SCOPE-14.
func TestSweepBatchesThatFit(t *testing.T) {
	sweep := func(t *testing.T, store persist.Store, n, batch int) {
		rt := openRuntime(t, pawl.Config{Store: store})
		_ = visits.Scope(rt, "known")
		sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{Batch: batch})
		require.NoError(t, err)
		swept, err := sweeper.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, n, swept.Cleared)
	}
	onStores(t, func(t *testing.T, p path) {
		expire(t, p.store, 20)
		sweep(t, oneByOne{p.store.Store}, 20, 8)
	})
	for _, s := range sharedStores {
		if s.name == "postgres" {
			t.Run("larger than PostgreSQL takes", func(t *testing.T) {
				store := openFor(t, s.location(t))
				expire(t, store, 5500)
				sweep(t, store, 5500, 10_000)
			})
		}
	}
}
