package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// TestReleaseWithItsOwnContext: a lease can be released with the context that ends by it.
func TestReleaseWithItsOwnContext(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
		defer cancel()
		require.NoError(t, l.Release(ctx))
		require.Zero(t, p.record(t, s.Key()).Lease)
	})
}

// TestAcquireOfACallerThatLeft: a caller that leaves while its commit is under way leaves no lease behind.
func TestAcquireOfACallerThatLeft(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		ctx, leave := context.WithCancel(t.Context())
		entered, release := p.store.hold()
		done := make(chan error)
		go func() {
			_, err := s.Acquire(ctx)
			done <- err
		}()
		<-entered
		leave()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, pawl.OutcomeUnknown(err))
		release()
		soon(t, func() bool { r := p.record(t, s.Key()); return r.Version == 1 && r.Lease.Token == 0 })
	})
}

// TestAcquireApplyingAFunctionThatWaits: a function that is applied with a lease hears that its caller has left, and whoever comes next gets the lease.
func TestAcquireApplyingAFunctionThatWaits(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ended := make(chan struct{})
		_, err := s.Acquire(ctx, pawl.Applying(pawl.Atomic(func(ctx context.Context, _ *ship) error {
			leave()
			select {
			case <-ctx.Done():
				close(ended)
			case <-t.Context().Done():
			}
			return ctx.Err()
		})))
		require.ErrorIs(t, err, context.Canceled)
		select {
		case <-ended:
		case <-time.After(waitLong):
			t.Fatal("the function does not hear of it")
		}
		ctx, cancel := context.WithTimeout(t.Context(), waitLong)
		defer cancel()
		l, err := s.Acquire(ctx, pawl.Wait())
		require.NoError(t, err)
		require.EqualValues(t, 1, l.Token(), "nothing came of the first")
		require.NoError(t, l.Release(ctx))
	})
}

// TestStoreThatPanicsUnderALease: a store that panics when a lease is renewed or released costs the lease, and nothing else.
func TestStoreThatPanicsUnderALease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		p.store.onCommit(func(_ context.Context, c persist.Commit) error {
			if len(c.Writes) == 0 {
				panic("a bug in the store")
			}
			return nil
		})
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(50*time.Millisecond))
		require.NoError(t, err)
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		l, err = s.Acquire(t.Context(), pawl.LeaseFor(50*time.Millisecond), pawl.Wait())
		require.NoError(t, err)
		require.ErrorIs(t, l.Release(t.Context()), pawl.ErrUnavailable)
		p.store.onCommit(nil)
	})
}

// TestLaterHolderInThisProcess: when the store gives a lease anew, because its scope was deleted meanwhile, the context of the one before has ended
// before the new holder has it.
//
// Proves STORE-13.
func TestLaterHolderInThisProcess(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		for _, take := range []bool{false, true} {
			id := map[bool]string{false: "acquired", true: "taken"}[take]
			s, elsewhere := errands.Scope(p.rt, id), errands.Scope(p.another(t), id)
			first, err := s.Acquire(ctx)
			require.NoError(t, err)
			require.NoError(t, elsewhere.Delete(ctx))
			_, err = elsewhere.SetState(ctx, errand{}, pawl.IfAbsent())
			require.NoError(t, err)
			var second *pawl.Lease
			if take {
				taken, err := errands.Take(ctx, p.rt, pawl.Query{Prefix: id})
				require.NoError(t, err)
				require.Len(t, taken, 1)
				second = taken[0].Lease
			} else {
				second, err = s.Acquire(ctx)
				require.NoError(t, err)
			}
			require.Greater(t, second.Token(), first.Token())
			require.ErrorIs(t, context.Cause(first.Context()), pawl.ErrLeaseLost)
			require.NoError(t, first.Release(ctx))
			require.NoError(t, second.Context().Err())
			require.NoError(t, second.Release(ctx))
		}
	})
}

// TestHoldInsideItself: whoever waits for a lease under that very lease would wait for good, and is told who holds it.
func TestHoldInsideItself(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithTimeout(t.Context(), waitLong)
		defer cancel()
		s := ships.Scope(p.rt, "argo")
		require.NoError(t, s.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
			err := s.Hold(ctx, func(context.Context, *pawl.Lease) error { return nil }, pawl.Wait())
			var held *pawl.HeldError
			require.ErrorAs(t, err, &held)
			require.Equal(t, l.Token(), held.Token)
			return nil
		}))
	})
}

// TestCloseAndHold: a function that ends because its runtime closes gives its lease back.
func TestCloseAndHold(t *testing.T) {
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

// TestLeaseThatLandsTooLate: a lease that the store gives when its caller's budget is spent is given back.
func TestLeaseThatLandsTooLate(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		told := make(chan struct{})
		p.store.onCommitted(func(at time.Time, err error) (time.Time, error) {
			<-told
			return at, err
		})
		_, err := s.Acquire(t.Context(), pawl.LeaseFor(time.Hour))
		require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
		require.NotZero(t, p.record(t, s.Key()).Lease)
		close(told)
		soon(t, func() bool { return p.record(t, s.Key()).Lease.Token == 0 })
	}, func(c *pawl.Config) { c.Retry.Within = 200 * time.Millisecond })
}
