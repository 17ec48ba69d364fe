package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// rawRuns are the documents of runs, as another writer sees them.
var rawRuns = pawl.Kind[map[string]any]{Name: "run", Label: job.Label, Due: job.Due}

// rival is a store in which another writer changes a run just before its transition to a status.
type rival struct {
	*stores.Tap
	status  run.Status
	writer  *pawl.Runtime
	changes atomic.Int64
	wanted  int64 // the number of changes
	mu      sync.Mutex
	errs    []error
}

func newRival(t testing.TB, store persist.Store, status run.Status, changes int64) *rival {
	t.Helper()
	writer, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, writer.Close(context.Background())) })
	r := &rival{Tap: &stores.Tap{Store: store}, status: status, writer: writer, wanted: changes}
	r.OnCommit(func(ctx context.Context, c persist.Commit) error {
		if id := becomes(c, r.status); id != "" {
			r.change(ctx, id)
		}
		return nil
	})
	return r
}

// becomes returns the id of the run to which a commit gives a status; "": none.
func becomes(c persist.Commit, status run.Status) string {
	for _, w := range c.Writes {
		var doc struct {
			Status run.Status `json:"status"`
		}
		if w.Kind == "run" && w.Expected > 0 && json.Unmarshal(w.Doc, &doc) == nil && doc.Status == status {
			return w.ID
		}
	}
	return ""
}

// change moves the version of a run, unless that was done as often as wanted.
func (r *rival) change(ctx context.Context, id string) {
	if r.changes.Add(1) > r.wanted {
		return
	}
	_, err := rawRuns.Scope(r.writer, id).IncState(pawl.WithoutLeases(context.WithoutCancel(ctx)), "changes", 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// Another writer moves the version of a run in the middle of each of its transitions. The transition
// is made on the new document, which keeps the change, and no step runs again. Proves RUN-2, RUN-3.
func TestConflictAtEveryTransition(t *testing.T) {
	fail := errors.New("no bank")
	type reply struct {
		next run.Next
		err  error
	}
	for _, c := range []struct {
		name    string
		status  run.Status // of the transition
		replies []reply    // of the step, attempt by attempt
		act     func(t *testing.T, e *run.Engine, id string)
		want    run.Status
		version uint64 // without the changes of the other writer
	}{
		{name: "take", status: run.Running, replies: []reply{{}}, want: run.Completed, version: 5},
		{name: "completion", status: run.Pending, replies: []reply{{}}, want: run.Completed, version: 5},
		{name: "waiting", status: run.Waiting, replies: []reply{{next: run.Sleep(1)}, {}}, want: run.Completed, version: 7},
		{name: "retry", status: run.Pending, replies: []reply{{err: fail}, {}}, want: run.Completed, version: 7},
		{name: "completed", status: run.Completed, replies: []reply{{}}, want: run.Completed, version: 5},
		{name: "failed", status: run.Failed, replies: []reply{{err: pawl.NonRetryable(fail)}}, want: run.Failed, version: 3},
		{
			name: "cancel", status: run.Canceled, replies: []reply{{next: run.Await("x", 0)}}, want: run.Canceled, version: 4,
			act: func(t *testing.T, e *run.Engine, id string) { require.NoError(t, e.Cancel(t.Context(), id)) },
		},
		{
			name: "signal", status: run.Waiting, replies: []reply{{next: run.Await("x", 0)}, {}}, want: run.Completed, version: 8,
			act: func(t *testing.T, e *run.Engine, id string) { require.NoError(t, e.Signal(t.Context(), id, "x", 1)) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				const changes = 3
				writer := newRival(t, store, c.status, changes)
				rt := open(t, writer)
				if c.status == run.Running { // a store that takes runs in one step has no conflict there
					rt = open(t, stores.Bare{Store: writer})
				}
				var steps []string
				e, runs := start(t, rt, run.Config{Poll: 20 * time.Millisecond},
					step("a", func(_ context.Context, a *attempt) (run.Next, error) {
						steps = append(steps, "a")
						r := c.replies[len(steps)-1]
						return r.next, r.err
					}),
					step("b", func(context.Context, *attempt) (run.Next, error) {
						steps = append(steps, "b")
						return run.Continue(), nil
					}))
				r, _, err := runs.Start(t.Context(), order{ID: "1"})
				require.NoError(t, err)
				if c.act != nil {
					until(t, runs, r.ID, "waiting", func(r run.Run[order]) bool { return r.Status == run.Waiting })
					c.act(t, e, r.ID)
				}
				r = finished(t, runs, r.ID)
				require.NoError(t, e.Stop(t.Context()))
				require.NoError(t, errors.Join(writer.errs...))
				require.GreaterOrEqual(t, writer.changes.Load(), int64(changes), "conflicts")
				require.Equal(t, c.want, r.Status, r.Error)
				committed := 0
				for i := range c.replies {
					if c.replies[i].err == nil {
						committed++
					}
				}
				want := len(c.replies)
				if c.want == run.Completed {
					committed++
					require.Equal(t, "b", steps[len(steps)-1])
					want++
				}
				require.Len(t, steps, want, "each attempt ran once: %v", steps)
				require.Len(t, r.State.Log, committed)
				require.Equal(t, c.version+changes, r.Version)
				require.JSONEq(t, "3", string(document(t, store, r.ID)["changes"]))
				sum, err := totals.Scope(rt, r.ID).State(t.Context())
				require.NoError(t, err)
				require.Equal(t, committed, sum.Steps)
			})
		})
	}
}

// Two workers have one run. Each of its steps runs in one of them. Proves RUN-2, RUN-8.
func TestTwoWorkersOneJob(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		var ran atomic.Int64
		count := func(context.Context, *attempt) (run.Next, error) {
			ran.Add(1)
			return run.Continue(), nil
		}
		var runs *run.Runs[order]
		var rt *pawl.Runtime
		for range 2 {
			rt = open(t, stores.OpenFor(t, location))
			_, runs = start(t, rt, run.Config{Poll: time.Millisecond},
				step("a", count), step("b", count), step("c", count), step("d", count), step("e", count))
		}
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		r = finished(t, runs, r.ID)
		require.Equal(t, []string{"a", "b", "c", "d", "e"}, r.State.Log)
		require.EqualValues(t, 5, ran.Load())
		require.EqualValues(t, 11, r.Version)
	})
}

// messages is a slog.Handler that keeps messages with their attributes.
type messages struct {
	slog.Handler
	mu    sync.Mutex // protects lines
	lines []string
}

func (m *messages) Enabled(context.Context, slog.Level) bool { return true }

func (m *messages) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, line)
	return nil
}

// count returns the number of lines with a text.
func (m *messages) count(text string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// A worker gets a run whose current step is COMPLETED or SKIPPED already. It does not run the step,
// says so and advances. Proves RUN-4.
func TestRedeliveredFinishedStep(t *testing.T) {
	for _, status := range []run.Status{run.Completed, run.Skipped} {
		t.Run(string(status), func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				rt := open(t, store)
				log := &messages{Handler: slog.DiscardHandler}
				never := func(context.Context, *attempt) (run.Next, error) {
					return run.Next{}, pawl.NonRetryable(errors.New("the step ran again"))
				}
				e, runs := engine(rt, run.Config{Logger: slog.New(log)}, step("a", never), step("b", nil), step("c", never))
				r, _, err := runs.Start(t.Context(), order{})
				require.NoError(t, err)
				writer, err := pawl.Open(pawl.Config{Store: store})
				require.NoError(t, err)
				_, err = rawRuns.Scope(writer, r.ID).AtomicState(t.Context(), func(_ context.Context, doc *map[string]any) error {
					for _, i := range []int{0, 2} {
						(*doc)["steps"].([]any)[i].(map[string]any)["status"] = string(status)
					}
					return nil
				})
				require.NoError(t, err)
				require.NoError(t, writer.Close(t.Context()))
				require.NoError(t, e.Start(t.Context()))
				r = finished(t, runs, r.ID)
				require.NoError(t, e.Stop(t.Context()))
				require.Equal(t, run.Completed, r.Status, r.Error)
				require.Equal(t, []string{"b"}, r.State.Log)
				require.Equal(t, status, r.Steps[0].Status)
				require.Equal(t, 2, log.count("step already done, advancing"), "%q", log.lines)
				require.EqualValues(t, 8, r.Version, "one more for the other writer")
			})
		})
	}
}

// A step returns after its run was canceled, or deleted too. That nothing of it is committed is logged,
// with the reason. Proves RUN-9.
func TestCanceledStepIsLogged(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		for _, reason := range []string{"the run is CANCELED", "the run was deleted"} {
			log := &messages{Handler: slog.DiscardHandler}
			began, goOn := make(chan string), make(chan struct{})
			e, runs := engine(open(t, store), run.Config{Logger: slog.New(log)}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
				began <- a.RunID
				<-goOn
				return run.Continue(), nil
			}))
			require.NoError(t, e.Start(t.Context()))
			_, _, err := runs.Start(t.Context(), order{})
			require.NoError(t, err)
			id := testkit.Receive(t, began)
			require.NoError(t, e.Cancel(t.Context(), id))
			if reason == "the run was deleted" {
				require.NoError(t, e.Delete(t.Context(), id))
			}
			close(goOn)
			require.NoError(t, e.Stop(t.Context()))
			require.Equal(t, 1, log.count("run: a step ended without effect run="+id+" reason="+reason), "%q", log.lines)
		}
	})
}
