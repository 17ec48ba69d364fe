package pawl_test

import (
	"context"
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
