package machine_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/memory"
)

// seal is a field with code of its own, which panics once it is told to.
type seal string

var sealBreaks atomic.Bool

func (s seal) MarshalJSON() ([]byte, error) { return json.Marshal(string(s)) }

func (s *seal) UnmarshalJSON(data []byte) error {
	if sealBreaks.CompareAndSwap(true, false) {
		panic("the seal is broken")
	}
	return json.Unmarshal(data, (*string)(s))
}

type sealed struct {
	Status string `json:"status"`
	Seal   seal   `json:"seal"`
}

// TestEntityThatPanicsWhenClaimed: code of the entity's own that panics between the claim and the body keeps no claim.
//
// Proves CLAIM-6.
func TestEntityThatPanicsWhenClaimed(t *testing.T) {
	ctx := t.Context()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	e := machine.NewEngine(rt, machine.Config{})
	e.AddJanitor(machine.JanitorConfig{Module: "depot"})
	kind := pawl.Kind[sealed]{Name: "parcel", Label: "status"}
	w := shipping()
	w.Steps[0].Effects = nil
	m := machine.Add(e, kind, w)
	for _, action := range []string{"Ship", "Return"} {
		machine.Handle(m, action, func(context.Context, *machine.Action[sealed], machine.NoInput) error { return nil })
	}
	require.NoError(t, e.Start(ctx))
	defer e.Stop(context.Background())
	_, err = m.Create(ctx, "1", sealed{Seal: "red"})
	require.NoError(t, err)
	e.Observe(func(step string) { sealBreaks.Store(step == "after claim") })
	fire := func() (machine.Outcome[sealed], error) {
		return m.Fire(ctx, machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	}
	require.Panics(t, func() { _, _ = fire() })
	r, err := rt.Store().Load(ctx, pawl.Key{Kind: "parcel", ID: "1"})
	require.NoError(t, err)
	require.Equal(t, "packed", r.Label)
	require.False(t, r.Held(r.Now))
	e.Observe(func(string) {})
	out, err := fire()
	require.NoError(t, err)
	require.Equal(t, machine.Done, out.Result)
}
