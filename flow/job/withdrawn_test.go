package job_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// fuse is a field whose UnmarshalJSON panics on a fuse that is lit.
type fuse string

func (f *fuse) UnmarshalJSON(b []byte) error {
	if string(b) == `"lit"` {
		panic("boom")
	}
	*f = "dry"
	return nil
}

// lines counts the lines that are logged.
type lines struct{ atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) {
	l.Add(1)
	return len(p), nil
}

type charge struct {
	job.State
	Fuse fuse `json:"fuse"`
}

// A document that panics when it is read again, while its job runs, ends neither the process nor the
// look at the other running jobs. Proves LOOP-3.
func TestWithdrawnBesidePanickingDocument(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		ctx := t.Context()
		kind := pawl.Kind[charge]{Name: "charge", Label: job.Label, Due: job.Due}
		causes := make(chan string, 2)
		var logged lines
		w, err := job.New(rt, job.Config[charge]{Kind: kind, Concurrency: 2, Logger: slog.New(slog.NewTextHandler(&logged, nil)), Handle: func(ctx context.Context, j *job.Job[charge]) error {
			<-ctx.Done()
			causes <- fmt.Sprintf("%s: %v", j.ID, context.Cause(ctx))
			return context.Cause(ctx)
		}})
		require.NoError(t, err)
		require.NoError(t, w.Start(ctx))
		for _, id := range []string{"lit", "deleted"} {
			_, err := kind.Scope(rt, id).SetState(ctx, charge{State: job.At(time.Now())})
			require.NoError(t, err)
		}
		synctest.Wait()
		r, err := rt.Store().Load(ctx, kind.Scope(rt, "lit").Key())
		require.NoError(t, err)
		require.True(t, r.Held(r.Now), "the job runs")
		_, err = rt.Store().Commit(ctx, persist.Commit{ID: "lit.1", Writes: []persist.Write{{Key: r.Key, Expected: r.Version, Version: r.Version + 1,
			Doc: []byte(`{"label":"ready","fuse":"lit"}`), Label: r.Label, Due: r.Due}}})
		require.NoError(t, err)
		for i := range 5 { // hints, for each of which the worker looks at all running jobs
			_, err := kind.Scope(rt, fmt.Sprint("later", i)).SetState(ctx, charge{State: job.At(time.Now().Add(time.Hour))})
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		require.EqualValues(t, 1, logged.Load(), "the panic is logged once")
		require.NoError(t, kind.Scope(rt, "deleted").Delete(ctx))
		require.Equal(t, "deleted: job: withdrawn", testkit.Receive(t, causes))
		require.NoError(t, kind.Scope(rt, "lit").Delete(ctx))
		require.Equal(t, "lit: job: withdrawn", testkit.Receive(t, causes))
		require.NoError(t, w.Stop(ctx))
	})
}
