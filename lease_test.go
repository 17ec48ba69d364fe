package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

type ship struct {
	Captain string `json:"captain"`
	Miles   int    `json:"miles"`
}

var ships = pawl.Kind[ship]{Name: "ship"}

// TestHold: while the lease is held its scope is open to others, another holder is refused, and what is committed with its context is fenced.
//
// Proves STORE-13.
func TestHold(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		var lost context.Context
		err := s.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
			require.EqualValues(t, 1, l.Token())
			lost = ctx
			_, err := s.Acquire(ctx, pawl.HeldBy("second"))
			var held *pawl.HeldError
			require.ErrorAs(t, err, &held)
			require.Equal(t, "first", held.Holder)
			require.EqualValues(t, 1, held.Token)
			require.Positive(t, held.Left)
			require.ErrorIs(t, err, pawl.ErrHeld)
			require.True(t, pawl.IsRetryable(err))
			_, err = s.PatchState(context.WithoutCancel(t.Context()), pawl.Patch{"captain": "jason"})
			require.NoError(t, err, "others may write")
			_, err = s.IncState(ctx, "miles", 3)
			return err
		}, pawl.HeldBy("first"), pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		requireState(t, p, s, 3, ship{"jason", 3})
		_, err = s.IncState(lost, "miles", 1)
		var over *pawl.LeaseLostError
		require.ErrorAs(t, err, &over)
		require.True(t, over.Released)
		_, err = s.IncState(context.WithoutCancel(lost), "miles", 1)
		require.ErrorAs(t, err, &over)
		requireState(t, p, s, 3, ship{"jason", 3})
		require.Zero(t, p.record(t, s.Key()).Lease)
	})
}

// TestLeaseRunsOut: a holder that cannot renew loses its context before somebody else has the lease, and commits nothing afterwards.
//
// Proves STORE-13.
func TestLeaseRunsOut(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(ctx, pawl.LeaseFor(60*time.Millisecond))
		require.NoError(t, err)
		down := errors.New("the network is down")
		p.store.onCommit(func(context.Context, persist.Commit) error { return down })
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		p.store.onCommit(nil)
		other, err := ships.Scope(p.another(t), "argo").Acquire(ctx, pawl.Wait())
		require.NoError(t, err)
		require.Greater(t, other.Token(), l.Token())
		_, err = s.PatchState(context.WithoutCancel(l.Context()), pawl.Patch{"captain": "late"})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.NoError(t, l.Release(ctx), "nothing to give back")
		require.Equal(t, other.Token(), p.record(t, s.Key()).Lease.Token)
		require.NoError(t, other.Release(ctx))
	})
}

// TestRenewalMovesNoVersion: a lease outlives its length while its holder lives, and its scope stays as it is.
//
// Proves STORE-13.
func TestRenewalMovesNoVersion(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(600*time.Millisecond))
		require.NoError(t, err)
		first := p.record(t, s.Key())
		soon(t, func() bool {
			return p.record(t, s.Key()).Lease.Until.After(first.Lease.Until.Add(400 * time.Millisecond))
		})
		require.Equal(t, first.Version, p.record(t, s.Key()).Version)
		require.Equal(t, first.Updated, p.record(t, s.Key()).Updated)
		require.NoError(t, l.Context().Err())
		require.NoError(t, l.Release(t.Context()))
	})
}

// TestLeaseLine: many wait for one lease, two runtimes take part, and there is never more than one holder.
//
// Proves STORE-13.
func TestLeaseLine(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		runtimes := []*pawl.Runtime{p.rt, p.another(t)}
		var holders, most atomic.Int32
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				err := ships.Scope(runtimes[i%2], "argo").Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
					if n := holders.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer holders.Add(-1)
					_, err := ships.Scope(runtimes[i%2], "argo").IncState(ctx, "miles", 1)
					return err
				}, pawl.Wait())
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, most.Load())
		s, err := ships.Scope(p.rt, "argo").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 40, s.Miles)
	})
}

// TestLeaseInASharedCommit: in a shared commit a lost token drops only its own mutation.
//
// Proves STORE-13.
func TestLeaseInASharedCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, lock := ships.Scope(p.rt, "argo"), ships.Scope(p.rt, "lock")
		l, err := lock.Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		seed(t, s, ship{})
		// The lease is ended behind its holder's back.
		require.NoError(t, ships.Scope(p.another(t), "lock").Delete(ctx))
		entered, release := p.store.hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, err := s.IncState(ctx, "miles", 1); require.NoError(t, err) })
		<-entered
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				under := ctx
				if i%2 == 0 {
					under = l.Context()
				}
				_, errs[i] = s.IncState(under, "miles", 10)
			})
		}
		release()
		wg.Wait()
		for i, err := range errs {
			if i%2 == 0 {
				require.ErrorIs(t, err, pawl.ErrLeaseLost, i)
			} else {
				require.NoError(t, err, i)
			}
		}
		state, err := s.State(ctx)
		require.NoError(t, err)
		require.Equal(t, 41, state.Miles)
		require.Error(t, l.Context().Err(), "it has heard of it")
	})
}

// TestLeaseAndTransact: a transaction under a lease commits only while that is live.
//
// Proves STORE-13.
func TestLeaseAndTransact(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, lock := ships.Scope(p.rt, "argo"), ships.Scope(p.rt, "lock")
		l, err := lock.Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		sail := func(ctx context.Context) error {
			return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := lock.In(tx).State(ctx); err != nil {
					return err
				}
				_, err := s.In(tx).IncState(ctx, "miles", 1)
				return err
			})
		}
		require.NoError(t, sail(l.Context()))
		require.ErrorIs(t, pawl.Transact(l.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := s.In(tx).Acquire(ctx)
			return err
		}), pawl.ErrInTx)
		require.NoError(t, ships.Scope(p.another(t), "lock").Delete(ctx))
		err = sail(l.Context())
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		requireState(t, p, s, 1, ship{Miles: 1})
	})
}
