package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// A transaction under a lease commits only while the lease is live.
//
// Proves STORE-13.
func TestTransactUnderALease(t *testing.T) {
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

// ReleaseIn ends the lease only if the transaction commits. With a lease that has already ended the
// commit is refused.
//
// Proves STORE-13, TX-1.
func TestReleaseIn(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, other := ships.Scope(p.rt, "argo"), ships.Scope(p.rt, "pinta")
		l, err := s.Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		err = pawl.Transact(l.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			require.NoError(t, l.ReleaseIn(tx))
			_, err := s.In(tx).IncState(ctx, "miles", 1)
			require.NoError(t, err)
			return errPoor
		})
		require.ErrorIs(t, err, errPoor)
		require.NoError(t, l.Context().Err(), "nothing was committed")
		require.Equal(t, l.Token(), p.record(t, s.Key()).Lease.Token)

		runs := 0
		err = pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if runs++; runs == 1 { // another writer causes a conflict, once
				_, err := s.IncState(t.Context(), "miles", 1)
				require.NoError(t, err)
			}
			state, err := s.In(tx).State(ctx)
			require.NoError(t, err)
			failed := pawl.Transact(ctx, tx, func(context.Context, *pawl.Tx) error {
				require.NoError(t, l.ReleaseIn(tx))
				return errPoor
			})
			require.ErrorIs(t, failed, errPoor, "the nested transaction fails, which undoes ReleaseIn")
			_, err = other.In(tx).PatchState(ctx, pawl.Patch{"miles": state.Miles})
			return err
		})
		require.NoError(t, err)
		require.NoError(t, l.Context().Err())

		err = pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			require.NoError(t, l.ReleaseIn(tx))
			_, err := other.In(tx).IncState(ctx, "miles", 1)
			return err
		})
		require.NoError(t, err)
		require.Zero(t, p.record(t, s.Key()).Lease)
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		next, err := s.Acquire(ctx)
		require.NoError(t, err, "the lease is free at once")

		err = pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			require.NoError(t, l.ReleaseIn(tx))
			_, err := other.In(tx).IncState(ctx, "miles", 1)
			return err
		})
		require.ErrorIs(t, err, pawl.ErrLeaseLost, "the lease was given back before")
		require.Equal(t, next.Token(), p.record(t, s.Key()).Lease.Token)
		requireState(t, p, other, 2, ship{Miles: 2})
		var bad *pawl.ArgumentError
		require.ErrorAs(t, l.ReleaseIn(nil), &bad)
		require.NoError(t, next.Release(ctx))
	})
}

// A transaction that only reads and gives a lease back commits only if its reads are still current.
//
// Proves TX-2.
func TestReleaseInChecksReads(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		crew := ships.Scope(p.rt, "crew")
		l, err := ships.Scope(p.rt, "argo").Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		other := ships.Scope(p.another(t), "crew")
		attempts, miles := 0, 0
		err = pawl.Transact(l.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			attempts++
			state, err := crew.In(tx).State(ctx)
			require.NoError(t, err)
			miles = int(state.Miles)
			if attempts == 1 { // another process changes the state that was read
				_, err := other.IncState(t.Context(), "miles", 7)
				require.NoError(t, err)
			}
			return l.ReleaseIn(tx)
		})
		require.NoError(t, err)
		require.Equal(t, 7, miles, "the lease was given back on a stale read")
		require.Equal(t, 2, attempts)
		require.Zero(t, p.record(t, ships.Scope(p.rt, "argo").Key()).Lease)
	})
}
