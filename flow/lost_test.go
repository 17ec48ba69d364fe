package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// A process loses its place if it cannot reach the store for longer than its lease. The next call,
// in another process, runs, and all later commits of the old action are refused. Proves FLOW-4.
func TestLeaseLostDuringAction(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		rt, store := s.runtime(t)
		config := flow.Config{Admit: flow.Queue, Lease: 2 * time.Second}
		here := newFlow(t, rt, config)
		there, elsewhere := s.flow(t, config)
		began, again := make(chan struct{}), make(chan struct{})
		var cause, late, detached error
		a := flow.Define(here, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			if _, err := session(c, c.Session).PushState(ctx, "log", "old"); err != nil {
				return "", err
			}
			close(began)
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-again
			_, late = session(c, c.Session).PushState(ctx, "log", "late")
			_, detached = session(c, c.Session).PushState(context.WithoutCancel(ctx), "log", "late")
			return "out", nil
		})
		b := newBusyAction()
		next := flow.Define(there, "a", b.run)
		old := do(t.Context(), a, flow.IDs{Request: "old", Session: "s"})
		testkit.Receive(t, began)
		store.RefuseAll()
		got := do(t.Context(), next, flow.IDs{Request: "new", Session: "s"})
		require.Equal(t, "new", b.next(t))
		store.Refuse(nil)
		close(again)
		lost := testkit.Receive(t, old)
		require.ErrorIs(t, lost.err, pawl.ErrLeaseLost)
		require.Equal(t, "out", lost.out)
		require.ErrorIs(t, cause, pawl.ErrLeaseLost)
		require.Error(t, late)
		require.ErrorIs(t, detached, pawl.ErrLeaseLost)
		require.Equal(t, []string{"new"}, waiting(t, elsewhere, "s"), "the new call keeps its ticket")
		b.finish("new")
		require.NoError(t, testkit.Receive(t, got).err)
		state, err := session(elsewhere, "s").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, state.Log)
		nothingLeft(t, elsewhere, "s")
	})
}

// A call that loses its lease while it waits never runs, and does not delay the calls behind it.
// Proves FLOW-4.
func TestLeaseLostWhileWaiting(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	config := flow.Config{Admit: flow.Queue, Lease: 2 * time.Second}
	here := newFlow(t, rt, config)
	there, elsewhere := s.flow(t, config)
	b := newBusyAction()
	a, other := flow.Define(here, "a", b.run), flow.Define(there, "a", b.run)
	first := do(t.Context(), other, flow.IDs{Request: "first", Session: "s"})
	b.next(t)
	cut := do(t.Context(), a, flow.IDs{Request: "cut", Session: "s"})
	testkit.Eventually(t, func() bool { return len(waiting(t, elsewhere, "s")) == 2 })
	last := do(t.Context(), other, flow.IDs{Request: "last", Session: "s"})
	store.RefuseAll()
	require.ErrorIs(t, testkit.Receive(t, cut).err, pawl.ErrLeaseLost)
	b.finish("first")
	require.NoError(t, testkit.Receive(t, first).err)
	require.Equal(t, "last", b.next(t))
	store.Refuse(nil)
	b.finish("last")
	require.NoError(t, testkit.Receive(t, last).err)
	require.Equal(t, []string{"first", "last"}, b.ran())
	nothingLeft(t, elsewhere, "s")
}

// The lease is kept while the action runs, even after its caller has left. No other call is
// admitted before the action returns. Proves FLOW-4.
func TestLeaseOutlivesTheCaller(t *testing.T) {
	s := inMemory(t)
	config := flow.Config{Admit: flow.Queue, Lease: 200 * time.Millisecond}
	here, rt := s.flow(t, config)
	there, _ := s.flow(t, config)
	began, end := make(chan struct{}), make(chan struct{})
	a := flow.Define(here, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		close(began)
		<-ctx.Done()
		<-end
		_, err := session(c, c.Session).PushState(context.WithoutCancel(ctx), "log", "tidied up")
		return "", err
	})
	b := newBusyAction()
	ctx, leave := context.WithCancel(t.Context())
	got := do(ctx, a, flow.IDs{Request: "slow", Session: "s"})
	testkit.Receive(t, began)
	next := do(t.Context(), flow.Define(there, "a", b.run), flow.IDs{Request: "next", Session: "s"})
	testkit.Eventually(t, func() bool { return len(waiting(t, rt, "s")) == 2 })
	leave()
	select {
	case <-b.began:
		t.Fatal("two calls run at the same time")
	case <-time.After(800 * time.Millisecond): // four leases
	}
	close(end)
	require.NoError(t, testkit.Receive(t, got).err)
	require.Equal(t, "next", b.next(t))
	b.finish("next")
	require.NoError(t, testkit.Receive(t, next).err)
	state, err := session(rt, "s").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"tidied up"}, state.Log)
	nothingLeft(t, rt, "s")
}

// The request id of a dead call can be used again once its lease has expired. The new call does not
// wait for the ticket that the old one left. Proves FLOW-4.
func TestRequestOfADeadCall(t *testing.T) {
	s := inMemory(t)
	rt, store := s.runtime(t)
	config := flow.Config{Admit: flow.Queue, Lease: 2 * time.Second}
	dying := newFlow(t, rt, config)
	there, elsewhere := s.flow(t, config)
	b := newBusyAction()
	old := do(t.Context(), flow.Define(dying, "a", b.run), flow.IDs{Request: "r", Session: "s"})
	b.next(t)
	store.RefuseAll()
	require.ErrorIs(t, testkit.Receive(t, old).err, pawl.ErrLeaseLost)
	again := flow.Define(there, "a", b.run)
	var got <-chan answer
	testkit.Eventually(t, func() bool {
		got = do(t.Context(), again, flow.IDs{Request: "r", Session: "s"})
		select {
		case early := <-got:
			var busy *flow.BusyError
			require.ErrorAs(t, early.err, &busy)
			return false
		case <-b.began:
			return true
		}
	})
	b.finish("r")
	require.NoError(t, testkit.Receive(t, got).err)
	store.Refuse(nil)
	nothingLeft(t, elsewhere, "s")
}

// No action starts under a lease that this process knows to be lost: because the store answered late,
// or because the call is nested in one that lost its lease. Proves CLAIM-19.
func TestNoActionUnderALostLease(t *testing.T) {
	const lease = 200 * time.Millisecond
	s := inMemory(t)
	rt, store := s.runtime(t)
	f := newFlow(t, rt, flow.Config{Lease: lease})
	ran := 0
	inner := flow.Define(f, "inner", func(context.Context, *flow.Call, string) (string, error) {
		ran++
		return "", nil
	})
	store.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
		if len(c.Writes) > 0 && c.Writes[0].Acquire != nil {
			time.Sleep(2 * lease)
		}
		return at, err
	})
	_, err := inner.Do(t.Context(), flow.IDs{Request: "late"}, "")
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	store.OnCommitted(nil)
	testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 }, "the record is removed")

	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		store.RefuseAll()
		defer store.Refuse(nil)
		<-ctx.Done()
		_, err := inner.Do(context.WithoutCancel(ctx), flow.IDs{Request: c.Request}, "")
		return "", err
	})
	_, err = outer.Do(t.Context(), flow.IDs{Request: "outer"}, "")
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	require.Zero(t, ran)
	testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 })
}
