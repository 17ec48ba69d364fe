package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func init() { testkit.Child("starters", startersChild) }

const startsEach = 334 // in each of three processes

// startersChild starts one run many times, under one key.
func startersChild() error {
	rt, stop, err := openGiven()
	if err != nil {
		return err
	}
	_, runs := engine(rt, run.Config{}, step("a", nil))
	testkit.Begin()
	var (
		all     sync.WaitGroup
		mu      sync.Mutex // protects the rest
		created int
		ids     = map[string]bool{}
		errs    []error
	)
	for range startsEach {
		all.Go(func() {
			r, isNew, err := runs.Start(context.Background(), order{ID: "1"}, run.WithKey("order-1"))
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); isNew {
				created++
			}
			ids[r.ID] = true
		})
	}
	all.Wait()
	for id := range ids {
		testkit.Say("%d %s", created, id)
	}
	return errors.Join(append(errs, stop())...)
}

// A thousand Starts with one key in three processes create one run, and one of them is told so.
// Proves RUN-1.
func TestStartsOfProcessesWithOneKey(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		var processes []*testkit.Process
		for range 3 {
			processes = append(processes, testkit.Start(t, "starters", stores.Env(location)))
		}
		testkit.Ready(processes...)
		created, ids := 0, map[string]bool{}
		for _, p := range processes {
			for _, line := range p.Wait() {
				var n int
				var id string
				_, err := fmt.Sscan(line, &n, &id)
				require.NoError(t, err, line)
				created += n
				ids[id] = true
			}
		}
		require.Equal(t, 1, created)
		require.Len(t, ids, 1)
		require.Len(t, list(t, store(t, location), run.Filter{}), 1)
	})
}

// store returns the runs in the store at a location.
func store(t testing.TB, location string) *run.Runs[order] {
	t.Helper()
	_, runs := engine(open(t, stores.OpenFor(t, location)), run.Config{}, step("a", nil))
	return runs
}

// list returns the ids of the runs that f selects.
func list(t testing.TB, runs *run.Runs[order], f run.Filter) (ids []string) {
	t.Helper()
	for r, err := range runs.List(t.Context(), f) {
		require.NoError(t, err)
		ids = append(ids, r.ID)
	}
	return ids
}

// A key is counted in characters and is unique per workspace. Proves RUN-1.
func TestKeys(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		_, runs := engine(open(t, store), run.Config{}, step("a", nil))
		long := strings.Repeat("界", run.MaxKey)
		r, created, err := runs.Start(t.Context(), order{}, run.WithKey(long))
		require.NoError(t, err)
		require.True(t, created)
		require.Equal(t, long, r.Key)
		require.Equal(t, run.DefaultWorkspace, r.Workspace)
		_, _, err = runs.Start(t.Context(), order{}, run.WithKey(long+"界"))
		var limit *pawl.LimitError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, []int{255, 256}, []int{limit.Limit, limit.Got})
		_, _, err = runs.Start(t.Context(), order{}, run.InWorkspace(strings.Repeat("w", 200)))
		require.ErrorAs(t, err, &limit)

		ids := map[string]bool{r.ID: true}
		for _, workspace := range []string{"a", "b", "a/b", "a%2Fb", "ä b"} {
			r, created, err := runs.Start(t.Context(), order{}, run.WithKey(long), run.InWorkspace(workspace))
			require.NoError(t, err)
			require.True(t, created, workspace)
			require.Equal(t, workspace, r.Workspace)
			ids[r.ID] = true
			again, created, err := runs.Start(t.Context(), order{}, run.WithKey(long), run.InWorkspace(workspace))
			require.NoError(t, err)
			require.False(t, created, workspace)
			require.Equal(t, r.ID, again.ID)
			require.Equal(t, []string{r.ID}, list(t, runs, run.Filter{Workspace: workspace}))
		}
		require.Len(t, ids, 6)
		for range 2 { // without a key each Start creates a run
			r, created, err := runs.Start(t.Context(), order{})
			require.NoError(t, err)
			require.True(t, created)
			ids[r.ID] = true
		}
		require.Len(t, ids, 8)
	})
}

// Another input or another definition under a used key is refused, and nothing is changed. The same
// input may be spelled in another way. Proves RUN-1.
func TestKeyWithAnotherInput(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		e, runs := engine(open(t, store), run.Config{}, step("a", nil))
		run.Register(e, run.Definition[order]{Name: "return", Steps: []run.Step[order]{step("a", nil)}})
		run.Register(e, run.Definition[map[string]any]{Name: "any", Steps: []run.Step[map[string]any]{
			{Name: "a", Do: func(context.Context, *run.Attempt[map[string]any]) (run.Next, error) { return run.End(), nil }},
		}})
		create := func(definition, input string) (string, bool, error) {
			return e.Create(t.Context(), e.Runtime(), run.Request{Definition: definition, Input: json.RawMessage(input), Key: definition[:1] + "1"})
		}
		id, created, err := create("order", `{"id":"1","log":["é"]}`)
		require.NoError(t, err)
		require.True(t, created)
		same, created, err := create("order", " {\"log\": [\"\\u00e9\"],\n \"id\": \"1\"} ")
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, id, same)

		before, err := runs.Get(t.Context(), id)
		require.NoError(t, err)
		for _, q := range []run.Request{
			{Definition: "order", Input: json.RawMessage(`{"id":"2"}`), Key: "o1"},
			{Definition: "order", Key: "o1"},
			{Definition: "return", Input: json.RawMessage(`{"id":"1","log":["é"]}`), Key: "o1"},
		} {
			got, created, err := e.Create(t.Context(), e.Runtime(), q)
			var used *run.KeyError
			require.ErrorAs(t, err, &used)
			require.Equal(t, run.KeyError{Key: "o1", Run: id}, *used)
			require.Equal(t, "IDEMPOTENCY_KEY_REUSED", pawl.Code(err))
			require.Equal(t, 422, pawl.HTTPStatus(err))
			require.False(t, created)
			require.Equal(t, id, got)
		}
		after, err := runs.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, before.Version, after.Version)
		require.Equal(t, before.State, after.State)

		_, _, err = create("any", `{"n":9007199254740993}`)
		require.NoError(t, err)
		_, _, err = create("any", `{"n":9007199254740992}`)
		var used *run.KeyError
		require.ErrorAs(t, err, &used, "every digit counts")

		lines := func(input string) (bool, error) {
			_, created, err := e.Create(t.Context(), e.Runtime(), run.Request{Definition: "any", Input: json.RawMessage(input), Key: "lines"})
			return created, err
		}
		for i, input := range []string{`{"lines":[{"n":1},{}]}`, `{"x":0,"lines":[{"n":1,"x":false},{"y":{"z":[]}}]}`} {
			created, err := lines(input)
			require.NoError(t, err, "a release has added fields")
			require.Equal(t, i == 0, created)
		}
		for _, input := range []string{`{"lines":[{"n":1}]}`, `{"lines":[{"n":1},0]}`, `{"lines":[{},{"n":1}]}`} {
			_, err := lines(input)
			require.ErrorAs(t, err, &used, "the items of a list count")
		}
	})
}

// An unknown definition, an empty one and an input that does not fit are refused. An absent input is
// an empty object. Proves RUN-5.
func TestRequests(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		e, runs := engine(open(t, store), run.Config{}, step("a", nil))
		run.Register(e, run.Definition[order]{Name: "no steps"})
		create := func(q run.Request) (string, error) {
			id, _, err := e.Create(t.Context(), e.Runtime(), q)
			return id, err
		}
		var unknown *run.UnknownDefinitionError
		for _, name := range []string{"", "orders", "ORDER"} {
			_, err := create(run.Request{Definition: name})
			require.ErrorAs(t, err, &unknown)
			require.Equal(t, name, unknown.Definition)
			require.Equal(t, 404, pawl.HTTPStatus(err))
			require.Equal(t, "UNKNOWN_DEFINITION", pawl.Code(err))
		}
		var argument *pawl.ArgumentError
		for _, q := range []run.Request{
			{Definition: "order", Input: json.RawMessage(`{"id":1}`)},
			{Definition: "order", Input: json.RawMessage(`{"id":`)},
			{Definition: "order", Input: json.RawMessage(`[]`)},
		} {
			_, err := create(q)
			require.ErrorAs(t, err, &argument, string(q.Input))
		}
		require.Empty(t, list(t, runs, run.Filter{}))
		for _, input := range []string{"", "null", "{}"} {
			id, err := create(run.Request{Definition: "order", Input: json.RawMessage(input), Key: "empty"})
			require.NoError(t, err, "the same input")
			r, err := runs.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, order{}, r.State)
			require.Zero(t, r.StartedAt)
		}
		require.JSONEq(t, `{}`, string(document(t, store, list(t, runs, run.Filter{})[0])["state"]))
	})
}

// document returns the stored document of a run.
func document(t testing.TB, store persist.Store, id string) (fields map[string]json.RawMessage) {
	t.Helper()
	r, err := store.Load(t.Context(), persist.Key{Kind: "run", ID: id})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(r.Doc, &fields))
	return fields
}

// A run that is started in a transaction exists if the transaction commits. Proves RUN-1.
func TestStartInATransaction(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		_, runs := start(t, rt, run.Config{}, step("a", nil))
		refused := errors.New("no money")
		var r run.Run[order]
		pay := func(result error) error {
			return pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) (err error) {
				var created bool
				if r, created, err = runs.In(tx).Start(ctx, order{ID: "1"}, run.WithKey("1")); err != nil || !created {
					return errors.Join(err, fmt.Errorf("created %v", created))
				}
				if again, created, err := runs.In(tx).Start(ctx, order{ID: "1"}, run.WithKey("1")); err != nil || created || again.ID != r.ID {
					return errors.Join(err, errors.New("created twice"))
				}
				if _, err := runs.In(tx).Get(ctx, r.ID); err != nil {
					return err
				}
				if _, err := totals.Scope(tx, "paid").IncState(ctx, "steps", 1); err != nil {
					return err
				}
				return result
			})
		}
		require.ErrorIs(t, pay(refused), refused)
		require.Empty(t, list(t, runs, run.Filter{}))
		_, err := runs.Get(t.Context(), r.ID)
		require.ErrorIs(t, err, pawl.ErrNotFound)
		require.NoError(t, pay(nil))
		require.Equal(t, run.Completed, finished(t, runs, r.ID).Status)
		paid, err := totals.Scope(rt, "paid").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, paid.Steps)
	})
}

// once is a run with one step, started under one key by each delivery.
type once struct {
	runs  *run.Runs[order]
	steps chan string
}

func newOnce(t testing.TB, store persist.Store) once {
	t.Helper()
	o := once{steps: make(chan string, 100)}
	_, o.runs = start(t, open(t, store), run.Config{}, step("a", func(_ context.Context, a *attempt) (run.Next, error) {
		o.steps <- a.RunID
		return run.Continue(), nil
	}))
	return o
}

// deliver starts the run and reports whether it was created.
func (o once) deliver(t testing.TB) (run.Run[order], bool) {
	t.Helper()
	r, created, err := o.runs.Start(t.Context(), order{ID: "1"}, run.WithKey("event-1"))
	require.NoError(t, err)
	return r, created
}

// A webhook that is delivered again after its run has ended gets that run. Proves RUN-1.
func TestDuplicateWebhook(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		o := newOnce(t, store)
		r, created := o.deliver(t)
		require.True(t, created)
		done := finished(t, o.runs, r.ID)
		again, created := o.deliver(t)
		require.False(t, created)
		require.Equal(t, []any{done.ID, done.Version, done.Status, done.State}, []any{again.ID, again.Version, again.Status, again.State})
		require.Len(t, o.steps, 1)
	})
}

// A message that two consumers get at the same time starts one run. Proves RUN-1.
func TestQueueDuplicate(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		consumers := []once{newOnce(t, stores.OpenFor(t, location)), newOnce(t, stores.OpenFor(t, location))}
		news := make(chan bool, len(consumers))
		var all sync.WaitGroup
		for _, o := range consumers {
			all.Go(func() {
				_, created := o.deliver(t)
				news <- created
			})
		}
		all.Wait()
		require.NotEqual(t, <-news, <-news, "one of them created it")
		ids := list(t, consumers[0].runs, run.Filter{})
		require.Len(t, ids, 1)
		require.Equal(t, run.Completed, finished(t, consumers[0].runs, ids[0]).Status)
		require.Equal(t, 1, len(consumers[0].steps)+len(consumers[1].steps))
	})
}

// Two clicks in one process start one run. Proves RUN-1.
func TestDoubleClick(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		o := newOnce(t, store)
		news := make(chan bool, 2)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				_, created := o.deliver(t)
				news <- created
			})
		}
		all.Wait()
		require.NotEqual(t, <-news, <-news, "one of them created it")
		require.Len(t, list(t, o.runs, run.Filter{}), 1)
	})
}

// A client whose first answer was lost starts again and gets its run. Proves RUN-1.
func TestClientRetry(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		tap := &stores.Tap{Store: store}
		rt, err := pawl.Open(pawl.Config{Store: tap, Retry: pawl.Retry{Attempts: 1, Within: time.Second}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
		_, runs := engine(rt, run.Config{}, step("a", nil))
		tap.OnCommitted(func(persist.Commit, time.Time, error) (time.Time, error) {
			tap.OnLoad(func(context.Context, ...persist.Key) error { return persist.ErrUnavailable })
			return time.Time{}, errors.New("connection lost")
		})
		_, created, err := runs.Start(t.Context(), order{ID: "1"}, run.WithKey("1"))
		require.Error(t, err)
		require.True(t, pawl.OutcomeUnknown(err), "%v", err)
		require.False(t, created)
		tap.OnCommitted(nil)
		tap.OnLoad(nil)
		r, created, err := runs.Start(t.Context(), order{ID: "1"}, run.WithKey("1"))
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, []string{r.ID}, list(t, runs, run.Filter{}))
	})
}

// Engine.Start returns every fault of the definitions and schedules, and starts nothing.
func TestFaults(t *testing.T) {
	rt := open(t, memory.New())
	nothing := func(context.Context, *attempt) (run.Next, error) { return run.Continue(), nil }
	e := run.NewEngine(rt, run.Config{Logger: quiet})
	require.ErrorContains(t, e.Start(t.Context()), "no definition is registered")
	for _, d := range []run.Definition[order]{
		{Name: "", Steps: []run.Step[order]{{Name: "a", Do: nothing}}},
		{Name: "no steps"},
		{Name: "twice", Steps: []run.Step[order]{{Name: "a", Do: nothing}, {Name: "a", Do: nothing}}},
		{Name: "no name", Steps: []run.Step[order]{{Do: nothing}}},
		{Name: "no do", Steps: []run.Step[order]{{Name: "a"}}},
		{Name: "negative", Steps: []run.Step[order]{{Name: "a", Do: nothing, Timeout: -1}}},
		{Name: "good", Steps: []run.Step[order]{{Name: "a", Do: nothing}}},
		{Name: "good", Steps: []run.Step[order]{{Name: "a", Do: nothing}}},
	} {
		run.Register(e, d)
	}
	err := e.Start(t.Context())
	for _, want := range []string{
		"its name must have 1 to 64 bytes", "no steps: it has no steps", `two steps have the name "a"`,
		"the name of step 1 must have", `step "a" has no Do`, "must not be negative", "good: registered twice",
	} {
		require.ErrorContains(t, err, want)
	}
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
	require.NoError(t, e.Stop(t.Context()))

	none := run.NewEngine(nil, run.Config{})
	require.ErrorIs(t, none.Start(t.Context()), pawl.ErrNoStore)

	e, _ = engine(rt, run.Config{}, step("a", nil))
	require.NoError(t, e.Start(t.Context()))
	run.Register(e, run.Definition[order]{Name: "late", Steps: []run.Step[order]{{Name: "a", Do: nothing}}})
	require.ErrorContains(t, e.Start(t.Context()), "late: registered after Start")
	require.NoError(t, e.Stop(t.Context()))
}
