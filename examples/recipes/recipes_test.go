package recipes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

func open(t *testing.T, store *memory.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Meters, Reports}})
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

// Two processes make one report on each working day. A report that fails is made again.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var mu sync.Mutex // protects made
		var made []string
		var stops []func(context.Context) error
		for range 2 {
			rt := open(t, store)
			scheduler, worker, err := NewReports(rt, func(_ context.Context, key, day string) error {
				mu.Lock()
				defer mu.Unlock()
				made = append(made, key)
				if len(made) == 3 {
					return errors.New("broken")
				}
				return nil
			})
			require.NoError(t, err)
			require.NoError(t, scheduler.Start(t.Context()))
			require.NoError(t, worker.Start(t.Context()))
			stops = append(stops, scheduler.Stop, worker.Stop)
		}
		time.Sleep(8 * 24 * time.Hour) // from Saturday, 1 January 2000
		for _, stop := range stops {
			require.NoError(t, stop(t.Context()))
		}
		require.Equal(t, []string{
			"report/2000-01-03", "report/2000-01-04", "report/2000-01-05", "report/2000-01-05", "report/2000-01-06", "report/2000-01-07",
		}, made, "the third failed and was repeated")
	})
}
