package recipes

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/persist/memory"
)

// Trial is the state of a run that reminds a user of the end of a trial.
type Trial struct {
	User     string `json:"user"`
	Reminded bool   `json:"reminded"`
}

// remind waits for two weeks, or until the user has paid.
func remind(_ context.Context, a *run.Attempt[Trial]) (run.Next, error) {
	switch {
	case !a.Resumed:
		return run.Await("paid", 14*24*time.Hour), nil
	case a.Signal != nil:
		return run.End(), nil
	}
	a.State.Reminded = true
	return run.Continue(), nil
}

// Two weeks pass in an instant, because the time of a bubble is virtual.
func TestReminder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := run.NewEngine(open(t, memory.New()), run.Config{Poll: time.Minute}) // time passes faster with fewer looks
		trials := run.Register(engine, run.Definition[Trial]{Name: "trial", Steps: []run.Step[Trial]{{Name: "remind", Do: remind}}})
		require.NoError(t, engine.Start(t.Context()))
		late, _, err := trials.Start(t.Context(), Trial{User: "ann"})
		require.NoError(t, err)
		paid, _, err := trials.Start(t.Context(), Trial{User: "bob"})
		require.NoError(t, err)
		require.NoError(t, engine.Signal(t.Context(), paid.ID, "paid", nil))

		time.Sleep(13 * 24 * time.Hour)
		synctest.Wait() // until the engine is idle
		late, err = trials.Get(t.Context(), late.ID)
		require.NoError(t, err)
		require.Equal(t, run.Waiting, late.Status)
		time.Sleep(2 * 24 * time.Hour)
		synctest.Wait()
		late, err = trials.Get(t.Context(), late.ID)
		require.NoError(t, err)
		require.True(t, late.State.Reminded)
		paid, err = trials.Get(t.Context(), paid.ID)
		require.NoError(t, err)
		require.Equal(t, run.Completed, paid.Status)
		require.False(t, paid.State.Reminded)
		require.NoError(t, engine.Stop(t.Context()))
	})
}
