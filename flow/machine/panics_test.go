package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/memory"
)

// seal is a field whose UnmarshalJSON panics while sealBreaks is set.
type seal string

var (
	sealBreaks atomic.Bool
	sealWaits  atomic.Pointer[func()] // called before the panic; nil: nothing is
)

func (s seal) MarshalJSON() ([]byte, error) { return json.Marshal(string(s)) }

func (s *seal) UnmarshalJSON(data []byte) error {
	if sealBreaks.CompareAndSwap(true, false) {
		if wait := sealWaits.Load(); wait != nil {
			(*wait)()
		}
		panic("the seal is broken")
	}
	return json.Unmarshal(data, (*string)(s))
}

type sealed struct {
	Status string `json:"status"`
	Seal   seal   `json:"seal"`
}

// A claim is released if the entity's own code panics between the claim and the body.
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

// A panic of the entity's own code during the claim is logged if the caller of Fire has left.
// Proves SCOPE-5.
func TestEntityThatPanicsWhenCallerLeft(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	logged := make(chan string, 10)
	e := machine.NewEngine(rt, machine.Config{Logger: slog.New(slog.NewTextHandler(lines(logged), nil))})
	e.AddJanitor(machine.JanitorConfig{Module: "depot"})
	kind := pawl.Kind[sealed]{Name: "parcel", Label: "status"}
	w := shipping()
	w.Steps[0].Effects = nil
	m := machine.Add(e, kind, w)
	for _, action := range []string{"Ship", "Return"} {
		machine.Handle(m, action, func(context.Context, *machine.Action[sealed], machine.NoInput) error { return nil })
	}
	require.NoError(t, e.Start(t.Context()))
	defer e.Stop(context.Background())
	_, err = m.Create(t.Context(), "1", sealed{Seal: "red"})
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	wait := func() { leave(); <-left }
	sealWaits.Store(&wait)
	defer sealWaits.Store(nil)
	e.Observe(func(step string) { sealBreaks.Store(step == "before claim") })
	_, err = m.Fire(ctx, machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	require.ErrorIs(t, err, context.Canceled)
	close(left)
	require.Contains(t, testkit.Receive(t, logged), "the seal is broken")
}

// lines sends what is written to a channel.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// An entity whose own code panics is reported by the janitor, and does not keep others from being
// freed. Proves CLAIM-8.
func TestEntityThatPanicsWhenFreed(t *testing.T) {
	ctx := t.Context()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	e := machine.NewEngine(rt, machine.Config{})
	kind := pawl.Kind[sealed]{Name: "parcel", Label: "status"}
	machine.Add(e, kind, shipping())
	janitor := e.AddJanitor(machine.JanitorConfig{Module: "depot", Age: time.Nanosecond, Reverted: func(machine.Revert) {}})
	for _, id := range []string{"a", "b"} {
		dying, die := context.WithCancel(ctx)
		_, err := kind.Scope(rt, id).Acquire(dying, pawl.LeaseFor(10*time.Millisecond), pawl.WithMutation(pawl.Set{State: sealed{Status: "shipping", Seal: "red"}}))
		if !errors.As(err, new(*pawl.LeaseLostError)) { // else it has expired already: the claim is committed
			require.NoError(t, err)
		}
		die()
	}
	testkit.Eventually(t, func() bool {
		r, err := rt.Store().Load(ctx, pawl.Key{Kind: "parcel", ID: "b"})
		require.NoError(t, err)
		return !r.Held(r.Now)
	}, "the leases have expired")
	sealBreaks.Store(true)
	reverts, err := janitor.Sweep(ctx)
	require.False(t, sealBreaks.Load(), "the seal must have panicked")
	var raised *pawl.PanicError
	require.ErrorAs(t, err, &raised)
	require.ErrorContains(t, err, "parcel/a")
	require.Len(t, reverts, 1)
	require.Equal(t, "b", reverts[0].ID)
}

// If the callback Reverted panics, the janitor still frees the other entities of the round.
// Proves CLAIM-8.
func TestRevertedPanics(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{parcels}})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	d := &depot{rt: rt}
	e := machine.NewEngine(rt, machine.Config{})
	told := map[string]bool{}
	janitor := e.AddJanitor(machine.JanitorConfig{Module: "depot", Age: time.Nanosecond, Reverted: func(r machine.Revert) {
		told[r.ID] = true
		panic("no receiver")
	}})
	d.m = machine.Add(e, parcels, shipping())
	for i := range 3 {
		d.claimed(t, fmt.Sprint(i), 10*time.Millisecond)
	}
	for i := range 3 {
		d.over(t, fmt.Sprint(i))
	}
	reverts, err := janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Len(t, reverts, 3)
	require.Len(t, told, 3)
}
