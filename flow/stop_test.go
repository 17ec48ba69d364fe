package flow_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
)

// Stop refuses new calls, lets those in flight go on, with what they call inside, and waits for them. Proves FLOW-4.
func TestStopWaits(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	quick := flow.Define(f, "quick", func(context.Context, *flow.Call, string) (string, error) { return "", nil })
	inside := make(chan error, 1)
	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		out, err := a.Do(ctx, c.IDs, "")
		if err == nil {
			inside <- a.Go(ctx, flow.IDs{Session: "s"}, "")
		}
		return out, err
	})
	first := do(t.Context(), outer, flow.IDs{Request: "first", Session: "s"})
	b.next(t)
	require.NoError(t, a.Go(t.Context(), flow.IDs{Request: "second", Session: "s"}, ""))
	stopped := make(chan error, 2)
	for range 2 {
		go func() { stopped <- f.Stop(t.Context()) }()
	}
	testkit.Eventually(t, func() bool {
		_, err := quick.Do(t.Context(), flow.IDs{Session: "t"}, "")
		if err != nil {
			require.ErrorIs(t, err, pawl.ErrClosed)
		}
		return err != nil
	})
	require.Empty(t, stopped)
	b.finish("first")
	require.NoError(t, testkit.Receive(t, first).err)
	require.ErrorIs(t, testkit.Receive(t, inside), pawl.ErrClosed, "what is in the background is a call of its own")
	require.Equal(t, "second", b.next(t), "who waits has been accepted")
	b.finish("second")
	require.NoError(t, testkit.Receive(t, stopped))
	require.NoError(t, testkit.Receive(t, stopped))
	require.NoError(t, f.Stop(t.Context()))
	nothingLeft(t, rt, "s", "t")
}

// At the end of its patience Stop cancels what is in flight, running or waiting, and names it. Proves FLOW-4.
func TestStopCancels(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	began, end := make(chan struct{}), make(chan struct{})
	stubborn := flow.Define(f, "stubborn", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
		close(began)
		<-ctx.Done()
		<-end
		return "", ctx.Err()
	})
	running := do(t.Context(), stubborn, flow.IDs{Request: "running", Session: "s"})
	testkit.Receive(t, began)
	waits := do(t.Context(), stubborn, flow.IDs{Request: "waits", Session: "s"})
	testkit.Eventually(t, func() bool { return len(waiting(t, rt, "s")) == 2 })
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errOfTheAction)
	err := f.Stop(ended)
	require.ErrorIs(t, err, errOfTheAction)
	var busy *pawl.BusyError
	require.ErrorAs(t, err, &busy)
	require.Len(t, busy.Running, 2)
	require.Equal(t, "stubborn", busy.Running[0].Verb)
	require.ErrorIs(t, testkit.Receive(t, waits).err, pawl.ErrClosed)
	testkit.Eventually(t, func() bool {
		err := f.Stop(ended)
		require.ErrorAs(t, err, &busy)
		return len(busy.Running) == 1
	})
	close(end)
	require.ErrorIs(t, testkit.Receive(t, running).err, pawl.ErrClosed)
	require.NoError(t, f.Stop(t.Context()))
	nothingLeft(t, rt, "s")
}

// A flow that never ran anything stops, too.
func TestStopOfAnIdleFlow(t *testing.T) {
	f, _ := inMemory(t).flow(t, flow.Config{})
	require.NoError(t, f.Stop(t.Context()))
	_, err := flow.Define(f, "a", newBusyAction().run).Do(t.Context(), flow.IDs{}, "")
	require.ErrorIs(t, err, pawl.ErrClosed)
}
