package erase_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// note is a document of a user.
type note struct {
	Text string `json:"text"`
	Team string `json:"team,omitempty"`
}

var notes = pawl.Kind[note]{Name: "note", Label: "team"}

// said is an event.
type said struct {
	Text string `json:"text"`
}

// order is an entity of a machine.
type order struct {
	Status string `json:"status"`
	Text   string `json:"text"`
}

var orders = pawl.Kind[order]{Name: "order", Label: "status"}

const orderFlow = `{
	"workflow": "order", "module": "shop", "entity_kind": "order", "initial_status": "paid",
	"status_types": ["paid", "shipping", "shipped"],
	"steps": [{
		"step_id": 10, "step_key": "ship", "status": "paid",
		"successful_claim_state": {"clerk": ["shipping", "paid"]}, "successful_state": {"clerk": "shipped"},
		"action": {"clerk": "Ship"}, "success_after_effect": {"clerk": ["Tell"]}
	}]
}`

// wallet is an account of batch jobs.
type wallet struct {
	Points int64 `json:"points"`
}

var wallets = pawl.Kind[wallet]{Name: "wallet"}

// open returns a runtime on a store.
func open(t testing.TB, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{notes, orders, wallets}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) })
	return rt
}

// subject returns the names of a user.
func subject(user string) erase.Subject {
	return erase.Subject{IDs: []string{user}, Prefixes: []string{user + "/", "#" + user + "/"}, Workspaces: []string{user + " & co"}, Principals: []string{user}}
}

// secret is in every document of a user.
func secret(user string) string { return "secret of " + user + "." }

// streamsOf returns the streams of a user. Ids that contain the last two have a hash in their place.
func streamsOf(user string) []string {
	return []string{user, user + "/t", user + "/" + strings.Repeat("x", 230), "#" + user + "/t"}
}

// fillAll writes with every layer for each user.
func fillAll(t testing.TB, rt *pawl.Runtime, users ...string) {
	t.Helper()
	for _, user := range users {
		for _, id := range []string{user, user + "/1", user + "/2"} {
			_, err := notes.Scope(rt, id).SetState(t.Context(), note{Text: secret(user)})
			require.NoError(t, err)
		}
		_, err := notes.Scope(rt, user+"/expired").SetState(t.Context(), note{Text: secret(user)}, pawl.WithTTL(time.Microsecond))
		require.NoError(t, err)
	}
	fillStreams(t, rt, users)
	fillRuns(t, rt, users)
	fillBatches(t, rt, users)
	fillOrders(t, rt, users)
	keys, err := idempotency.New(rt, idempotency.Config{})
	require.NoError(t, err)
	for _, user := range users {
		_, _, err := idempotency.DoTx(t.Context(), keys, idempotency.Op{Principal: user, Name: "pay", Key: "k"},
			func(context.Context, *pawl.Tx) (string, error) { return secret(user), nil })
		require.NoError(t, err)
	}
}

// newLog returns a log of streams.
func newLog(t testing.TB, rt *pawl.Runtime) *stream.Log {
	t.Helper()
	log, err := stream.New(rt, stream.Config{Name: "thread", SnapshotEvery: 1, Logger: slog.New(slog.DiscardHandler), Events: []stream.Type{stream.Of[said]("said")}})
	require.NoError(t, err)
	return log
}

// fillStreams appends events, lets one reaction handle them, and blocks another one.
func fillStreams(t testing.TB, rt *pawl.Runtime, users []string) {
	t.Helper()
	log := newLog(t, rt)
	require.NoError(t, log.React(stream.Reaction{Name: "mail", Handle: func(context.Context, *stream.Delivery) error { return nil }}))
	require.NoError(t, log.React(stream.Reaction{Name: "bill", Handle: func(_ context.Context, d *stream.Delivery) error {
		return pawl.NonRetryable(errors.New(d.Event.Data.(said).Text))
	}}))
	fold := stream.Fold[string]{Name: "texts/all", Apply: func(s *string, e stream.Event) error { *s += e.Data.(said).Text; return nil }}
	streams := 0
	for _, user := range users {
		for _, name := range streamsOf(user) {
			_, err := log.Append(t.Context(), name, stream.Any, said{secret(user)}, said{secret(user)})
			require.NoError(t, err)
			_, _, err = stream.Load(t.Context(), log, name, fold)
			require.NoError(t, err)
			streams++
		}
	}
	require.NoError(t, log.Start(t.Context()))
	testkit.Eventually(t, func() bool {
		settled := 0
		for p, err := range log.Positions(t.Context(), stream.Filter{}) {
			require.NoError(t, err)
			if p.Holder == "" && (p.Blocked || !p.Pending) {
				settled++
			}
		}
		return settled == 2*streams
	}, "the reactions have not settled")
	require.NoError(t, log.Stop(testkit.Within(t, testkit.Patience)))
}

// newRuns returns an engine without workers, and its runs.
func newRuns(rt *pawl.Runtime) (*run.Engine, *run.Runs[note]) {
	e := run.NewEngine(rt, run.Config{})
	return e, run.Register(e, run.Definition[note]{Name: "trip", Steps: []run.Step[note]{
		{Name: "go", Do: func(context.Context, *run.Attempt[note]) (run.Next, error) { return run.Continue(), nil }},
	}})
}

// fillRuns starts runs and signals them.
func fillRuns(t testing.TB, rt *pawl.Runtime, users []string) {
	t.Helper()
	engine, runs := newRuns(rt)
	for _, user := range users {
		for _, workspace := range []string{user, user + " & co"} {
			r, _, err := runs.Start(t.Context(), note{Text: secret(user)}, run.InWorkspace(workspace))
			require.NoError(t, err)
			require.NoError(t, engine.Signal(t.Context(), r.ID, "a/b", secret(user)))
		}
	}
}

// newBatches returns a queue of batch jobs.
func newBatches(t testing.TB, rt *pawl.Runtime) *batch.Queue[string, string] {
	t.Helper()
	q, err := batch.New(rt, batch.Config[string, string]{
		Name: "images", Ledger: batch.ScopeLedger(wallets, "points"), Price: func(string) (int64, error) { return 1, nil },
		Make:   func(_ context.Context, _, item string) (string, error) { return item, nil },
		Remove: func(context.Context, string, *string) error { return nil },
	})
	require.NoError(t, err)
	return q
}

// fillBatches submits jobs, and waits until they are completed.
func fillBatches(t testing.TB, rt *pawl.Runtime, users []string) {
	t.Helper()
	q := newBatches(t, rt)
	for _, user := range users {
		_, err := wallets.Scope(rt, user).SetState(t.Context(), wallet{Points: 10})
		require.NoError(t, err)
		_, _, err = q.Submit(t.Context(), batch.Job[string]{ID: user + "/b&1", Account: user, Items: []string{secret(user), secret(user)}})
		require.NoError(t, err)
	}
	require.NoError(t, q.Start(t.Context()))
	for _, user := range users {
		for p, err := range q.Watch(t.Context(), user+"/b&1") {
			require.NoError(t, err)
			require.NotEqual(t, batch.Failed, p.Status)
		}
	}
	require.NoError(t, q.Stop(testkit.Within(t, testkit.Patience)))
}

// fillOrders fires a step whose after-effect is given up.
func fillOrders(t testing.TB, rt *pawl.Runtime, users []string) {
	t.Helper()
	w, err := machine.Load([]byte(orderFlow))
	require.NoError(t, err)
	givenUp := make(chan machine.Undelivered, len(users))
	engine := machine.NewEngine(rt, machine.Config{GaveUp: func(u machine.Undelivered) { givenUp <- u }})
	m := machine.Add(engine, orders, w)
	machine.Handle(m, "Ship", func(context.Context, *machine.Action[order], string) error { return nil })
	machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[order]) error { return pawl.NonRetryable(errors.New("no mail")) })
	engine.AddJanitor(machine.JanitorConfig{Module: "shop"})
	require.NoError(t, engine.Start(t.Context()))
	for _, user := range users {
		_, err := m.Create(t.Context(), user+"/o", order{Text: secret(user)})
		require.NoError(t, err)
		out, err := m.Fire(t.Context(), machine.Trigger{ID: user + "/o", Step: "ship", By: "clerk", Input: secret(user)})
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		testkit.Receive(t, givenUp)
	}
	require.NoError(t, engine.Stop(testkit.Within(t, testkit.Patience)))
}

// all returns the records of a store that are no tombstones, with their log entries as text.
func all(t testing.TB, store persist.Store) (texts map[persist.Key]string) {
	t.Helper()
	texts = map[persist.Key]string{}
	for _, q := range []persist.Query{{}, {Expired: true}} {
		for {
			page, err := store.List(t.Context(), q)
			require.NoError(t, err)
			for _, r := range page.Records {
				entries, err := persist.Logs(store).ReadLog(t.Context(), persist.LogQuery{Key: r.Key})
				require.NoError(t, err)
				text, err := json.Marshal([]any{r, entries})
				require.NoError(t, err)
				texts[r.Key] = string(text)
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	return texts
}

// of returns those of texts that belong to a user by id or by content. The documents that every user
// has a part in are left out.
func of(texts map[persist.Key]string, user string) map[persist.Key]string {
	found := map[persist.Key]string{}
	for key, text := range texts {
		name := strings.TrimPrefix(key.ID, "#")
		owned := name == user || strings.HasPrefix(name, user+"/") || strings.HasPrefix(name, url.QueryEscape(user+"/")) || strings.HasPrefix(name, url.QueryEscape(user+" "))
		for _, mark := range []string{secret(user), `"entity":"` + user + `/`, `"stream":"` + user + `/`, `"stream":"#` + user + `/`} {
			owned = owned || strings.Contains(text, mark)
		}
		if owned || strings.HasPrefix(key.ID, idempotency.IDPrefix(user)) { // a stored response is in Base64
			found[key] = text
		}
	}
	return found
}

// partsOf returns the parts of a user.
func partsOf(t testing.TB, store persist.Store, user string) []erase.Part {
	t.Helper()
	parts, err := erase.Parts(t.Context(), store, subject(user))
	require.NoError(t, err)
	return parts
}

// list returns the keys that List yields, with the reasons why they are left.
func list(t testing.TB, store persist.Store, parts []erase.Part) map[persist.Key]string {
	t.Helper()
	found := map[persist.Key]string{}
	for f, err := range erase.List(t.Context(), store, parts) {
		require.NoError(t, err)
		require.NotContains(t, found, f.Key, "listed twice")
		found[f.Key] = f.Left
	}
	return found
}
