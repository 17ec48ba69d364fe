package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// waits is a step that waits for the signal "go".
func waits(name string) run.Step[order] {
	return step(name, func(_ context.Context, a *attempt) (run.Next, error) {
		if a.Signal == nil {
			return run.Await("go", 0), nil
		}
		return run.Continue(), nil
	})
}

// release runs fn with an engine of a release that has these steps.
func release(t testing.TB, rt *pawl.Runtime, log *messages, fn func(e *run.Engine, runs *run.Runs[order]), steps ...run.Step[order]) {
	t.Helper()
	e, runs := engine(rt, run.Config{Logger: slog.New(log)}, steps...)
	require.NoError(t, e.Start(t.Context()))
	fn(e, runs)
	require.NoError(t, e.Stop(t.Context()))
}

// A release does not have the current step of a run. The run is parked with its reason. It is listed,
// and a release that has the step again continues it after Retry. Proves RUN-9.
func TestStepIsGone(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, log := open(t, store), &messages{Handler: slog.DiscardHandler}
		var id string
		release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
			r, _, err := runs.Start(t.Context(), order{})
			require.NoError(t, err)
			id = r.ID
			until(t, runs, id, "waiting", func(r run.Run[order]) bool { return r.Status == run.Waiting })
			require.NoError(t, e.Stop(t.Context()))
			require.NoError(t, e.Signal(t.Context(), id, "go", 1))
			var working *run.UnfinishedError
			err = e.Retry(t.Context(), id)
			require.ErrorAs(t, err, &working)
			require.Equal(t, "RUN_UNFINISHED", pawl.Code(err))
			require.Equal(t, 409, pawl.HTTPStatus(err))
		}, step("a", nil), waits("charge"), step("c", nil))

		release(t, rt, log, func(_ *run.Engine, runs *run.Runs[order]) {
			r := until(t, runs, id, "parked", func(r run.Run[order]) bool { return r.Parked != "" })
			require.Equal(t, `definition "order" has no step "charge"`, r.Parked)
			require.Equal(t, run.Pending, r.Status)
			require.Equal(t, "charge", r.CurrentStep)
			require.False(t, r.Due.IsZero(), "it is tried again")
			require.Empty(t, r.Error)
			require.Equal(t, []string{id}, list(t, runs, run.Filter{Parked: true}))
			require.Equal(t, []string{id}, list(t, runs, run.Filter{}))
			require.Equal(t, []string{id}, list(t, runs, run.Filter{Statuses: []run.Status{run.Pending}}))
			require.Empty(t, list(t, runs, run.Filter{Statuses: []run.Status{run.Failed}, Parked: true}))
			require.Equal(t, 1, log.count("run: parked run="+id+" reason="+r.Parked), "%q", log.lines)
		}, step("a", nil), step("c", nil))

		release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
			r, err := runs.Get(t.Context(), id)
			require.NoError(t, err)
			require.NotEmpty(t, r.Parked, "it stays parked until Retry")
			require.NoError(t, e.Retry(t.Context(), id))
			r = finished(t, runs, id)
			require.Equal(t, run.Completed, r.Status, r.Error)
			require.Equal(t, []string{"a", "charge", "charge", "c"}, r.State.Log)
			require.Empty(t, r.Parked)
			require.Empty(t, list(t, runs, run.Filter{Parked: true}))
		}, step("a", nil), waits("charge"), step("c", nil))
	})
}

// A step was removed that a run has not come to. The run is parked there, also after Retry, and shows the
// reason. A release that keeps the step as one that does nothing ends the run. Proves RUN-9.
func TestRemovedStepStaysAsNothing(t *testing.T) {
	store := stores.OpenFor(t, stores.Memory.New(t))
	rt, log := open(t, store), &messages{Handler: slog.DiscardHandler}
	var id string
	release(t, rt, log, func(_ *run.Engine, runs *run.Runs[order]) {
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		id = r.ID
		until(t, runs, id, "waiting", func(r run.Run[order]) bool { return r.Status == run.Waiting })
	}, waits("a"), step("old", nil), step("c", nil))
	release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
		require.NoError(t, e.Signal(t.Context(), id, "go", 1))
		r := until(t, runs, id, "parked", func(r run.Run[order]) bool { return r.Parked != "" })
		require.NoError(t, e.Retry(t.Context(), id))
		until(t, runs, id, "parked again", func(now run.Run[order]) bool { return now.Parked == r.Parked && now.Version > r.Version+1 })
		require.Equal(t, []string{"old", `definition "order" has no step "old"`}, []string{r.CurrentStep, r.Parked})
	}, waits("a"), step("c", nil))
	nothing := run.Step[order]{Name: "old", Do: func(context.Context, *attempt) (run.Next, error) { return run.Continue(), nil }}
	release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
		require.NoError(t, e.Retry(t.Context(), id))
		r := finished(t, runs, id)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []string{"a", "a", "c"}, r.State.Log)
	}, waits("a"), nothing, step("c", nil))
}

// A release with more steps continues the runs of the release before it. Steps behind the current one
// run, and steps before it do not. Proves RUN-4.
func TestReleaseWithMoreSteps(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, log := open(t, store), &messages{Handler: slog.DiscardHandler}
		var id string
		release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
			r, _, err := runs.Start(t.Context(), order{})
			require.NoError(t, err)
			id = r.ID
			until(t, runs, id, "waiting", func(r run.Run[order]) bool { return r.Status == run.Waiting })
		}, step("a", nil), waits("b"))
		release(t, rt, log, func(e *run.Engine, runs *run.Runs[order]) {
			require.NoError(t, e.Signal(t.Context(), id, "go", 1))
			r := finished(t, runs, id)
			require.Equal(t, run.Completed, r.Status, r.Error)
			require.Equal(t, []string{"a", "b", "b", "c", "d"}, r.State.Log)
			require.Len(t, r.Steps, 5)
		}, step("a", nil), step("before", nil), waits("b"), step("c", nil), step("d", nil))
	})
}

// A state that the type of a release does not fit fails the run at once, with its reason. A run that
// no release can read is listed by its id, and does not count for the limit. Proves RUN-7.
func TestStateDoesNotFit(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		_, runs := engine(rt, run.Config{}, step("a", nil))
		var ids []string
		for range 3 {
			r, _, err := runs.Start(t.Context(), order{})
			require.NoError(t, err)
			ids = append(ids, r.ID)
		}
		writer, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		_, err = rawRuns.Scope(writer, ids[0]).PatchState(t.Context(), pawl.Patch{"state": []int{1}})
		require.NoError(t, err)
		_, err = rawRuns.Scope(writer, ids[0]).PatchState(t.Context(), pawl.Patch{"due": time.Now().Add(-time.Hour)}) // the first of the list
		require.NoError(t, err)
		require.NoError(t, writer.Close(t.Context()))

		for limit := 1; limit <= 2; limit++ {
			good, bad := 0, 0
			for r, err := range runs.List(t.Context(), run.Filter{Limit: limit}) {
				if err != nil {
					require.Equal(t, ids[0], r.ID)
					bad++
				} else {
					good++
				}
			}
			require.Equal(t, limit, good)
			require.LessOrEqual(t, bad, 1)
		}
		e, runs := start(t, rt, run.Config{}, step("a", nil))
		hasFailed := func() (failed bool) {
			for r, err := range runs.List(t.Context(), run.Filter{Statuses: []run.Status{run.Failed}}) {
				var fit *json.UnmarshalTypeError
				require.True(t, errors.As(err, &fit), "%v", err)
				failed = failed || r.ID == ids[0]
			}
			return failed
		}
		for _, id := range ids[1:] {
			require.Equal(t, run.Completed, finished(t, runs, id).Status)
		}
		testkit.Eventually(t, hasFailed, "the run has failed")
		require.NoError(t, e.Stop(t.Context()))
		require.Contains(t, string(document(t, store, ids[0])["error"]), "the stored state does not fit")
	})
}

// Two releases work on one run. The older one keeps the steps and the fields of the state that it
// does not know, and leaves the steps that it does not have to the other. Proves RUN-4.
func TestTwoReleases(t *testing.T) {
	type newer struct {
		order
		Charged int `json:"charged"`
	}
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		next := run.NewEngine(rt, run.Config{Logger: quiet, Poll: 20 * time.Millisecond})
		add := func(_ context.Context, a *run.Attempt[newer]) (run.Next, error) {
			a.State.Charged += 10
			return run.Continue(), nil
		}
		wait := func(_ context.Context, a *run.Attempt[newer]) (run.Next, error) {
			if a.Signal == nil {
				return run.Await("go", 0), nil
			}
			return run.Continue(), nil
		}
		runs := run.Register(next, run.Definition[newer]{Name: "order", Steps: []run.Step[newer]{
			{Name: "x", Do: add}, {Name: "w", Do: wait}, {Name: "y", Do: add},
		}})
		require.NoError(t, next.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), newer{})
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { r, err = runs.Get(t.Context(), r.ID); return err == nil && r.Awaits == "go" }, "waiting")
		require.NoError(t, next.Stop(t.Context()))

		old, oldRuns := start(t, rt, run.Config{}, step("w", nil))
		require.NoError(t, old.Signal(t.Context(), r.ID, "go", 1))
		until(t, oldRuns, r.ID, "parked", func(r run.Run[order]) bool { return r.Parked != "" })
		require.NoError(t, old.Stop(t.Context()))
		r, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, []any{"y", 10, 3, run.Completed}, []any{r.CurrentStep, r.State.Charged, len(r.Steps), r.Steps[0].Status})

		last := run.NewEngine(rt, run.Config{Logger: quiet, Poll: 20 * time.Millisecond})
		again := func(ctx context.Context, a *run.Attempt[newer]) (run.Next, error) {
			assert.ErrorAs(t, last.Retry(t.Context(), a.RunID), new(*run.UnfinishedError), "a run that was parked and is at work")
			return add(ctx, a)
		}
		runs = run.Register(last, run.Definition[newer]{Name: "order", Steps: []run.Step[newer]{
			{Name: "x", Do: add}, {Name: "w", Do: wait}, {Name: "y", Do: again},
		}})
		require.NoError(t, last.Start(t.Context()))
		require.NoError(t, last.Retry(t.Context(), r.ID)) // or in a minute, by itself
		testkit.Eventually(t, func() bool { r, err = runs.Get(t.Context(), r.ID); return err == nil && r.Status == run.Completed }, "completed")
		require.NoError(t, last.Stop(t.Context()))
		require.Equal(t, 20, r.State.Charged)
		require.Equal(t, []string{"w"}, r.State.Log)
	})
}

// A release spells a field of the state in another case, and has a type of list items with fewer fields.
// The field is the same one, and the items keep what the release does not know. Proves RUN-4.
func TestFieldInAnotherCase(t *testing.T) {
	type item struct {
		ID string `json:"id"`
	}
	type renamed struct {
		Total int    `json:"Total"` // it was "total"
		Items []item `json:"items"`
	}
	rt := open(t, stores.OpenFor(t, stores.Memory.New(t)))
	e := run.NewEngine(rt, run.Config{Logger: quiet})
	add := func(_ context.Context, a *run.Attempt[renamed]) (run.Next, error) {
		a.State.Total++
		return run.Continue(), nil
	}
	runs := run.Register(e, run.Definition[renamed]{Name: "count", Steps: []run.Step[renamed]{{Name: "a", Do: add}, {Name: "b", Do: add}}})
	id, _, err := e.Create(t.Context(), rt, run.Request{Definition: "count", Input: json.RawMessage(`{"total":1,"items":[{"id":"x","note":"y"}]}`)})
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	var r run.Run[renamed]
	testkit.Eventually(t, func() bool { r, err = runs.Get(t.Context(), id); return err == nil && r.Status.Finished() }, "finished")
	require.NoError(t, e.Stop(t.Context()))
	require.Equal(t, 3, r.State.Total)
	require.JSONEq(t, `{"Total":3,"items":[{"id":"x","note":"y"}]}`, string(document(t, rt.Store(), id)["state"]))
}
