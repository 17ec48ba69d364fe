package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Runs are listed by status and workspace, page by page, and up to a limit.
func TestList(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		final := pawl.NonRetryable(errors.New("no"))
		e, runs := engine(rt, run.Config{Poll: 20 * time.Millisecond}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
			switch a.State.ID {
			case "fails":
				return run.Next{}, final
			case "waits":
				return run.Await("x", 0), nil
			}
			return run.Continue(), nil
		}))
		others := run.Register(e, run.Definition[order]{Name: "return", Steps: []run.Step[order]{step("a", nil)}})
		ids := map[run.Status][]string{}
		add := func(status run.Status, id, workspace string) {
			r, _, err := runs.Start(t.Context(), order{ID: id}, run.InWorkspace(workspace))
			require.NoError(t, err)
			ids[status] = append(ids[status], r.ID)
		}
		for i := range 4 {
			workspace := fmt.Sprint("w", i%2)
			add(run.Completed, "", workspace)
			add(run.Failed, "fails", workspace)
			add(run.Waiting, "waits", workspace)
			add(run.Canceled, "", workspace)
			require.NoError(t, e.Cancel(t.Context(), ids[run.Canceled][i]))
		}
		_, _, err := others.Start(t.Context(), order{})
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context()))
		for status, all := range ids {
			for _, id := range all {
				until(t, runs, id, string(status), func(r run.Run[order]) bool { return r.Status == status })
			}
		}
		require.NoError(t, e.Stop(t.Context()))
		add(run.Pending, "", "w0")

		var every []string
		for status, want := range ids {
			every = append(every, want...)
			require.ElementsMatch(t, want, list(t, runs, run.Filter{Statuses: []run.Status{status}}), status)
		}
		require.ElementsMatch(t, every, list(t, runs, run.Filter{}))
		require.ElementsMatch(t, slices.Concat(ids[run.Failed], ids[run.Pending]), list(t, runs, run.Filter{Statuses: []run.Status{run.Failed, run.Pending}}))
		require.Len(t, list(t, runs, run.Filter{Workspace: "w0"}), 9)
		require.Len(t, list(t, runs, run.Filter{Workspace: "w1", Statuses: []run.Status{run.Completed}}), 2)
		require.Empty(t, list(t, runs, run.Filter{Workspace: "w"}))
		require.Len(t, list(t, runs, run.Filter{Limit: 5}), 5)
		require.Len(t, list(t, runs, run.Filter{Limit: 3, Statuses: []run.Status{run.Waiting}}), 3)
		require.Empty(t, list(t, runs, run.Filter{Age: time.Hour}))
		require.Empty(t, list(t, runs, run.Filter{Parked: true}))
		require.Len(t, list(t, others, run.Filter{}), 1)

		_, err = others.Get(t.Context(), every[0])
		require.ErrorIs(t, err, pawl.ErrNotFound, "it has another definition")
	})
}

// Watch yields a run and then its newer versions, of other processes, too.
func TestWatch(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		_, runs := engine(open(t, stores.OpenFor(t, location)), run.Config{}, step("a", nil), step("b", nil))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		started := false
		var versions []uint64
		for r, err := range runs.Watch(t.Context(), r.ID) {
			require.NoError(t, err)
			if !started {
				require.Equal(t, run.Pending, r.Status)
				start(t, open(t, stores.OpenFor(t, location)), run.Config{}, step("a", nil), step("b", nil))
				started = true
			}
			if versions = append(versions, r.Version); r.Status.Finished() {
				break
			}
		}
		require.True(t, slices.IsSorted(versions))
		require.EqualValues(t, 1, versions[0])
		require.EqualValues(t, 5, versions[len(versions)-1])
		for _, err := range runs.Watch(t.Context(), "none") {
			require.ErrorIs(t, err, pawl.ErrNotFound)
		}
	})
}

// A schedule starts one run for each tick, although two engines have it. Proves RUN-1, JOB-1.
func TestScheduledRuns(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		other, err := pawl.Open(pawl.Config{Store: rt.Store()})
		require.NoError(t, err)
		begin := time.Now()
		var engines []*run.Engine
		var runs *run.Runs[order]
		for _, rt := range []*pawl.Runtime{rt, other} {
			var e *run.Engine
			e, runs = engine(rt, run.Config{Poll: 24 * time.Hour}, step("a", nil))
			e.Schedule(job.Schedule{Name: "report", Every: time.Hour}, run.Request{Definition: "order", Input: []byte(`{"id":"r"}`), Workspace: "reports"})
			require.NoError(t, e.Start(t.Context()))
			engines = append(engines, e)
		}
		time.Sleep(3*time.Hour + time.Minute)
		synctest.Wait()
		var created []time.Duration
		for r, err := range runs.List(t.Context(), run.Filter{Workspace: "reports"}) {
			require.NoError(t, err)
			require.Equal(t, run.Completed, r.Status)
			require.Equal(t, order{ID: "r", Log: []string{"a"}}, r.State)
			created = append(created, r.CreatedAt.Sub(begin).Truncate(time.Minute))
		}
		slices.Sort(created)
		require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour}, created)
		for _, e := range engines {
			require.NoError(t, e.Stop(t.Context()))
		}
		require.NoError(t, other.Close(t.Context()))
	})
}

// Engine.Start returns what is wrong with a schedule or its request. When a schedule cannot be
// stored, it starts nothing.
func TestScheduleFaults(t *testing.T) {
	hourly := job.Schedule{Name: "report", Every: time.Hour}
	for want, c := range map[string]struct {
		s job.Schedule
		q run.Request
	}{
		`definition "none" is not registered`: {hourly, run.Request{Definition: "none"}},
		"cannot unmarshal":                    {hourly, run.Request{Definition: "order", Input: []byte(`[]`)}},
		"exactly one of Cron and Every":       {job.Schedule{Name: "report"}, run.Request{Definition: "order"}},
	} {
		e, _ := engine(open(t, memory.New()), run.Config{}, step("a", nil))
		e.Schedule(c.s, c.q)
		require.ErrorContains(t, e.Start(t.Context()), want)
		require.NoError(t, e.Stop(t.Context()))
	}

	tap := &stores.Tap{Store: memory.New()}
	rt, err := pawl.Open(pawl.Config{Store: tap, Retry: pawl.Retry{Attempts: 1, Within: time.Second}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	e, runs := engine(rt, run.Config{}, step("a", nil))
	e.Schedule(hourly, run.Request{Definition: "order"})
	tap.RefuseAll()
	require.ErrorContains(t, e.Start(t.Context()), "job.schedule/report")
	tap.Refuse(nil)
	require.NoError(t, e.Start(t.Context()), "Start can be repeated")
	r, _, err := runs.Start(t.Context(), order{})
	require.NoError(t, err)
	require.Equal(t, run.Completed, finished(t, runs, r.ID).Status)
	e.Schedule(job.Schedule{Name: "late", Every: time.Hour}, run.Request{Definition: "order"})
	require.ErrorContains(t, e.Start(t.Context()), "late: added after Start")
	require.NoError(t, e.Stop(t.Context()))
}

// A run that is over can be deleted, with its signals. Then its key starts a new run, which gets
// signals of its own.
func TestDelete(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		e, runs := start(t, rt, run.Config{}, waits("a"))
		for range 2 {
			r, created, err := runs.Start(t.Context(), order{}, run.WithKey("k"))
			require.NoError(t, err)
			require.True(t, created)
			var unfinished *run.UnfinishedError
			require.ErrorAs(t, e.Delete(t.Context(), r.ID), &unfinished)
			require.NoError(t, e.Signal(t.Context(), r.ID, "other", 1))
			require.NoError(t, e.Signal(t.Context(), r.ID, "go", 1))
			require.Equal(t, run.Completed, finished(t, runs, r.ID).Status)
			require.NoError(t, e.Delete(t.Context(), r.ID))
			require.NoError(t, e.Delete(t.Context(), r.ID), "again")
			_, err = runs.Get(t.Context(), r.ID)
			require.ErrorIs(t, err, pawl.ErrNotFound)
		}
	})
}

// A second Start of an engine does nothing, whatever its context and the store.
func TestStartTwice(t *testing.T) {
	tap := &stores.Tap{Store: memory.New()}
	e, runs := engine(open(t, tap), run.Config{}, step("a", nil))
	e.Schedule(job.Schedule{Name: "report", Every: time.Hour}, run.Request{Definition: "order", Input: []byte(`{"id":"r"}`)})
	require.NoError(t, e.Start(t.Context()))
	defer func() { require.NoError(t, e.Stop(context.Background())) }()
	tap.OnCommit(func(context.Context, persist.Commit) error { return persist.ErrUnavailable })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, e.Start(ended))
	tap.OnCommit(nil)
	r, _, err := runs.Start(t.Context(), order{})
	require.NoError(t, err)
	finished(t, runs, r.ID)
}
