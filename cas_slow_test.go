package pawl_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A function that is slow leaves the queue, and other writers continue without it. Proves CAS-8.
func TestSlowFunctionLeavesTheQueue(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		slow := make(chan error, 1)
		runs := 0
		free := make(chan struct{})
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				if runs++; runs == 1 {
					<-free
				}
				b.N += 1000
				return nil
			})
			slow <- err
		}()
		synctest.Wait()
		start := time.Now()
		for range 100 {
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		}
		assert.LessOrEqual(t, time.Since(start), 20*time.Millisecond, "the other writers waited for the slow function")
		close(free)
		require.NoError(t, <-slow)
		b, _ := s.State(t.Context())
		assert.Equal(t, 1100, b.N)
		assert.Equal(t, 2, runs, "the first result conflicts, the second is committed")
	})
}

// A function that leaves the queue after it saw uncommitted state runs again on committed state.
// Proves CAS-8.
func TestSlowFunctionOnUncommittedStateRunsAgain(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		// These two share a batch: the slow function sees the uncommitted push of "second".
		second := push(s, "second")
		var saw [][]string
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				saw = append(saw, b.Done)
				time.Sleep(50 * time.Millisecond)
				b.N++
				return nil
			})
			slow <- err
		}()
		synctest.Wait()
		// The batch's commit waits until the slow function's commit is done. If that one contained
		// the push, the batch would lose and push again.
		slowIsDone := make(chan struct{})
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if c.Writes[0].Version == 2 && strings.Contains(string(c.Writes[0].Doc), "second") {
				<-slowIsDone
			}
			return commit()
		})
		open()
		require.NoError(t, <-first)
		require.NoError(t, <-slow)
		close(slowIsDone)
		require.NoError(t, <-second)
		assert.Equal(t, [][]string{{"first", "second"}, {"first"}}, saw, "the second run starts from committed state")
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.Equal(t, counts{N: 1, Done: []string{"first", "second"}}, snap.State())
		assert.EqualValues(t, 3, snap.Version)
	})
}

// A slow function that lost half its attempts gets the queue to itself. Proves CAS-8.
func TestSlowFunctionThatKeepsLosingGetsTheQueue(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		stop := make(chan struct{})
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, err := s.IncState(context.Background(), "n", 1)
					assert.NoError(t, err)
					time.Sleep(time.Millisecond)
				}
			})
		}
		runs := 0
		_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			runs++
			time.Sleep(100 * time.Millisecond) // outside the queue, a run of this length always loses
			b.Done = append(b.Done, "slow")
			return nil
		})
		close(stop)
		writers.Wait()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, runs, 8, "the function got the queue too early")
		assert.LessOrEqual(t, runs, 10, "the function got the queue too late")
	})
}

// A losing function has the queue to itself for one run only, even if that run loses too.
// Proves CAS-8.
func TestExclusiveQueueLastsOneRun(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 8, Within: time.Minute}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		var losing atomic.Bool
		losing.Store(true)
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if losing.Load() {
				foreign(t, h, s.Key(), 100)
			}
			return commit()
		})
		slow := make(chan error, 1)
		runs := make(chan int, 100)
		go func() {
			n := 0
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				n++
				runs <- n
				time.Sleep(900 * time.Millisecond)
				b.N++
				return nil
			})
			slow <- err
		}()
		<-runs
		<-push(s, "second") // makes the slow function leave the queue; the result does not matter
		for range 5 {       // the first conflict costs no attempt; the next four are half the attempts
			<-runs
		}
		start := time.Now()
		other := push(s, "other") // queued behind the exclusive run
		go func() { <-runs; losing.Store(false) }()
		require.NoError(t, <-other)
		assert.LessOrEqual(t, time.Since(start), 1500*time.Millisecond)
		<-slow
	})
}

// After an exclusive run, the next slow function leaves the queue as early as before. Proves CAS-8.
func TestSlowFunctionAfterAnExclusiveRun(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 2}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		loses := true
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if loses {
				loses = false
				foreign(t, h, s.Key(), 1)
			}
			return commit()
		})
		_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			time.Sleep(50 * time.Millisecond) // loses once, then runs exclusively, for up to a second
			b.N++
			return nil
		})
		require.NoError(t, err)
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error { time.Sleep(500 * time.Millisecond); return nil })
			slow <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), 20*time.Millisecond, "the slow function stayed in the queue too long")
		require.NoError(t, <-slow)
	})
}

// When a caller leaves, the result of its running function is discarded, whether or not the
// function has left the queue. Proves CAS-8, CAS-9.
func TestRunThatOutlivesItsCallerIsDiscarded(t *testing.T) {
	for _, detached := range []bool{false, true} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			ctx, cancel := context.WithCancel(context.Background())
			free, slow := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := s.AtomicState(ctx, func(_ context.Context, b *counts) error { <-free; b.N = 1; return nil })
				slow <- err
			}()
			synctest.Wait()
			if detached {
				time.Sleep(time.Second)
			}
			cancel()
			err := <-slow
			assert.ErrorIs(t, err, context.Canceled)
			assert.False(t, pawl.OutcomeUnknown(err), "the result will not be committed")
			close(free)
			synctest.Wait()
			assert.Zero(t, h.Commits.Load())
			snap, err := s.IncState(t.Context(), "n", 10)
			require.NoError(t, err)
			assert.Equal(t, 10, snap.ReadOnly().N)
		})
	}
}

// A function that mutates another scope leaves its own queue at once. Proves CAS-8.
func TestMutatingAnotherScopeLeavesTheQueueAtOnce(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		other := pawl.Memory[counts](rt, "busy")
		release, _ := block(other)
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(ctx context.Context, b *counts) error {
				_, err := other.IncState(ctx, "n", 1)
				b.N += 10
				return err
			})
			slow <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		assert.Zero(t, time.Since(start), "a writer waited for a function that mutates another scope")
		release()
		require.NoError(t, <-slow)
		b, _ := s.State(t.Context())
		assert.Equal(t, 11, b.N)
	})
}

// Two functions that mutate each other's persisted scope both succeed. Proves CAS-8.
func TestFunctionsOfPersistedScopesDoNotDeadlock(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		a, b := pawl.Session[counts](rt, "a"), pawl.User[counts](rt, "b")
		var inside sync.WaitGroup
		inside.Add(2)
		results := make(chan error, 2)
		for _, pair := range [][2]pawl.Scope[counts]{{a, b}, {b, a}} {
			go func() {
				first := true
				_, err := pair[0].AtomicState(context.Background(), func(ctx context.Context, s *counts) error {
					if first {
						first = false
						inside.Done()
						inside.Wait()
					}
					s.N++
					_, err := pair[1].PatchState(ctx, pawl.Patch{"done": []string{"seen"}})
					return err
				})
				results <- err
			}()
		}
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		for _, s := range []pawl.Scope[counts]{a, b} {
			got, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, counts{N: 1, Done: []string{"seen"}}, got)
		}
	})
}

// A slow function that is alone in the queue leaves it when another writer arrives. Proves CAS-8.
func TestSlowFunctionDoesNotDelayLaterWriters(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		for _, later := range []time.Duration{time.Millisecond, time.Second} {
			began, over := make(chan struct{}), make(chan struct{})
			slow := make(chan error, 1)
			runs := 0
			go func() {
				_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
					if runs++; runs == 1 {
						close(began)
						<-over
					}
					b.N++
					return nil
				})
				slow <- err
			}()
			<-began
			time.Sleep(later)
			start := time.Now()
			require.NoError(t, <-push(s, "other"))
			assert.Less(t, time.Since(start), 50*time.Millisecond)
			close(over)
			require.NoError(t, <-slow)
		}
	})
}

// A losing function that needs the queue to itself does not wait for a function that hangs there
// alone. Proves CAS-8.
func TestHungFunctionDoesNotDelayAnExclusiveRun(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 8, Within: time.Minute}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		const losses = 5 // the first conflict costs no attempt; the next four are half the attempts
		var ran atomic.Int32
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if ran.Load() <= losses {
				foreign(t, h, s.Key(), 100)
			}
			return commit()
		})
		loser := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				ran.Add(1)
				time.Sleep(100 * time.Millisecond)
				b.N++
				return nil
			})
			loser <- err
		}()
		synctest.Wait()
		<-push(s, "second") // makes the losing function leave the queue; the result does not matter
		for ran.Load() < losses {
			time.Sleep(time.Millisecond)
		}
		over, hung := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				<-over
				b.N++
				return nil
			})
			hung <- err
		}()
		start := time.Now()
		err = <-loser
		close(over)
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, <-hung)
	})
}

// The deadline of another caller does not end a slow function.
func TestSlowFunctionIgnoresOtherDeadlines(t *testing.T) {
	for _, second := range []bool{false, true} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				time.Sleep(time.Second)
				return commit()
			})
			slow := make(chan error, 1)
			go func() {
				_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
					time.Sleep(500 * time.Millisecond)
					b.N++
					return nil
				}, pawl.WithRetry(pawl.Retry{Within: 5 * time.Second}))
				slow <- err
			}()
			time.Sleep(400 * time.Millisecond)
			if second {
				push(s, "second", pawl.WithRetry(pawl.Retry{Within: 200 * time.Millisecond})) // it leaves at 700 ms: budget and lastWord
			}
			err := <-slow
			var conflict *pawl.ConcurrentModificationError
			assert.True(t, err == nil || errors.As(err, &conflict), "second writer %v: %v", second, err)
		})
	}
}
