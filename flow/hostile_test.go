package flow_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A call that is a part of an outer one, at a gate of its own, keeps its place there for hours, too. Proves FLOW-4.
func TestLongNestedAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Reject})
		require.NoError(t, err)
		a := flow.Define(f, "a", func(_ context.Context, _ *flow.Call, d time.Duration) (string, error) {
			time.Sleep(d)
			return "", nil
		})
		outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, d time.Duration) (string, error) {
			return a.Do(ctx, flow.IDs{Request: c.Request, Session: "t"}, d)
		})
		done := make(chan error, 1)
		go func() {
			_, err := outer.Do(t.Context(), flow.IDs{Request: "long", Session: "s"}, 4*time.Hour)
			done <- err
		}()
		for range 7 {
			time.Sleep(34 * time.Minute)
			_, err = a.Do(t.Context(), flow.IDs{Session: "t"}, 0)
			require.ErrorIs(t, err, pawl.ErrHeld)
		}
		require.NoError(t, <-done)
		_, err = a.Do(t.Context(), flow.IDs{Session: "t"}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Stop(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}

// A queue that is full of the calls of a process that died is free again once their leases are over, though nobody waits in it. Proves FLOW-4.
func TestQueueFullOfTheDead(t *testing.T) {
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

// Where a call has lost its lease but not returned, and its request runs elsewhere by now, Cancel is for the one that runs. Proves FLOW-5.
func TestCancelIsForTheOneThatRuns(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	config := flow.Config{Lease: time.Second}
	here := newFlow(t, rt, config)
	there, elsewhere := s.flow(t, config)
	began, end := make(chan struct{}), make(chan struct{})
	stubborn := flow.Define(here, "a", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
		close(began)
		<-ctx.Done()
		<-end
		return "", nil
	})
	b := newBusyAction()
	a := flow.Define(there, "a", b.run)
	old := do(t.Context(), stubborn, flow.IDs{Request: "r"})
	testkit.Receive(t, began)
	store.RefuseAll()
	var got <-chan answer
	testkit.Eventually(t, func() bool {
		got = do(t.Context(), a, flow.IDs{Request: "r"})
		select {
		case early := <-got:
			require.ErrorAs(t, early.err, new(*flow.BusyError))
			return false
		case <-b.began:
			return true
		}
	})
	store.Refuse(nil)
	require.NoError(t, here.Cancel(t.Context(), "r"))
	require.ErrorIs(t, testkit.Receive(t, got).err, flow.ErrCanceled)
	require.ErrorIs(t, here.Cancel(t.Context(), "r"), pawl.ErrNotFound, "the old one is no call in flight")
	close(end)
	require.ErrorIs(t, testkit.Receive(t, old).err, pawl.ErrLeaseLost)
	nothingLeft(t, elsewhere)
}

// at reports whether c writes to the gate of a session.
func at(c persist.Commit, session string) bool {
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

// A call that is a part of an outer one ends while the store cannot be reached. Its place is free as soon as it can be: not only when the outer call ends. Proves FLOW-4.
func TestNestedCallEndsInAnOutage(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	f := newFlow(t, rt, flow.Config{Admit: flow.Queue})
	there, _ := s.flow(t, flow.Config{Admit: flow.Queue})
	a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) {
		store.Refuse(func(c persist.Commit) bool { return at(c, "t") })
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

// A call that lost its lease, and its place to nobody, leaves no record once the store can be reached: there may never be anybody who would remove it. Proves FLOW-4.
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

// The same where the lease that was lost is one that the call was made under: what is done under it ends with it, and nothing is left. Proves FLOW-4.
func TestCallUnderALeaseThatEnded(t *testing.T) {
	for _, admit := range []flow.Admission{flow.Allow, flow.Queue} {
		f, rt := inMemory(t).flow(t, flow.Config{Admit: admit})
		b := newBusyAction()
		a := flow.Define(f, "a", b.run)
		require.NoError(t, session(rt, "held").Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
			return a.Go(ctx, flow.IDs{Request: "r", Session: "s"}, "")
		}))
		close(b.all)
		require.NoError(t, f.Stop(t.Context()))
		nothingLeft(t, rt, "s")
	}
}

// late is a context that has ended, and runs told before it says why.
type late struct {
	context.Context
	told func()
}

func (l late) Value(key any) any { l.told(); return l.Context.Value(key) }

// Stop whose patience ends at the very moment when the last call does has stopped the flow when it returns nil, with all that runs behind it. Proves FLOW-4.
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

// arriving is a context that runs told when a call begins to follow it.
type arriving struct {
	context.Context
	told func()
}

func (a arriving) Done() <-chan struct{} { a.told(); return a.Context.Done() }

// stackHas reports whether a function is on the stack of the caller.
func stackHas(function string) bool {
	buf := make([]byte, 1<<16)
	return strings.Contains(string(buf[:runtime.Stack(buf, false)]), function)
}

// A call made inside one in flight that ends before the inner one is in flight comes too late for a flow that has been stopped. Proves FLOW-4.
func TestNestedCallAgainstStop(t *testing.T) {
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

// Two values of one flow in one runtime are one flow: what is called inside an admitted call passes, whichever of them it was defined on. Proves FLOW-4.
func TestTwoValuesOfOneFlow(t *testing.T) {
	for _, admit := range []flow.Admission{flow.Allow, flow.Queue, flow.Reject} {
		one, rt := inMemory(t).flow(t, flow.Config{Admit: admit})
		two := newFlow(t, rt, flow.Config{Admit: admit})
		leaf := flow.Define(two, "leaf", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			_, err := session(c, c.Session).PushState(ctx, "log", c.Request)
			return "", err
		})
		outer := flow.Define(one, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			_, same := leaf.Do(ctx, c.IDs, "")
			_, other := leaf.Do(ctx, flow.IDs{Request: "other", Session: c.Session}, "")
			return "", errors.Join(same, other)
		})
		_, err := outer.Do(t.Context(), flow.IDs{Request: "r", Session: "s"}, "")
		require.NoError(t, err)
		state, err := session(rt, "s").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"r", "other"}, state.Log)
		if admit != flow.Allow {
			nothingLeft(t, rt, "s")
		}
		require.Empty(t, records(t, rt))
	}
}

// A call that has its place keeps it while the gate cannot be read, as one does that reads it already. Proves FLOW-4.
func TestGateCannotBeRead(t *testing.T) {
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
		t.Fatal("nobody reads it")
	}
	store.OnLoad(nil)
	b.finish("first")
	require.NoError(t, testkit.Receive(t, first).err)
	b.finish("next")
	require.NoError(t, testkit.Receive(t, next).err)
	nothingLeft(t, rt, "s")
}

// A deadline has a cause, too, which the caller gets, before the action runs and in the middle of it. Proves FLOW-2.
func TestCauseOfADeadline(t *testing.T) {
	f, _ := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	a := flow.Define(f, "a", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	for range 20 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errOfTheAction)
		_, err := a.Do(ctx, flow.IDs{Session: "s"}, "")
		require.ErrorIs(t, err, errOfTheAction)
		cancel()
	}
}
