package pawl_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// After each conflict the function runs again on the state that won, after a bounded delay.
// Proves CAS-1.
func TestConflictRunsAgainOnTheWinningState(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var at []time.Time
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at = append(at, time.Now())
			if len(at) <= 6 {
				foreign(t, h, s.Key(), 100) // another process commits first
			}
			return commit()
		})
		var saw []int
		snap, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			saw = append(saw, b.N)
			b.N++
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []int{0, 100, 200, 300, 400, 500, 600}, saw, "each run sees the state that won")
		assert.Equal(t, 601, snap.ReadOnly().N)
		assert.EqualValues(t, 7, snap.Version)
		for i := 1; i < len(at); i++ {
			limit := min(5*time.Millisecond<<(i-1), 500*time.Millisecond)
			assert.LessOrEqual(t, at[i].Sub(at[i-1]), limit, "delay %d", i)
		}
		assert.Positive(t, at[6].Sub(at[0]), "the retries did not wait")
	})
}

// The longest delay doubles with each attempt up to the limit, and every shorter delay is possible.
// Proves CAS-1.
func TestBackoffIsFullJitterAndGrows(t *testing.T) {
	const runs, attempts = 200, 10
	longest := make([]time.Duration, attempts)
	shortest := make([]time.Duration, attempts)
	for i := range shortest {
		shortest[i] = time.Hour
	}
	for range runs {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			var last time.Time
			n := 0
			h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				if n > 0 {
					d := time.Since(last)
					longest[n-1], shortest[n-1] = max(longest[n-1], d), min(shortest[n-1], d)
				}
				if last, n = time.Now(), n+1; n <= attempts {
					foreign(t, h, s.Key(), 1)
				}
				return commit()
			})
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		})
	}
	for i := range attempts {
		limit := min(5*time.Millisecond<<i, 500*time.Millisecond)
		assert.LessOrEqual(t, longest[i], limit, "delay %d", i+1)
		assert.Greater(t, longest[i], limit/2, "delay %d never reaches the upper half of its range", i+1)
		assert.Less(t, shortest[i], limit/4, "delay %d never reaches the lowest quarter of its range", i+1)
	}
}

// One caller's long backoff does not delay another caller. Proves CAS-3.
func TestCallersHaveSeparateBackoffs(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		patient := push(s, "patient", pawl.WithRetry(pawl.Retry{First: 20 * time.Minute, Max: 20 * time.Minute, Within: time.Hour}))
		start := time.Now()
		quick := push(s, "quick")
		lose := 2 // the first conflict costs no attempt
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if lose > 0 {
				lose--
				foreign(t, h, s.Key(), 1)
			}
			return commit()
		})
		open()
		require.NoError(t, <-first)
		assert.NoError(t, <-quick)
		assert.LessOrEqual(t, time.Since(start), time.Second)
		<-patient
	})
}

// A backoff that is longer than any budget spends it, and holds up no other caller. Proves CAS-2.
func TestBackoffBeyondEveryBudget(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			time.Sleep(time.Second)
			foreign(t, h, s.Key(), 1)
			return commit()
		})
		_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{First: math.MaxInt64, Max: math.MaxInt64}))
		require.ErrorAs(t, err, new(*pawl.ConcurrentModificationError))
		h.Around(nil)
		start := time.Now()
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
	})
}

// The number of attempts comes from the call, the kind or the runtime. When they are spent, nothing
// was committed. Proves CAS-2, CAS-3.
func TestSpentRetryBudget(t *testing.T) {
	kind := pawl.Kind[counts]{Name: "job", Retry: pawl.Retry{Attempts: 4}}
	for _, c := range []struct {
		name   string
		config pawl.Config
		scope  func(*pawl.Runtime) pawl.Scope[counts]
		opts   []pawl.CallOption
		want   int
	}{
		{"default", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Session[counts](rt, "a") }, nil, 16},
		{"runtime", pawl.Config{Retry: pawl.Retry{Attempts: 3}}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Session[counts](rt, "a") }, nil, 3},
		{"kind", pawl.Config{Retry: pawl.Retry{Attempts: 3}}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, nil, 4},
		{"call", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, []pawl.CallOption{pawl.WithRetry(pawl.Retry{Attempts: 5})}, 5},
		{"a single attempt", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, []pawl.CallOption{pawl.WithRetry(pawl.Retry{Attempts: 1})}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			persisted(t, c.config, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, _ pawl.Scope[counts]) {
				s := c.scope(rt)
				foreign(t, h, s.Key(), 100)
				h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					foreign(t, h, s.Key(), 100)
					return commit()
				})
				runs, start := 0, time.Now()
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { runs++; b.N++; return nil }, c.opts...)
				var conflict *pawl.ConcurrentModificationError
				require.ErrorAs(t, err, &conflict)
				assert.Equal(t, pawl.ConcurrentModificationError{Scope: s.Key(), Expected: uint64(c.want), Actual: uint64(c.want) + 1, Attempts: c.want, Elapsed: time.Since(start)}, *conflict)
				assert.Equal(t, "CONCURRENT_MODIFICATION", pawl.Code(err))
				assert.Equal(t, 409, pawl.HTTPStatus(err))
				assert.True(t, pawl.IsRetryable(err))
				assert.False(t, pawl.OutcomeUnknown(err))
				assert.ErrorIs(t, err, pawl.ErrConflict)
				assert.Equal(t, c.want, runs)
				b, err := s.State(t.Context())
				require.NoError(t, err)
				assert.Zero(t, b.N%100, "an increment was committed")
			})
		})
	}
}

// A conflict with a version that was cached before the call costs neither an attempt nor a delay.
// Proves CAS-3.
func TestStaleCacheCostsNoAttempt(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		foreign(t, h, s.Key(), 100)
		start := time.Now()
		snap, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Attempts: 1}))
		require.NoError(t, err, "a stale cached version must not cost an attempt")
		assert.Equal(t, 102, snap.ReadOnly().N)
		assert.Zero(t, time.Since(start), "a stale cached version must not cost a delay")
	})
}

// A process whose rival commits before each of its own commits gets a turn. During the turn the
// rival waits.
//
// Proves CAS-1, CAS-6.
func TestRivalThatIsAlwaysFaster(t *testing.T) {
	location := pgtest.URL(t)
	var rivals sync.WaitGroup
	defer rivals.Wait()
	rival := pawl.Session[counts](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)}), "s")
	seed(t, rival, counts{})
	store := &stores.Tap{Store: stores.OpenFor(t, location)}
	s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: store}), "s")
	var commits, turns atomic.Int64
	held := false
	commit := func() {
		_, err := rival.IncState(context.Background(), "n", 1)
		assert.NoError(t, err)
		commits.Add(1)
	}
	store.OnCommit(func(context.Context, persist.Commit) error {
		if held {
			rivals.Go(commit) // concurrent with the commit of s
		} else {
			commit()
		}
		return nil
	})
	store.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
		var lost *persist.Conflict
		if held = errors.As(err, &lost) && lost.Held; held {
			turns.Add(1)
		}
		return at, err
	})
	_, err := s.IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	require.NotZero(t, turns.Load())
	rivals.Wait()
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1+commits.Load(), snap.State().N)
}

// The store holds nothing for a call that would not use it in time: a call on its last attempt, or
// one with a slow function.
//
// Proves CAS-1, CAS-11.
func TestCallsThatDoNotInsist(t *testing.T) {
	location := pgtest.URL(t)
	rival := pawl.Session[counts](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)}), "s")
	seed(t, rival, counts{})
	store := &stores.Tap{Store: stores.OpenFor(t, location)}
	s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: store}), "s")
	var insisted []bool
	store.OnCommit(func(_ context.Context, c persist.Commit) error {
		insisted = append(insisted, c.Insist)
		_, err := rival.IncState(context.Background(), "n", 1)
		return err
	})
	var spent *pawl.ConcurrentModificationError
	_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Attempts: 3}))
	require.ErrorAs(t, err, &spent)
	require.Equal(t, []bool{false, true, false}, insisted[len(insisted)-3:])
	insisted = nil
	_, err = s.AtomicState(t.Context(), func(_ context.Context, c *counts) error {
		time.Sleep(20 * time.Millisecond) // twice as long as a batch waits for a function
		c.N++
		return nil
	}, pawl.WithRetry(pawl.Retry{Attempts: 4}))
	require.ErrorAs(t, err, &spent)
	require.NotContains(t, insisted, true)
}
