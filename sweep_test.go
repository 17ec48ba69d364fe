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
		requireAbsent(t, p, s)
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
	onStores(t, func(t *testing.T, p path) {
		n := sessions
		if p.name == "fs store" || p.name == "postgres store" {
			n = sessions / 5 // their share: a commit takes longer
		}
		testSweepingAndRenewing(t, p, n)
	})
}

func testSweepingAndRenewing(t *testing.T, p path, sessions int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sweeping sync.WaitGroup
	var cleared atomic.Int64
	for range 2 {
		sweeper, err := pawl.NewSweeper(p.another(t), pawl.SweeperConfig{Interval: time.Millisecond, Batch: 50})
		require.NoError(t, err)
		_ = visits.Scope(p.rt, "x")
		sweeping.Go(func() {
			for ctx.Err() == nil {
				swept, err := sweeper.Sweep(ctx)
				cleared.Add(int64(swept.Cleared))
				if ctx.Err() == nil && err != nil {
					t.Error(err)
				}
			}
		})
	}
	const users = 16
	var wg sync.WaitGroup
	var anew, kept atomic.Int64
	for u := range users {
		wg.Go(func() {
			for i := u; i < sessions; i += users {
				s := visits.Scope(p.rt, fmt.Sprint("s", i))
				ttl := []time.Duration{time.Millisecond, time.Minute}[i%2]
				_, err := s.SetState(ctx, visit{Page: "home", N: 1}, pawl.WithTTL(ttl))
				if err != nil {
					t.Error(err)
					return
				}
				// The user comes back. In time or not is for the store to say: onto the version that was seen, or it has expired.
				_, err = s.IncState(ctx, "n", 1, pawl.IfVersion(1), pawl.WithTTL(time.Hour))
				switch {
				case err == nil:
					kept.Add(1)
				case errors.Is(err, pawl.ErrExpired) && i%2 == 0:
					anew.Add(1)
					_, err = s.IncState(ctx, "n", 100, pawl.WithTTL(time.Hour))
				}
				if err != nil {
					t.Error(i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	cancel()
	sweeping.Wait()
	var found, fresh int64
	for snap, err := range visits.List(t.Context(), p.rt, pawl.Query{Prefix: "s"}) {
		require.NoError(t, err)
		switch *snap.ReadOnly() {
		case visit{"home", 2}:
			found++
		case visit{"", 100}:
			fresh++
		default:
			t.Fatalf("%s is %+v", snap.ID, *snap.ReadOnly())
		}
	}
	require.EqualValues(t, kept.Load(), found, "somebody who came back in time was lost")
	require.EqualValues(t, anew.Load(), fresh)
	require.EqualValues(t, sessions, found+fresh)
	t.Logf("%d came back in time, %d too late; %d were swept", found, fresh, cleared.Load())
}
