package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

type visit struct {
	Page string `json:"page"`
	N    int    `json:"n"`
}

var visits = pawl.Kind[visit]{Name: "visit"}

// TestSweptScopesStartAnew: what has expired reads as absent before and after it is swept, a write starts anew in the same sequence of versions,
// and a deleted scope stays deleted.
//
// Proves SCOPE-14, SCOPE-10.
func TestSweptScopesStartAnew(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		a, b, c, gone := visits.Scope(p.rt, "a"), visits.Scope(p.rt, "b"), visits.Scope(p.rt, "c"), visits.Scope(p.rt, "gone")
		for _, s := range []pawl.Scope[visit]{a, b} {
			_, err := s.SetState(ctx, visit{Page: "home"}, pawl.WithTTL(time.Millisecond))
			require.NoError(t, err)
		}
		seed(t, c, visit{Page: "stays"})
		seed(t, gone, visit{Page: "gone"})
		require.NoError(t, gone.Delete(ctx))
		soon(t, func() bool { s, err := b.Snapshot(ctx); return err == nil && !s.Exists() })
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		swept, err := sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, pawl.Swept{Cleared: 2}, swept)
		swept, err = sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Zero(t, swept, "nothing is swept twice")
		r := p.record(t, a.Key())
		require.Nil(t, r.Doc)
		require.EqualValues(t, 2, r.Version)

		for _, rt := range []*pawl.Runtime{p.rt, p.another(t)} { // one has seen it alive, the other has not
			s := visits.Scope(rt, map[bool]string{true: "a", false: "b"}[rt == p.rt])
			snap, err := s.Snapshot(ctx)
			require.NoError(t, err)
			require.False(t, snap.Exists())
			_, err = s.PatchState(ctx, pawl.Patch{"n": 1}, pawl.IfVersion(1))
			require.ErrorIs(t, err, pawl.ErrExpired)
			_, err = s.PatchState(ctx, pawl.Patch{"n": 1}, pawl.IfExists())
			require.ErrorIs(t, err, pawl.ErrNotFound)
			require.NoError(t, s.Delete(ctx), "there is nothing to delete")
			snap, err = s.IncState(ctx, "n", 5)
			require.NoError(t, err, "not deleted, but expired")
			require.EqualValues(t, 3, snap.Version)
			require.Equal(t, visit{N: 5}, snap.State())
		}
		requireState(t, p, c, 1, visit{Page: "stays"})
		_, err = gone.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// TestPurgedTombstonesReuseNoVersion: tombstones are purged when they are old enough, those of expired scopes too, and what is created
// afterwards gets a higher version than any of them had.
//
// Proves SCOPE-10.
func TestPurgedTombstonesReuseNoVersion(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		deleted, expired := visits.Scope(p.rt, "deleted"), visits.Scope(p.rt, "expired")
		for range 5 {
			_, err := deleted.IncState(ctx, "n", 1)
			require.NoError(t, err)
		}
		require.NoError(t, deleted.Delete(ctx))
		_, err := expired.IncState(ctx, "n", 1, pawl.WithTTL(time.Millisecond))
		require.NoError(t, err)
		keeps, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		soon(t, func() bool { swept, err := keeps.Sweep(ctx); return err == nil && swept.Cleared == 1 })
		require.True(t, p.record(t, deleted.Key()).Deleted, "seven days have not passed")
		purges, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{Tombstones: time.Microsecond})
		require.NoError(t, err)
		total := 0
		soon(t, func() bool {
			swept, err := purges.Sweep(ctx)
			require.NoError(t, err)
			total += swept.Purged
			return total == 2
		})
		_, err = p.store.Load(ctx, deleted.Key())
		require.ErrorIs(t, err, persist.ErrNotFound)
		for i, s := range []pawl.Scope[visit]{deleted, expired, visits.Scope(p.another(t), "new")} {
			snap, err := s.IncState(ctx, "n", 1)
			require.NoError(t, err, i)
			require.Greater(t, snap.Version, uint64(6), i)
		}
	})
}

// TestHeldScopesDoNotExpire: a lease keeps its scope alive and unswept; when it is given back, the expiry counts again.
//
// Proves SCOPE-14.
func TestHeldScopesDoNotExpire(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := visits.Scope(p.rt, "a")
		l, err := s.Acquire(ctx, pawl.Applying(pawl.Set{State: visit{Page: "kept"}}, pawl.WithTTL(time.Millisecond)))
		require.NoError(t, err)
		soon(t, func() bool { r := p.record(t, s.Key()); return r.Now.After(r.Expires) })
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		swept, err := sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Zero(t, swept)
		requireState(t, p, s, 1, visit{Page: "kept"})
		require.NoError(t, l.Release(ctx))
		snap, err := s.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists())
		swept, err = sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, swept.Cleared)
	})
}

// TestSweepingAndRenewing: thousands of sessions expire and are swept, by two sweepers, while their users come back; whoever came back in time has lost
// nothing, and whoever came too late starts anew.
//
// Proves SCOPE-14.
func TestSweepingAndRenewing(t *testing.T) {
	sessions := 10_000
	if shortForm {
		sessions = 3_000
	}
	onStores(t, func(t *testing.T, p path) {
		n := sessions
		if p.name != "postgres store" {
			n = sessions / 10 // their share: finding what has expired, or a commit, takes longer
		}
		testSweepingAndRenewing(t, p, n)
	})
}

func testSweepingAndRenewing(t *testing.T, p path, sessions int) {
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
	soon(t, func() bool { return p.record(t, pawl.Key{Kind: "visit", ID: "s0"}).Deleted }) // the sweepers are at it: a quick store is done before they begin
	// They come back. Whether in time is for the store to say.
	var kept, anew atomic.Int64
	each(func(i int, s pawl.Scope[visit]) error {
		_, err := s.IncState(ctx, "n", 1, pawl.IfVersion(1), pawl.WithTTL(time.Hour))
		if errors.Is(err, pawl.ErrExpired) && i%3 != 1 {
			anew.Add(1)
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
	require.EqualValues(t, kept.Load(), found, "somebody who came back in time was lost")
	require.EqualValues(t, anew.Load(), fresh)
	require.EqualValues(t, sessions, found+fresh)
	require.NotZero(t, swept, "nothing was swept in time")
	t.Logf("%d came back in time, %d too late, of which %d were swept", found, fresh, swept)
}

// TestSweepLeavesOut: a scope that is renewed between the sweeper's look and its commit stays, and the others of its batch are swept.
//
// Proves SCOPE-14.
func TestSweepLeavesOut(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		for i := range 5 {
			_, err := visits.Scope(p.rt, fmt.Sprint(i)).SetState(ctx, visit{N: i}, pawl.WithTTL(time.Millisecond))
			require.NoError(t, err)
		}
		soon(t, func() bool { r := p.record(t, pawl.Key{Kind: "visit", ID: "4"}); return r.Expired(r.Now) })
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		came := false
		p.store.onCommit(func(_ context.Context, c persist.Commit) error {
			if !came {
				came = true
				p.put(t, pawl.Key{Kind: "visit", ID: "2"}, `{"page":"","n":42}`, 0)
			}
			return nil
		})
		swept, err := sweeper.Sweep(ctx)
		p.store.onCommit(nil)
		require.NoError(t, err)
		require.Equal(t, 4, swept.Cleared)
		requireState(t, p, visits.Scope(p.rt, "2"), 2, visit{N: 42})
	})
}

// TestAcquireKeepsTheExpiry: taking and giving back a lease leaves the expiry as it is.
//
// Proves SCOPE-14.
func TestAcquireKeepsTheExpiry(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := visits.Scope(p.rt, "a")
		_, err := s.SetState(ctx, visit{}, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		before := p.record(t, s.Key()).Expires
		require.False(t, before.IsZero())
		l, err := s.Acquire(ctx)
		require.NoError(t, err)
		require.NoError(t, l.Release(ctx))
		require.Equal(t, before, p.record(t, s.Key()).Expires)
	})
}

// TestSweeperInTheBackground: it sweeps by itself, starts and stops more than once safely, and refuses what makes no sense.
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
		soon(t, func() bool { return p.record(t, s.Key()).Absent() })
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
}
