package flow_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
)

// Stop refuses new calls and waits for the calls in flight, including their nested calls.

// Proves FLOW-4.
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
	require.ErrorIs(t, testkit.Receive(t, inside), pawl.ErrClosed, "a background call counts as a new call")
	require.Equal(t, "second", b.next(t), "a waiting call is already accepted")
	b.finish("second")
	require.NoError(t, testkit.Receive(t, stopped))
	require.NoError(t, testkit.Receive(t, stopped))
	require.NoError(t, f.Stop(t.Context()))
	nothingLeft(t, rt, "s", "t")
}

// When its context ends, Stop cancels the calls in flight, running or waiting, and names them.
// Proves FLOW-4.
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

// Stop works on a flow that never ran a call.
func TestStopIdleFlow(t *testing.T) {
	f, _ := inMemory(t).flow(t, flow.Config{})
	require.NoError(t, f.Stop(t.Context()))
	_, err := flow.Define(f, "a", newBusyAction().run).Do(t.Context(), flow.IDs{}, "")
	require.ErrorIs(t, err, pawl.ErrClosed)
}

// late is a context that has ended. It runs told before it returns its cause.
type late struct {
	context.Context
	told func()
}

func (l late) Value(key any) any { l.told(); return l.Context.Value(key) }

// If Stop returns nil although its context ended as the last call did, the flow has stopped, with
// all its goroutines. Proves FLOW-4.
func TestStopWhileTheLastCallEnds(t *testing.T) {
	f, _ := inMemory(t).flow(t, flow.Config{})
	b := newBusyAction()
	got := do(t.Context(), flow.Define(f, "a", b.run), flow.IDs{Request: "r"})
	b.next(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var once atomic.Bool
	err := f.Stop(late{ended, func() {
		if once.CompareAndSwap(false, true) {
			b.finish("r")
			testkit.Receive(t, got)
		}
	}})
	if err == nil {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		require.NotContains(t, string(stacks), "flow.(*call)")
		require.NotContains(t, strings.ToLower(string(stacks)), "sweep")
	}
	require.NoError(t, f.Stop(t.Context()))
}

// arriving is a context that runs told when a call starts to watch it.
type arriving struct {
	context.Context
	told func()
}

func (a arriving) Done() <-chan struct{} { a.told(); return a.Context.Done() }

// stackHas reports whether a function is on the caller's stack.
func stackHas(function string) bool {
	buf := make([]byte, 1<<16)
	return strings.Contains(string(buf[:runtime.Stack(buf, false)]), function)
}

// A nested call is refused if its outer call ends, and the flow stops, before the nested call is in
// flight. Proves FLOW-4.
func TestNestedCallAfterStop(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	var ran atomic.Bool
	a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) { ran.Store(true); return "", nil })
	arrived, stopped, inner := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		var n atomic.Int64
		mine := arriving{context.WithoutCancel(ctx), func() {
			if !stackHas("flow.(*Flow).check") && n.Add(1) == 1 {
				close(arrived)
				<-stopped
			}
		}}
		go func() {
			_, err := a.Do(mine, c.IDs, "")
			inner <- err
		}()
		<-arrived
		return "", nil
	})
	_, err := outer.Do(t.Context(), flow.IDs{Request: "r", Session: "s"}, "")
	require.NoError(t, err)
	require.NoError(t, f.Stop(t.Context()))
	close(stopped)
	require.Error(t, testkit.Receive(t, inner))
	require.False(t, ran.Load(), "after Stop")
	nothingLeft(t, rt, "s")
}
