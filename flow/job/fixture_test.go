package job_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// reminder is a job of the tests.
type reminder struct {
	job.State
	Text string `json:"text"`
}

var reminders = pawl.Kind[reminder]{Name: "reminder", Label: job.Label, Due: job.Due}

// total counts what jobs have committed.
type total struct {
	Sent int `json:"sent"`
}

var totals = pawl.Kind[total]{Name: "total"}

var quiet = slog.New(slog.DiscardHandler)

func open(t testing.TB, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{reminders, totals}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}

// put writes a reminder that is due after d.
func put(t testing.TB, rt *pawl.Runtime, id string, d time.Duration) {
	t.Helper()
	_, err := reminders.Scope(rt, id).SetState(t.Context(), reminder{State: job.At(time.Now().Add(d)), Text: id})
	require.NoError(t, err)
}

// get returns a reminder, and whether it exists.
func get(t testing.TB, rt *pawl.Runtime, id string) (reminder, bool) {
	t.Helper()
	snap, err := reminders.Scope(rt, id).Snapshot(context.Background())
	if err != nil {
		require.ErrorIs(t, err, pawl.ErrDeleted)
	}
	return snap.State(), err == nil && snap.Version > 0
}

type handler = func(ctx context.Context, j *job.Job[reminder]) error

// newWorker returns a worker for reminders. change may be nil.
func newWorker(t testing.TB, rt *pawl.Runtime, handle handler, change func(*job.Config[reminder])) *job.Worker[reminder] {
	t.Helper()
	c := job.Config[reminder]{Kind: reminders, Handle: handle, Logger: quiet}
	if change != nil {
		change(&c)
	}
	w, err := job.New(rt, c)
	require.NoError(t, err)
	return w
}

// start starts a worker for reminders, and stops it when the test ends.
func start(t testing.TB, rt *pawl.Runtime, handle handler, change func(*job.Config[reminder])) *job.Worker[reminder] {
	t.Helper()
	w := newWorker(t, rt, handle, change)
	require.NoError(t, w.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, w.Stop(context.Background())) })
	return w
}

// send adds one to the total as part of the commit that ends the job.
func send(_ context.Context, j *job.Job[reminder]) error {
	j.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := totals.Scope(tx, "all").IncState(ctx, "sent", 1)
		return err
	})
	return nil
}

// sent returns the total.
func sent(t testing.TB, rt *pawl.Runtime) int {
	t.Helper()
	s, err := totals.Scope(rt, "all").State(context.Background())
	require.NoError(t, err)
	return s.Sent
}
