package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func init() { testkit.Child("soaked", soakedChild) }

const (
	soakWorkers = 3  // processes
	soakOpen    = 20 // runs that are not finished, at most
)

// soakLog is the log of a run of the soak test. Sleep and Await commit, too.
var soakLog = []string{"plain", "sleep", "sleep", "fail", "first", "first", "second", "second", "last"}

// soakSteps are the steps of the soak test: they take a while, sleep, fail and receive two signals.
func soakSteps() []run.Step[order] {
	signal := func(number string) doFunc {
		return func(_ context.Context, a *attempt) (run.Next, error) {
			if a.Signal == nil {
				return run.Await("go", 0), nil
			}
			var data string
			if err := json.Unmarshal(a.Signal.Data, &data); err != nil || data != number {
				return run.Next{}, pawl.NonRetryable(fmt.Errorf("got signal %q, want %q: %w", data, number, err))
			}
			return run.Continue(), nil
		}
	}
	busy := func(context.Context, *attempt) (run.Next, error) {
		time.Sleep(rand.N(20 * time.Millisecond)) // the work
		return run.Continue(), nil
	}
	steps := []run.Step[order]{
		step("plain", busy),
		step("sleep", func(_ context.Context, a *attempt) (run.Next, error) {
			if !a.Resumed {
				return run.Sleep(rand.N(50 * time.Millisecond)), nil
			}
			return run.Continue(), nil
		}),
		step("fail", func(ctx context.Context, a *attempt) (run.Next, error) {
			if rand.N(4) == 0 {
				return run.Next{}, errors.New("no bank")
			}
			return busy(ctx, a)
		}),
		step("first", signal("1")),
		step("second", signal("2")),
		step("last", busy),
	}
	for i := range steps {
		steps[i].Retry = pawl.Retry{Attempts: 1000, First: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	}
	return steps
}

func soakedChild() error {
	rt, _, err := openGiven()
	if err != nil {
		return err
	}
	e, _ := engine(rt, run.Config{Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 4}, soakSteps()...)
	if err := e.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// Worker processes are killed at random moments and started again. In the end every run is
// completed, with each step and signal committed once and in order. PAWL_SOAK sets the length in
// seconds. Proves RUN-1, RUN-6, RUN-8, RUN-9.
func TestSoak(t *testing.T) {
	length := time.Duration(testkit.Times(10, 4, "PAWL_SOAK")) * time.Second
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		rt := open(t, stores.OpenFor(t, location))
		e, runs := engine(rt, run.Config{}, soakSteps()...)
		var workers [soakWorkers]*testkit.Process
		for i := range workers {
			workers[i] = testkit.Start(t, "soaked", stores.Env(location))
		}
		started := map[string]time.Time{} // by run
		unfinished := []run.Status{run.Pending, run.Running, run.Waiting}
		kills := 0
		for deadline := time.Now().Add(length); time.Now().Before(deadline); {
			for range soakOpen - len(list(t, runs, run.Filter{Statuses: unfinished})) {
				key := fmt.Sprint("run-", len(started))
				r, created, err := runs.Start(t.Context(), order{ID: key}, run.WithKey(key))
				require.NoError(t, err)
				require.True(t, created)
				started[r.ID] = time.Time{}
				for _, number := range []string{"1", "2"} {
					require.NoError(t, e.Signal(t.Context(), r.ID, "go", number))
				}
			}
			time.Sleep(rand.N(500 * time.Millisecond)) // kill at any moment
			i := rand.N(soakWorkers)
			workers[i].Kill()
			kills++
			for r, err := range runs.List(t.Context(), run.Filter{Statuses: unfinished}) {
				require.NoError(t, err)
				if was := started[r.ID]; was.IsZero() {
					started[r.ID] = r.StartedAt
				} else {
					require.True(t, was.Equal(r.StartedAt), "startedAt of %s changed from %v to %v", r.ID, was, r.StartedAt)
				}
			}
			workers[i] = testkit.Start(t, "soaked", stores.Env(location))
		}
		again := 0
		for id, at := range started {
			r := finished(t, runs, id)
			require.Equal(t, run.Completed, r.Status, "%s: %s", id, r.Error)
			require.Equal(t, soakLog, r.State.Log, id)
			require.True(t, at.IsZero() || at.Equal(r.StartedAt), id)
			sum, err := totals.Scope(rt, id).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(soakLog), sum.Steps, id)
			same, created, err := runs.Start(t.Context(), order{ID: r.Key}, run.WithKey(r.Key))
			require.NoError(t, err)
			require.False(t, created)
			require.Equal(t, id, same.ID)
			again += interrupted(r)
		}
		for _, p := range workers {
			p.Kill()
		}
		testkit.Figures(t, "%d runs, %d kills, %d attempts repeated", len(started), kills, again)
	})
}
