package machine_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/memory"
)

// ends lets an after-effect fail until it is given up, and returns what is told then.
func ends(t *testing.T, tell func(ctx context.Context, d *machine.Delivery[parcel]) error) machine.Undelivered {
	t.Helper()
	gaveUp := make(chan machine.Undelivered, 1)
	d := open(t, memory.New(), settings{tell: tell, config: machine.Config{
		Effects: pawl.Retry{Attempts: 2, First: time.Millisecond, Max: time.Millisecond},
		GaveUp:  func(u machine.Undelivered) { gaveUp <- u },
	}})
	d.pack(t, "1")
	_, err := d.fire(t.Context(), "1", "hello")
	require.NoError(t, err)
	return testkit.Receive(t, gaveUp, "it is never given up")
}

// TestEffectWhoseCommitPanics: a panic and runtime.Goexit in what an after-effect adds to its commit are failures as those of the after-effect itself: the next attempt
// waits for its time, and whoever sees it given up sees why.
//
// Proves EFFECT-1.
func TestEffectWhoseCommitPanics(t *testing.T) {
	for name, fn := range map[string]func(){"panicked: no ink": func() { panic("no ink") }, "runtime.Goexit": runtime.Goexit} {
		u := ends(t, func(_ context.Context, d *machine.Delivery[parcel]) error {
			d.OnCommit(func(context.Context, *pawl.Tx) error {
				fn()
				return nil
			})
			return nil
		})
		require.Equal(t, 2, u.Attempts)
		require.Contains(t, u.Error, name)
	}
}

// TestEffectWithAnErrorThatNoDocumentHolds: what an error says keeps no after-effect from being given up.
//
// Proves EFFECT-1.
func TestEffectWithAnErrorThatNoDocumentHolds(t *testing.T) {
	for text, want := range map[string]string{
		"550 unzul\xe4ssig\x00":                 "550 unzul\uFFFDssig\uFFFD",
		strings.Repeat("ä", pawl.DefaultMaxDoc): "ää",
	} {
		u := ends(t, func(context.Context, *machine.Delivery[parcel]) error { return errors.New(text) })
		require.Equal(t, 2, u.Attempts)
		require.Contains(t, u.Error, want)
	}
}

// TestEffectsOfWorkflowsThatShareWords: the after-effects of a workflow are delivered by it, and listed with it, and with no other.
//
// Proves EFFECT-1.
func TestEffectsOfWorkflowsThatShareWords(t *testing.T) {
	ctx := t.Context()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	gaveUp, told := make(chan machine.Undelivered, 1), make(chan string, 9)
	process := func(name, effect string, tell func(context.Context, *machine.Delivery[parcel]) error) (*machine.Engine, *machine.Machine[parcel]) {
		w := shipping()
		w.Name, w.Steps[0].Effects = name, map[string][]string{"admin": {effect}}
		e := machine.NewEngine(rt, machine.Config{GaveUp: func(u machine.Undelivered) { gaveUp <- u }})
		e.AddJanitor(machine.JanitorConfig{Module: "depot"})
		m := machine.Add(e, parcels, w)
		machine.Handle(m, "Ship", func(context.Context, *machine.Action[parcel], machine.NoInput) error { return nil })
		machine.Handle(m, "Return", func(context.Context, *machine.Action[parcel], machine.NoInput) error { return nil })
		machine.Effect(m, effect, tell)
		return e, m
	}
	ship := func(m *machine.Machine[parcel], id string) {
		_, err := m.Create(ctx, id, parcel{})
		require.NoError(t, err)
		_, err = m.Fire(ctx, machine.Trigger{ID: id, Step: "ship", By: "admin"})
		require.NoError(t, err)
	}
	e, m := process("ship", "out Tell", func(context.Context, *machine.Delivery[parcel]) error { return pawl.NonRetryable(errBody) })
	require.NoError(t, e.Start(ctx))
	ship(m, "1")
	u := <-gaveUp
	require.NoError(t, e.Stop(ctx))

	other, m := process("ship out", "Tell", func(_ context.Context, d *machine.Delivery[parcel]) error {
		told <- d.Entity.ID
		return nil
	})
	for u, err := range other.Undelivered(ctx) {
		t.Error("not its own", u, err)
	}
	require.NoError(t, e.Redeliver(ctx, u.ID)) // by its own process, once that runs again
	require.NoError(t, other.Start(ctx))
	ship(m, "2")
	require.Equal(t, "2", <-told)
	require.NoError(t, other.Stop(ctx))
	letter, err := machine.Letters.Scope(rt, u.ID).State(ctx)
	require.NoError(t, err)
	require.Zero(t, letter.Attempts)
}

// TestNamesThatLeaveNoRoomToGiveUp: an engine refuses names under which an after-effect could be recorded, but not given up.
//
// Proves EFFECT-1.
func TestNamesThatLeaveNoRoomToGiveUp(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	for over, want := range map[int]bool{0: false, 1: true} {
		w := shipping()
		w.Name = strings.Repeat("w", pawl.MaxLabel-len("given up  Tell")+over)
		e := machine.NewEngine(rt, machine.Config{})
		e.AddJanitor(machine.JanitorConfig{Module: "depot"})
		m := machine.Add(e, parcels, w)
		machine.Handle(m, "Ship", noBody)
		machine.Handle(m, "Return", noBody)
		machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[parcel]) error { return nil })
		err := e.Start(t.Context())
		require.NoError(t, e.Stop(t.Context()))
		var fault *machine.HandlerError
		require.Equal(t, want, errors.As(err, &fault), err)
	}
}

// TestEffectThatLostAnotherClaim: an after-effect that fires a step, and loses that claim, has failed as others do; its own lease is not meant.
//
// Proves EFFECT-1.
func TestEffectThatLostAnotherClaim(t *testing.T) {
	u := ends(t, func(context.Context, *machine.Delivery[parcel]) error {
		return &machine.ClaimLostError{Entity: pawl.Key{Kind: "van", ID: "7"}, Step: "load"}
	})
	require.Equal(t, 2, u.Attempts)
	require.Contains(t, u.Error, "van/7")
}
