//go:build unix

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
)

func init() { testkit.Child("pausing", pausingChild) }

// losses is a slog.Handler that passes on the errors of steps that ended without effect.
type losses struct {
	slog.Handler
	lost func(message string, err error)
}

func (l losses) Enabled(context.Context, slog.Level) bool { return true }

func (l losses) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "err" {
			l.lost(r.Message, err)
		}
		return true
	})
	return nil
}

// pausingChild is paused in its step, and reports what it logs when it continues.
func pausingChild() error {
	rt, _, err := openGiven()
	if err != nil {
		return err
	}
	logger := slog.New(losses{slog.DiscardHandler, func(_ string, err error) {
		var moved *pawl.ConcurrencyError
		testkit.Say("%v %s %d %v: %v", errors.As(err, &moved), pawl.Code(err), pawl.HTTPStatus(err), pawl.IsRetryable(err), err)
	}})
	e, _ := engine(rt, run.Config{Lease: shortLease, Poll: time.Minute, Logger: logger}, step("a", func(ctx context.Context, a *attempt) (run.Next, error) {
		testkit.Say("in the step")
		<-ctx.Done() // only the lost lease ends the context
		testkit.Say("%v", errors.Is(context.Cause(ctx), pawl.ErrLeaseLost))
		_, err := totals.Scope(rt, "inside").IncState(context.WithoutCancel(ctx), "steps", 1) // like a step that ignores its context
		testkit.Say("%s", pawl.Code(err))
		a.State.Log = append(a.State.Log, "paused")
		return run.Continue(), nil
	}))
	testkit.Begin()
	if err := e.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// A worker that is paused for longer than its lease commits nothing when it continues. Another
// worker has the step by then, and the loss is logged. Proves RUN-3, RUN-8.
func TestPausedWorker(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		store := stores.OpenFor(t, location)
		rt := open(t, store)
		var p *testkit.Process
		e, runs := engine(rt, run.Config{Poll: 50 * time.Millisecond}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
			p.Resume() // the old attempt continues beside this one
			p.Expect("true")
			p.Expect("LEASE_LOST")
			require.Equal(t, "true CONCURRENCY_ERROR 409 true: run "+a.RunID+
				" was modified concurrently during step completion: pawl: run/"+a.RunID+": expected version 2, found 3", p.Line())
			return run.Continue(), nil
		}))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		p = testkit.Start(t, "pausing", stores.Env(location))
		testkit.Ready(p)
		p.Expect("in the step")
		p.Pause(stores.Unlocked(store))
		require.NoError(t, e.Start(t.Context()))
		r = finished(t, runs, r.ID)
		p.Kill()
		require.NoError(t, e.Stop(t.Context()))
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []string{"a"}, r.State.Log)
		require.Equal(t, 2, r.Steps[0].Attempts)
		require.EqualValues(t, 4, r.Version)
		for id, want := range map[string]int{r.ID: 1, "inside": 0} {
			sum, err := totals.Scope(rt, id).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, sum.Steps, id)
		}
	})
}
