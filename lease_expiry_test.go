package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// A scope does not expire while its lease is held, and List shows it. Acquire does not extend its
// time to live.
//
// Proves STORE-13.
func TestLeasedScopeDoesNotExpire(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx := t.Context()
		_, err := s.SetState(ctx, counts{N: 1}, pawl.WithTTL(time.Minute))
		require.NoError(t, err)
		l, err := s.Acquire(ctx)
		require.NoError(t, err)
		listed := func() (n int) {
			for _, err := range (pawl.Kind[counts]{Name: pawl.KindSession}).List(ctx, rt, pawl.Query{}) {
				require.NoError(t, err)
				n++
			}
			return n
		}
		time.Sleep(time.Hour)
		snap, err := s.Snapshot(ctx)
		require.NoError(t, err)
		require.True(t, snap.Exists())
		require.Equal(t, 1, listed())
		_, err = s.IncState(l.Context(), "n", 1, pawl.IfExists(), pawl.WithTTL(time.Minute))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, l.Release(ctx))
		snap, err = s.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists())
		require.Zero(t, listed())
	})
}

// A sweep leaves a scope alone while its lease is held. When the lease is given back, the scope has
// expired.
//
// Proves SCOPE-14.
func TestHeldScopeIsNotSwept(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := visits.Scope(p.rt, "a")
		l, err := s.Acquire(ctx, pawl.WithMutation(pawl.Set{State: visit{Page: "kept"}}, pawl.WithTTL(time.Millisecond)))
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { r := p.record(t, s.Key()); return r.Now.After(r.Expires) })
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

// Acquire and Release leave the expiry of the scope unchanged.
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

// A mutation that only renews the expiry is not undone by an Acquire in the same commit.
//
// Proves STORE-13.
func TestAcquireKeepsARenewedExpiry(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.SetState(t.Context(), counts{N: 1}, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		entered, free := make(chan struct{}), make(chan struct{})
		h.OnLoad(func(context.Context, ...persist.Key) error { close(entered); <-free; return nil })
		elsewhere := openAnother(t, h)
		other := pawl.Session[counts](elsewhere, "a")
		go func() { _, _ = other.PatchState(context.Background(), pawl.Patch{}) }()
		<-entered // mutations submitted during this Load share a batch
		h.OnLoad(nil)
		renewed := make(chan error, 1)
		go func() {
			_, err := other.PatchState(context.Background(), pawl.Patch{"n": 1}, pawl.WithTTL(3*time.Hour))
			renewed <- err
		}()
		synctest.Wait()
		taken := acquire(other)
		close(free)
		require.NoError(t, <-renewed)
		l := <-taken
		require.NoError(t, l.err)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Version)
		require.Greater(t, r.Expires.Sub(r.Now), 2*time.Hour)
		require.NoError(t, l.lease.Release(t.Context()))
		require.NoError(t, elsewhere.Close(t.Context()))
	})
}
