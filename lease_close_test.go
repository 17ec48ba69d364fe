package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// Close ends the contexts of leases, refuses pending calls of Acquire, and waits for the functions
// of Hold. A lease left in the store runs out.
//
// Proves STORE-13.
func TestCloseEndsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTap()
		rt, err := pawl.Open(pawl.Config{Store: h})
		require.NoError(t, err)
		ctx := context.Background()
		scope := func(id string) pawl.Scope[counts] { return pawl.Session[counts](rt, id) }
		held, err := scope("a").Acquire(ctx)
		require.NoError(t, err)
		waiting := []<-chan acquired{acquire(scope("a"), pawl.WaitForLease()), acquire(scope("a"), pawl.WaitForLease())}
		free := make(chan struct{})
		run := make(chan error, 1)
		var inside error
		go func() {
			run <- scope("b").Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
				<-free
				_, inside = scope("b").IncState(context.WithoutCancel(ctx), "n", 1)
				return nil
			})
		}()
		synctest.Wait()
		open, entered := gate(h)
		committing := acquire(scope("c"), pawl.WaitForLease())
		<-entered
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var busy *pawl.BusyError
		require.ErrorAs(t, rt.Close(short), &busy)
		verbs := map[string]string{}
		for _, r := range busy.Running {
			verbs[r.Scope.ID] = r.Verb
		}
		require.Equal(t, map[string]string{"b": "Hold", "c": "Acquire"}, verbs)
		require.ErrorIs(t, context.Cause(held.Context()), pawl.ErrLeaseLost)
		require.ErrorIs(t, context.Cause(held.Context()), pawl.ErrClosed)
		for _, w := range waiting {
			require.ErrorIs(t, (<-w).err, pawl.ErrClosed)
		}
		open()
		require.ErrorIs(t, (<-committing).err, pawl.ErrClosed)
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- rt.Close(ctx) }()
		synctest.Wait()
		require.Empty(t, closed, "Close returned while a function of Hold was running")
		close(free)
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, <-run, &lost)
		require.Error(t, inside)
		require.NoError(t, <-closed)
		_, err = scope("d").Acquire(ctx, pawl.WaitForLease())
		require.ErrorIs(t, err, pawl.ErrClosed)
		r, err := h.Store.Load(ctx, scope("c").Key())
		require.NoError(t, err)
		require.Zero(t, r.Lease, "the refused Acquire left a lease behind")
		h.Around(nil)
		next := openAnother(t, h)
		began := time.Now()
		l, err := pawl.Session[counts](next, "a").Acquire(ctx, pawl.WaitForLease())
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), pawl.DefaultLease+time.Second)
		require.NoError(t, l.Release(ctx))
		require.NoError(t, next.Close(ctx))
	})
}

// Close refuses callers that wait for a lease of another process at once, not when they would ask
// again. Proves STORE-13.
func TestCloseRefusesWaitersForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := context.Background(), newTap()
		other, rt := openAnother(t, store), openAnother(t, store)
		l, err := pawl.Session[counts](other, "a").Acquire(ctx)
		require.NoError(t, err)
		waiting := acquire(pawl.Session[counts](rt, "a"), pawl.WaitForLease())
		synctest.Wait()
		began := time.Now()
		require.NoError(t, rt.Close(ctx))
		require.ErrorIs(t, (<-waiting).err, pawl.ErrClosed)
		require.Zero(t, time.Since(began))
		require.NoError(t, l.Release(ctx))
		require.NoError(t, other.Close(ctx))
	})
}

// Hold gives the lease back when its function returns because the runtime closes.
func TestHoldReleasesOnClose(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		rt, err := pawl.Open(p.config)
		require.NoError(t, err)
		s := ships.Scope(rt, "argo")
		began, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- s.Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
				close(began)
				<-ctx.Done()
				return nil
			})
		}()
		<-began
		require.NoError(t, rt.Close(t.Context()))
		require.Zero(t, p.record(t, s.Key()).Lease)
		require.ErrorIs(t, <-done, pawl.ErrLeaseLost)
	})
}
