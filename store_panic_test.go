package pawl_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A panic or Goexit in the store leaves the outcome unknown, and the scope accepts further
// mutations.
func TestStorePanicsOrExits(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("driver") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := newTap()
			store.OnCommit(func(context.Context, persist.Commit) error {
				store.OnCommit(nil)
				fail()
				return nil
			})
			bubble(t, pawl.Config{Store: store}, func(t *testing.T, rt *pawl.Runtime) {
				s := pawl.Session[counts](rt, "a")
				_, err := s.IncState(t.Context(), "n", 1)
				assert.ErrorIs(t, err, pawl.ErrUnknownOutcome)
				snap, err := s.IncState(t.Context(), "n", 1)
				require.NoError(t, err, "the scope must accept mutations")
				assert.Equal(t, 1, snap.ReadOnly().N)
			})
		})
	}
}

// A transaction releases its queues when the store panics or calls Goexit in a read.
func TestStorePanicsInATransactionsRead(t *testing.T) {
	for name, bad := range map[string]func(){"panic": func() { panic("store") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := &slowReader{newTap(), bad}
			rt, other := openOn(t, store), openOn(t, store.Store)
			b := purses.Scope(rt, "b")
			seed(t, b, purse{})
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_ = pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
					s, err := b.In(tx).State(ctx)
					if err != nil {
						return err
					}
					_, err = purses.Scope(other, "b").IncState(context.Background(), "balance", 1)
					if err != nil {
						return err
					}
					_, err = b.In(tx).SetState(ctx, s)
					return err
				})
			}()
			t.Logf("%T", <-done)
			_, err := b.IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// A transaction releases its queues when the store panics or calls Goexit in the commit.
func TestStorePanicsInATransactionsCommit(t *testing.T) {
	for name, bad := range map[string]func(){"panic": func() { panic("store") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := newTap()
			rt := openOn(t, store)
			a := purses.Scope(rt, "a")
			seed(t, a, purse{})
			store.OnCommit(func(context.Context, persist.Commit) error { bad(); return nil })
			err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
			require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
			store.OnCommit(nil)
			_, err = a.IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// A store that panics while it renews or releases a lease costs only that lease.
func TestStorePanicsInALeaseCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		p.store.OnCommit(func(_ context.Context, c persist.Commit) error {
			if len(c.Writes) == 0 {
				panic("a bug in the store")
			}
			return nil
		})
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(time.Second))
		require.NoError(t, err)
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		l, err = s.Acquire(t.Context(), pawl.LeaseFor(time.Minute), pawl.WaitForLease())
		require.NoError(t, err)
		require.ErrorIs(t, l.Release(t.Context()), pawl.ErrUnavailable)
		p.store.OnCommit(nil)
	})
}
