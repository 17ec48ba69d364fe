package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// An expired state is a change without state and without a new version, even if the expiry was
// moved without a version. The next write is the next version.
//
// Proves SCOPE-13, SCOPE-14.
func TestWatchExpiry(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		_, err := s.SetState(ctx, ship{Miles: 1}, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		changes := s.Changes(ctx)
		require.EqualValues(t, 1, receive(t, changes).Version)
		expire := func(version uint64, change func() error) {
			t.Helper()
			require.NoError(t, change())
			gone := receive(t, changes)
			require.False(t, gone.Exists())
			require.Equal(t, version, gone.Version)
			require.Zero(t, gone.Missed)
			_, err := s.PatchState(ctx, pawl.Patch{"miles": 2}, pawl.WithTTL(time.Hour))
			require.NoError(t, err)
			recreated := receive(t, changes)
			require.True(t, recreated.Exists())
			require.Equal(t, version+1, recreated.Version)
			require.Zero(t, recreated.Missed)
		}
		expire(1, func() error {
			_, err := s.PatchState(ctx, pawl.Patch{"miles": 1}, pawl.WithTTL(time.Millisecond))
			return err
		})
		if p.store != nil {
			expire(2, func() error {
				return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					_, err := s.In(tx).PatchState(ctx, pawl.Patch{"miles": 2}, pawl.WithTTL(time.Millisecond))
					return err
				})
			})
		}
		cancel()
		for range changes {
		}
	})
}

// A watch follows the expiry in the store when another process moves it without a new version.
//
// Proves SCOPE-13, SCOPE-14.
func TestWatchExpiryMovedByAnotherProcess(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		others := ships.Scope(here, "other").Changes(ctx)
		receive(t, others)
		touch := func(d time.Duration) {
			t.Helper()
			_, err := ships.Scope(there, "argo").PatchState(ctx, pawl.Patch{"captain": "jason"}, pawl.WithTTL(d))
			require.NoError(t, err)
		}
		touch(time.Second)
		changes := ships.Scope(here, "argo").Changes(ctx)
		require.True(t, receive(t, changes).Exists())
		for range 20 {
			time.Sleep(600 * time.Millisecond)
			touch(time.Second)
		}
		gone := within(t, changes, time.Second, 1300*time.Millisecond)
		require.False(t, gone.Exists())
		require.EqualValues(t, 1, gone.Version)
		touch(time.Hour)
		require.EqualValues(t, 2, within(t, changes, 0, 20*time.Millisecond).Version)
		touch(time.Second)
		require.False(t, within(t, changes, time.Second, 70*time.Second).Exists())
		_, err := ships.Scope(there, "argo").PatchState(ctx, pawl.Patch{"captain": "medea"})
		require.NoError(t, err)
		require.EqualValues(t, 3, receive(t, changes).Version)
		_, err = ships.Scope(there, "argo").PatchState(ctx, pawl.Patch{"captain": "medea"}, pawl.WithTTL(time.Second))
		require.NoError(t, err)
		require.False(t, within(t, changes, time.Second, 70*time.Second).Exists(), "the state had no expiry before")
	})
}

// A state does not expire while its lease is held. It expires when the lease ends.
//
// Proves SCOPE-13, SCOPE-14, STORE-13.
func TestWatchExpiryUnderALease(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		s := ships.Scope(here, "argo")
		_, err := s.SetState(ctx, ship{}, pawl.WithTTL(2*time.Second))
		require.NoError(t, err)
		l, err := ships.Scope(there, "argo").Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		changes := s.Changes(ctx)
		require.EqualValues(t, 2, receive(t, changes).Version)
		began, loads := time.Now(), store.Loads.Load()
		time.AfterFunc(5*time.Second, func() { _ = l.Release(ctx) })
		gone := within(t, changes, 5*time.Second, 5200*time.Millisecond)
		require.False(t, gone.Exists())
		require.EqualValues(t, 2, gone.Version)
		require.Less(t, store.Loads.Load()-loads, int64(50), "too many loads in %v", time.Since(began))
	})
}

// A read that returns after its version expired does not bring the expired state back.
//
// Proves SCOPE-13.
func TestWatchStaleRead(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		s := ships.Scope(here, "argo")
		_, err := s.SetState(ctx, ship{Miles: 7}, pawl.WithTTL(time.Second))
		require.NoError(t, err)
		changes := s.Changes(ctx)
		require.True(t, receive(t, changes).Exists())
		stale, err := store.Store.Load(ctx, s.Key())
		require.NoError(t, err)
		require.False(t, within(t, changes, 0, 1300*time.Millisecond).Exists())
		store.set(func() { store.stale = &stale })
		_, err = s.Snapshot(ctx) // returns the stale record
		require.NoError(t, err)
		store.set(func() { store.stale = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case c := <-changes:
			t.Fatalf("the expired state came back: %v", c)
		default:
		}
	})
}

// A watch learns at once of an expiry that this process moves, without a read of the store.
//
// Proves SCOPE-13, SCOPE-14.
func TestWatchExpiryMovedByThisProcess(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, _ *pawl.Runtime) {
		s := ships.Scope(here, "argo")
		touch := func(d time.Duration) {
			t.Helper()
			_, err := s.PatchState(ctx, pawl.Patch{"captain": "jason"}, pawl.WithTTL(d))
			require.NoError(t, err)
		}
		touch(time.Hour)
		others := ships.Scope(here, "other").Changes(ctx)
		receive(t, others)
		changes := s.Changes(ctx)
		receive(t, changes)
		touch(time.Second)
		require.False(t, within(t, changes, time.Second, 1200*time.Millisecond).Exists())
	})
}
