package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The queue continues after a function that fails, panics or exceeds its budget. Proves LOCK-11.
func TestQueueContinuesAfterAFailure(t *testing.T) {
	bubble(t, pawl.Config{Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		boom := errors.New("boom")
		_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error { return boom })
		require.ErrorIs(t, err, boom)
		require.Panics(t, func() {
			s.AtomicState(t.Context(), func(context.Context, *counts) error { panic("boom") })
		})
		_, err = s.AtomicState(t.Context(), func(context.Context, *counts) error { time.Sleep(time.Minute); return boom })
		require.ErrorIs(t, err, pawl.ErrTimeout)
		time.Sleep(time.Hour)
		snap, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 1, snap.Version)
	})
}

// A function that exceeds its budget is reported as stuck once. Abandon discards its late result
// and lets the queue continue. Proves LOCK-11.
func TestStuckFunctionIsReportedAndAbandoned(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	var events []pawl.Event
	observer := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	})
	bubble(t, pawl.Config{Observer: observer, Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, result := block(s, pawl.WithTimeout(40*time.Second))
		for range 2 {
			_, err := s.IncState(t.Context(), "n", 1)
			var timeout *pawl.ScopeMutationTimeoutError
			require.ErrorAs(t, err, &timeout)
			assert.Equal(t, pawl.PhaseQueued, timeout.Phase)
		}
		synctest.Wait()
		assert.ErrorIs(t, <-result, pawl.ErrTimeout)
		stuck := 0
		for _, e := range events {
			if e.Type == pawl.EventStuck {
				stuck++
				assert.Equal(t, s.Key(), e.Key)
				assert.Equal(t, 40*time.Second, e.Took)
			}
		}
		assert.Equal(t, 1, stuck, "reported once, not once per caller")
		assert.Empty(t, log.String(), "the observer was told, so nothing is logged")

		waiting := push(s, "next")
		assert.True(t, s.Abandon())
		require.NoError(t, <-waiting, "the queue continues")
		assert.False(t, s.Abandon(), "no function runs now")
		release()
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"next"}, b.Done, "the late result is discarded")
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
	})
}

// Exactly one of several concurrent calls of Abandon succeeds, and Close does not wait for the
// abandoned function. Proves LOCK-11.
func TestConcurrentAbandon(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"in memory": pawl.Memory[counts], "persisted": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
					s := scope(rt, "a")
					release, result := block(s)
					var succeeded atomic.Int32
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							if s.Abandon() {
								succeeded.Add(1)
							}
						})
					}
					wg.Wait()
					assert.EqualValues(t, 1, succeeded.Load())
					assert.ErrorIs(t, <-result, pawl.ErrAbandoned)
					assert.NoError(t, rt.Close(t.Context()), "Close does not wait for the abandoned function")
					release()
				})
			}
		})
	}
}

// The waiters behind an abandoned function run without a further call on the scope. Proves LOCK-11.
func TestAbandonStartsTheNextWaiter(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, result := block(s)
		second, third := push(s, "second", pawl.WithTimeout(time.Second)), push(s, "third", pawl.WithTimeout(time.Second))
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		release()
		synctest.Wait()
		assert.Equal(t, []string{"second", "third"}, doneList(t, s))
	})
}

// After Abandon, waiters that the worker has taken together with the function run before later
// arrivals. Proves LOCK-1, LOCK-11.
func TestAbandonKeepsTheQueueOrder(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var late, second, third <-chan error
		release, result := takeTogether(t, s, appendDone("first"), func() {
			second = push(s, "second")
			late = push(s, "late", pawl.WithTimeout(time.Second))
			third = push(s, "third")
		})
		require.ErrorIs(t, <-late, pawl.ErrTimeout)
		last := push(s, "last")
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		for _, done := range []<-chan error{second, third, last} {
			require.NoError(t, <-done)
		}
		release()
		synctest.Wait()
		assert.False(t, s.Abandon())
		require.NoError(t, <-push(s, "after"))
		assert.Equal(t, []string{"blocker", "second", "third", "last", "after"}, doneList(t, s))
	})
}

// When Abandon races with the return of a function, the caller is answered once. Its waiter is not
// reused before the round ends, so the next mutation is answered too. Proves CAS-4.
func TestAbandonDuringTheReturn(t *testing.T) {
	store := newTap()
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

// A function that has returned cannot be abandoned, even if its worker has not taken the next
// waiter yet. Proves LOCK-11.
func TestAbandonAfterTheReturn(t *testing.T) {
	var s pawl.Scope[counts]
	abandoned := false
	rt := openRuntime(t, pawl.Config{Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventCommitted {
			abandoned = s.Abandon()
		}
	})})
	s = pawl.Memory[counts](rt, "a")
	_, err := s.AtomicState(t.Context(), func(_ context.Context, c *counts) error { c.N++; return nil })
	require.NoError(t, err)
	require.False(t, abandoned)
}

// A persisted function that left its queue and runs again after a conflict can be abandoned. Its
// caller gets ErrAbandoned, and what the function returns later is neither committed nor reported.
// Proves LOCK-11.
func TestAbandonOfARepeatedFunction(t *testing.T) {
	var mu sync.Mutex
	var events []pawl.EventType
	observer := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Verb == "Atomic" {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.Type)
		}
	})
	bubble(t, pawl.Config{Store: memory.New(), Observer: observer}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Session[counts](rt, "a")
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		next, result := make(chan struct{}), make(chan error)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, c *counts) error {
				<-next
				c.N += 10
				return nil
			})
			result <- err
		}()
		synctest.Wait()
		snap, err := s.IncState(t.Context(), "n", 1) // the function leaves the queue
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.State().N)
		next <- struct{}{} // it loses, and runs again
		synctest.Wait()
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		next <- struct{}{}
		synctest.Wait()
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, got.N)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, pawl.EventAbandoned, events[len(events)-1])
		require.NotContains(t, events, pawl.EventFailed)
	})
}
