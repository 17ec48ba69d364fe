package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// quiet drops what the layers log about failures that a test wants.
var quiet = slog.New(slog.DiscardHandler)

// act does the only action with this name that a page offers.
func (s *site) act(page, action string) {
	s.t.Helper()
	var found []string
	for _, link := range s.get(page).links("act?") {
		if strings.Contains(link, "action="+action+"&") {
			found = append(found, link)
		}
	}
	require.Len(s.t, found, 1, "%s of %s", action, page)
	require.Equal(s.t, http.StatusSeeOther, s.do(found[0]).status)
}

// withViews serves views with all of their actions.
func withViews(t testing.TB, rt *pawl.Runtime, views ...inspect.View) *site {
	t.Helper()
	c := inspect.Config{Views: views, Author: byAda}
	seen := map[string]bool{}
	for _, v := range views {
		for _, a := range v.Actions {
			if !seen[a.Name] {
				seen[a.Name] = true
				c.Actions = append(c.Actions, a.Name)
			}
		}
	}
	return serve(t, rt, c)
}

// The runs, with their steps and attempts, can be retried and canceled.
func TestRuns(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		e := run.NewEngine(rt, run.Config{Logger: quiet})
		var works atomic.Bool
		runs := run.Register(e, run.Definition[note]{Name: "order", Steps: []run.Step[note]{
			{Name: "charge", Do: func(context.Context, *run.Attempt[note]) (run.Next, error) { return run.Continue(), nil }},
			{Name: "ship", Do: func(context.Context, *run.Attempt[note]) (run.Next, error) {
				if !works.Load() {
					return run.Next{}, pawl.NonRetryable(errors.New("no <van>"))
				}
				return run.Await("signed", 0), nil
			}},
		}})
		require.NoError(t, e.Start(t.Context()))
		defer e.Stop(testkit.Within(t, testkit.Patience))
		s := withViews(t, rt, inspect.Runs(e))
		require.Contains(t, s.get("view?name=runs").text(), "There is none.")
		r, _, err := runs.Start(t.Context(), note{})
		require.NoError(t, err)
		status := func(want run.Status) {
			t.Helper()
			testkit.Eventually(t, func() bool {
				r, err := runs.Get(t.Context(), r.ID)
				require.NoError(t, err)
				return r.Status == want
			}, want)
		}
		status(run.Failed)
		require.Contains(t, s.get("view?name=runs").text(), "order FAILED ship 1 1 of 2 no <van>")
		works.Store(true)
		s.act("view?name=runs", "retry")
		status(run.Waiting)
		require.Contains(t, s.get("view?name=runs").text(), "order WAITING: signed ship")
		s.act("view?name=runs", "cancel")
		status(run.Canceled)
		require.Empty(t, s.get("view?name=runs").links("act?"))
	})
}

type account struct {
	Points int64 `json:"points"`
}

var accounts = pawl.Kind[account]{Name: "account"}

// The jobs of a batch queue, with their progress, can be canceled.
func TestBatches(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		_, err := accounts.Scope(rt, "ada").SetState(t.Context(), account{Points: 10})
		require.NoError(t, err)
		q, err := batch.New(rt, batch.Config[string, string]{Name: "images", Ledger: batch.ScopeLedger(accounts, "points"),
			Price:  func(string) (int64, error) { return 2, nil },
			Make:   func(_ context.Context, key, item string) (string, error) { return item + ".png", nil },
			Remove: func(context.Context, string, *string) error { return nil }})
		require.NoError(t, err)
		s := withViews(t, rt, inspect.Batches("images", q))
		for _, id := range []string{"j1", "j2"} {
			_, _, err = q.Submit(t.Context(), batch.Job[string]{ID: id, Account: "ada", Items: []string{"a", "b"}})
			require.NoError(t, err)
			if id == "j1" {
				_, err = q.Once(t.Context())
				require.NoError(t, err)
			}
		}
		text := s.get("view?name=batch-images").text()
		require.Contains(t, text, "j1 ada completed 2 of 2 4")
		require.Contains(t, text, "j2 ada queued 0 of 2 0")
		s.act("view?name=batch-images", "cancel")
		p, err := q.Progress(t.Context(), "j2")
		require.NoError(t, err)
		require.Equal(t, batch.Canceled, p.Status)
	})
}

// The calls of a flow and its gates; a call can be canceled.
func TestCalls(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
		require.NoError(t, err)
		defer f.Stop(testkit.Within(t, testkit.Patience))
		began, done := make(chan struct{}), make(chan error, 1)
		slow := flow.Define(f, "answer", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
			close(began)
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		s := withViews(t, rt, inspect.Calls("chat", f), inspect.Gates("chat", flow.PerSession))
		go func() {
			_, err := slow.Do(context.Background(), flow.IDs{Request: "r1", Session: "s1"}, "")
			done <- err
		}()
		testkit.Receive(t, began)
		require.Regexp(t, `r1 answer [\d.]+m?s .*, [\d.]+s in flight`, s.get("view?name=calls-chat").text())
		require.Contains(t, s.get("view?name=gates-chat").text(), "s1 1 1")
		s.act("view?name=calls-chat", "cancel")
		require.ErrorIs(t, testkit.Receive(t, done), flow.ErrCanceled)
		testkit.Eventually(t, func() bool { return !strings.Contains(s.get("view?name=calls-chat").text(), "r1") }, "no call")
	})
}

const workflow = `{
	"workflow": "order", "module": "shop", "entity_kind": "order", "initial_status": "paid",
	"status_types": ["paid", "shipping", "shipped"],
	"steps": [{
		"step_id": 10, "step_key": "ship", "status": "paid",
		"successful_claim_state": {"clerk": ["shipping", "paid"]}, "successful_state": {"clerk": "shipped"},
		"action": {"clerk": "Ship"}, "success_after_effect": {"clerk": ["Tell"]}
	}]
}`

// The claims of a machine, and the after-effects that were given up, which can be delivered again.
func TestMachines(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		orders := pawl.Kind[note]{Name: "order", Label: "status"}
		gaveUp := make(chan machine.Undelivered, 1)
		e := machine.NewEngine(rt, machine.Config{Effects: pawl.Retry{Attempts: 1}, GaveUp: func(u machine.Undelivered) { gaveUp <- u }})
		w, err := machine.Load([]byte(workflow))
		require.NoError(t, err)
		m := machine.Add(e, orders, w)
		began, release, told := make(chan struct{}), make(chan struct{}), make(chan struct{})
		machine.Handle(m, "Ship", func(context.Context, *machine.Action[note], machine.NoInput) error {
			close(began)
			<-release
			return nil
		})
		var works atomic.Bool
		machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[note]) error {
			if !works.Load() {
				return errors.New("no line")
			}
			close(told)
			return nil
		})
		e.AddJanitor(machine.JanitorConfig{Module: "shop"})
		require.NoError(t, e.Start(t.Context()))
		defer e.Stop(testkit.Within(t, testkit.Patience))
		s := serve(t, rt, inspect.Config{Views: []inspect.View{inspect.Claims("order", w), inspect.Undelivered(e)},
			Workers: []inspect.Workers{e}, Actions: []string{inspect.ActRedeliver}, Author: byAda})
		working := regexp.MustCompile(`janitor of shop (working|waiting for its next round) .* ago .* survey of shop`)
		testkit.Eventually(t, func() bool { return working.MatchString(s.get("queues").text()) }, "the janitor's first round")
		_, err = m.Create(t.Context(), "7", note{})
		require.NoError(t, err)
		require.Contains(t, s.get("view?name=claims-order").text(), "There is none.")
		fired := make(chan error, 1)
		go func() {
			_, err := m.Fire(context.Background(), machine.Trigger{ID: "7", Step: "ship", By: "clerk"})
			fired <- err
		}()
		testkit.Receive(t, began)
		require.Regexp(t, `7 shipping [\d.]+m?s .*, [\d.]+s running`, s.get("view?name=claims-order").text())
		unknown := withViews(t, rt, inspect.Claims("order", machine.Workflow{}))
		require.Regexp(t, `7 shipping [\d.]+m?s .*, [\d.]+s running`, unknown.get("view?name=claims-order").text())
		close(release)
		require.NoError(t, testkit.Receive(t, fired))
		require.Contains(t, unknown.get("view?name=claims-order").text(), "There is none.")
		testkit.Receive(t, gaveUp)
		require.Contains(t, s.get("view?name=effects").text(), "order Tell ship 7 given up 1")
		works.Store(true)
		s.act("view?name=effects", "redeliver")
		testkit.Receive(t, told)
		testkit.Eventually(t, func() bool { return strings.Contains(s.get("view?name=effects").text(), "There is none.") }, "delivered")
	})
}

// Streams and reactions, with their lag and what blocks them; a reaction can be unblocked and reset.
func TestReactions(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		log, err := stream.New(rt, stream.Config{Logger: quiet, Events: []stream.Type{stream.Of[note]("noted")}})
		require.NoError(t, err)
		handled, fail := 0, true
		require.NoError(t, log.React(stream.Reaction{Name: "mail", Handle: func(context.Context, *stream.Delivery) error {
			if fail {
				return pawl.NonRetryable(errors.New("no <line>"))
			}
			handled++
			return nil
		}}))
		long := strings.Repeat("t", 250) // the id of its position is a hash
		_, err = log.Append(t.Context(), long, stream.Any, note{}, note{}, note{})
		require.NoError(t, err)
		_, err = log.Drain(t.Context())
		require.NoError(t, err)
		s := withViews(t, rt, inspect.Streams(""), inspect.Reactions("", log))
		require.Contains(t, s.get("view?name=streams-stream").text(), long+" 3 0 open")
		page := "view?name=reactions-stream"
		require.Contains(t, s.get(page).text(), "mail "+long+" 0 3 blocked")
		require.Contains(t, s.get(page).text(), "no <line>")
		fail = false
		s.act(page, "unblock")
		_, err = log.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, handled)
		require.Contains(t, s.get(page).text(), "mail "+long+" 3 0 idle")
		s.act(page, "reset")
		_, err = log.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 6, handled)
		require.NoError(t, log.Stop(t.Context()))
	})
}

// An action of a view on what has failed is not done on a later failure than the one that was
// confirmed, and that on a call not on a later call of the same id. Proves INSPECT-1.
func TestStaleViewActions(t *testing.T) {
	rt := inMemory(t)
	log, err := stream.New(rt, stream.Config{Logger: quiet})
	require.NoError(t, err)
	f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
	require.NoError(t, err)
	defer f.Stop(testkit.Within(t, testkit.Patience))
	q, err := batch.New(rt, batch.Config[string, string]{Name: "images", Ledger: batch.ScopeLedger(accounts, "points"),
		Price:  func(string) (int64, error) { return 2, nil },
		Make:   func(_ context.Context, key, item string) (string, error) { return "", nil },
		Remove: func(context.Context, string, *string) error { return nil }})
	require.NoError(t, err)
	s := withViews(t, rt, inspect.Runs(run.NewEngine(rt, run.Config{})), inspect.Batches("images", q), inspect.Calls("chat", f),
		inspect.Undelivered(machine.NewEngine(rt, machine.Config{})), inspect.Reactions("", log))
	for i, c := range []struct{ view, action, kind, label string }{
		{"runs", inspect.ActRetry, "run", "FAILED x"},
		{"batch-images", inspect.ActRetry, "batch.images", "failed"},
		{"calls-chat", inspect.ActCancel, "flow.chat.call", ""},
		{"effects", inspect.ActRedeliver, "machine.effect", "given up x"},
		{"reactions-stream", inspect.ActUnblock, "stream.position", "blocked/mail"},
	} {
		key := pawl.Key{Kind: c.kind, ID: fmt.Sprint("s", i)}
		w := persist.Write{Key: key, Doc: json.RawMessage(`{"stream":"s","reaction":"mail"}`), Label: c.label}
		if c.view == "calls-chat" {
			w.Acquire = &persist.Acquire{Holder: "w", For: time.Hour}
		}
		address := "act?" + url.Values{"view": {c.view}, "action": {c.action}, "kind": {key.Kind}, "id": {key.ID}}.Encode()
		put(t, rt, w)
		form := s.confirm(address)
		w.Expected++ // it fails again, or another call begins
		w.Doc = json.RawMessage(`{"stream":"s","reaction":"mail","turn":1}`)
		if w.Acquire != nil {
			r, err := rt.Store().Load(t.Context(), key)
			require.NoError(t, err)
			_, err = rt.Store().Commit(t.Context(), persist.Commit{ID: "end.1", Guards: []persist.Guard{{Key: key, Token: r.Lease.Token, Release: true}}})
			require.NoError(t, err)
		}
		put(t, rt, w)
		answer := s.send("POST", address, form)
		require.Equal(t, 409, answer.status, "%s of %s", c.action, c.view)
		require.Contains(t, answer.text(), "has changed since the action was confirmed", "%s of %s", c.action, c.view)
	}
}

// A document that only moves on does not refuse the action: a parked run that a worker has looked at,
// and a blocked reaction whose stream has new events. Proves INSPECT-1.
func TestMovingViewActions(t *testing.T) {
	rt := inMemory(t)
	log, err := stream.New(rt, stream.Config{Logger: quiet})
	require.NoError(t, err)
	s := withViews(t, rt, inspect.Runs(run.NewEngine(rt, run.Config{})), inspect.Reactions("", log))
	for _, c := range []struct{ view, action, kind, label string }{
		{"runs", inspect.ActRetry, "run", "PARKED x"},
		{"reactions-stream", inspect.ActUnblock, "stream.position", "blocked/mail"},
	} {
		key := pawl.Key{Kind: c.kind, ID: "s"}
		w := persist.Write{Key: key, Doc: json.RawMessage(`{"stream":"s","reaction":"mail","turn":1}`), Label: c.label}
		address := "act?" + url.Values{"view": {c.view}, "action": {c.action}, "kind": {key.Kind}, "id": {key.ID}}.Encode()
		put(t, rt, w)
		form := s.confirm(address)
		w.Expected++
		w.Doc = json.RawMessage(`{"stream":"s","reaction":"mail","turn":1,"known":2}`)
		put(t, rt, w)
		require.NotContains(t, s.send("POST", address, form).text(), "has changed since the action was confirmed", c.view)
	}
}

// The lag counts events that no process has told the reaction of yet.
func TestLagWithoutWorker(t *testing.T) {
	rt := inMemory(t)
	log, err := stream.New(rt, stream.Config{Logger: quiet, Events: []stream.Type{stream.Of[note]("noted")}})
	require.NoError(t, err)
	require.NoError(t, log.React(stream.Reaction{Name: "mail", Handle: func(context.Context, *stream.Delivery) error { return nil }}))
	s := withViews(t, rt, inspect.Reactions("", log))
	_, err = log.Append(t.Context(), "a", stream.Any, note{}, note{})
	require.NoError(t, err)
	_, err = log.Drain(t.Context())
	require.NoError(t, err)
	_, err = log.Append(t.Context(), "a", stream.Any, note{}, note{})
	require.NoError(t, err)
	require.Contains(t, s.get("view?name=reactions-stream").text(), "mail a 2 2 idle")
	require.NoError(t, log.Stop(t.Context()))
}

// The keys of requests, with what became of them.
func TestIdempotency(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		keys, err := idempotency.New(rt, idempotency.Config{TTL: 49 * time.Hour})
		require.NoError(t, err)
		s := withViews(t, rt, inspect.Idempotency())
		began, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			_, _, err := idempotency.Do(context.Background(), keys, idempotency.Op{Name: "pay", Key: "1"}, func(context.Context) (int, error) {
				close(began)
				<-release
				return 1, nil
			})
			done <- err
		}()
		testkit.Receive(t, began)
		require.Contains(t, s.get("view?name=idempotency").text(), "in progress")
		close(release)
		require.NoError(t, testkit.Receive(t, done))
		_, _, err = idempotency.Do(t.Context(), keys, idempotency.Op{Name: "pay", Key: "2"}, func(context.Context) (int, error) {
			return 0, pawl.NonRetryable(pawl.ErrNotFound)
		})
		require.Error(t, err)
		text := s.get("view?name=idempotency").text()
		require.Regexp(t, `done [\d.]+m?s 2d0h`, text)
		require.Contains(t, text, "failed: NOT_FOUND")
	})
}
