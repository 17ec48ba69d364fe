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

// failUntilGivenUp runs a failing after-effect until the engine gives it up, and returns the
// engine's report.
func failUntilGivenUp(t *testing.T, tell func(ctx context.Context, d *machine.Delivery[parcel]) error) machine.Undelivered {
	t.Helper()
	gaveUp := make(chan machine.Undelivered, 1)
	d := open(t, memory.New(), settings{tell: tell, config: machine.Config{
		Effects: pawl.Retry{Attempts: 2, First: time.Millisecond, Max: time.Millisecond},
		GaveUp:  func(u machine.Undelivered) { gaveUp <- u },
	}})
	d.pack(t, "1")
	_, err := d.fire(t.Context(), "1", "hello")
	require.NoError(t, err)
	return testkit.Receive(t, gaveUp, "the after-effect was never given up")
}

// A panic or runtime.Goexit in what an after-effect adds to its commit counts as a failed attempt.
// The next attempt waits for its backoff, and the report names the reason. Proves EFFECT-1.
func TestEffectCommitPanics(t *testing.T) {
	for name, fn := range map[string]func(){"panicked: no ink": func() { panic("no ink") }, "runtime.Goexit": runtime.Goexit} {
		u := failUntilGivenUp(t, func(_ context.Context, d *machine.Delivery[parcel]) error {
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

// An after-effect is given up even if a document cannot hold the text of its error.
// Proves EFFECT-1.
func TestEffectErrorTextNotStorable(t *testing.T) {
	for text, want := range map[string]string{
		"550 unzul\xe4ssig\x00":                 "550 unzul\uFFFDssig\uFFFD",
		strings.Repeat("ä", pawl.DefaultMaxDoc): "ää",
	} {
		u := failUntilGivenUp(t, func(context.Context, *machine.Delivery[parcel]) error { return errors.New(text) })
		require.Equal(t, 2, u.Attempts)
		require.Contains(t, u.Error, want)
	}
}

// A workflow delivers and lists only its own after-effects, even if another workflow's name begins
// with the same words. Proves EFFECT-1.
func TestEffectsOfWorkflowsWithSimilarNames(t *testing.T) {
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
		t.Error("lists an after-effect of another workflow:", u, err)
	}
	require.NoError(t, e.Redeliver(ctx, u.ID)) // its own process delivers it, once that runs again
	require.NoError(t, other.Start(ctx))
	ship(m, "2")
	require.Equal(t, "2", <-told)
	require.NoError(t, other.Stop(ctx))
	letter, err := machine.Letters.Scope(rt, u.ID).State(ctx)
	require.NoError(t, err)
	require.Zero(t, letter.Attempts)
}

// An engine refuses a workflow whose name is too long to record an after-effect as given up.
// Proves EFFECT-1.
func TestWorkflowNameTooLongToGiveUp(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	for over, want := range map[int]bool{0: false, 1: true} {
		w := shipping()
		w.Name = strings.Repeat("w", pawl.MaxLabel-len("given up  Tell")+over)
		e := machine.NewEngine(rt, machine.Config{})
		e.AddJanitor(machine.JanitorConfig{Module: "depot"})
		m := machine.Add(e, parcels, w)
		machine.Handle(m, "Ship", emptyBody)
		machine.Handle(m, "Return", emptyBody)
		machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[parcel]) error { return nil })
		err := e.Start(t.Context())
		require.NoError(t, e.Stop(t.Context()))
		var fault *machine.HandlerError
		require.Equal(t, want, errors.As(err, &fault), err)
	}
}

// An after-effect that returns the ClaimLostError of another claim has failed; its own lease is not
// lost. Proves EFFECT-1.
func TestEffectLosesAnotherClaim(t *testing.T) {
	u := failUntilGivenUp(t, func(context.Context, *machine.Delivery[parcel]) error {
		return &machine.ClaimLostError{Entity: pawl.Key{Kind: "van", ID: "7"}, Step: "load"}
	})
	require.Equal(t, 2, u.Attempts)
	require.Contains(t, u.Error, "van/7")
}
