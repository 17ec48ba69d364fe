package run_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// order is the state of the tests' runs.
type order struct {
	ID  string   `json:"id"`
	Log []string `json:"log,omitempty"`
}

// total counts what steps have committed.
type total struct {
	Steps int `json:"steps"`
}

var totals = pawl.Kind[total]{Name: "total"}

var quiet = slog.New(slog.DiscardHandler)

func open(t testing.TB, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{totals}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}

type (
	attempt = run.Attempt[order]
	doFunc  = func(ctx context.Context, a *attempt) (run.Next, error)
)

// step returns a step that writes its name to the log of its order and counts itself, and then does
// what do says; nil: it continues.
func step(name string, do doFunc) run.Step[order] {
	return run.Step[order]{
		Name:  name,
		Retry: pawl.Retry{Attempts: 3, First: time.Millisecond, Max: time.Millisecond},
		Do: func(ctx context.Context, a *attempt) (run.Next, error) {
			a.State.Log = append(a.State.Log, name)
			a.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
				_, err := totals.Scope(tx, a.RunID).IncState(ctx, "steps", 1)
				return err
			})
			if do == nil {
				return run.Continue(), nil
			}
			return do(ctx, a)
		},
	}
}

// engine returns an engine with one definition, "order".
func engine(rt *pawl.Runtime, c run.Config, steps ...run.Step[order]) (*run.Engine, *run.Runs[order]) {
	if c.Logger == nil {
		c.Logger = quiet
	}
	if c.Poll == 0 {
		c.Poll = 100 * time.Millisecond
	}
	e := run.NewEngine(rt, c)
	return e, run.Register(e, run.Definition[order]{Name: "order", Steps: steps})
}

// start is engine, started until the test ends.
func start(t testing.TB, rt *pawl.Runtime, c run.Config, steps ...run.Step[order]) (*run.Engine, *run.Runs[order]) {
	t.Helper()
	e, runs := engine(rt, c, steps...)
	require.NoError(t, e.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	return e, runs
}

// until waits until a run meets a condition.
func until(t testing.TB, runs *run.Runs[order], id string, what string, enough func(r run.Run[order]) bool) (last run.Run[order]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for r, err := range runs.Watch(ctx, id) {
		require.NoError(t, err, "%s: %+v", what, last)
		if last = r; enough(r) {
			return r
		}
	}
	require.Fail(t, "run did not become "+what, "%+v", last)
	return last
}

// finished waits until a run is over.
func finished(t testing.TB, runs *run.Runs[order], id string) run.Run[order] {
	t.Helper()
	return until(t, runs, id, "finished", func(r run.Run[order]) bool { return r.Status.Finished() })
}

// statuses returns the statuses of the steps of a run.
func statuses(r run.Run[order]) (all []run.Status) {
	for _, s := range r.Steps {
		all = append(all, s.Status)
	}
	return all
}

// openGiven opens, in a child, the store that the parent named.
func openGiven() (rt *pawl.Runtime, stop func() error, err error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, nil, err
	}
	rt, err = pawl.Open(pawl.Config{Store: store})
	return rt, func() error { return errors.Join(rt.Close(context.Background()), store.Close()) }, err
}
