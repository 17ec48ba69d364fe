package recipes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

func open(t *testing.T, store *memory.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Meters, Schedules}})
	require.NoError(t, err)
	t.Cleanup(func() { rt.Close(context.Background()) }) // t.Context has ended by then
	return rt
}

// A limit allows its burst at once, then one call per interval, in two processes together.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		limit, processes := Limit{Every: time.Second, Burst: 3}, []*pawl.Runtime{open(t, store), open(t, store)}
		call := func(i int) error { return limit.Allow(t.Context(), Meters.Scope(processes[i%2], "ann")) }
		for i := range limit.Burst {
			require.NoError(t, call(i))
		}
		err := call(3)
		var limited *LimitedError
		require.ErrorAs(t, err, &limited)
		require.Equal(t, time.Second, limited.RetryAfter)
		require.Equal(t, 429, pawl.HTTPStatus(err))
		time.Sleep(limited.RetryAfter)
		require.NoError(t, call(4))
		require.Error(t, call(5))
		time.Sleep(time.Minute) // the burst is available again, and no more than that
		for i := range limit.Burst {
			require.NoError(t, call(i))
		}
		require.Error(t, call(0))
		require.NoError(t, limit.Allow(t.Context(), Meters.Scope(processes[0], "bob")), "each user has a limit of their own")
	})
}

// Two processes run each schedule once per interval. A failed run is repeated.
func TestSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		var runs atomic.Int64
		var running sync.WaitGroup
		for range 2 {
			rt := open(t, store)
			require.NoError(t, AddSchedule(ctx, rt, "report", time.Hour))
			running.Go(func() {
				RunSchedules(ctx, rt, time.Second, func(context.Context, string) error {
					if runs.Add(1) == 3 {
						return errors.New("broken")
					}
					return nil
				})
			})
		}
		time.Sleep(59 * time.Minute)
		require.Zero(t, runs.Load())
		time.Sleep(5 * time.Hour)
		require.EqualValues(t, 6, runs.Load(), "the third run failed and was repeated")
		s, err := Schedules.Scope(open(t, store), "report").State(ctx)
		require.NoError(t, err)
		require.Equal(t, 5, s.Runs)
		cancel()
		running.Wait()
	})
}
