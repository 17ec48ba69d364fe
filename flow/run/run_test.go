package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// A run goes through its steps. Each commits once and moves the version by two. Proves RUN-2, RUN-5.
func TestRun(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		var versions []uint64
		var runs *run.Runs[order]
		see := func(ctx context.Context, a *attempt) (run.Next, error) {
			r, err := runs.Get(ctx, a.RunID)
			versions = append(versions, r.Version)
			if err != nil || r.Status != run.Running || a.Number != 1 {
				return run.Next{}, errors.New("not RUNNING")
			}
			return run.Continue(), a.Output(len(versions))
		}
		_, runs = start(t, rt, run.Config{}, step("a", see), step("b", see), step("c", see))
		r, created, err := runs.Start(t.Context(), order{ID: "1"})
		require.NoError(t, err)
		require.True(t, created)
		require.Equal(t, run.Pending, r.Status)
		require.EqualValues(t, 1, r.Version)
		require.Equal(t, "a", r.CurrentStep)
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []uint64{2, 4, 6}, versions)
		require.EqualValues(t, 7, r.Version)
		require.Equal(t, order{ID: "1", Log: []string{"a", "b", "c"}}, r.State)
		require.Equal(t, []run.Status{run.Completed, run.Completed, run.Completed}, statuses(r))
		require.JSONEq(t, "3", string(r.Steps[2].Output))
		require.False(t, r.StartedAt.IsZero() || r.FinishedAt.IsZero() || r.StartedAt.After(r.FinishedAt))
		sum, err := totals.Scope(rt, r.ID).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, sum.Steps)
	})
}

// Goto and End skip steps; a jump backwards runs them again.
func TestGoto(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		_, runs := start(t, rt, run.Config{},
			step("a", func(context.Context, *attempt) (run.Next, error) { return run.Goto("c"), nil }),
			step("b", nil),
			step("c", func(_ context.Context, a *attempt) (run.Next, error) {
				if len(a.State.Log) < 4 {
					return run.Goto("b"), nil
				}
				return run.End(), nil
			}),
			step("d", nil))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []string{"a", "c", "b", "c"}, r.State.Log)
		require.Equal(t, []run.Status{run.Completed, run.Completed, run.Completed, run.Skipped}, statuses(r))
	})
}

// A step waits for a time, then for a signal, and goes on with its data. Proves RUN-6.
func TestSleepAndAwait(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		e, runs := start(t, rt, run.Config{},
			step("sleep", func(_ context.Context, a *attempt) (run.Next, error) {
				if !a.Resumed {
					return run.Sleep(10 * time.Millisecond), nil
				}
				return run.Continue(), nil
			}),
			step("await", func(_ context.Context, a *attempt) (run.Next, error) {
				if a.Signal == nil {
					return run.Await("paid", 0), nil
				}
				return run.Continue(), json.Unmarshal(a.Signal.Data, &a.State.ID)
			}))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		r = until(t, runs, r.ID, "waiting", func(r run.Run[order]) bool { return r.Awaits == "paid" })
		require.Equal(t, run.Waiting, r.Status)
		require.True(t, r.Due.IsZero())
		require.NoError(t, e.Signal(t.Context(), r.ID, "other", 1))
		require.NoError(t, e.Signal(t.Context(), r.ID, "paid", "yes"))
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, "yes", r.State.ID)
		var over *run.FinishedError
		require.ErrorAs(t, e.Signal(t.Context(), r.ID, "paid", "again"), &over)
		require.ErrorAs(t, e.Cancel(t.Context(), r.ID), &over)
		require.ErrorAs(t, e.Retry(t.Context(), r.ID), &over)
		require.ErrorIs(t, e.Signal(t.Context(), "none", "paid", 1), pawl.ErrNotFound)
	})
}

// A failing step is repeated by its policy, and then the run has failed. Retry puts it back to work.
// Proves RUN-7.
func TestFailedStep(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		works := make(chan struct{})
		e, runs := start(t, rt, run.Config{}, step("a", nil), step("b", func(_ context.Context, a *attempt) (run.Next, error) {
			select {
			case <-works:
				return run.Continue(), nil
			default:
				return run.Next{}, errors.New("no bank")
			}
		}))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Failed, r.Status)
		require.Equal(t, "no bank", r.Error)
		require.Equal(t, 3, r.Steps[1].Attempts)
		require.Equal(t, []string{"a"}, r.State.Log, "nothing of a failed attempt is kept")
		close(works)
		require.NoError(t, e.Retry(t.Context(), r.ID))
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status)
		require.Equal(t, []string{"a", "b"}, r.State.Log)
		require.Empty(t, r.Error)
	})
}

// Cancel ends a run whose step runs: the context of the step ends, and nothing of it is committed.
// Proves RUN-9.
func TestCancelARunningStep(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		began, ended := make(chan struct{}), make(chan error, 1)
		e, runs := start(t, rt, run.Config{}, step("a", func(ctx context.Context, a *attempt) (run.Next, error) {
			close(began)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return run.Continue(), nil
		}))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		<-began
		require.NoError(t, e.Cancel(t.Context(), r.ID))
		require.Error(t, <-ended)
		require.NoError(t, e.Stop(t.Context()))
		r, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, run.Canceled, r.Status)
		require.Empty(t, r.State.Log)
	})
}
