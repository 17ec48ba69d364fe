package pawl_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The most specific setting of the budget counts: that of the call, the Local, the kind, the
// runtime, or the default. Proves LOCK-4.
func TestBudgetIsSetPerRuntimeKindLocalAndCall(t *testing.T) {
	kind := pawl.Kind[counts]{Name: "job", InMemory: true, Timeout: 3 * time.Second}
	for _, c := range []struct {
		name   string
		config pawl.Config
		scope  func(rt *pawl.Runtime) pawl.Scope[counts]
		opts   []pawl.CallOption
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
		}, []pawl.CallOption{pawl.WithTimeout(5 * time.Second)}, 5 * time.Second},
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

// NoTimeout removes the deadline of a running function and of a waiter. Proves LOCK-4.
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

// A function on a persisted scope may run longer than Config.Timeout and WithTimeout.
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

// At its deadline the caller of a running function returns with an unknown outcome, and the late
// result commits. Proves LOCK-5, LOCK-6.
func TestDeadlineOfARunningFunction(t *testing.T) {
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

// A mutation that is still queued at its deadline is withdrawn: it never runs, and a retry is safe.
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
		assert.False(t, ran, "a withdrawn mutation never runs")
	})
}

// The budget covers the wait in the queue and the run of the function together. Proves LOCK-5.
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

// slowJSON has a MarshalJSON that hangs until slowGate is closed.
type slowJSON string

func (s slowJSON) MarshalJSON() ([]byte, error)  { <-slowGate; return json.Marshal(string(s)) }
func (s *slowJSON) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, (*string)(s)) }

var slowGate chan struct{}

// A MarshalJSON that hangs does not hold its caller beyond the deadline. Proves LOCK-5.
func TestDeadlineDuringMarshalJSON(t *testing.T) {
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

// A call that reuses the waiter of an earlier call has only its own deadline. Proves LOCK-5.
func TestReusedWaiterHasItsOwnDeadline(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		s, stored := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "b")
		for i := range 20 {
			release, blocked := block(s, pawl.WithTimeout(10*time.Second))
			queued := push(s, "x", pawl.WithTimeout(10*time.Second))
			release()
			require.NoError(t, <-blocked)
			require.NoError(t, <-queued)
			release, blocked = block(s, pawl.WithTimeout(pawl.NoTimeout))
			queued = push(s, "x", pawl.WithTimeout(pawl.NoTimeout))
			time.Sleep(time.Hour)
			release()
			require.NoError(t, <-blocked)
			require.NoError(t, <-queued)
			budget := []time.Duration{3 * time.Second, time.Minute}[i%2] // before and after the time that the alarm is set for
			release, _ = block(s, pawl.WithTimeout(time.Hour))
			_, err := stored.IncState(context.Background(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 10 * time.Second}))
			require.NoError(t, err)
			start := time.Now()
			_, err = s.IncState(context.Background(), "n", 1, pawl.WithTimeout(budget))
			assert.ErrorIs(t, err, pawl.ErrTimeout)
			assert.Equal(t, budget, time.Since(start))
			release()
			synctest.Wait()
		}
	})
}

// The time that an observer takes before a call is queued counts as part of the budget.
// Proves LOCK-5.
func TestObserverTimeCountsTowardsTheBudget(t *testing.T) {
	observer := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventQueued {
			time.Sleep(300 * time.Millisecond)
		}
	})
	bubble(t, pawl.Config{Observer: observer}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		ends, began := make(chan struct{}), time.Now()
		_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error { <-ends; return nil }, pawl.WithTimeout(400*time.Millisecond))
		var late *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, err, &late)
		require.Equal(t, 400*time.Millisecond, time.Since(began))
		close(ends)
	})
}
