package machine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/memory"
)

// emptyBody is an action that does nothing.
func emptyBody(context.Context, *machine.Action[parcel], machine.NoInput) error { return nil }

// An engine starts only if every claim state has a janitor, in whatever order modules declare their
// parts. Until then it fires nothing. Proves CLAIM-10.
func TestCoverage(t *testing.T) {
	workflow := func(e *machine.Engine) *machine.Machine[parcel] {
		m := machine.Add(e, parcels, shipping())
		machine.Handle(m, "Ship", emptyBody)
		machine.Handle(m, "Return", emptyBody)
		machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[parcel]) error { return nil })
		return m
	}
	other := func(e *machine.Engine) {
		w := shipping()
		w.Name, w.Module, w.Kind = "storing", "warehouse", "box"
		m := machine.Add(e, pawl.Kind[parcel]{Name: "box", Label: "status"}, w)
		machine.Handle(m, "Ship", emptyBody)
		machine.Handle(m, "Return", emptyBody)
		machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[parcel]) error { return nil })
	}
	janitor := func(module string) func(*machine.Engine) {
		return func(e *machine.Engine) { e.AddJanitor(machine.JanitorConfig{Module: module}) }
	}
	ship := func(e *machine.Engine) { workflow(e) }
	for name, c := range map[string]struct {
		order     []func(*machine.Engine)
		uncovered []machine.UncoveredError
	}{
		"covered":        {order: []func(*machine.Engine){ship, other, janitor("depot"), janitor("warehouse")}},
		"janitors first": {order: []func(*machine.Engine){janitor("warehouse"), janitor("depot"), other, ship}},
		"mixed":          {order: []func(*machine.Engine){other, janitor("depot"), ship, janitor("warehouse")}},
		"no claims":      {},
		"one missing": {order: []func(*machine.Engine){janitor("depot"), ship, other}, uncovered: []machine.UncoveredError{
			{Workflow: "storing", State: "returning", Module: "warehouse"}, {Workflow: "storing", State: "shipping", Module: "warehouse"},
		}},
		"all missing": {order: []func(*machine.Engine){ship}, uncovered: []machine.UncoveredError{
			{Workflow: "shipping", State: "returning", Module: "depot"}, {Workflow: "shipping", State: "shipping", Module: "depot"},
		}},
		"janitor of another module": {order: []func(*machine.Engine){ship, janitor("depots")}, uncovered: []machine.UncoveredError{
			{Workflow: "shipping", State: "returning", Module: "depot"}, {Workflow: "shipping", State: "shipping", Module: "depot"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rt, err := pawl.Open(pawl.Config{Store: memory.New()})
			require.NoError(t, err)
			defer rt.Close(context.Background())
			e := machine.NewEngine(rt, machine.Config{})
			for _, add := range c.order {
				add(e)
			}
			err = e.Start(t.Context())
			defer e.Stop(context.Background())
			if c.uncovered == nil {
				require.NoError(t, err)
				require.NoError(t, e.Start(t.Context()), "twice")
				return
			}
			var got []machine.UncoveredError
			for _, one := range err.(interface{ Unwrap() []error }).Unwrap() {
				var u *machine.UncoveredError
				require.ErrorAs(t, one, &u)
				require.Contains(t, one.Error(), u.Module)
				got = append(got, *u)
			}
			require.Equal(t, c.uncovered, got)
			require.Equal(t, "CLAIM_UNCOVERED", pawl.Code(err))
		})
	}

	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	e := machine.NewEngine(rt, machine.Config{})
	m := workflow(e)
	_, err = m.Create(t.Context(), "1", parcel{})
	require.NoError(t, err)
	require.Error(t, e.Start(t.Context()))
	_, err = m.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	require.ErrorIs(t, err, machine.ErrNotRunning, "an engine that has not started claims nothing")
	e.AddJanitor(machine.JanitorConfig{Module: "depot"})
	require.NoError(t, e.Start(t.Context()), "the missing janitor has been added")
	out, err := m.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	require.NoError(t, err)
	require.Equal(t, machine.Done, out.Result)
	require.NoError(t, e.Stop(t.Context()))
}

// Start reports all invalid declarations at once. Proves CLAIM-10, CLAIM-17.
func TestInvalidDeclarations(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	tell := func(context.Context, *machine.Delivery[parcel]) error { return nil }
	for name, c := range map[string]struct {
		declare func(e *machine.Engine)
		want    []string
	}{
		"no handlers": {func(e *machine.Engine) { machine.Add(e, parcels, shipping()) },
			[]string{`"Ship": the action has no handler`, `"Return": the action has no handler`, `"Tell": the after-effect has no handler`}},
		"handlers twice": {func(e *machine.Engine) {
			m := machine.Add(e, parcels, shipping())
			for range 2 {
				machine.Handle(m, "Ship", emptyBody)
				machine.Handle(m, "Return", emptyBody)
				machine.Effect(m, "Tell", tell)
			}
		}, []string{`"Ship": the action is registered twice`, `"Return": the action is registered twice`, `"Tell": the after-effect is registered twice`}},
		"handlers without a step": {func(e *machine.Engine) {
			m := machine.Add(e, parcels, shipping())
			machine.Handle(m, "Ship", emptyBody)
			machine.Handle(m, "Return", emptyBody)
			machine.Effect(m, "Tell", tell)
			machine.Handle(m, "Shipp", emptyBody)
			machine.Effect(m, "Tel", tell)
			machine.Handle[parcel, string](m, "Nil", nil)
			machine.Effect(m, "Null", nil)
		}, []string{`"Shipp": no step has this action`, `"Tel": no step has this after-effect`, `handler is nil`}},
		"invalid workflow": {func(e *machine.Engine) {
			w := shipping()
			w.Steps[0].Claim["admin"] = machine.Claim{"shipping", "shipping"}
			machine.Add(e, parcels, w)
		}, []string{"claim_into equals revert_to"}},
		"duplicate name": {func(e *machine.Engine) { machine.Add(e, parcels, shipping()); machine.Add(e, parcels, shipping()) },
			[]string{"two workflows have this name", "another workflow has the same entity_kind"}},
		"another kind":    {func(e *machine.Engine) { machine.Add(e, pawl.Kind[parcel]{Name: "box", Label: "status"}, shipping()) }, []string{"entity_kind"}},
		"no label":        {func(e *machine.Engine) { machine.Add(e, pawl.Kind[parcel]{Name: "parcel"}, shipping()) }, []string{"no Label"}},
		"wrong label":     {func(e *machine.Engine) { machine.Add(e, pawl.Kind[parcel]{Name: "parcel", Label: "state"}, shipping()) }, []string{"no such field"}},
		"in memory":       {func(e *machine.Engine) { machine.Add(e, pawl.Kind[parcel]{Name: "parcel", InMemory: true}, shipping()) }, []string{"in memory"}},
		"two janitors":    {func(e *machine.Engine) { e.AddJanitor(machine.JanitorConfig{Module: "depot"}) }, []string{"the module has another janitor"}},
		"no module":       {func(e *machine.Engine) { e.AddJanitor(machine.JanitorConfig{}) }, []string{"the module is empty"}},
		"negative age":    {func(e *machine.Engine) { e.AddJanitor(machine.JanitorConfig{Module: "m", Age: -1}) }, []string{"Age must not be negative, got -1ns"}},
		"negative survey": {func(e *machine.Engine) { e.AddJanitor(machine.JanitorConfig{Module: "m", Survey: -1}) }, []string{"Survey must not be negative, got -1ns"}},
		"long names": {func(e *machine.Engine) {
			w := shipping()
			w.Steps[0].Effects["admin"] = []string{strings.Repeat("x", 250)}
			machine.Add(e, parcels, w)
		}, []string{"too long"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := machine.NewEngine(rt, machine.Config{})
			e.AddJanitor(machine.JanitorConfig{Module: "depot"})
			c.declare(e)
			err := e.Start(t.Context())
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NoError(t, e.Stop(t.Context()))
		})
	}
	memoryOnly, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	defer memoryOnly.Close(context.Background())
	require.ErrorIs(t, machine.NewEngine(memoryOnly, machine.Config{}).Start(t.Context()), pawl.ErrNoStore)
	require.Error(t, machine.NewEngine(rt, machine.Config{Lease: -1}).Start(t.Context()))
}

// A workflow that is added to a running engine fires nothing: its claims are not checked, and its
// after-effects would not be delivered. Proves CLAIM-10.
func TestAddedToARunningEngine(t *testing.T) {
	d := open(t, memory.New(), settings{})
	w := shipping()
	w.Name, w.Module, w.Kind = "storing", "warehouse", "box"
	boxes := pawl.Kind[parcel]{Name: "box", Label: "status"}
	late := machine.Add(d.e, boxes, w)
	machine.Handle(late, "Ship", func(context.Context, *machine.Action[parcel], string) error {
		t.Error("fired")
		return nil
	})
	before, err := late.Create(t.Context(), "a", parcel{})
	require.NoError(t, err)
	_, err = late.Fire(t.Context(), machine.Trigger{ID: "a", Step: "ship", By: "admin", Input: "x"})
	require.ErrorIs(t, err, machine.ErrNotRunning)
	after, err := boxes.Scope(d.rt, "a").Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Version, after.Version)
	require.ErrorAs(t, d.e.Start(t.Context()), new(*machine.RuleError))
	d.pack(t, "b")
	_, err = d.m.Fire(t.Context(), machine.Trigger{ID: "b", Step: "ship", By: "admin", Input: "x"})
	require.NoError(t, err, "the others go on")
}

// Stop refuses new actions and waits for running ones. When its context ends, it ends theirs; an
// action that still runs keeps its claim. Proves CLAIM-6, CLAIM-9.
func TestStop(t *testing.T) {
	d := open(t, memory.New(), settings{})
	d.pack(t, "1")
	d.pack(t, "2")
	began, finish := make(chan struct{}), make(chan struct{})
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		close(began)
		<-ctx.Done()
		<-finish
		return errors.Join(errBody, context.Cause(ctx))
	})
	answer := make(chan error)
	go func() {
		_, err := d.fire(context.Background(), "1", "running")
		answer <- err
	}()
	<-began
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := d.e.Stop(impatient)
	var busy *machine.BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, []pawl.Key{{Kind: "parcel", ID: "1"}}, busy.Actions)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "BUSY", pawl.Code(err))
	_, err = d.fire(t.Context(), "2", "refused")
	require.ErrorIs(t, err, machine.ErrNotRunning)
	r := d.record(t, "1")
	require.True(t, r.Held(r.Now))
	close(finish)
	err = <-answer
	require.ErrorIs(t, err, errBody)
	require.ErrorIs(t, err, machine.ErrNotRunning)
	require.Equal(t, parcel{Status: "packed"}, d.parcel(t, "1"), "the claim was released")
	require.NoError(t, d.e.Stop(t.Context()))
	require.EqualValues(t, 1, d.record(t, "2").Version)
}

// When the context of Start ends, the engine claims nothing more, because its janitors have
// stopped. Proves CLAIM-10.
func TestContextOfStartEnds(t *testing.T) {
	d, err := build(memory.New(), settings{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, d.e.Start(ctx))
	d.pack(t, "1")
	cancel()
	_, err = d.fire(t.Context(), "1", "too late")
	require.ErrorIs(t, err, machine.ErrNotRunning)
	require.EqualValues(t, 1, d.record(t, "1").Version)
	require.NoError(t, d.stop())
}
