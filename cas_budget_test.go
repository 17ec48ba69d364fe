package pawl_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mutation that conflicts again and again fails when its time is up, however many attempts
// remain. Proves CAS-2, CAS-3.
func TestRetryBudgetInTime(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 1 << 20, Within: 2 * time.Second}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			foreign(t, h, s.Key(), 1)
			return commit()
		})
		start := time.Now()
		_, err := s.IncState(t.Context(), "n", 1)
		var conflict *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &conflict)
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
		assert.Greater(t, conflict.Attempts, 4)
	})
}

// A caller's budget neither shortens nor extends the wait of callers that share its commit.
// Proves CAS-3.
func TestCallersHaveSeparateBudgets(t *testing.T) {
	t.Run("short budget ends alone", func(t *testing.T) {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			open, entered := gate(h)
			first := push(s, "first")
			<-entered
			lead := push(s, "lead", pawl.WithRetry(pawl.Retry{Within: 20 * time.Millisecond}))
			patient := push(s, "patient")
			h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				time.Sleep(time.Second)
				return commit()
			})
			open()
			require.NoError(t, <-first)
			assert.True(t, pawl.OutcomeUnknown(<-lead), "the budget ended during the commit")
			assert.NoError(t, <-patient)
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []string{"first", "lead", "patient"}, b.Done)
		})
	})
	t.Run("long budget delays no other caller", func(t *testing.T) {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			h.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
				return time.Time{}, errors.New("connection lost")
			})
			lead := push(s, "lead")
			start := time.Now()
			_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 200 * time.Millisecond}))
			assert.ErrorIs(t, err, pawl.ErrUnavailable)
			assert.True(t, pawl.IsRetryable(err), "the mutation was withdrawn from the queue")
			assert.LessOrEqual(t, time.Since(start), 300*time.Millisecond)
			assert.ErrorIs(t, <-lead, pawl.ErrUnknownOutcome)
		})
	})
}

// A caller whose budget ends while its function runs returns at once. The function's result is
// discarded, although the shared commit continues for another caller. Proves CAS-3.
func TestBudgetThatEndsWhileTheFunctionRuns(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		patient := push(s, "patient")
		start := time.Now()
		short := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				time.Sleep(8 * time.Millisecond)
				b.N++
				return nil
			}, pawl.WithRetry(pawl.Retry{Within: 20 * time.Millisecond}))
			short <- err
		}()
		time.Sleep(115 * time.Millisecond) // 5 ms before short leaves: its budget and lastWord
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			time.Sleep(20 * time.Second)
			return commit()
		})
		open()
		require.NoError(t, <-first)
		err := <-short
		assert.LessOrEqual(t, time.Since(start), time.Second, "%v", err)
		assert.ErrorIs(t, err, pawl.ErrUnavailable)
		assert.False(t, pawl.OutcomeUnknown(err), "%v", err)
		require.NoError(t, <-patient)
		now, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Zero(t, now.N, "the result was discarded")
	})
}

// A deadline that passes during another caller's commit leaves that caller free to retry after a
// conflict.
func TestDeadlineDuringACommitThatConflicts(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.Around(nil)
			time.Sleep(time.Second) // longer than the short budget
			foreign(t, h, s.Key(), 1)
			return commit()
		})
		long := push(s, "long")
		_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 10 * time.Millisecond}))
		assert.ErrorIs(t, err, pawl.ErrUnavailable)
		require.NoError(t, <-long)
	})
}

// The time that a slow function takes counts: the caller waits for the store no longer than its
// budget allows. Proves CAS-3.
func TestStoreThatHangsAfterASlowFunction(t *testing.T) {
	for _, second := range []bool{false, true} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			hangs := make(chan struct{})
			defer close(hangs)
			h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				<-hangs
				return commit()
			})
			began := time.Now()
			if second {
				time.AfterFunc(400*time.Millisecond, func() { push(s, "second") })
			}
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				time.Sleep(500 * time.Millisecond)
				b.N++
				return nil
			}, pawl.WithRetry(pawl.Retry{Within: 600 * time.Millisecond}))
			assert.True(t, pawl.OutcomeUnknown(err), "second writer %v: %v", second, err)
			assert.LessOrEqual(t, time.Since(began), time.Second)
		})
	}
}

// The largest possible budget and timeout do not overflow into a deadline that has passed.
func TestEndlessBudget(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		_, err := scopeOf[counts](p, "a").AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil },
			pawl.WithRetry(pawl.Retry{Within: math.MaxInt64}), pawl.WithTimeout(math.MaxInt64))
		require.NoError(t, err)
	})
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			time.Sleep(time.Second)
			return commit()
		})
		_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: math.MaxInt64}))
		require.NoError(t, err)
	})
}
