package pawl_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// A call that cannot be part of the transaction returns an error that names the reason.
//
// Proves TX-4.
func TestTransactRefusesOutsideCalls(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		var kept *pawl.Tx
		inside := func(fn func(ctx context.Context, tx *pawl.Tx)) {
			t.Helper()
			require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				fn(ctx, tx)
				return nil
			}))
		}
		inside(func(ctx context.Context, tx *pawl.Tx) {
			kept = tx
			outside, memory := purses.Scope(p.rt, "a"), pawl.Memory[board](p.rt, "m")
			local := pawl.Sequencer[board](pawl.NewLocal(p.rt), "l")
			_, err := pawl.Memory[board](tx, "m").IncState(ctx, "count", 1)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			_, err = pawl.Memory[board](tx, "m").State(ctx)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			_, err = memory.In(tx).State(ctx)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			for _, derived := range []context.Context{ctx, context.WithValue(ctx, tx, 1)} {
				_, err = outside.IncState(derived, "balance", 1)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = outside.State(derived)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = outside.AtomicState(derived, func(context.Context, *purse) error { return nil })
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				require.ErrorIs(t, outside.Delete(derived), pawl.ErrOutsideTx)
				_, err = memory.IncState(derived, "count", 1)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = memory.State(derived)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = local.AtomicState(derived, func(context.Context, *board) error { return nil })
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				var own pawl.Container[board]
				_, err = pawl.ApplyMutation(derived, &own, pawl.ContainerOptions[board]{}, pawl.Inc{Field: "count", By: 1})
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			}
			require.ErrorIs(t, pawl.Transact(ctx, p.rt, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrOutsideTx)
			for _, err := range purses.List(ctx, tx, pawl.Query{}) {
				require.ErrorIs(t, err, pawl.ErrInTx)
			}
			for _, err := range purses.List(ctx, p.rt, pawl.Query{}) {
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			}
			inside(func(_ context.Context, other *pawl.Tx) { // an independent transaction, on the context of the test
				_, err = purses.Scope(other, "a").State(ctx)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			})
			_, err = outside.IncState(pawl.Detach(ctx), "balance", 1)
			require.NoError(t, err, "Detach must allow the call")
			_, err = outside.In(tx).AtomicState(ctx, func(ctx context.Context, _ *purse) error {
				_, err := outside.In(tx).IncState(ctx, "balance", 1)
				require.ErrorIs(t, err, pawl.ErrReentrant)
				_, err = outside.State(ctx)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				return nil
			})
			require.NoError(t, err)
		})
		_, err := purses.Scope(kept, "a").IncState(t.Context(), "balance", 1)
		require.ErrorIs(t, err, pawl.ErrClosed)
		_, err = purses.Scope(kept, "a").State(t.Context())
		require.ErrorIs(t, err, pawl.ErrClosed)
		require.ErrorIs(t, pawl.Transact(t.Context(), kept, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrClosed)
		kept.AfterCommit(func() { t.Error("a callback ran after the end of its transaction") })
		requireState(t, p, purses.Scope(p.rt, "a"), 1, purse{Balance: 1})
	})
}

// Transact returns ArgumentError for invalid arguments, and ErrNoStore without a store.
func TestTransactRefusesArguments(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		nothing := func(context.Context, *pawl.Tx) error { return nil }
		var argument *pawl.ArgumentError
		var none context.Context
		require.ErrorAs(t, pawl.Transact(none, p.rt, nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), nil, nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), (*pawl.Tx)(nil), nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nil), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, nil), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, pawl.IfAbsent()), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, pawl.WithRetry(pawl.Retry{Attempts: -1})), &argument)
		_, err := purses.Scope(p.rt, "a").In(nil).State(t.Context())
		require.ErrorAs(t, err, &argument)
		other := p.another(t)
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(other, "a").In(tx).State(ctx)
			require.ErrorAs(t, err, &argument)
			return nil
		}))
		memory := openRuntime(t, pawl.Config{})
		require.ErrorIs(t, pawl.Transact(t.Context(), memory, nothing), pawl.ErrNoStore)
	})
}

// On a store that commits only single keys, a transaction over two scopes returns ErrUnsupported.
func TestTransactOnASingleKeyStore(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		p.store.OnCommit(func(_ context.Context, c persist.Commit) error {
			if len(c.Writes)+len(c.Guards) > 1 {
				return persist.ErrUnsupported
			}
			return nil
		})
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			require.NoError(t, err)
			_, err = purses.Scope(tx, "b").IncState(ctx, "balance", 1)
			return err
		})
		require.ErrorIs(t, err, persist.ErrUnsupported)
		require.False(t, pawl.IsRetryable(err))
		requireAbsent(t, p, purses.Scope(p.rt, "a"))
	})
}

// slowContext is a context whose second call of Err runs at before it returns.
type slowContext struct {
	context.Context
	asked atomic.Int32
	at    func()
}

func (c *slowContext) Err() error {
	if c.asked.Add(1) == 2 {
		c.at()
	}
	return c.Context.Err()
}

// A verb that is still running when the function returns is refused with ErrClosed.
//
// Proves TX-1.
func TestVerbInFlightWhenTheFunctionReturns(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	checked, over, verb := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		go func() {
			slow := &slowContext{Context: context.Background(), at: func() { close(checked); <-over }}
			_, err := a.In(tx).IncState(slow, "balance", 1)
			verb <- err
		}()
		<-checked
		return nil
	})
	require.NoError(t, err)
	close(over)
	require.ErrorIs(t, <-verb, pawl.ErrClosed, "a verb after the end of the transaction was acknowledged")
}

// A verb that is still running when the commit starts is refused and not committed.
//
// Proves TX-1.
func TestLateVerbIsNotCommitted(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{})
	seed(t, b, purse{})
	checked, over, verb := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	other := openOn(t, store.Store)
	var n atomic.Int32
	store.OnCommit(func(ctx context.Context, c persist.Commit) error {
		if n.Add(1) == 1 {
			_, err := purses.Scope(other, "a").IncState(ctx, "balance", 100)
			close(over)
			time.Sleep(30 * time.Millisecond)
			return err
		}
		return nil
	})
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		go func() {
			slow := &slowContext{Context: context.Background(), at: func() { close(checked); <-over }}
			_, err := a.In(tx).IncState(slow, "balance", 7)
			verb <- err
		}()
		<-checked
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		return err
	})
	require.NoError(t, err)
	got := <-verb
	s, err := a.State(t.Context())
	require.NoError(t, err)
	t.Log("the late verb returned", got, "balance", s.Balance)
	require.ErrorIs(t, got, pawl.ErrClosed)
}
