package run_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// rawInboxes are the signals that no step has received, by run and name.
var rawInboxes = pawl.Kind[map[string]any]{Name: "run.signal"}

// inboxes counts the documents with signals.
func inboxes(t testing.TB, store persist.Store) (n int) {
	t.Helper()
	for _, err := range rawInboxes.List(t.Context(), open(t, store), pawl.Query{}) {
		require.NoError(t, err)
		n++
	}
	return n
}

// failing is a step that fails for good as long as the state of its run has no name.
func failing(name string) run.Step[order] {
	return step(name, func(_ context.Context, a *attempt) (run.Next, error) {
		if a.State.ID == "" {
			return run.Next{}, pawl.NonRetryable(errors.New("no"))
		}
		return run.Continue(), nil
	})
}

// duringDelete starts a failed run under a key, with a signal to it. Then it deletes the run, and calls
// fn before the first commit of that.
func duringDelete(t *testing.T, store persist.Store, fn func(e *run.Engine, runs *run.Runs[order], id string)) error {
	t.Helper()
	e, runs := engine(open(t, store), run.Config{}, failing("a"))
	r, _, err := runs.Start(t.Context(), order{}, run.WithKey("k"))
	require.NoError(t, err)
	require.NoError(t, e.Signal(t.Context(), r.ID, "go", 1))
	require.NoError(t, e.Start(t.Context()))
	require.Equal(t, run.Failed, finished(t, runs, r.ID).Status)
	require.NoError(t, e.Stop(t.Context()))

	tap := &stores.Tap{Store: store}
	deleting, _ := engine(open(t, tap), run.Config{}, failing("a"))
	var once sync.Once
	tap.OnCommit(func(context.Context, persist.Commit) error {
		once.Do(func() { fn(e, runs, r.ID) })
		return nil
	})
	return deleting.Delete(t.Context(), r.ID)
}

// Retry puts a failed run back to work when Delete has seen that it is over. Delete refuses, and leaves
// the signal that no step has received. Proves RUN-6.
func TestDeleteRacesRetry(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		err := duringDelete(t, store, func(e *run.Engine, _ *run.Runs[order], id string) {
			require.NoError(t, e.Retry(t.Context(), id))
		})
		require.Equal(t, 1, inboxes(t, store))
		require.ErrorAs(t, err, new(*run.UnfinishedError))
	})
}

// A failed run is deleted and started again under its key when another Delete has seen that it is over.
// That one refuses, and leaves the signal of the new run. Proves RUN-6.
func TestDeleteRacesDelete(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		err := duringDelete(t, store, func(e *run.Engine, runs *run.Runs[order], id string) {
			require.NoError(t, e.Delete(t.Context(), id))
			r, created, err := runs.Start(t.Context(), order{}, run.WithKey("k"))
			require.NoError(t, err)
			require.True(t, created)
			require.Equal(t, id, r.ID)
			require.NoError(t, e.Signal(t.Context(), id, "go", 2))
		})
		require.Equal(t, 1, inboxes(t, store))
		require.ErrorAs(t, err, new(*run.UnfinishedError))
	})
}

// Two calls of Delete meet. The later one finds nothing to do.
func TestDeleteTwiceAtOnce(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		require.NoError(t, duringDelete(t, store, func(e *run.Engine, _ *run.Runs[order], id string) {
			require.NoError(t, e.Delete(t.Context(), id))
		}))
		require.Zero(t, inboxes(t, store))
	})
}

// A failed run with signals of many names is deleted by several commits. After the first of them it
// cannot be retried, and Delete can be repeated. Proves RUN-6.
func TestDeleteManySignals(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		e, runs := engine(open(t, store), run.Config{}, failing("a"))
		r, _, err := runs.Start(t.Context(), order{}, run.WithKey("k"))
		require.NoError(t, err)
		for i := range 2*run.SignalsPerCommit + 1 {
			require.NoError(t, e.Signal(t.Context(), r.ID, fmt.Sprint("go", i), 1))
		}
		require.NoError(t, e.Start(t.Context()))
		require.Equal(t, run.Failed, finished(t, runs, r.ID).Status)
		require.NoError(t, e.Stop(t.Context()))

		tap := &stores.Tap{Store: store}
		deleting, _ := engine(open(t, tap), run.Config{}, failing("a"))
		commits := 0
		tap.OnCommit(func(context.Context, persist.Commit) error {
			if commits++; commits > 1 {
				return fmt.Errorf("%w: refused by the test", persist.ErrNotApplied)
			}
			return nil
		})
		require.Error(t, deleting.Delete(t.Context(), r.ID))
		require.Equal(t, run.SignalsPerCommit+1, inboxes(t, store))
		require.ErrorAs(t, e.Retry(t.Context(), r.ID), new(*run.FinishedError))
		tap.OnCommit(nil)
		require.NoError(t, deleting.Delete(t.Context(), r.ID))
		require.Zero(t, inboxes(t, store))
		_, err = runs.Get(t.Context(), r.ID)
		require.ErrorIs(t, err, pawl.ErrNotFound)
	})
}
