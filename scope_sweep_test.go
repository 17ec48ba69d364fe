package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// Two sweepers clear thousands of expired scopes while writers renew them. A scope renewed before
// its expiry keeps its state; a scope renewed later starts from an absent state.
//
// Proves SCOPE-14.
func TestSweepDuringRenewals(t *testing.T) {
	sessions := 10_000
	if testkit.Short {
		sessions = 3_000
	}
	onStores(t, func(t *testing.T, p path) {
		n := sessions
		if p.name != "postgres store" {
			n = sessions / 10 // other stores take longer to commit or to find expired records
		}
		testSweepDuringRenewals(t, p, n)
	})
}

func testSweepDuringRenewals(t *testing.T, p path, sessions int) {
	ctx := t.Context()
	var sweepers []*pawl.Sweeper
	for range 2 {
		rt := p.another(t)
		_ = visits.Scope(rt, "known") // a runtime sweeps the kinds that it knows
		sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{Interval: 20 * time.Millisecond, Batch: 50})
		require.NoError(t, err)
		require.NoError(t, sweeper.Start(ctx))
		sweepers = append(sweepers, sweeper)
	}
	const users = 16
	each := func(do func(i int, s pawl.Scope[visit]) error) {
		var wg sync.WaitGroup
		for u := range users {
			wg.Go(func() {
				for i := u; i < sessions; i += users {
					if err := do(i, visits.Scope(p.rt, fmt.Sprint("s", i))); err != nil {
						t.Error(i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	each(func(i int, s pawl.Scope[visit]) error {
		_, err := s.SetState(ctx, visit{Page: "home", N: 1}, pawl.WithTTL([]time.Duration{time.Millisecond, time.Minute, time.Second}[i%3]))
		return err
	})
	// The sweepers have started: on a fast store the writers finish before the first sweep.
	testkit.Eventually(t, func() bool { return p.record(t, pawl.Key{Kind: "visit", ID: "s0"}).Deleted })
	// The store decides whether a renewal comes before the expiry.
	var kept, restarted atomic.Int64
	each(func(i int, s pawl.Scope[visit]) error {
		_, err := s.IncState(ctx, "n", 1, pawl.IfVersion(1), pawl.WithTTL(time.Hour))
		if errors.Is(err, pawl.ErrExpired) && i%3 != 1 {
			restarted.Add(1)
			_, err = s.IncState(ctx, "n", 100, pawl.WithTTL(time.Hour))
		} else if err == nil {
			kept.Add(1)
		}
		return err
	})
	for _, s := range sweepers {
		require.NoError(t, s.Stop(ctx))
	}
	var found, fresh, swept int64
	for snap, err := range visits.List(ctx, p.rt, pawl.Query{Prefix: "s"}) {
		require.NoError(t, err)
		switch *snap.ReadOnly() {
		case visit{"home", 2}:
			found++
		case visit{"", 100}:
			fresh++
			if snap.Version == 3 { // the tombstone was version 2
				swept++
			}
		default:
			t.Fatalf("%s is %+v", snap.ID, *snap.ReadOnly())
		}
	}
	require.EqualValues(t, kept.Load(), found, "a scope renewed before its expiry was lost")
	require.EqualValues(t, restarted.Load(), fresh)
	require.EqualValues(t, sessions, found+fresh)
	require.NotZero(t, swept, "no expired scope was swept before its renewal")
	t.Logf("%d scopes renewed before their expiry, %d after it, %d of those swept", found, fresh, swept)
}

// A scope that is renewed between the sweeper's read and its commit stays. The other scopes of the
// batch are swept.
//
// Proves SCOPE-14.
func TestSweepSkipsARenewedScope(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		for i := range 5 {
			_, err := visits.Scope(p.rt, fmt.Sprint(i)).SetState(ctx, visit{N: i}, pawl.WithTTL(time.Millisecond))
			require.NoError(t, err)
		}
		testkit.Eventually(t, func() bool { r := p.record(t, pawl.Key{Kind: "visit", ID: "4"}); return r.Expired(r.Now) })
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		commits := 0
		p.store.OnCommit(func(_ context.Context, c persist.Commit) error {
			if commits++; commits == 1 {
				p.put(t, pawl.Key{Kind: "visit", ID: "2"}, `{"page":"","n":42}`, 0)
			}
			return nil
		})
		swept, err := sweeper.Sweep(ctx)
		p.store.OnCommit(nil)
		require.NoError(t, err)
		require.Equal(t, 4, swept.Cleared)
		require.Equal(t, 2, commits, "the rest of the batch was not swept at once")
		requireState(t, p, visits.Scope(p.rt, "2"), 2, visit{N: 42})
	})
}

// A started sweeper sweeps on its own. Start and Stop may be called twice, and NewSweeper refuses
// invalid arguments.
//
// Proves SCOPE-14.
func TestSweeperInTheBackground(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := visits.Scope(p.rt, "a")
		_, err := s.SetState(ctx, visit{Page: "old"}, pawl.WithTTL(time.Millisecond))
		require.NoError(t, err)
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{Interval: time.Millisecond, Tombstones: time.Microsecond})
		require.NoError(t, err)
		require.NoError(t, sweeper.Start(ctx))
		require.NoError(t, sweeper.Start(ctx))
		testkit.Eventually(t, func() bool { return p.record(t, s.Key()).Absent() })
		require.NoError(t, sweeper.Stop(ctx))
		require.NoError(t, sweeper.Stop(ctx))
		require.Error(t, sweeper.Start(ctx))
	})
	var argument *pawl.ArgumentError
	_, err := pawl.NewSweeper(nil, pawl.SweeperConfig{})
	require.ErrorAs(t, err, &argument)
	rt := openRuntime(t, pawl.Config{})
	_, err = pawl.NewSweeper(rt, pawl.SweeperConfig{})
	require.ErrorIs(t, err, pawl.ErrNoStore)
	var limit *pawl.LimitError // a store takes an empty name for all kinds
	_, err = pawl.NewSweeper(openOn(t, memory.New()), pawl.SweeperConfig{Kinds: []string{"visit", ""}})
	require.ErrorAs(t, err, &limit)
	require.Equal(t, "kind", limit.What)
}

// expire writes n expired visits to store.
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

// A sweep whose batch exceeds the store's limit for one commit still clears every expired scope.
//
// Proves SCOPE-14.
func TestSweepBatchAboveTheStoreLimit(t *testing.T) {
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
	for _, s := range stores.Shared {
		if s.Name == "postgres" {
			t.Run("above the limit of PostgreSQL", func(t *testing.T) {
				store := stores.OpenFor(t, s.New(t))
				expire(t, store, 5500)
				sweep(t, store, 5500, 10_000)
			})
		}
	}
}
