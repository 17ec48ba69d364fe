package pawl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// TestViaKeepsWhatItRead: what a transaction has read, be it one scope only and be that absent, stays as it was until the user's own transaction ends,
// because rows of theirs are made of it.
//
// Proves TX-6.
func TestViaKeepsWhatItRead(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		seed(t, tills.Scope(l.rt, "bar"), till{100})
		for _, id := range []string{"bar", "absent"} {
			theirs, err := l.begin(ctx)
			require.NoError(t, err)
			defer func() { _ = theirs.undo(context.WithoutCancel(ctx)) }() // should anything fail
			var read int64
			require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
				s, err := tills.Scope(tx, id).State(ctx)
				read = s.Cents
				return err
			}, pawl.Via(theirs.joined)))
			require.NoError(t, theirs.add(ctx, read))
			hasty, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			_, err = tills.Scope(l.rt, id).IncState(hasty, "cents", 1)
			cancel()
			require.Error(t, err, "%s has changed between being read and the commit of what was made of it", id)
			require.NoError(t, theirs.commit(ctx))
			_, err = tills.Scope(l.rt, id).IncState(ctx, "cents", 1)
			require.NoError(t, err)
		}
	})
}

// TestViaReturnsTheFunctionsError: a function that fails because its own SQL did gets its error back, although nothing
// can be confirmed in a transaction that has failed.
//
// Proves TX-6.
func TestViaReturnsTheFunctionsError(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		theirs, err := l.begin(ctx)
		require.NoError(t, err)
		defer func() { _ = theirs.undo(context.WithoutCancel(ctx)) }()
		var failure error
		err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			for _, id := range []string{"bar", "kitchen"} {
				if _, err := tills.Scope(tx, id).State(ctx); err != nil {
					return err
				}
			}
			failure = theirs.exec(ctx, "INSERT INTO nowhere VALUES (1)")
			return failure
		}, pawl.Via(theirs.joined))
		require.Error(t, failure)
		require.Equal(t, failure, err)
	})
}

// TestViaEndsNoLease: a lease that ended inside the user's own transaction, which was then rolled back, has not ended.
//
// Proves TX-6.
func TestViaEndsNoLease(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		s := tills.Scope(l.rt, "bar")
		lease, err := s.Acquire(ctx)
		require.NoError(t, err)
		theirs, err := l.begin(ctx)
		require.NoError(t, err)
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error { return s.In(tx).Delete(ctx) }, pawl.Via(theirs.joined)))
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, pawl.Transact(lease.Context(), l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return second(tills.Scope(tx, "kitchen").IncState(ctx, "cents", 1))
		}, pawl.Via(theirs.joined)), &lost)
		require.NoError(t, theirs.undo(ctx))
		require.NoError(t, lease.Context().Err())
		_, err = s.IncState(lease.Context(), "cents", 1)
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
	})
}

// TestNativeCallerLeaves: a caller that leaves while its SQL runs learns that it left, as everywhere, and that nothing was written; that it lost its
// lease, if that is why.
//
// Proves TX-6.
func TestNativeCallerLeaves(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := l.pay(ctx, "bar", 7, func(context.Context) error { cancel(); return nil })
		var canceled *pawl.CanceledError
		require.ErrorAs(t, err, &canceled)
		require.Equal(t, pawl.PhaseQueued, canceled.Phase)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, pawl.IsRetryable(err))

		lease, err := tills.Scope(l.rt, "kitchen").Acquire(t.Context())
		require.NoError(t, err)
		err = l.pay(lease.Context(), "bar", 7, func(context.Context) error {
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, lease.Release(gone))
			return nil
		})
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, err, &lost)
		require.Zero(t, l.sum(t))
		require.Zero(t, l.cents(t, "bar"))
	})
}

// TestNativeUnderALease: what the user's code inside a commit does beside it is tested against the lease around it.
//
// Proves TX-6.
func TestNativeUnderALease(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		lease, err := tills.Scope(l.rt, "kitchen").Acquire(t.Context())
		require.NoError(t, err)
		beside := pawl.Memory[till](l.rt, "beside")
		_ = l.pay(lease.Context(), "bar", 7, func(ctx context.Context) error {
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, lease.Release(gone))
			_, err := beside.IncState(context.WithoutCancel(pawl.Detach(ctx)), "cents", 1)
			var lost *pawl.LeaseLostError
			require.ErrorAs(t, err, &lost)
			return errors.New("enough")
		})
	})
}

// TestViaEndedInside: SQL inside a commit that ends the user's own transaction, against the rules, is not told that nothing was written.
//
// Proves TX-6.
func TestViaEndedInside(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		for i, write := range []bool{false, true} {
			theirs, err := l.begin(ctx)
			require.NoError(t, err)
			defer func() { _ = theirs.undo(context.WithoutCancel(ctx)) }()
			began := time.Now()
			err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if write {
					if _, err := tills.Scope(tx, "bar").IncState(ctx, "cents", 1); err != nil {
						return err
					}
				}
				return l.native(tx, 1, func(ctx context.Context) error { return theirs.exec(ctx, "COMMIT") })
			}, pawl.Via(theirs.joined))
			require.EqualValues(t, i+1, l.sum(t))
			if !write || err != nil {
				var unknown *pawl.UnknownOutcomeError
				require.ErrorAs(t, err, &unknown)
			}
			require.Less(t, time.Since(began), 20*time.Second, "asking again in a transaction that is over tells nothing")
		}
	})
}
