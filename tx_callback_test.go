package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Callbacks run once and in order after the commit is durable. Callbacks of a run that lost or
// failed do not run.
//
// Proves TX-5.
func TestAfterCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 1})
		var ran []string
		note := func(tx *pawl.Tx, what string) {
			tx.AfterCommit(func() {
				r, err := p.store.Store.Load(t.Context(), a.Key())
				assert.NoError(t, err)
				ran = append(ran, what)
				assert.EqualValues(t, 3, r.Version, "the commit must be durable when the callback runs")
				_, err = purses.Scope(p.rt, "b").IncState(t.Context(), "balance", 1)
				assert.NoError(t, err, "no queue may be held during a callback")
			})
		}
		runs := 0
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			s, err := a.In(tx).State(ctx)
			require.NoError(t, err)
			if runs++; runs == 1 {
				note(tx, "from the run that lost")
				_, err := purses.Scope(p.another(t), "a").IncState(context.Background(), "balance", 1)
				require.NoError(t, err)
			}
			note(tx, "first")
			note(tx, "second")
			tx.AfterCommit(nil)
			s.Balance++
			if _, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1); err != nil {
				return err
			}
			_, err = a.In(tx).SetState(ctx, s)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second"}, ran)

		ran = nil
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			note(tx, "from a failed transaction")
			return errPoor
		})
		require.ErrorIs(t, err, errPoor)
		p.store.OnCommit(func(context.Context, persist.Commit) error {
			return errors.Join(persist.ErrNotApplied, persist.ErrUnavailable)
		})
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			note(tx, "from an uncommitted transaction")
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		require.Empty(t, ran)
		p.store.OnCommit(nil)

		require.PanicsWithError(t, "in a callback", func() {
			defer func() { panic(recover().(*pawl.PanicError).Value) }()
			_ = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				tx.AfterCommit(func() { panic(errors.New("in a callback")) })
				tx.AfterCommit(func() { ran = append(ran, "after a panic") })
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
		})
		require.Equal(t, []string{"after a panic"}, ran)
		_, err = a.IncState(t.Context(), "balance", 1)
		require.NoError(t, err, "the queue must be free")
	})
}

// A callback that calls Goexit after its caller has left does not keep Close from returning.
//
// Proves TX-5.
func TestGoexitInALateCallback(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{})
	entered, release := store.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	second := make(chan struct{})
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		tx.AfterCommit(func() { runtime.Goexit() })
		tx.AfterCommit(func() { close(second) })
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		return err
	})
	requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
	release()
	limit, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	require.NoError(t, rt.Close(limit))
}
