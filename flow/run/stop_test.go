package run_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Stop interrupts a step and hands its run back: it is PENDING, the attempt is not counted, and
// another engine continues at once, long before the lease would end. Proves RUN-9.
func TestStopHandsBack(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		rt := open(t, stores.OpenFor(t, location))
		began, causes := make(chan struct{}), make(chan error, 1)
		long := run.Config{Lease: time.Hour, Poll: time.Hour}
		first, runs := engine(rt, long, step("a", nil), step("b", func(ctx context.Context, _ *attempt) (run.Next, error) {
			close(began)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return run.Next{}, ctx.Err()
		}))
		require.NoError(t, first.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		testkit.Receive(t, began)
		running, err := runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, first.Stop(ended))
		require.NoError(t, first.Stop(t.Context()))
		require.NoError(t, first.Stop(t.Context()), "twice")
		require.ErrorIs(t, testkit.Receive(t, causes), job.ErrStopped)

		r, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, run.Pending, r.Status)
		require.Equal(t, "b", r.CurrentStep)
		require.Equal(t, []string{"a"}, r.State.Log)
		require.True(t, running.StartedAt.Equal(r.StartedAt))
		require.Contains(t, []uint64{1, 3}, r.Version-running.Version, "a look that had begun may take it once more, and hands it back")

		numbers := make(chan int, 1)
		_, runs = start(t, open(t, stores.OpenFor(t, location)), long, step("a", nil), step("b", func(_ context.Context, a *attempt) (run.Next, error) {
			numbers <- a.Number
			return run.Continue(), nil
		}))
		require.Equal(t, 1, testkit.Receive(t, numbers))
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []string{"a", "b"}, r.State.Log)
		require.True(t, running.StartedAt.Equal(r.StartedAt))
	})
}

// Stop waits for a step that ends in time, and its result is committed.
// Proves RUN-9.
func TestStopWaitsForTheStep(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		began, finish := make(chan struct{}), make(chan struct{})
		e, runs := engine(open(t, store), run.Config{}, step("a", func(context.Context, *attempt) (run.Next, error) {
			close(began)
			<-finish
			return run.Continue(), nil
		}), step("b", nil))
		require.NoError(t, e.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		testkit.Receive(t, began)
		stopped := make(chan error, 1)
		go func() { stopped <- e.Stop(context.Background()) }()
		testkit.Eventually(t, e.Stopped, "Stop has begun")
		require.Empty(t, stopped)
		close(finish)
		require.NoError(t, testkit.Receive(t, stopped))
		r, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, "a", r.State.Log[0])
		require.False(t, r.Status == run.Running, "no lease is left")
	})
}

// Cancel ends a run that is PENDING or WAITING. Proves RUN-9.
func TestCancel(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		e, runs := engine(rt, run.Config{Poll: 20 * time.Millisecond}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
			return run.Await("paid", 0), nil
		}))
		pending, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		require.NoError(t, e.Cancel(t.Context(), pending.ID))
		require.NoError(t, e.Start(t.Context()))
		waits, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		until(t, runs, waits.ID, "waiting", func(r run.Run[order]) bool { return r.Status == run.Waiting })
		require.NoError(t, e.Cancel(t.Context(), waits.ID))
		require.NoError(t, e.Stop(t.Context()))
		for _, was := range []run.Run[order]{pending, waits} {
			r, err := runs.Get(t.Context(), was.ID)
			require.NoError(t, err)
			require.Equal(t, run.Canceled, r.Status)
			require.False(t, r.FinishedAt.IsZero())
			require.Zero(t, r.Due)
			require.Empty(t, r.Awaits)
			require.Equal(t, []run.Status{run.Pending}, statuses(r))
			for _, again := range []error{
				e.Cancel(t.Context(), r.ID), e.Retry(t.Context(), r.ID), e.Signal(t.Context(), r.ID, "paid", 1),
			} {
				var over *run.FinishedError
				require.ErrorAs(t, again, &over)
				require.Equal(t, run.FinishedError{Run: r.ID, Status: run.Canceled}, *over)
				require.Equal(t, 409, pawl.HTTPStatus(again))
				require.Equal(t, "RUN_FINISHED", pawl.Code(again))
			}
		}
		require.ErrorIs(t, e.Cancel(t.Context(), "none"), pawl.ErrNotFound)
		require.ErrorIs(t, e.Retry(t.Context(), "none"), pawl.ErrNotFound)
	})
}

// An engine that is stopped before Start does not start.
func TestStopBeforeStart(t *testing.T) {
	e, _ := engine(open(t, memory.New()), run.Config{}, step("a", nil))
	require.NoError(t, e.Stop(t.Context()))
	require.ErrorIs(t, e.Start(t.Context()), job.ErrStopped)
}
