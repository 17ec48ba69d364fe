package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// A function that returns at the moment when it is abandoned: its caller has been told by then, and what it waited with is not used for anybody
// else while the round is not over. Whoever mutates next is answered. Proves CAS-4.
func TestAbandonedAsItReturns(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openRuntime(t, pawl.Config{Store: store})
	s := pawl.Session[counts](rt, "a")
	within := pawl.WithRetry(pawl.Retry{Within: 3 * time.Second})
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		var stop, started atomic.Bool
		done := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error {
				started.Store(true)
				for !stop.Load() {
					runtime.Gosched()
				}
				return nil
			}, within)
			done <- err
		}()
		for !started.Load() {
			runtime.Gosched()
		}
		stop.Store(true)
		abandoned := s.Abandon()
		err := <-done
		if err != nil {
			require.True(t, abandoned)
			require.ErrorIs(t, err, pawl.ErrAbandoned)
		}
		_, err = s.IncState(t.Context(), "n", 1, within)
		require.NoError(t, err)
	}
}

// The context of a function that has returned is still in somebody's hands when what its caller waited with serves another call: a circle that is
// found through it names the scope that the function was of. Proves LOCK-10.
func TestCircleThroughAReturnedFunction(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: memory.New()})
	outer, inner := pawl.Memory[counts](rt, "outer"), pawl.Memory[counts](rt, "inner")
	kept, third := pawl.Session[counts](rt, "kept"), pawl.Session[counts](rt, "third")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	var circle *pawl.DeadlockError
	held, outerHeld, other := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := inner.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
			close(held)
			<-outerHeld
			_, err := outer.IncState(ctx, "n", 1)
			return err
		})
		other <- err
	}()
	<-held
	_, err := outer.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
		var stale context.Context
		if _, err := kept.AtomicState(ctx, func(ctx context.Context, c *counts) error { stale = ctx; c.N++; return nil }); err != nil {
			return err
		}
		close(outerHeld)
		_, err := third.AtomicState(ctx, func(context.Context, *counts) error { // whose call has the waiter of the first one now
			_, err := kept.AtomicState(ctx, func(context.Context, *counts) error {
				for circle == nil && ctx.Err() == nil { // until the other one waits, there is none
					brief, cancel := context.WithTimeout(stale, 50*time.Millisecond)
					_, err := inner.IncState(brief, "n", 1)
					cancel()
					errors.As(err, &circle)
				}
				return nil
			})
			return err
		})
		return err
	})
	require.NoError(t, err)
	require.NoError(t, <-other)
	require.NotNil(t, circle)
	require.Equal(t, []pawl.Key{kept.Key(), inner.Key(), outer.Key()}, circle.Cycle)
}
