package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A transaction inside another one is part of it: its writes share the outer commit. If it fails,
// only its own writes are undone.
//
// Proves TX-1.
func TestTransactJoins(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		before := p.store.Commits.Load()
		var ran []string
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			require.NoError(t, err)
			err = pawl.Transact(ctx, tx, func(ctx context.Context, inner *pawl.Tx) error {
				inner.AfterCommit(func() { ran = append(ran, "undone") })
				_, err := purses.Scope(inner, "a").IncState(ctx, "balance", 100)
				require.NoError(t, err)
				_, err = purses.Scope(inner, "b").IncState(ctx, "balance", 100)
				require.NoError(t, err)
				return errPoor
			})
			require.ErrorIs(t, err, errPoor)
			require.Panics(t, func() {
				_ = pawl.Transact(t.Context(), tx, func(ctx context.Context, inner *pawl.Tx) error {
					_, err := purses.Scope(p.rt, "a").State(ctx)
					assert.ErrorIs(t, err, pawl.ErrOutsideTx, "also with a context that does not come from the outer transaction")
					_, err = purses.Scope(inner, "c").IncState(ctx, "balance", 100)
					assert.NoError(t, err)
					panic("no")
				})
			})
			return pawl.Transact(ctx, tx, func(ctx context.Context, inner *pawl.Tx) error {
				inner.AfterCommit(func() { ran = append(ran, "kept") })
				_, err := purses.Scope(inner, "d").IncState(ctx, "balance", 1)
				return err
			}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, p.store.Commits.Load()-before)
		requireState(t, p, purses.Scope(p.rt, "a"), 2, purse{Balance: 11})
		requireAbsent(t, p, purses.Scope(p.rt, "b"))
		requireAbsent(t, p, purses.Scope(p.rt, "c"))
		requireState(t, p, purses.Scope(p.rt, "d"), 1, purse{Balance: 1})
		require.Equal(t, []string{"kept"}, ran)
	})
}

// A function that starts while a joined transaction is undone causes no data race.
func TestFunctionWhileAJoinedTransactionIsUndone(t *testing.T) {
	rt := openOn(t, memory.New())
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		a := purses.Scope(tx, "a")
		_, err := a.IncState(ctx, "balance", 1)
		require.NoError(t, err)
		done := make(chan struct{})
		_ = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			go func() {
				defer close(done)
				_, _ = a.AtomicState(ctx, func(context.Context, *purse) error { time.Sleep(50 * time.Millisecond); return nil })
			}()
			time.Sleep(20 * time.Millisecond)
			return errPoor
		})
		<-done
		return nil
	})
	require.NoError(t, err)
}

// A verb of a joined transaction that was undone still counts as a read, which the commit checks.
//
// Proves TX-2.
func TestUndoneVerbsCountAsReads(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	name := purses.Scope(rt, "name")
	_, err := name.State(t.Context())
	require.NoError(t, err)
	seed(t, purses.Scope(other, "name"), purse{Balance: 1})
	dry := errors.New("dry run")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		err := pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := name.In(tx).SetState(ctx, purse{}, pawl.IfAbsent()); err != nil {
				return err
			}
			return dry
		})
		verdict := "taken"
		if errors.Is(err, dry) {
			verdict = "free"
		} else if !errors.Is(err, pawl.ErrExists) {
			return err
		}
		_, err = purses.Scope(tx, "report").SetStateRecord(ctx, "notes", "name", verdict)
		return err
	})
	require.NoError(t, err)
	runtime.KeepAlive(name)
	s, err := purses.Scope(rt, "report").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, "taken", s.Notes["name"])
}
