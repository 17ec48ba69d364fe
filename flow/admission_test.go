package flow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// With Allow, calls of one session run side by side. Proves FLOW-4.
func TestAllow(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	one, two := do(t.Context(), a, flow.IDs{Session: "s"}), do(t.Context(), a, flow.IDs{Session: "s"})
	b.next(t)
	b.next(t)
	close(b.all)
	require.NoError(t, testkit.Receive(t, one).err)
	require.NoError(t, testkit.Receive(t, two).err)
	nothingLeft(t, rt)
}

// With Reject, a call is refused with the request in flight, in any process. Other sessions are not
// affected. Proves FLOW-4.
func TestReject(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		here, rt := s.flow(t, flow.Config{Admit: flow.Reject})
		there, _ := s.flow(t, flow.Config{Admit: flow.Reject})
		first := flow.Define(here, "a", b.run)
		one := do(t.Context(), first, flow.IDs{Request: "one", Session: "s"})
		b.next(t)
		for _, f := range []*flow.Flow{here, there} {
			a := flow.Define(f, "b", b.run)
			_, err := a.Do(t.Context(), flow.IDs{Request: "two", Session: "s"}, "")
			var busy *flow.BusyError
			require.ErrorAs(t, err, &busy)
			require.Equal(t, "one", busy.InFlight)
			require.Equal(t, 409, pawl.HTTPStatus(err))
			require.Equal(t, "IN_FLIGHT", pawl.Code(err))
			require.True(t, pawl.IsRetryable(err))
			require.ErrorIs(t, err, pawl.ErrHeld)
			require.ErrorAs(t, a.Go(t.Context(), flow.IDs{Request: "two", Session: "s"}, ""), &busy)

			b.finish("other")
			_, err = a.Do(t.Context(), flow.IDs{Request: "other", Session: "another"}, "")
			require.NoError(t, err)
		}
		b.finish("one")
		require.NoError(t, testkit.Receive(t, one).err)
		b.finish("two")
		_, err := flow.Define(there, "c", b.run).Do(t.Context(), flow.IDs{Request: "two", Session: "s"}, "")
		require.NoError(t, err, "the session is free")
		nothingLeft(t, rt, "s", "another")
	})
}

// With Queue, calls from three processes run one at a time, in the order in which they arrived.
// Proves FLOW-4.
func TestQueueOrder(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		var actions []*flow.Action[string, string]
		var rt *pawl.Runtime
		for range 3 {
			var f *flow.Flow
			f, rt = s.flow(t, flow.Config{Admit: flow.Queue})
			actions = append(actions, flow.Define(f, "a", b.run))
		}
		var want []string
		for i := range 25 {
			want = append(want, fmt.Sprint(i))
			require.NoError(t, actions[i*7%3].Go(t.Context(), flow.IDs{Request: want[i], Session: "s"}, "")) // returns once it has its ticket
		}
		require.Equal(t, want, waiting(t, rt, "s"))
		close(b.all)
		testkit.Eventually(t, func() bool { return b.runs.Load() == 25 && len(waiting(t, rt, "s")) == 0 })
		require.Equal(t, want, b.ran())
		require.EqualValues(t, 1, b.most.Load(), "calls running at the same time")
		testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 })
	})
}

// Admission counts per session, per user or per flow, as configured. Proves FLOW-4.
func TestAdmissionUnits(t *testing.T) {
	for _, c := range []struct {
		per                   flow.Unit
		first, same, separate flow.IDs
	}{
		{flow.PerSession, flow.IDs{Session: "s", User: "u"}, flow.IDs{Session: "s", User: "v"}, flow.IDs{Session: "t", User: "u"}},
		{flow.PerUser, flow.IDs{Session: "s", User: "u"}, flow.IDs{Session: "t", User: "u"}, flow.IDs{Session: "s", User: "v"}},
		{flow.PerFlow, flow.IDs{Session: "s", User: "u"}, flow.IDs{}, flow.IDs{}},
	} {
		f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Reject, Per: c.per})
		b := newBusyAction()
		a := flow.Define(f, "a", b.run)
		first := do(t.Context(), a, c.first)
		b.next(t)
		_, err := a.Do(t.Context(), c.same, "")
		require.ErrorIs(t, err, pawl.ErrHeld)
		if c.per == flow.PerFlow { // another flow has another gate
			f = newFlow(t, rt, flow.Config{Kind: "other", Admit: flow.Reject, Per: c.per})
			a = flow.Define(f, "a", b.run)
		}
		separate := do(t.Context(), a, c.separate)
		b.next(t)
		close(b.all)
		require.NoError(t, testkit.Receive(t, first).err)
		require.NoError(t, testkit.Receive(t, separate).err)
	}
}

// A gate that was erased with its user admits the user's next call. A call that was running meanwhile
// ends as usual. Proves FLOW-4.
func TestErasedGate(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		f, rt := s.flow(t, flow.Config{Admit: flow.Reject, Per: flow.PerUser})
		erase := func() {
			found, err := rt.Store().List(t.Context(), persist.Query{Kind: "flow.chat.user"})
			require.NoError(t, err)
			require.Len(t, found.Records, 1)
			gate := found.Records[0]
			_, err = rt.Store().Commit(t.Context(), persist.Commit{ID: "erase.1", Writes: []persist.Write{
				{Key: gate.Key, Expected: gate.Version, Version: gate.Version + 1, Deleted: true},
			}})
			require.NoError(t, err)
		}
		b := newBusyAction()
		a := flow.Define(f, "a", b.run)
		answered := do(t.Context(), a, flow.IDs{User: "u"})
		b.next(t)
		erase()
		close(b.all)
		require.NoError(t, testkit.Receive(t, answered).err)
		testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 })
		for range 2 {
			_, err := a.Do(t.Context(), flow.IDs{User: "u"}, "")
			require.NoError(t, err)
			erase()
		}
	})
}

// A call whose caller leaves the queue, in any process, leaves no ticket behind. The order of the
// others does not change. Proves FLOW-4.
func TestLeavingTheQueue(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		var actions []*flow.Action[string, string]
		var rt *pawl.Runtime
		for range 2 {
			var f *flow.Flow
			f, rt = s.flow(t, flow.Config{Admit: flow.Queue})
			actions = append(actions, flow.Define(f, "a", b.run))
		}
		var want []string
		var leave []context.CancelCauseFunc
		var left []<-chan answer
		for i := range 30 {
			id := fmt.Sprint(i)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			answered := do(ctx, actions[i%2], flow.IDs{Request: id, Session: "s"})
			testkit.Eventually(t, func() bool { return len(waiting(t, rt, "s")) == i+1 })
			if i%3 == 1 {
				leave, left = append(leave, cancel), append(left, answered)
			} else {
				want = append(want, id)
			}
		}
		for _, cancel := range leave {
			go cancel(errOfTheAction)
		}
		for _, answered := range left {
			require.ErrorIs(t, testkit.Receive(t, answered).err, errOfTheAction)
		}
		require.Equal(t, want, waiting(t, rt, "s"))
		close(b.all)
		testkit.Eventually(t, func() bool { return len(waiting(t, rt, "s")) == 0 })
		require.Equal(t, want, b.ran())
		require.EqualValues(t, 1, b.most.Load(), "calls running at the same time")
		testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 })
	})
}

// A gate refuses calls beyond its queue limit. Proves FLOW-4.
func TestQueueLimit(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue, MaxWaiting: 2})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	for range 3 { // one runs, two wait
		require.NoError(t, a.Go(t.Context(), flow.IDs{Session: "s"}, ""))
	}
	err := a.Go(t.Context(), flow.IDs{Session: "s"}, "")
	var full *pawl.OverloadedError
	require.ErrorAs(t, err, &full)
	require.Equal(t, 2, full.Queue)
	require.NoError(t, a.Go(t.Context(), flow.IDs{Session: "t"}, ""))
	close(b.all)
	testkit.Eventually(t, func() bool { return b.runs.Load() == 4 })
	require.NoError(t, f.Stop(t.Context()))
	nothingLeft(t, rt, "s", "t")
}

// A nested call made with the context of an admitted call passes the gate of the same key. A nested
// call under another key queues there, and a background call queues for its own turn.
// Proves FLOW-4.
func TestNestedCallsPass(t *testing.T) {
	for _, admit := range []flow.Admission{flow.Queue, flow.Reject} {
		f, rt := inMemory(t).flow(t, flow.Config{Admit: admit})
		leaf := flow.Define(f, "leaf", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			_, err := session(c, c.Session).PushState(ctx, "log", c.Request)
			return c.Request, err
		})
		middle := flow.Define(f, "middle", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			one, two := do(ctx, leaf, c.IDs), do(ctx, leaf, flow.IDs{Request: c.Request + "'", Session: c.Session})
			a, b := <-one, <-two
			return a.out + " " + b.out, errors.Join(a.err, b.err)
		})
		late := make(chan error, 1)
		outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			out, err := middle.Do(ctx, c.IDs, "")
			if err != nil {
				return "", err
			}
			if _, err := leaf.Do(ctx, flow.IDs{Request: c.Request, Session: "other"}, ""); err != nil {
				return "", err
			}
			late <- leaf.Go(ctx, flow.IDs{Request: "late", Session: c.Session}, "")
			return out, nil
		})
		out, err := outer.Do(t.Context(), flow.IDs{Request: "r", Session: "s"}, "")
		require.NoError(t, err)
		require.Equal(t, "r r'", out)
		log := []string{"r", "r'"}
		if err := <-late; admit == flow.Queue {
			require.NoError(t, err)
			log = append(log, "late")
		} else {
			var busy *flow.BusyError
			require.ErrorAs(t, err, &busy)
			require.Equal(t, "r", busy.InFlight)
		}
		require.NoError(t, f.Stop(t.Context()))
		state, err := session(rt, "s").State(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, log, state.Log, "the background call outlives the outer call")
		nothingLeft(t, rt, "s", "other")
	}
}

// A nested call under another key waits for its turn at the gate of that key. Proves FLOW-4.
func TestNestedCallUnderAnotherKey(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		return a.Do(ctx, flow.IDs{Request: c.Request, Session: "taken"}, "")
	})
	first := do(t.Context(), a, flow.IDs{Request: "first", Session: "taken"})
	b.next(t)
	nested := do(t.Context(), outer, flow.IDs{Request: "nested", Session: "s"})
	testkit.Eventually(t, func() bool { return len(waiting(t, rt, "taken")) == 2 })
	require.EqualValues(t, 1, b.runs.Load())
	b.finish("first")
	require.NoError(t, testkit.Receive(t, first).err)
	require.Equal(t, "nested", b.next(t))
	b.finish("nested")
	require.NoError(t, testkit.Receive(t, nested).err)
	nothingLeft(t, rt, "s", "taken")
}

// A call made with the context of an outer call that has ended is refused, because no lease would
// guard it. Proves FLOW-4.
func TestNestedInEndedCall(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	ran := 0
	a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) { ran++; return "", nil })
	var kept context.Context
	outer := flow.Define(f, "outer", func(ctx context.Context, _ *flow.Call, _ string) (string, error) { kept = ctx; return "", nil })
	ids := flow.IDs{Request: "r", Session: "s"}
	_, err := outer.Do(t.Context(), ids, "")
	require.NoError(t, err)
	_, err = a.Do(kept, ids, "")
	require.Error(t, err)
	_, err = a.Do(context.WithoutCancel(kept), ids, "")
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	_, err = a.Do(context.WithoutCancel(kept), flow.IDs{Request: "other", Session: "s"}, "")
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	require.Zero(t, ran)
	nothingLeft(t, rt, "s")
}

// A request id is in flight once across all processes. A second call is refused and never runs;
// after the first ends, the id can be used again. Proves FLOW-4.
func TestSameRequestTwice(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		here, rt := s.flow(t, flow.Config{Admit: flow.Queue})
		there, _ := s.flow(t, flow.Config{Admit: flow.Queue})
		first, second := flow.Define(here, "a", b.run), flow.Define(there, "a", b.run)
		ids := flow.IDs{Request: "r", Session: "s"}
		var errs []error
		answers := make(chan error, 20)
		for i := range 20 {
			go func() { answers <- []*flow.Action[string, string]{first, second}[i%2].Go(t.Context(), ids, "") }()
		}
		for range 20 {
			if err := testkit.Receive(t, answers); err != nil {
				errs = append(errs, err)
			}
		}
		require.Len(t, errs, 19)
		for _, err := range errs {
			var busy *flow.BusyError
			require.ErrorAs(t, err, &busy)
			require.Equal(t, "r", busy.InFlight)
		}
		require.Equal(t, "r", b.next(t))
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, []string{"r"}, waiting(t, rt, "s"))
		b.finish("r")
		testkit.Eventually(t, func() bool { return len(records(t, rt)) == 0 })
		b.finish("r")
		_, err := second.Do(t.Context(), ids, "")
		require.NoError(t, err)
		nothingLeft(t, rt, "s")
	})
}

// An action gets the deadline and the values of its caller's context. When the context ends, the
// caller gets its cause. Proves FLOW-2.
func TestContextOfAnAction(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Queue})
	b := newBusyAction()
	a := flow.Define(f, "a", b.run)
	ctx, cancel := context.WithCancelCause(t.Context())
	got := do(ctx, a, flow.IDs{Session: "s"})
	b.next(t)
	cancel(errOfTheAction)
	require.ErrorIs(t, testkit.Receive(t, got).err, errOfTheAction)

	type key struct{}
	limited, stop := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Hour)
	defer stop()
	look := flow.Define(f, "look", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		want, _ := limited.Deadline()
		if d, ok := ctx.Deadline(); !ok || d != want {
			return "", errOfTheAction
		}
		return ctx.Value(key{}).(string), nil
	})
	out, err := look.Do(limited, flow.IDs{Session: "s"}, "")
	require.NoError(t, err)
	require.Equal(t, "v", out)

	brief, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err = a.Do(brief, flow.IDs{Session: "s"}, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, f.Stop(t.Context())) // the call may have left while its record was being committed
	nothingLeft(t, rt, "s")
}

// A background call continues after its caller releases the leases it was made under.

// Proves FLOW-1.
func TestBackgroundCallOutlivesLease(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		f, rt := s.flow(t, flow.Config{Kind: "chat", Admit: flow.Queue})
		released, done := make(chan struct{}), make(chan error, 1)
		a := flow.Define(f, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			<-released
			_, err := pawl.Session[pawl.Doc](c, c.Session).PatchState(ctx, pawl.Patch{"by": c.Request})
			done <- err
			return "", err
		})
		require.NoError(t, pawl.User[pawl.Doc](rt, "u").Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
			return a.Go(ctx, flow.IDs{Request: "r", Session: "s"}, "")
		}))
		close(released)
		require.NoError(t, <-done)
	})
}

// Two Flow values of one kind in one runtime are one flow: a nested call passes the gate, whichever
// value defined its action. Proves FLOW-4.
func TestTwoFlowValues(t *testing.T) {
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

// A call in the background of a lease holder leaves nothing behind when the lease is released.
// Proves FLOW-4.
func TestCallUnderReleasedLease(t *testing.T) {
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

// The caller gets the cause of its deadline, whether the call waits or its action runs.

// Proves FLOW-2.
func TestCauseOfDeadline(t *testing.T) {
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
