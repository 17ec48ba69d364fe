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

// Proves CAS-8.
func TestSlowMutatorLeavesTheQueue(t *testing.T) {
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
		assert.LessOrEqual(t, time.Since(start), 20*time.Millisecond, "the others do not wait for it")
		close(free)
		require.NoError(t, <-slow)
		b, _ := s.State(t.Context())
		assert.Equal(t, 1100, b.N)
		assert.Equal(t, 2, runs, "its first result was too late, its second counted")
	})
}

// Proves CAS-8.
func TestSlowMutatorOnAnUncommittedStateRunsAgain(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		// These two share a round: the slow one sees the uncommitted push of the other.
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
		// The round's own commit is held up until the slow one has gone its way. If that took the push along, the round
		// would lose and push again.
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
		assert.Equal(t, [][]string{{"first", "second"}, {"first"}}, saw, "the state of its first run was never committed")
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.Equal(t, counts{N: 1, Done: []string{"first", "second"}}, snap.State())
		assert.EqualValues(t, 3, snap.Version)
	})
}

// Proves CAS-8.
func TestSlowMutatorThatKeepsLosingGetsTheQueue(t *testing.T) {
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
			time.Sleep(100 * time.Millisecond) // whoever runs outside the queue for so long always loses
			b.Done = append(b.Done, "slow")
			return nil
		})
		close(stop)
		writers.Wait()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, runs, 8, "it competed first")
		assert.LessOrEqual(t, runs, 10, "and then had the queue to itself")
	})
}

// The queue is a losing function's own for one run. Proves CAS-8.
func TestTheQueueIsItsOwnForOneRun(t *testing.T) {
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
		<-push(s, "company") // for which it has to leave the queue; whatever becomes of that
		for range 5 {        // the first conflict is but a read; the next four make half its attempts
			<-runs
		}
		start := time.Now()
		other := push(s, "other") // behind the run that has the queue to itself
		go func() { <-runs; losing.Store(false) }()
		require.NoError(t, <-other)
		assert.LessOrEqual(t, time.Since(start), 1500*time.Millisecond)
		<-slow
	})
}

// Proves CAS-8.
func TestSlowMutatorAfterAnExclusiveRun(t *testing.T) {
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
			time.Sleep(50 * time.Millisecond) // solo, loses, and then has the queue to itself, for up to a second
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
		assert.LessOrEqual(t, time.Since(start), 20*time.Millisecond, "patience is short again")
		require.NoError(t, <-slow)
	})
}

// Proves CAS-8, CAS-9.
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
			assert.False(t, pawl.OutcomeUnknown(err), "nothing of it will be committed")
			close(free)
			synctest.Wait()
			assert.Zero(t, h.Commits.Load())
			snap, err := s.IncState(t.Context(), "n", 10)
			require.NoError(t, err)
			assert.Equal(t, 10, snap.ReadOnly().N)
		})
	}
}

// Proves CAS-8.
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
		assert.Zero(t, time.Since(start), "nobody waits, not even for the threshold")
		release()
		require.NoError(t, <-slow)
		b, _ := s.State(t.Context())
		assert.Equal(t, 11, b.N)
	})
}

// Proves CAS-8.
func TestMutatorsOfPersistedScopesDoNotDeadlock(t *testing.T) {
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

// A function that is alone in the queue leaves it when it is slow and somebody comes. Proves CAS-8.
func TestSlowFunctionHoldsUpNobodyWhoComesLater(t *testing.T) {
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

// A losing function that comes back to have the queue to itself does not wait for one that is alone there, and hangs. Proves CAS-8.
func TestSlowFunctionHoldsUpNobodyWhoComesBack(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 8, Within: time.Minute}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		const losses = 5 // the first conflict is but a read; the next four make half its attempts
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
		<-push(s, "company") // for which it has to leave the queue; whatever becomes of that
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

// A slow function is not cut by the deadline of another caller.
func TestSlowFunctionIsNotCutByTheAlarmOfAnother(t *testing.T) {
	for _, company := range []bool{false, true} {
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
			if company {
				push(s, "company", pawl.WithRetry(pawl.Retry{Within: 200 * time.Millisecond})) // its alarm rings at 700 ms
			}
			err := <-slow
			var conflict *pawl.ConcurrentModificationError
			assert.True(t, err == nil || errors.As(err, &conflict), "company %v: %v", company, err)
		})
	}
}
