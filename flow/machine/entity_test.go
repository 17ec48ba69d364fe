package machine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/memory"
)

// TestAnyEntity: the status may be a type of its own, in a nested field, or a field of dynamic state.
func TestAnyEntity(t *testing.T) {
	type phase string
	type state struct {
		Phase *phase `json:"phase"`
	}
	type crate struct {
		State state `json:"state"`
	}
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	e := machine.NewEngine(rt, machine.Config{})
	e.AddJanitor(machine.JanitorConfig{Module: "depot"})
	w := shipping()
	w.Steps[0].Effects = nil
	nested := machine.Add(e, pawl.Kind[crate]{Name: "parcel", Label: "state.phase"}, w)
	machine.Handle(nested, "Ship", func(context.Context, *machine.Action[crate], machine.NoInput) error { return nil })
	machine.Handle(nested, "Return", func(context.Context, *machine.Action[crate], machine.NoInput) error { return nil })
	w.Name, w.Kind = "dynamic", "doc"
	dynamic := machine.Add(e, pawl.Kind[pawl.Doc]{Name: "doc", Label: "status"}, w)
	machine.Handle(dynamic, "Ship", func(context.Context, *machine.Action[pawl.Doc], any) error { return nil })
	machine.Handle(dynamic, "Return", func(context.Context, *machine.Action[pawl.Doc], any) error { return nil })
	require.NoError(t, e.Start(t.Context()))
	defer e.Stop(context.Background())

	_, err = nested.Create(t.Context(), "1", crate{})
	require.NoError(t, err)
	one, err := nested.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	require.NoError(t, err)
	require.Equal(t, machine.Done, one.Result)
	require.Equal(t, phase("shipped"), *one.Entity.State().State.Phase)

	_, err = dynamic.Create(t.Context(), "1", pawl.Doc{"weight": 7})
	require.NoError(t, err)
	other, err := dynamic.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin", Input: "anything"})
	require.NoError(t, err)
	require.Equal(t, machine.Done, other.Result)
	require.Equal(t, pawl.Doc{"weight": int64(7), "status": "shipped"}, other.Entity.State())
}
