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

// State is committed inside a transaction of the user. If the user rolls it back, the runtime
// discards the state.
//
// Proves TX-6.
func TestCommitThrough(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		s := tills.Scope(l.rt, "bar")
		seed(t, s, till{100})
		put := func(keep bool) {
			utx, err := l.begin(ctx)
			require.NoError(t, err)
			require.NoError(t, utx.add(ctx, 5))
			for range 2 { // the second sees the first
				require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
					before, err := s.In(tx).State(ctx)
					if err != nil {
						return err
					}
					return errors.Join(errorOf(s.In(tx).IncState(ctx, "cents", before.Cents)), errorOf(tills.Scope(tx, "new").IncState(ctx, "cents", 1)))
				}, pawl.CommitThrough(utx.joined)))
			}
			seen, ok := s.LastSeen()
			require.True(t, ok)
			require.NotEqualValues(t, 400, seen.ReadOnly().Cents, "the state is not committed yet")
			end := utx.undo
			if keep {
				end = utx.commit
			}
			require.NoError(t, end(ctx))
		}
		put(false)
		require.EqualValues(t, 100, l.cents(t, "bar"))
		require.EqualValues(t, 0, l.cents(t, "new"))
		require.EqualValues(t, 0, l.sum(t))
		put(true)
		require.EqualValues(t, 5, l.sum(t))
		snap, err := s.IncState(ctx, "cents", 1) // on a stale cached version
		require.NoError(t, err)
		require.EqualValues(t, 401, snap.ReadOnly().Cents)
		require.EqualValues(t, 4, snap.Version)
		require.EqualValues(t, 2, l.cents(t, "new"))
	})
}

// errorOf returns the error of a call with two results.
func errorOf[T any](_ T, err error) error { return err }

// Callbacks, single verbs, an unjoined store and an ended transaction are refused.
//
// Proves TX-6.
func TestCommitThroughRefusals(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		utx, err := l.begin(ctx)
		require.NoError(t, err)
		var argument *pawl.ArgumentError
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { t.Error("the callback ran before the user's commit") })
			return errorOf(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(utx.joined)), &argument)
		_, err = tills.Scope(l.rt, "bar").IncState(ctx, "cents", 1, pawl.CommitThrough(utx.joined))
		require.ErrorAs(t, err, &argument)
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(context.Context, *pawl.Tx) error { return nil }, pawl.CommitThrough(nil)), &argument)
		require.ErrorAs(t, pawl.Transact(ctx, l.rt, func(context.Context, *pawl.Tx) error { return nil }, pawl.CommitThrough(l.store)), &argument, "the store is not joined to a transaction")
		require.NoError(t, utx.commit(ctx))
		require.ErrorIs(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return errorOf(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(utx.joined)), pawl.ErrUnavailable, "the transaction of the user has ended")
		require.Zero(t, l.cents(t, "bar"))
	})
}

// A verb refuses CommitThrough also when it comes from the default options of a Local.
func TestCommitThroughInALocal(t *testing.T) {
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

// A scope that was read, present or absent, cannot change before the user's transaction ends. The
// user's rows may depend on it.
//
// Proves TX-6.
func TestCommitThroughKeepsReadsStable(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		seed(t, tills.Scope(l.rt, "bar"), till{100})
		for _, id := range []string{"bar", "absent"} {
			utx, err := l.begin(ctx)
			require.NoError(t, err)
			defer func() { _ = utx.undo(context.WithoutCancel(ctx)) }() // if an assertion fails
			var read int64
			require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
				s, err := tills.Scope(tx, id).State(ctx)
				read = s.Cents
				return err
			}, pawl.CommitThrough(utx.joined)))
			require.NoError(t, utx.add(ctx, read))
			hasty, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			_, err = tills.Scope(l.rt, id).IncState(hasty, "cents", 1)
			cancel()
			require.Error(t, err, "%s changed between its read and the commit of the row", id)
			require.NoError(t, utx.commit(ctx))
			_, err = tills.Scope(l.rt, id).IncState(ctx, "cents", 1)
			require.NoError(t, err)
		}
	})
}

// Transact returns the error of a function whose SQL failed, although the failed database
// transaction cannot confirm reads.
//
// Proves TX-6.
func TestCommitThroughReturnsTheFunctionsError(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		utx, err := l.begin(ctx)
		require.NoError(t, err)
		defer func() { _ = utx.undo(context.WithoutCancel(ctx)) }()
		var failure error
		err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			for _, id := range []string{"bar", "kitchen"} {
				if _, err := tills.Scope(tx, id).State(ctx); err != nil {
					return err
				}
			}
			failure = utx.exec(ctx, "INSERT INTO nowhere VALUES (1)")
			return failure
		}, pawl.CommitThrough(utx.joined))
		require.Error(t, failure)
		require.Equal(t, failure, err)
	})
}

// A lease that ended inside the user's transaction is still held after its rollback.
//
// Proves TX-6.
func TestCommitThroughRollbackKeepsTheLease(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		s := tills.Scope(l.rt, "bar")
		lease, err := s.Acquire(ctx)
		require.NoError(t, err)
		utx, err := l.begin(ctx)
		require.NoError(t, err)
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error { return s.In(tx).Delete(ctx) }, pawl.CommitThrough(utx.joined)))
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, pawl.Transact(lease.Context(), l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return errorOf(tills.Scope(tx, "kitchen").IncState(ctx, "cents", 1))
		}, pawl.CommitThrough(utx.joined)), &lost)
		require.NoError(t, utx.undo(ctx))
		require.NoError(t, lease.Context().Err())
		_, err = s.IncState(lease.Context(), "cents", 1)
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
	})
}

// If SQL inside the commit ends the user's transaction, the caller is not told that nothing was
// written.
//
// Proves TX-6.
func TestCommitThroughEndedBySQL(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		for i, write := range []bool{false, true} {
			utx, err := l.begin(ctx)
			require.NoError(t, err)
			defer func() { _ = utx.undo(context.WithoutCancel(ctx)) }()
			began := time.Now()
			err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if write {
					if _, err := tills.Scope(tx, "bar").IncState(ctx, "cents", 1); err != nil {
						return err
					}
				}
				return l.native(tx, 1, func(ctx context.Context) error { return utx.exec(ctx, "COMMIT") })
			}, pawl.CommitThrough(utx.joined))
			require.EqualValues(t, i+1, l.sum(t))
			if !write || err != nil {
				var unknown *pawl.UnknownOutcomeError
				require.ErrorAs(t, err, &unknown)
			}
			require.Less(t, time.Since(began), 20*time.Second, "the commit was retried in an ended transaction")
		}
	})
}

// User transactions, half of them rolled back, commits with SQL and plain mutations write one scope
// together; state and rows agree. The pool has only two connections, which PostgreSQL's store
// shares.
//
// Proves TX-6.
func TestCommitThroughUnderLoad(t *testing.T) {
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
				utx, err := l.begin(ctx)
				if err != nil {
					return &pawl.UnavailableError{Cause: err}
				}
				err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
					return errorOf(tills.Scope(tx, "bar").IncState(ctx, "cents", 1))
				}, pawl.CommitThrough(utx.joined))
				if err == nil {
					err = utx.add(ctx, 1)
				}
				if err != nil || i%2 == 0 {
					return errors.Join(err, utx.undo(ctx))
				}
				if err := utx.commit(ctx); err != nil {
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
		require.NoError(t, ctx.Err(), "the writers did not finish in time")
		require.EqualValues(t, 20, joined.Load())
		require.EqualValues(t, 40, l.sum(t))
		require.EqualValues(t, 60, l.cents(t, "bar"))
	})
}
