package pawl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// A caller that leaves before the commit withdraws its changes. A caller that leaves during the
// commit is told that the outcome is unknown.
//
// Proves CAS-9, TX-5.
func TestTransactCallerLeaves(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 1})
		cause := errors.New("changed my mind")

		t.Run("in the function", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				cancel(cause)
				return err
			})
			requireLeft(t, err, pawl.PhaseQueued, cause)
			requireState(t, p, a, 1, purse{Balance: 1})
		})
		t.Run("in the queue", func(t *testing.T) {
			entered, release := p.store.Hold()
			first := make(chan error)
			go func() {
				_, err := a.SetStateRecord(context.Background(), "notes", "k", "v")
				first <- err
			}()
			<-entered
			ctx, cancel := context.WithCancelCause(t.Context())
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				time.AfterFunc(time.Millisecond, func() { cancel(cause) })
				return err
			})
			requireLeft(t, err, pawl.PhaseQueued, cause)
			release()
			require.NoError(t, <-first)
			p.store.OnCommit(nil)
			requireState(t, p, a, 2, purse{Balance: 1, Notes: map[string]string{"k": "v"}})
		})
		t.Run("in the commit", func(t *testing.T) {
			entered, release := p.store.Hold()
			ctx, cancel := context.WithCancelCause(t.Context())
			told := make(chan struct{})
			go func() {
				<-entered
				cancel(cause)
			}()
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				tx.AfterCommit(func() { close(told) })
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
			requireLeft(t, err, pawl.PhaseCommitting, cause)
			require.True(t, pawl.OutcomeUnknown(err))
			release()
			<-told
			p.store.OnCommit(nil)
			requireState(t, p, a, 3, purse{Balance: 2, Notes: map[string]string{"k": "v"}})
			_, err = a.IncState(t.Context(), "balance", 1)
			require.NoError(t, err, "the queue must be free")
		})
		t.Run("before it began", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			err := pawl.Transact(ctx, p.rt, func(context.Context, *pawl.Tx) error { t.Error("the function ran after its context ended"); return nil })
			requireLeft(t, err, pawl.PhaseQueued, cause)
		})
	})
}

// requireLeft asserts that err reports a caller that left in phase because of cause.
func requireLeft(t *testing.T, err error, phase pawl.Phase, cause error) {
	t.Helper()
	var canceled *pawl.CanceledError
	require.ErrorAs(t, err, &canceled)
	require.Equal(t, phase, canceled.Phase)
	require.ErrorIs(t, err, cause)
}

// An error of the function is not returned if the caller leaves before the error is confirmed.
//
// Proves TX-2.
func TestErrorOfACallerThatLeft(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := purses.Scope(other, "a").IncState(t.Context(), "balance", 100)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		err := pay(ctx, tx, "a", "b", 10)
		cancel()
		return err
	})
	require.NotErrorIs(t, err, errPoor, "the stored balance was always sufficient")
	requireLeft(t, err, pawl.PhaseQueued, context.Canceled)
}
