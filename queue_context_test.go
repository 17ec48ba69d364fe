package pawl_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withBudget runs fn on both paths, with an option that gives a call five seconds.
func withBudget(t *testing.T, fn func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption)) {
	t.Run("in memory", func(t *testing.T) {
		bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
			fn(t, pawl.Memory[counts](rt, "a"), pawl.WithTimeout(5*time.Second))
		})
	})
	t.Run("persisted", func(t *testing.T) {
		bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
			fn(t, pawl.Session[counts](rt, "a"), pawl.WithRetry(pawl.Retry{Within: 5 * time.Second}))
		})
	})
}

// The context of a function, and any context derived from it, ends when the budget of the function
// ends. Proves LOCK-15.
func TestFunctionContextEndsWithItsBudget(t *testing.T) {
	withBudget(t, func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption) {
		start, stopped := time.Now(), make(chan struct{})
		_, err := s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			defer close(stopped)
			until, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, 5*time.Second, until.Sub(start))
			assert.NoError(t, ctx.Err())
			derived, cancel := context.WithCancel(context.WithValue(ctx, ctxKey{}, 1))
			defer cancel()
			<-derived.Done()
			assert.Equal(t, 5*time.Second, time.Since(start))
			for _, each := range []context.Context{ctx, derived} {
				assert.Equal(t, context.DeadlineExceeded, each.Err())
				assert.Equal(t, context.DeadlineExceeded, context.Cause(each))
			}
			return ctx.Err()
		}, budget)
		require.Error(t, err)
		<-stopped
	})
}

type ctxKey struct{}

// A function that never calls Done sees the end of its budget through Err, and its calls are
// refused. Proves LOCK-15.
func TestFunctionContextErrWithoutDone(t *testing.T) {
	withBudget(t, func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption) {
		stopped := make(chan struct{})
		_, err := s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			defer close(stopped)
			assert.Zero(t, testing.AllocsPerRun(10, func() {
				_, _ = ctx.Deadline()
				_ = ctx.Err()
			}), "Deadline and Err need no timer")
			time.Sleep(6 * time.Second)
			assert.Equal(t, context.DeadlineExceeded, ctx.Err())
			assert.Equal(t, context.DeadlineExceeded, context.Cause(ctx))
			_, err := s.IncState(ctx, "n", 1)
			var canceled *pawl.CanceledError
			assert.ErrorAs(t, err, &canceled)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			return nil
		}, budget)
		require.Error(t, err)
		<-stopped
	})
}

// The earlier of two deadlines counts, and the cause of the caller's context stays visible.
// Proves LOCK-15.
func TestFunctionContextEndsWithItsCaller(t *testing.T) {
	withBudget(t, func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption) {
		cause, start := errors.New("enough"), time.Now()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		stopped := make(chan struct{})
		_, err := s.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
			defer close(stopped)
			until, _ := ctx.Deadline()
			assert.Equal(t, time.Second, until.Sub(start))
			<-ctx.Done()
			assert.Equal(t, time.Second, time.Since(start))
			assert.Equal(t, cause, context.Cause(ctx))
			return cause
		}, budget)
		require.ErrorIs(t, err, cause)
		<-stopped
	})
}

// With NoTimeout the context of a function has no deadline. Proves LOCK-15.
func TestFunctionContextWithoutBudget(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		_, err := pawl.Memory[counts](rt, "a").AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			_, limited := ctx.Deadline()
			assert.False(t, limited)
			time.Sleep(time.Hour)
			return ctx.Err()
		}, pawl.WithTimeout(pawl.NoTimeout))
		require.NoError(t, err)
	})
}

// The context of a function that has returned is canceled. Detach returns one for calls that
// continue. Proves LOCK-15.
func TestFunctionContextAfterItsReturn(t *testing.T) {
	withBudget(t, func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption) {
		var asked, unasked, detached context.Context
		_, err := s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			unasked = ctx
			return nil
		}, budget)
		require.NoError(t, err)
		_, err = s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			asked, detached = ctx, pawl.Detach(context.WithValue(ctx, ctxKey{}, "kept"))
			return asked.Err()
		}, budget)
		require.NoError(t, err)
		for _, ctx := range []context.Context{asked, unasked} {
			<-ctx.Done()
			assert.Equal(t, context.Canceled, ctx.Err())
		}
		time.Sleep(time.Minute)
		assert.NoError(t, detached.Err())
		_, limited := detached.Deadline()
		assert.False(t, limited, "the budget belongs to the function")
		assert.Equal(t, "kept", detached.Value(ctxKey{}))
		_, err = s.IncState(detached, "n", 1)
		assert.NoError(t, err)
	})
}

// taggedContext is a context of a caller's own, of a type that cannot be compared.
type taggedContext struct {
	context.Context
	tags []string
}

// Detach and WithoutLeases accept a context of any type. Proves LOCK-9.
func TestDetachOfAnyContext(t *testing.T) {
	withBudget(t, func(t *testing.T, s pawl.Scope[counts], budget pawl.CallOption) {
		_, err := s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			for _, each := range []context.Context{ctx, derived} {
				tagged := taggedContext{each, []string{"a"}}
				assert.NotPanics(t, func() { pawl.Detach(tagged) })
				assert.NotPanics(t, func() { pawl.WithoutLeases(tagged) })
			}
			return nil
		}, budget)
		require.NoError(t, err)
	})
}

// The function of a persisted scope is reported as stuck only after it has itself run longer than its
// budget, also if it started late. Its caller returns when the budget is over, although its context
// has no deadline. Proves LOCK-15, CAS-12.
func TestOnlyAPersistedFunctionBeyondItsBudgetIsStuck(t *testing.T) {
	const budget = 10 * time.Second
	for _, c := range []struct {
		name  string
		waits time.Duration // before the function starts
		runs  time.Duration
		want  []time.Duration // since the submission
	}{
		{"it returns in time", 6 * time.Second, 3 * time.Second, nil},
		{"it starts late", 6 * time.Second, 8 * time.Second, nil},
		{"it hangs from the start", 0, time.Hour, []time.Duration{budget + 100*time.Millisecond}},
		{"it starts late and hangs", 6 * time.Second, time.Hour, []time.Duration{16 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events eventLog
			persisted(t, pawl.Config{Observer: &events}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				open, entered := gate(h)
				first := push(s, "first")
				<-entered
				time.AfterFunc(c.waits, open)
				began := time.Now()
				_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error {
					time.Sleep(c.runs)
					return nil
				}, pawl.WithRetry(pawl.Retry{Within: budget}))
				if c.waits+c.runs < budget {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, pawl.ErrUnavailable)
					require.False(t, pawl.OutcomeUnknown(err))
					require.LessOrEqual(t, time.Since(began), budget+100*time.Millisecond)
				}
				require.NoError(t, <-first)
				time.Sleep(2 * time.Hour)
			})
			var stuck []time.Duration
			for _, e := range events.events {
				if e.Type == pawl.EventStuck {
					require.Equal(t, "cas", e.Path)
					stuck = append(stuck, e.Took)
				}
			}
			require.Equal(t, c.want, stuck)
		})
	}
}

// A function is reported as stuck only after it has itself run longer than its budget.
// Proves LOCK-15.
func TestOnlyAFunctionBeyondItsBudgetIsStuck(t *testing.T) {
	for _, c := range []struct {
		name  string
		waits time.Duration // before the function starts; its budget is ten seconds
		runs  time.Duration
		want  []time.Duration // since the submission
	}{
		{"a later caller left", 0, 5 * time.Second, nil},
		{"its own caller left", 6 * time.Second, 8 * time.Second, nil},
		{"it hangs from the start", 0, time.Hour, []time.Duration{10 * time.Second}},
		{"it starts late and hangs", 6 * time.Second, time.Hour, []time.Duration{16 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var stuck []time.Duration
			observer := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Type == pawl.EventStuck {
					stuck = append(stuck, e.Took)
				}
			})
			bubble(t, pawl.Config{Observer: observer}, func(t *testing.T, rt *pawl.Runtime) {
				s := pawl.Memory[counts](rt, "a")
				release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
				time.AfterFunc(c.waits, release)
				go s.AtomicState(context.Background(), func(context.Context, *counts) error {
					time.Sleep(c.runs)
					return nil
				}, pawl.WithTimeout(10*time.Second))
				synctest.Wait()
				time.Sleep(c.waits)
				for range 2 {
					_, err := s.IncState(t.Context(), "n", 1, pawl.WithTimeout(time.Second))
					require.ErrorIs(t, err, pawl.ErrTimeout)
				}
				time.Sleep(2 * time.Hour)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, c.want, stuck)
			})
		})
	}
}
