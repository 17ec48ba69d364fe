package run_test

import (
	"context"
	"errors"
	"runtime"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A failing step is tried as often as its policy says, within the bounds of its backoff. The time of
// the next attempt is stored. Proves RUN-7.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		var attempts, stored []time.Time
		var keys []string
		var runs *run.Runs[order]
		s := step("a", func(ctx context.Context, a *attempt) (run.Next, error) {
			require.Equal(t, len(attempts)+1, a.Number)
			keys = append(keys, a.Key())
			attempts = append(attempts, time.Now())
			return run.Next{}, errors.New("no bank")
		})
		s.Retry = pawl.Retry{Attempts: 5, First: time.Minute, Max: 3 * time.Minute}
		e, runs := engine(rt, run.Config{Poll: 24 * time.Hour}, s, step("b", nil))
		require.NoError(t, e.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		for r, err := range runs.Watch(t.Context(), r.ID) {
			require.NoError(t, err)
			if at := r.Steps[0].NextAttempt; r.Status == run.Pending && !at.IsZero() {
				require.Equal(t, run.Pending, r.Steps[0].Status)
				require.Equal(t, "no bank", r.Steps[0].Error)
				require.True(t, at.Equal(r.Due))
				stored = append(stored, at)
			}
			if r.Status.Finished() {
				require.Equal(t, run.Failed, r.Status)
				require.Equal(t, "no bank", r.Error)
				require.Equal(t, run.Failed, r.Steps[0].Status)
				require.Equal(t, 5, r.Steps[0].Attempts)
				require.Zero(t, r.Steps[0].NextAttempt)
				require.EqualValues(t, 11, r.Version)
				break
			}
		}
		require.Len(t, attempts, 5)
		require.Len(t, stored, 4)
		for i, bound := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
			require.LessOrEqual(t, stored[i].Sub(attempts[i]), bound)
			require.False(t, attempts[i+1].Before(stored[i].Truncate(time.Microsecond)), "not before its time")
			require.Less(t, attempts[i+1].Sub(stored[i]), time.Second, "not at the next poll")
		}
		require.Equal(t, []string{r.ID + "/a", r.ID + "/a", r.ID + "/a", r.ID + "/a", r.ID + "/a"}, keys)
		require.NoError(t, e.Stop(t.Context()))
	})
}

// The engine that scheduled an attempt is gone. Another one makes the attempt at its stored time.
// Proves RUN-7.
func TestNextAttemptInAnotherProcess(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		s := step("a", func(context.Context, *attempt) (run.Next, error) { return run.Next{}, errors.New("no bank") })
		s.Retry = pawl.Retry{Attempts: 2, First: 100 * time.Hour, Max: 100 * time.Hour}
		first, runs := engine(rt, run.Config{}, s)
		require.NoError(t, first.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		r = until(t, runs, r.ID, "failed once", func(r run.Run[order]) bool { return !r.Steps[0].NextAttempt.IsZero() })
		require.NoError(t, first.Stop(t.Context()))

		other, err := pawl.Open(pawl.Config{Store: rt.Store()})
		require.NoError(t, err)
		numbers := make(chan int, 10)
		second, runs := engine(other, run.Config{Poll: 24 * time.Hour}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
			numbers <- a.Number
			return run.Continue(), nil
		}))
		require.NoError(t, second.Start(t.Context()))
		time.Sleep(time.Until(r.Steps[0].NextAttempt) - time.Millisecond)
		require.Empty(t, numbers)
		time.Sleep(time.Second)
		require.Equal(t, 2, <-numbers)
		done, err := runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, run.Completed, done.Status)
		require.Zero(t, done.Steps[0].NextAttempt)
		require.Empty(t, done.Steps[0].Error)
		require.NoError(t, second.Stop(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	})
}

// However an attempt fails, it fails by the policy of its step: an error that is marked
// pawl.NonRetryable is final, all others are repeated. Nothing of a failed attempt is committed.
// Proves RUN-7.
func TestFailures(t *testing.T) {
	final := pawl.NonRetryable(errors.New("no such user"))
	for name, c := range map[string]struct {
		do       doFunc
		timeout  time.Duration
		attempts int
		error    string
	}{
		"error":    {attempts: 3, error: "no bank", do: func(context.Context, *attempt) (run.Next, error) { return run.Next{}, errors.New("no bank") }},
		"final":    {attempts: 1, error: "no such user", do: func(context.Context, *attempt) (run.Next, error) { return run.Next{}, final }},
		"panic":    {attempts: 3, error: "the function panicked: no", do: func(context.Context, *attempt) (run.Next, error) { panic("no") }},
		"bad goto": {attempts: 1, error: `has no step "z"`, do: func(context.Context, *attempt) (run.Next, error) { return run.Goto("z"), nil }},
		"bad wait": {attempts: 1, error: "negative time", do: func(context.Context, *attempt) (run.Next, error) { return run.Sleep(-1), nil }},
		"no name":  {attempts: 1, error: "without a signal", do: func(context.Context, *attempt) (run.Next, error) { return run.Await("", 0), nil }},
		"goexit": {attempts: 3, error: "runtime.Goexit", do: func(context.Context, *attempt) (run.Next, error) {
			runtime.Goexit()
			return run.Next{}, nil
		}},
		"timeout": {attempts: 3, error: "context deadline exceeded", timeout: time.Millisecond, do: func(ctx context.Context, _ *attempt) (run.Next, error) {
			<-ctx.Done()
			return run.Next{}, ctx.Err()
		}},
		"commit": {attempts: 3, error: "no money", do: func(_ context.Context, a *attempt) (run.Next, error) {
			a.OnCommit(func(context.Context, *pawl.Tx) error { return errors.New("no money") })
			return run.Continue(), nil
		}},
		"final commit": {attempts: 1, error: "no such user", do: func(_ context.Context, a *attempt) (run.Next, error) {
			a.OnCommit(func(context.Context, *pawl.Tx) error { return final })
			return run.Continue(), nil
		}},
		"panic in the commit": {attempts: 3, error: "late", do: func(_ context.Context, a *attempt) (run.Next, error) {
			a.OnCommit(func(context.Context, *pawl.Tx) error { panic("late") })
			return run.Continue(), nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				rt := open(t, store)
				ran := 0
				s := step("b", func(ctx context.Context, a *attempt) (run.Next, error) {
					ran++
					return c.do(ctx, a)
				})
				s.Timeout = c.timeout
				e, runs := start(t, rt, run.Config{}, step("a", nil), s)
				r, _, err := runs.Start(t.Context(), order{})
				require.NoError(t, err)
				r = finished(t, runs, r.ID)
				require.NoError(t, e.Stop(t.Context()))
				require.Equal(t, run.Failed, r.Status)
				require.Contains(t, r.Error, c.error)
				require.Equal(t, c.attempts, ran)
				require.Equal(t, c.attempts, r.Steps[1].Attempts)
				require.Equal(t, []string{"a"}, r.State.Log)
				require.EqualValues(t, 3+2*c.attempts, r.Version)
				require.Equal(t, []string{r.ID}, list(t, runs, run.Filter{Statuses: []run.Status{run.Failed}}))
				sum, err := totals.Scope(rt, r.ID).State(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, sum.Steps)
			})
		})
	}
}

// The record of a run has room for an error. A state that leaves none is refused by Start, and fails
// the step that made it. Proves RUN-2.
func TestRunHasRoomForAnError(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), MaxDoc: 128 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	size := 0
	failing := errors.New(strings.Repeat("\x01", 10_000)) // six bytes each, as JSON
	_, runs := start(t, rt, run.Config{}, step("grow", func(_ context.Context, a *attempt) (run.Next, error) {
		a.State.ID = strings.Repeat("x", size)
		return run.Continue(), nil
	}), step("fail", func(context.Context, *attempt) (run.Next, error) { return run.Next{}, failing }))
	failedAt := func(input order) string {
		r, _, err := runs.Start(t.Context(), input)
		require.NoError(t, err)
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Failed, r.Status)
		return r.CurrentStep
	}
	less := sort.Search(rt.MaxDoc(), func(n int) bool {
		size = rt.MaxDoc() - n
		return failedAt(order{}) == "fail"
	})
	require.Less(t, less, rt.MaxDoc()/2)

	size = 0
	less = sort.Search(rt.MaxDoc(), func(n int) bool {
		_, _, err := runs.Start(t.Context(), order{ID: strings.Repeat("x", rt.MaxDoc()-n)})
		if err != nil {
			require.Equal(t, 413, pawl.HTTPStatus(err))
		}
		return err == nil
	})
	require.Less(t, less, rt.MaxDoc()/2)
	less += 20 // the times in a record are not all of one length
	require.Equal(t, "fail", failedAt(order{ID: strings.Repeat("x", rt.MaxDoc()-less)}))
}
