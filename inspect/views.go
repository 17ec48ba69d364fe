package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// The actions of the views of this file, for Config.Actions.
const (
	ActCancel    = "cancel"    // of Runs, Batches and Calls
	ActRetry     = "retry"     // of Runs and Batches
	ActUnblock   = "unblock"   // of Reactions
	ActReset     = "reset"     // of Reactions
	ActRedeliver = "redeliver" // of Undelivered
)

// The documents of the layers are read here without their types: a view shows what is stored, also
// by another release, and a redacted field can have any value.

// Runs returns the view of the runs of package flow/run: their steps, attempts and next time. A nil
// engine leaves out the actions [ActCancel] and [ActRetry].
func Runs(e *run.Engine) View {
	v := View{
		Name: "runs", Title: "Runs", Query: persist.Query{Kind: "run"},
		Columns: []string{"Definition", "Status", "Step", "Attempts", "Steps", "Next", "Worker", "Error"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			var done int
			var failed string
			steps := r.List("steps")
			for _, s := range steps {
				if status := run.Status(s.Text("status")); status == run.Completed || status == run.Skipped {
					done++
				}
				if s.Text("name") == r.Text("currentStepName") {
					failed = s.Text("error")
				}
			}
			status := r.Text("status")
			for _, more := range []string{r.Text("awaits"), r.Text("parked")} {
				if more != "" {
					status += ": " + more
				}
			}
			return []string{r.Text("definition"), status, r.Text("currentStepName"), count(r.Number("attempts")),
				fmt.Sprintf("%d of %d", done, len(steps)), r.Text("due"), r.Holder(), failed}, nil
		},
	}
	if e != nil {
		v.Actions = []Action{
			{Name: ActCancel, Effect: "The run ends as CANCELED. The context of a step that runs ends, and nothing of it is committed.", Applies: runIs(false),
				Do: func(ctx context.Context, r persist.Record) error { return e.Cancel(ctx, r.ID) }},
			{Name: ActRetry, Effect: "The run goes on at the step where it stopped, with a full budget of attempts.", Applies: runIs(true), Pin: failure,
				Do: func(ctx context.Context, r persist.Record) error { return e.Retry(ctx, r.ID) }},
		}
	}
	return v
}

// version is the Pin of an action on a document that is not written until a person or a program acts
// on it.
func version(r persist.Record) uint64 { return r.Version }

// failure is the Pin of a retry of a run. A worker looks at a parked run every minute, and writes it.
func failure(r persist.Record) uint64 {
	if strings.HasPrefix(r.Label, "PARKED ") {
		return 0
	}
	return r.Version
}

// turn is the Pin of an action on a blocked reaction, whose document is also written when the stream
// gets events.
func turn(r persist.Record) uint64 {
	var p struct {
		Turn uint64 `json:"turn"`
	}
	_ = json.Unmarshal(r.Doc, &p) // 0 for a document that the action will refuse
	return p.Turn
}

// runIs returns a function that reports whether a run can be retried, or else can be canceled. The
// label of a run starts with how it ended.
func runIs(stopped bool) func(persist.Record) bool {
	return func(r persist.Record) bool {
		ended := func(s ...string) bool {
			return slices.ContainsFunc(s, func(s string) bool { return strings.HasPrefix(r.Label, s+" ") })
		}
		if stopped {
			return ended(string(run.Failed), "PARKED")
		}
		return !ended(string(run.Completed), string(run.Failed), string(run.Canceled))
	}
}

// Batches returns the view of the jobs of a batch.Queue, by its Config.Name: progress and points. A
// nil queue leaves out the actions [ActCancel] and [ActRetry].
func Batches[I, A any](name string, q *batch.Queue[I, A]) View {
	v := View{
		Name: "batch-" + name, Title: "Batches: " + name, Query: persist.Query{Kind: "batch." + name},
		Columns: []string{"Account", "Status", "Done", "Failed", "Finalized", "Points", "Worker", "Reason"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			status := r.Text("label")
			if r.Text("cancelRequested") == "true" && status != string(batch.Canceled) {
				status += ", cancel requested"
			}
			return []string{r.Text("account"), status, fmt.Sprintf("%d of %d", r.Number("done"), r.Number("items")), count(r.Number("failed")),
				count(r.Number("finalized")), strconv.FormatInt(r.Number("charged")-r.Number("refunded"), 10), r.Holder(), r.Text("reason")}, nil
		},
	}
	if q != nil {
		v.Actions = []Action{
			{Name: ActCancel, Effect: "Every item that is charged and not finalized is refunded, and what it made is removed.",
				Applies: func(r persist.Record) bool { return !batch.Status(r.Label).Final() },
				Do:      func(ctx context.Context, r persist.Record) error { _, err := q.Cancel(ctx, r.ID); return err }},
			{Name: ActRetry, Effect: "The job is queued again, and goes on with the items that were not charged.",
				Applies: func(r persist.Record) bool { return batch.Status(r.Label) == batch.Failed },
				Pin:     version,
				Do:      func(ctx context.Context, r persist.Record) error { return q.Retry(ctx, r.ID) }},
		}
	}
	return v
}

// Calls returns the view of the calls in flight of a flow, by its Config.Kind. The id is that of the
// request. A nil flow leaves out the action [ActCancel].
func Calls(kind string, f *flow.Flow) View {
	v := View{
		Name: "calls-" + kind, Title: "Calls: " + kind, Query: persist.Query{Kind: "flow." + kind + ".call"},
		Keep:    func(r persist.Record) bool { return r.Lease.Token != 0 },
		Columns: []string{"Action", "Since", "Worker", "State"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			state := "in flight"
			switch {
			case !r.Held(r.Now):
				state = "its process died, or lost its lease"
			case r.Text("canceled") == "true":
				state = "cancel requested"
			}
			return []string{r.Text("action"), r.Age(), r.Holder(), state}, nil
		},
	}
	if f != nil {
		v.Actions = []Action{{Name: ActCancel, Effect: "The context of the call ends, in the process that runs it.",
			Applies: func(r persist.Record) bool { return r.Held(r.Now) },
			Pin:     func(r persist.Record) uint64 { return r.Lease.Token },
			Do:      func(ctx context.Context, r persist.Record) error { return f.Cancel(ctx, r.ID) }}}
	}
	return v
}

// Gates returns the view of the gates of a flow, by its Config.Kind and Config.Per: how many calls
// are in flight or wait. The id is that of the session or user.
func Gates(kind string, per flow.Unit) View {
	unit := map[flow.Unit]string{flow.PerSession: "session", flow.PerUser: "user", flow.PerFlow: "flow"}[per]
	return View{
		Name: "gates-" + kind, Title: "Gates: " + kind, Query: persist.Query{Kind: "flow." + kind + "." + unit},
		Columns: []string{"Calls", "Passed so far", "Last change"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			return []string{count(int64(r.Entries("tickets"))), strconv.FormatInt(r.Number("last"), 10), r.Age()}, nil
		},
	}
}

// Claims returns the view of the claims of a workflow of package flow/machine, whose entities are of
// the kind: the entities whose action runs, or whose process died. The zero Workflow stands for a
// workflow that is not known here: the claims are told by their leases, among at most 1,000 entities a
// page.
func Claims(kind string, w machine.Workflow) View {
	var claims []string
	for _, s := range w.Steps {
		for _, c := range s.Claim {
			if len(c) > 0 && !slices.Contains(claims, c.Into()) {
				claims = append(claims, c.Into())
			}
		}
	}
	v := View{
		Name: "claims-" + kind, Title: "Claims: " + kind, Query: persist.Query{Kind: kind, Labels: claims},
		Columns: []string{"Status", "Age", "Worker", "State"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			state := "running"
			if !r.Held(r.Now) {
				state = "its process died: the janitor frees it"
			}
			return []string{r.Label, r.Age(), r.Holder(), state}, nil
		},
	}
	if len(claims) == 0 {
		v.Query.Labels = nil
		v.Keep = func(r persist.Record) bool { _, _, ok := machine.ClaimOf(r); return ok && len(w.Steps) == 0 }
	}
	return v
}

// Undelivered returns the view of the after-effects of package flow/machine that are not delivered
// yet, and of those that were given up. A nil engine leaves out the action [ActRedeliver].
func Undelivered(e *machine.Engine) View {
	v := View{
		Name: "effects", Title: "After-effects", Query: persist.Query{Kind: "machine.effect"},
		Columns: []string{"Workflow", "Effect", "Step", "Entity", "State", "Attempts", "Next", "Error"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			state := "pending"
			if strings.HasPrefix(r.Text("label"), "given up") {
				state = "given up"
			}
			return []string{r.Text("workflow"), r.Text("effect"), r.Text("step"), r.Text("entity"), state, count(r.Number("attempts")), r.Text("due"), r.Text("error")}, nil
		},
	}
	if e != nil {
		v.Actions = []Action{{Name: ActRedeliver, Effect: "The after-effect is due again, with a full budget of attempts.",
			Applies: func(r persist.Record) bool { return strings.HasPrefix(r.Label, "given up") },
			Pin:     version,
			Do:      func(ctx context.Context, r persist.Record) error { return e.Redeliver(ctx, r.ID) }}}
	}
	return v
}

// Streams returns the view of the streams of a stream.Log, by its Config.Name, which is
// stream.DefaultName if empty.
func Streams(name string) View {
	if name == "" {
		name = stream.DefaultName
	}
	return View{
		Name: "streams-" + name, Title: "Streams: " + name, Query: persist.Query{Kind: name},
		Columns: []string{"Events", "First kept", "State", "Last change"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			state := "open"
			if r.Text("closing") != "" {
				state = "closed, or about to be"
			}
			return []string{strconv.FormatInt(r.Number("next"), 10), strconv.FormatInt(r.Number("first"), 10), state, r.Age()}, nil
		},
	}
}

// Reactions returns the view of where the reactions of a log stand, by its Config.Name, which is
// stream.DefaultName if empty: position, lag, and what blocks them. A nil log leaves out the lag and
// the actions [ActUnblock] and [ActReset].
func Reactions(name string, l *stream.Log) View {
	if name == "" {
		name = stream.DefaultName
	}
	v := View{
		Name: "reactions-" + name, Title: "Reactions: " + name, Query: persist.Query{Kind: name + ".position"},
		Columns: []string{"Reaction", "Stream", "Next event", "Lag", "State", "Failures", "Due", "Worker", "Reason"},
		Row: func(ctx context.Context, r Record) ([]string, error) {
			state, _, _ := strings.Cut(r.Text("label"), "/")
			lag := "not known"
			if l != nil {
				head, err := l.Head(ctx, filterOf(r.stored).Streams[0])
				if err != nil {
					return nil, err
				}
				lag = strconv.FormatInt(max(head.Last+1-r.Number("next"), 0), 10)
			}
			return []string{r.Text("reaction"), r.Text("stream"), strconv.FormatInt(r.Number("next"), 10), lag, state,
				count(r.Number("retry")), r.Text("due"), r.Holder(), r.Text("reason")}, nil
		},
	}
	if l != nil {
		v.Actions = []Action{
			{Name: ActUnblock, Effect: "The reaction goes on with the event that blocked it, with a full budget of attempts.",
				Applies: func(r persist.Record) bool { return strings.HasPrefix(r.Label, "blocked/") },
				Pin:     turn,
				Do:      func(ctx context.Context, r persist.Record) error { return changed(l.Unblock(ctx, filterOf(r))) }},
			{Name: ActReset, Effect: "The reaction handles all events of the stream again, from the first one on.",
				Do: func(ctx context.Context, r persist.Record) error { return changed(l.Reset(ctx, filterOf(r))) }},
		}
	}
	return v
}

// Idempotency returns the view of the keys of package idempotency. The id is a hash of the key.
func Idempotency() View {
	return View{
		Name: "idempotency", Title: "Idempotency keys", Query: persist.Query{Kind: "idempotency"},
		Columns: []string{"State", "Status", "Worker", "Written", "Expires in"},
		Row: func(_ context.Context, r Record) ([]string, error) {
			state := "in progress"
			switch {
			case r.Text("failed") != "":
				state = "failed: " + r.Text("failed", "code")
			case r.Text("done") == "true":
				state = "done"
			case !r.Held(r.Now):
				state = "its process died: the next request runs it"
			}
			expires := ""
			if !r.Expires.IsZero() {
				expires = duration(max(r.Expires.Sub(r.Now), time.Duration(0)))
			}
			return []string{state, count(r.Number("status")), r.Holder(), r.Age(), expires}, nil
		},
	}
}

// filterOf returns the filter that selects the position in r.
func filterOf(r persist.Record) stream.Filter {
	var p struct{ Reaction, Stream string }
	_ = json.Unmarshal(r.Doc, &p) // a position of no stream selects nothing
	return stream.Filter{Reactions: []string{p.Reaction}, Streams: []string{p.Stream}}
}

// changed returns pawl.ErrNotFound if an operation on positions changed none.
func changed(n int, err error) error {
	if err == nil && n == 0 {
		return pawl.ErrNotFound
	}
	return err
}

// count returns a number, and nothing for 0.
func count(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
