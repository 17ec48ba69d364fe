package flow_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// A queue full of calls of a dead process is free again after their leases expire, even if no live
// call waits in it. Proves FLOW-4.
func TestQueueFullOfDeadCalls(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	config := flow.Config{Admit: flow.Queue, MaxWaiting: 2, Lease: time.Second}
	dying := newFlow(t, rt, config)
	there, elsewhere := s.flow(t, config)
	b := newBusyAction()
	a := flow.Define(dying, "a", b.run)
	for range 3 {
		require.NoError(t, a.Go(t.Context(), flow.IDs{Session: "s"}, ""))
	}
	b.next(t)
	store.RefuseAll()
	next := flow.Define(there, "a", func(context.Context, *flow.Call, string) (string, error) { return "", nil })
	testkit.Eventually(t, func() bool {
		_, err := next.Do(t.Context(), flow.IDs{Session: "s"}, "")
		if err != nil {
			require.ErrorAs(t, err, new(*pawl.OverloadedError))
		}
		return err == nil
	})
	store.Refuse(nil)
	nothingLeft(t, elsewhere, "s")
}

// writesGate reports whether c writes to the gate of a session.
func writesGate(c persist.Commit, session string) bool {
	for _, w := range c.Writes {
		if w.Key.Kind == "flow.chat.session" && w.Key.ID == session {
			return true
		}
	}
	return false
}

func newEndedAction() *busyAction {
	b := newBusyAction()
	close(b.all)
	return b
}

// A nested call ends while the store is unavailable. Its place is free as soon as the store is
// back, before the outer call ends. Proves FLOW-4.
func TestNestedCallEndsDuringOutage(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	f := newFlow(t, rt, flow.Config{Admit: flow.Queue})
	there, _ := s.flow(t, flow.Config{Admit: flow.Queue})
	a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) {
		store.Refuse(func(c persist.Commit) bool { return writesGate(c, "t") })
		return "", nil
	})
	left, end := make(chan struct{}), make(chan struct{})
	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		_, err := a.Do(ctx, flow.IDs{Request: c.Request, Session: "t"}, "")
		close(left)
		<-end
		return "", err
	})
	got := do(t.Context(), outer, flow.IDs{Request: "r", Session: "s"})
	testkit.Receive(t, left)
	store.Refuse(nil)
	next := do(t.Context(), flow.Define(there, "a", newEndedAction().run), flow.IDs{Session: "t"})
	require.NoError(t, testkit.Receive(t, next).err)
	close(end)
	require.NoError(t, testkit.Receive(t, got).err)
	require.NoError(t, f.Stop(t.Context()))
	nothingLeft(t, rt, "s", "t")
}

// A call that lost its lease removes its record once the store is back, even if no other call took
// its place. Proves FLOW-4.
func TestLostCallLeavesNoRecord(t *testing.T) {
	for _, admit := range []flow.Admission{flow.Allow, flow.Queue} {
		rt, store := inMemory(t).runtime(t)
		f := newFlow(t, rt, flow.Config{Admit: admit, Lease: time.Second})
		lost, end := make(chan struct{}), make(chan struct{})
		a := flow.Define(f, "a", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
			store.RefuseAll()
			<-ctx.Done()
			close(lost)
			<-end
			return "", ctx.Err()
		})
		got := do(t.Context(), a, flow.IDs{Request: "r", Session: "s"})
		testkit.Receive(t, lost)
		store.Refuse(nil)
		close(end)
		require.Error(t, testkit.Receive(t, got).err)
		require.NoError(t, f.Stop(t.Context()))
		nothingLeft(t, rt, "s")
	}
}

// A waiting call keeps its place while its gate cannot be read. Proves FLOW-4.
func TestUnreadableGate(t *testing.T) {
	rt, store := inMemory(t).runtime(t)
	f := newFlow(t, rt, flow.Config{Admit: flow.Queue})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	first := do(t.Context(), a, flow.IDs{Request: "first", Session: "s"})
	b.next(t)
	refused := make(chan struct{}, 1000)
	store.OnLoad(func(_ context.Context, keys ...persist.Key) error {
		if !slices.ContainsFunc(keys, func(k persist.Key) bool { return k.Kind == "flow.chat.session" }) {
			return nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return persist.ErrUnavailable
	})
	next := do(t.Context(), a, flow.IDs{Request: "next", Session: "s"})
	select {
	case <-refused:
	case got := <-next:
		t.Fatal(got.err)
	case <-time.After(testkit.Patience):
		t.Fatal("no call reads the gate")
	}
	store.OnLoad(nil)
	b.finish("first")
	require.NoError(t, testkit.Receive(t, first).err)
	b.finish("next")
	require.NoError(t, testkit.Receive(t, next).err)
	nothingLeft(t, rt, "s")
}
