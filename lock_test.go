package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// counts is the state of the tests of the queue.
type counts struct {
	N    int      `json:"n"`
	Done []string `json:"done"`
}

// bubble runs fn on a runtime inside a synctest bubble: time is virtual, and every deadline is exact.
func bubble(t *testing.T, c pawl.Config, fn func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(c)
		require.NoError(t, err)
		fn(t, rt)
		require.NoError(t, rt.Close(context.Background()))
	})
}

// block occupies the scope until the returned function is called, and returns once its mutator runs.
func block(s pawl.Scope[counts], opts ...pawl.Option) (release func(), result <-chan error) {
	free, done := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
			<-free
			b.Done = append(b.Done, "blocker")
			return nil
		}, opts...)
		done <- err
	}()
	synctest.Wait()
	return sync.OnceFunc(func() { close(free) }), done
}

// push submits one PushState in the background and returns once it has its place in the queue.
func push(s pawl.Scope[counts], value string, opts ...pawl.Option) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.PushState(context.Background(), "done", value, opts...)
		done <- err
	}()
	synctest.Wait()
	return done
}

// Proves LOCK-1.
func TestMutationsRunInSubmissionOrder(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s)
		want := []string{"blocker"}
		for i := range 100 {
			name := string(rune('A' + i))
			want = append(want, name)
			if i%2 == 0 {
				push(s, name)
				continue
			}
			go s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				b.Done = append(b.Done, name)
				return nil
			})
			synctest.Wait()
		}
		release()
		synctest.Wait()
		b, err := s.State(context.Background())
		require.NoError(t, err)
		assert.Equal(t, want, b.Done)
	})
}

// Proves LOCK-1.
func TestMutatorsNeverOverlap(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	var inside, worst atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error {
					worst.Store(max(worst.Load(), inside.Add(1)))
					inside.Add(-1)
					return nil
				})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, worst.Load())
	require.NoError(t, rt.Close(t.Context()))
}

// Proves LOCK-2, LOCK-3.
func TestConcurrentIncrementsAllLand(t *testing.T) {
	var conflicts atomic.Int32
	rt, err := pawl.Open(pawl.Config{Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.Conflicted {
			conflicts.Add(1)
		}
	})})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	versions := make([]map[uint64]bool, 64)
	var wg sync.WaitGroup
	for i := range versions {
		versions[i] = map[uint64]bool{}
		wg.Go(func() {
			for j := range 100 {
				var snap pawl.Snapshot[counts]
				var err error
				if j%2 == 0 {
					snap, err = s.IncState(t.Context(), "n", 1)
				} else {
					snap, err = s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil })
				}
				assert.NoError(t, err)
				assert.EqualValues(t, snap.Version, snap.ReadOnly().N, "each sees the result of the one before it")
				versions[i][snap.Version] = true
			}
		})
	}
	wg.Wait()
	all := map[uint64]bool{}
	for _, v := range versions {
		for n := range v {
			all[n] = true
		}
	}
	assert.Len(t, all, 6400, "every increment has a version of its own")
	b, err := s.State(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 6400, b.N)
	assert.Zero(t, conflicts.Load())
	require.NoError(t, rt.Close(t.Context()))
}

// Proves LOCK-4.
func TestBudgetIsSetPerRuntimeKindLocalAndCall(t *testing.T) {
	kind := pawl.Kind[counts]{Name: "job", InMemory: true, Timeout: 3 * time.Second}
	for _, c := range []struct {
		name   string
		config pawl.Config
		scope  func(rt *pawl.Runtime) pawl.Scope[counts]
		opts   []pawl.Option
		want   time.Duration
	}{
		{"default", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Memory[counts](rt, "a") }, nil, 30 * time.Second},
		{"runtime", pawl.Config{Timeout: 2 * time.Second}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Memory[counts](rt, "a") }, nil, 2 * time.Second},
		{"kind", pawl.Config{Timeout: 2 * time.Second}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, nil, 3 * time.Second},
		{"local", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] {
			return kind.Scope(pawl.NewLocal(rt, pawl.WithTimeout(4*time.Second)), "a")
		}, nil, 4 * time.Second},
		{"call", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] {
			return kind.Scope(pawl.NewLocal(rt, pawl.WithTimeout(4*time.Second)), "a")
		}, []pawl.Option{pawl.WithTimeout(5 * time.Second)}, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, c.config, func(t *testing.T, rt *pawl.Runtime) {
				s := c.scope(rt)
				release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
				start := time.Now()
				_, err := s.IncState(t.Context(), "n", 1, c.opts...)
				var timeout *pawl.ScopeMutationTimeoutError
				require.ErrorAs(t, err, &timeout)
				assert.Equal(t, c.want, timeout.Budget)
				assert.Equal(t, c.want, time.Since(start))
				release()
			})
		})
	}
}

// Proves LOCK-4.
func TestNoTimeoutWaits(t *testing.T) {
	bubble(t, pawl.Config{Timeout: time.Second}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, blocked := block(s, pawl.WithTimeout(pawl.NoTimeout))
		waiting := push(s, "patient", pawl.WithTimeout(pawl.NoTimeout))
		time.Sleep(time.Hour)
		release()
		assert.NoError(t, <-blocked)
		assert.NoError(t, <-waiting)
	})
}

// Proves LOCK-4.
func TestPersistedScopesIgnoreTheBudget(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New(), Timeout: time.Second}, func(t *testing.T, rt *pawl.Runtime) {
		snap, err := pawl.Session[counts](rt, "a").AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			time.Sleep(20 * time.Second)
			b.N = 7
			return nil
		}, pawl.WithTimeout(time.Second))
		require.NoError(t, err)
		assert.Equal(t, 7, snap.ReadOnly().N)
	})
}

// Proves LOCK-5, LOCK-6.
func TestDeadlineOfARunningMutator(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		start := time.Now()
		release, result := block(s)
		err := <-result
		assert.Equal(t, 30*time.Second, time.Since(start), "the caller is back at the deadline, not later")
		var timeout *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, err, &timeout)
		assert.Equal(t, pawl.ScopeMutationTimeoutError{Scope: s.Key(), Budget: 30 * time.Second, Waited: 30 * time.Second, Phase: pawl.PhaseRunning}, *timeout)
		assert.Equal(t, "SCOPE_MUTATION_TIMEOUT", pawl.Code(err))
		assert.Equal(t, 504, pawl.HTTPStatus(err))
		assert.True(t, pawl.OutcomeUnknown(err))
		assert.False(t, pawl.IsRetryable(err))
		assert.ErrorIs(t, err, pawl.ErrTimeout)
		assert.Contains(t, err.Error(), "a retry may apply it twice")

		before, _ := s.Snapshot(t.Context())
		assert.False(t, before.Exists())
		release()
		synctest.Wait()
		after, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 1, after.Version, "the late result commits")
		assert.Equal(t, []string{"blocker"}, after.ReadOnly().Done)
	})
}

// Proves LOCK-5, LOCK-7.
func TestDeadlineOfAQueuedMutation(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
		time.Sleep(time.Second) // the budget starts with the submission, not with the blocker
		start, ran := time.Now(), false
		_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error { ran = true; return nil }, pawl.WithTimeout(10*time.Second))
		assert.Equal(t, 10*time.Second, time.Since(start))
		var timeout *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, err, &timeout)
		assert.Equal(t, pawl.PhaseQueued, timeout.Phase)
		assert.Equal(t, 503, pawl.HTTPStatus(err))
		assert.True(t, pawl.IsRetryable(err))
		assert.False(t, pawl.OutcomeUnknown(err))
		assert.Contains(t, err.Error(), "a retry is safe")
		release()
		synctest.Wait()
		assert.False(t, ran, "withdrawn: it never runs")
	})
}

// Proves LOCK-5.
func TestBudgetCountsWaitPlusExecution(t *testing.T) {
	bubble(t, pawl.Config{Timeout: 10 * time.Second}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
		time.AfterFunc(6*time.Second, release)
		start := time.Now()
		_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error {
			time.Sleep(6 * time.Second)
			return nil
		})
		assert.Equal(t, 10*time.Second, time.Since(start))
		var timeout *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, err, &timeout)
		assert.Equal(t, pawl.PhaseRunning, timeout.Phase)
		time.Sleep(time.Minute)
	})
}

// slowJSON has code of its own, which hangs until slowGate is closed.
type slowJSON string

var slowGate chan struct{}

func (s slowJSON) MarshalJSON() ([]byte, error)  { <-slowGate; return json.Marshal(string(s)) }
func (s *slowJSON) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, (*string)(s)) }

// Proves LOCK-5.
func TestCodeOfATypeNeverHoldsTheCaller(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		slowGate = make(chan struct{})
		for name, call := range map[string]func() error{
			"a state with MarshalJSON": func() error {
				_, err := pawl.Memory[struct{ V slowJSON }](rt, "typed").SetState(t.Context(), struct{ V slowJSON }{"v"})
				return err
			},
			"a value with MarshalJSON": func() error {
				_, err := pawl.Memory[pawl.Doc](rt, "doc").PatchState(t.Context(), pawl.Patch{"v": slowJSON("v")})
				return err
			},
		} {
			start := time.Now()
			err := call()
			assert.ErrorIs(t, err, pawl.ErrTimeout, name)
			assert.Equal(t, 30*time.Second, time.Since(start), name)
		}
		close(slowGate)
	})
}

// Proves LOCK-7, LOCK-8.
func TestCancelWhileQueuedAndWhileRunning(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		why := errors.New("the client left")
		running, stop := context.WithCancelCause(context.Background())
		free, done := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := s.AtomicState(running, func(ctx context.Context, b *counts) error {
				<-ctx.Done() // the mutator's context is its caller's
				<-free
				b.N = 1
				return nil
			})
			done <- err
		}()
		synctest.Wait()

		queued, leave := context.WithCancelCause(context.Background())
		ran, left := false, make(chan error, 1)
		go func() {
			_, err := s.AtomicState(queued, func(context.Context, *counts) error { ran = true; return nil })
			left <- err
		}()
		synctest.Wait()
		leave(why)
		err := <-left
		var canceled *pawl.CanceledError
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		assert.ErrorIs(t, err, why)
		assert.False(t, pawl.OutcomeUnknown(err))

		stop(why)
		err = <-done
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseRunning, canceled.Phase)
		assert.ErrorIs(t, err, why)
		assert.True(t, pawl.OutcomeUnknown(err), "the result may still commit")
		assert.Equal(t, 499, pawl.HTTPStatus(err))

		close(free)
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, 1, b.N, "and here it does")
		assert.False(t, ran, "the withdrawn one never runs")
	})
}

// Proves LOCK-11.
func TestFailuresDoNotPoisonTheQueue(t *testing.T) {
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

// Proves LOCK-11.
func TestStuckMutatorIsReportedAndAbandoned(t *testing.T) {
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
		release, result := block(s, pawl.WithTimeout(pawl.NoTimeout))
		for range 2 {
			_, err := s.IncState(t.Context(), "n", 1)
			var timeout *pawl.ScopeMutationTimeoutError
			require.ErrorAs(t, err, &timeout)
			assert.Equal(t, pawl.PhaseQueued, timeout.Phase)
		}
		stuck := 0
		for _, e := range events {
			if e.Type == pawl.Stuck {
				stuck++
				assert.Equal(t, s.Key(), e.Key)
				assert.Equal(t, 30*time.Second, e.Took)
			}
		}
		assert.Equal(t, 1, stuck, "once, not for every caller")
		assert.Contains(t, log.String(), "stuck")

		waiting := push(s, "next")
		assert.True(t, s.Abandon())
		assert.ErrorIs(t, <-result, pawl.ErrAbandoned)
		require.NoError(t, <-waiting, "the queue moves on")
		assert.False(t, s.Abandon(), "nothing runs now")
		release()
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"next"}, b.Done, "the late result is discarded")
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
	})
}

// Proves LOCK-12, LOCK-13.
func TestOtherScopesAndReadsDoNotWait(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		hung := pawl.Memory[counts](rt, "hung")
		_, err := hung.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		release, _ := block(hung, pawl.WithTimeout(pawl.NoTimeout))
		push(hung, "behind", pawl.WithTimeout(pawl.NoTimeout))
		start := time.Now()
		for i := range 100 {
			other := pawl.Memory[counts](rt, strconv.Itoa(i))
			_, err := other.AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil })
			require.NoError(t, err)
			snap, err := hung.Snapshot(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 1, snap.ReadOnly().N)
			last, ok := hung.LastSeen()
			assert.True(t, ok)
			assert.EqualValues(t, 1, last.Version)
		}
		assert.Zero(t, time.Since(start))
		release()
	})
}

// Proves LOCK-14.
func TestQueueIsBounded(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 3}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s)
		for _, name := range []string{"1", "2"} {
			push(s, name)
		}
		third := push(s, "3", pawl.WithTimeout(time.Second))
		err := <-push(s, "4")
		var overloaded *pawl.OverloadedError
		require.ErrorAs(t, err, &overloaded)
		assert.Equal(t, pawl.OverloadedError{Scope: s.Key(), Queue: 3}, *overloaded)
		assert.True(t, pawl.IsRetryable(err))
		assert.ErrorIs(t, <-third, pawl.ErrTimeout)
		fifth := push(s, "5") // the withdrawn one made room
		release()
		require.NoError(t, <-fifth)
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"blocker", "1", "2", "5"}, b.Done)
	})
}

// Between two turns those who were taken together with them still wait. Proves LOCK-14.
func TestQueueIsBoundedBetweenTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		between, release := make(chan struct{}), make(chan struct{})
		s := pawl.Memory[counts](openRuntime(t, pawl.Config{MaxQueue: 3, Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.Committed && ended.Add(1) == 2 { // after the blocker, the first of three
				close(between)
				<-release
			}
		})}), "a")
		free, _ := block(s)
		var answers []<-chan error
		for range 3 {
			answers = append(answers, push(s, "x"))
		}
		free()
		<-between
		answers = append(answers, push(s, "there is room for one"))
		for range 5 {
			require.ErrorIs(t, <-push(s, "too many"), pawl.ErrOverloaded)
		}
		close(release)
		for _, err := range answers {
			require.NoError(t, <-err)
		}
	})
}

// Proves LOCK-7, LOCK-14.
func TestWithdrawnMutationsLeaveNothingBehind(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 10}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
		for range 1000 { // a hundred times the bound, ten at a time
			var wave []<-chan error
			for range 10 {
				wave = append(wave, push(s, "x", pawl.WithTimeout(time.Millisecond)))
			}
			for _, err := range wave {
				require.ErrorIs(t, <-err, pawl.ErrTimeout)
			}
		}
		release()
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"blocker"}, b.Done)
	})
}

// waitingHandler is a handler of logs that takes its time.
type waitingHandler struct {
	slog.Handler
	asked, free chan struct{}
}

func (h waitingHandler) Handle(context.Context, slog.Record) error {
	h.asked <- struct{}{}
	<-h.free
	return nil
}

// While it is logged that a function panicked after its caller had left, who waits next can still withdraw. Proves LOCK-7.
func TestWithdrawWhileAPanicIsLogged(t *testing.T) {
	for _, exits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log := waitingHandler{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}), make(chan struct{}, 1), make(chan struct{})}
			s := pawl.Memory[counts](openRuntime(t, pawl.Config{Logger: slog.New(log)}), "a")
			ctx, leave := context.WithCancel(t.Context())
			end := make(chan struct{})
			_, err := s.AtomicState(ctx, func(context.Context, *counts) error {
				leave()
				<-end
				if exits {
					runtime.Goexit()
				}
				panic("too late")
			})
			require.ErrorIs(t, err, context.Canceled)
			withdrawn := push(s, "withdrawn", pawl.WithTimeout(time.Second))
			after := push(s, "after")
			close(end)
			<-log.asked
			var late *pawl.ScopeMutationTimeoutError
			require.ErrorAs(t, <-withdrawn, &late)
			require.Equal(t, pawl.PhaseQueued, late.Phase)
			close(log.free)
			require.NoError(t, <-after)
			require.Equal(t, []string{"after"}, s.Peek().Done)
		})
	}
}
