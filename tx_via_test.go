package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// TestVia: state is committed inside a transaction of the user's own, and what its rollback undid is not believed.
//
// Proves TX-6.
func TestVia(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		s := tills.Scope(l.rt, "bar")
		seed(t, s, till{100})
		put := func(keep bool) {
			theirs, err := l.begin(ctx)
			require.NoError(t, err)
			require.NoError(t, theirs.add(ctx, 5))
			for range 2 { // the second sees the first
				require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
					before, err := s.In(tx).State(ctx)
					if err != nil {
						return err
					}
					return errors.Join(second(s.In(tx).IncState(ctx, "cents", before.Cents)), second(tills.Scope(tx, "new").IncState(ctx, "cents", 1)))
				}, pawl.CommitThrough(theirs.joined)))
			}
			seen, ok := s.LastSeen()
			require.True(t, ok)
			require.NotEqualValues(t, 400, seen.ReadOnly().Cents, "nobody knows that yet")
			end := theirs.undo
			if keep {
				end = theirs.commit
			}
			require.NoError(t, end(ctx))
		}
		put(false)
		require.EqualValues(t, 100, l.cents(t, "bar"))
		require.EqualValues(t, 0, l.cents(t, "new"))
		require.EqualValues(t, 0, l.sum(t))
		put(true)
		require.EqualValues(t, 5, l.sum(t))
		snap, err := s.IncState(ctx, "cents", 1) // on what this process had seen before
		require.NoError(t, err)
		require.EqualValues(t, 401, snap.ReadOnly().Cents)
		require.EqualValues(t, 4, snap.Version)
		require.EqualValues(t, 2, l.cents(t, "new"))
	})
}

func second[T any](_ T, err error) error { return err }

// TestViaRefuses: what could not be true inside somebody else's transaction is refused.
//
// Proves TX-6.
func TestViaRefuses(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		theirs, err := l.begin(ctx)
		require.NoError(t, err)
		var argument *pawl.ArgumentError
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { t.Error("nobody knows when that is") })
			return second(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(theirs.joined)), &argument)
		_, err = tills.Scope(l.rt, "bar").IncState(ctx, "cents", 1, pawl.CommitThrough(theirs.joined))
		require.ErrorAs(t, err, &argument)
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(context.Context, *pawl.Tx) error { return nil }, pawl.CommitThrough(nil)), &argument)
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(context.Context, *pawl.Tx) error { return nil }, pawl.CommitThrough(l.store)), &argument, "it is joined to nothing")
		require.NoError(t, theirs.commit(ctx))
		require.ErrorIs(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return second(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(theirs.joined)), pawl.ErrUnavailable, "it is over")
		require.Zero(t, l.cents(t, "bar"))
	})
}

// CommitThrough among the defaults of a Local is refused by its verbs, as it is by every verb that it is given to.
func TestViaOfALocal(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(t.Context())
	local := pawl.NewLocal(rt, pawl.CommitThrough(memory.New()))
	defer local.Close()
	var wrong *pawl.ArgumentError
	_, err = pawl.Sequencer[struct{ N int }](local, "1").IncState(t.Context(), "N", 1)
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "CommitThrough", wrong.Argument)
}

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
			}, pawl.CommitThrough(theirs.joined)))
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
		}, pawl.CommitThrough(theirs.joined))
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
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error { return s.In(tx).Delete(ctx) }, pawl.CommitThrough(theirs.joined)))
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, pawl.Transact(lease.Context(), l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return second(tills.Scope(tx, "kitchen").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(theirs.joined)), &lost)
		require.NoError(t, theirs.undo(ctx))
		require.NoError(t, lease.Context().Err())
		_, err = s.IncState(lease.Context(), "cents", 1)
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
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
			}, pawl.CommitThrough(theirs.joined))
			require.EqualValues(t, i+1, l.sum(t))
			if !write || err != nil {
				var unknown *pawl.UnknownOutcomeError
				require.ErrorAs(t, err, &unknown)
			}
			require.Less(t, time.Since(began), 20*time.Second, "asking again in a transaction that is over tells nothing")
		}
	})
}

// TestViaUnderLoad: transactions of the user's own, of which half are rolled back, commits with the user's SQL in them, and plain mutations write to one scope at
// the same time; state and rows agree. The user's pool, which on PostgreSQL is the store's as well, has hardly a connection to spare.
//
// Proves TX-6.
func TestViaUnderLoad(t *testing.T) {
	onLedgers(t, 2, func(t *testing.T, l ledger) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var plain, joined atomic.Int64
		var wg sync.WaitGroup
		repeat := func(n int, do func() error) {
			wg.Go(func() {
				for i := 0; i < n && ctx.Err() == nil; {
					switch err := do(); {
					case err == nil:
						i++
					case pawl.IsRetryable(err):
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range 4 {
			repeat(10, func() error {
				theirs, err := l.begin(ctx)
				if err != nil {
					return &pawl.UnavailableError{Cause: err}
				}
				err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
					return second(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
				}, pawl.CommitThrough(theirs.joined))
				if err == nil {
					err = theirs.add(ctx, 1)
				}
				if err != nil || i%2 == 0 {
					return errors.Join(err, theirs.undo(ctx))
				}
				if err := theirs.commit(ctx); err != nil {
					return err
				}
				joined.Add(1)
				return nil
			})
		}
		repeat(20, func() error { return l.pay(ctx, "bar", 1, nothing) })
		repeat(20, func() error {
			_, err := tills.Scope(l.rt, "bar").IncState(ctx, "cents", 1)
			if err == nil {
				plain.Add(1)
			}
			return err
		})
		wg.Wait()
		require.NoError(t, ctx.Err(), "it took too long")
		require.EqualValues(t, 20, joined.Load())
		require.EqualValues(t, 40, l.sum(t))
		require.EqualValues(t, 60, l.cents(t, "bar"))
	})
}
