package flow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// A call can be canceled by its request id, from another process and from its own. Its context
// ends, its caller gets ErrCanceled, and its transactions commit as a whole or not at all. The
// action may still clean up. Proves FLOW-5.
func TestCancelWhileRunning(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		here, rt := s.flow(t, flow.Config{Admit: flow.Queue})
		there, elsewhere := s.flow(t, flow.Config{Admit: flow.Queue})
		began := make(chan struct{})
		a := flow.Define(here, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			for n := 0; ; n++ {
				err := pawl.Transact(ctx, c, func(ctx context.Context, tx *pawl.Tx) error {
					_, one := session(tx, c.Session).IncState(ctx, "A", 1)
					_, two := pawl.User[thread](tx, c.User).IncState(ctx, "A", 1)
					return errors.Join(one, two)
				})
				if n == 0 {
					close(began)
				}
				if err != nil {
					_, late := session(c, c.Session).PushState(context.WithoutCancel(ctx), "log", "canceled "+fmt.Sprint(context.Cause(ctx) == flow.ErrCanceled))
					return "", errors.Join(err, late)
				}
			}
		})
		for i, f := range []*flow.Flow{there, here} {
			began = make(chan struct{})
			got := do(t.Context(), a, flow.IDs{Request: "r", Session: "s", User: "u"})
			testkit.Receive(t, began)
			require.NoError(t, f.Cancel(t.Context(), "r"))
			err := testkit.Receive(t, got).err
			require.ErrorIs(t, err, flow.ErrCanceled)
			require.Equal(t, 499, pawl.HTTPStatus(err))
			session, err := session(elsewhere, "s").State(t.Context())
			require.NoError(t, err)
			user, err := pawl.User[thread](elsewhere, "u").State(t.Context())
			require.NoError(t, err)
			require.NotZero(t, user.A)
			require.Equal(t, user.A, session.A)
			require.Len(t, session.Log, i+1)
			require.Equal(t, "canceled true", session.Log[i])
			nothingLeft(t, rt, "s")
		}
	})
}

// A waiting call can be canceled: it never runs, and the calls behind it move up. Proves FLOW-5.
func TestCancelWhileWaiting(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		here, rt := s.flow(t, flow.Config{Admit: flow.Queue})
		there, _ := s.flow(t, flow.Config{Admit: flow.Queue})
		a := flow.Define(here, "a", b.run)
		var got []<-chan answer
		for i := range 4 {
			got = append(got, do(t.Context(), a, flow.IDs{Request: fmt.Sprint(i), Session: "s"}))
			testkit.Eventually(t, func() bool { return len(waiting(t, rt, "s")) == i+1 })
		}
		require.NoError(t, there.Cancel(t.Context(), "1"))
		require.NoError(t, here.Cancel(t.Context(), "2"))
		require.Equal(t, flow.ErrCanceled, testkit.Receive(t, got[1]).err)
		require.Equal(t, flow.ErrCanceled, testkit.Receive(t, got[2]).err)
		require.Equal(t, []string{"0", "3"}, waiting(t, rt, "s"))
		b.finish("0")
		require.NoError(t, testkit.Receive(t, got[0]).err)
		b.finish("3")
		require.NoError(t, testkit.Receive(t, got[3]).err)
		require.Equal(t, []string{"0", "3"}, b.ran())
		nothingLeft(t, rt, "s")
	})
}

// Cancel returns ErrNotFound before a call, after it, and after its process died. Proves FLOW-5.
func TestCancelWithoutACall(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		here, rt := s.flow(t, flow.Config{})
		there, _ := s.flow(t, flow.Config{})
		a := flow.Define(here, "a", func(context.Context, *flow.Call, string) (string, error) { return "fine", nil })
		for range 2 {
			for _, f := range []*flow.Flow{here, there} {
				require.ErrorIs(t, f.Cancel(t.Context(), "r"), pawl.ErrNotFound)
			}
			_, err := a.Do(t.Context(), flow.IDs{Request: "r"}, "")
			require.NoError(t, err)
		}
		// This record is what a call leaves behind when its process dies: its lease has expired.
		_, err := pawl.Kind[pawl.Doc]{Name: "flow.chat.call"}.Scope(rt, "dead").PatchState(t.Context(), pawl.Patch{"action": "a"})
		require.NoError(t, err)
		require.ErrorIs(t, there.Cancel(t.Context(), "dead"), pawl.ErrNotFound)
		require.Empty(t, records(t, rt), "Cancel removes the record of a dead call")
	})
}

// An action that ignores a cancel and returns no error was not canceled. An action that fails for
// another reason keeps its error. Proves FLOW-5.
func TestCancelIgnoredByAction(t *testing.T) {
	f, _ := inMemory(t).flow(t, flow.Config{})
	began := make(chan struct{}, 1)
	a := flow.Define(f, "a", func(ctx context.Context, _ *flow.Call, how error) (string, error) {
		began <- struct{}{}
		<-ctx.Done()
		return "fine", how
	})
	for _, how := range []error{nil, errOfTheAction, context.Canceled} {
		out := make(chan answer, 1)
		go func() {
			s, err := a.Do(t.Context(), flow.IDs{Request: "r"}, how)
			out <- answer{s, err}
		}()
		testkit.Receive(t, began)
		require.NoError(t, f.Cancel(t.Context(), "r"))
		got := testkit.Receive(t, out)
		require.Equal(t, "fine", got.out)
		if how == context.Canceled {
			require.ErrorIs(t, got.err, flow.ErrCanceled)
			require.ErrorIs(t, got.err, context.Canceled)
		} else {
			require.Equal(t, how, got.err)
		}
	}
}

// Calls, cancels, leaving callers and Stop race in two processes. At most one call runs at a time,
// a successful call has run, and nothing is left in the store. Proves FLOW-4, FLOW-5.
func TestCallsCancelsAndStopsRace(t *testing.T) {
	all := int64(0)
	for round := range 4 {
		s := inMemory(t)
		if round%3 == 1 {
			s = site(stores.SQLite.New(t))
		}
		var running, most, ran atomic.Int64
		var flows []*flow.Flow
		var actions []*flow.Action[string, string]
		var rt *pawl.Runtime
		started := sync.Map{}
		for range 2 {
			var f *flow.Flow
			f, rt = s.flow(t, flow.Config{Admit: flow.Queue})
			flows = append(flows, f)
			actions = append(actions, flow.Define(f, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				defer running.Add(-1)
				ran.Add(1)
				started.Store(c.Request, true)
				_, err := session(c, c.Session).IncState(ctx, "A", 1)
				if err == nil && rand.IntN(4) == 0 {
					<-ctx.Done()
					err = ctx.Err()
				}
				return "", err
			}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		var wg sync.WaitGroup
		for i := range 40 {
			id := fmt.Sprint(i)
			wg.Go(func() {
				mine, leave := context.WithCancel(ctx)
				defer leave()
				if rand.IntN(3) == 0 {
					time.AfterFunc(rand.N(100*time.Millisecond), leave)
				}
				_, err := actions[i%2].Do(mine, flow.IDs{Request: id, Session: "s"}, "")
				if _, ran := started.Load(id); err == nil && !ran {
					t.Errorf("request %s never ran, but its call returned no error", id)
				}
			})
			wg.Go(func() {
				for mine := ctx; mine.Err() == nil; time.Sleep(rand.N(20 * time.Millisecond)) {
					err := flows[rand.IntN(2)].Cancel(mine, id)
					if err == nil {
						return
					}
					if !errors.Is(err, pawl.ErrNotFound) && mine.Err() == nil {
						t.Errorf("cancel %s: %v", id, err)
					}
				}
			})
		}
		if round%2 == 1 {
			wg.Go(func() {
				time.Sleep(rand.N(100 * time.Millisecond))
				brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				_ = flows[0].Stop(brief)
			})
		}
		wg.Wait()
		cancel()
		for _, f := range flows {
			require.NoError(t, f.Stop(testkit.Within(t, 10*time.Second)))
		}
		require.LessOrEqual(t, most.Load(), int64(1))
		all += ran.Load() // in some rounds all calls may be canceled before they run
		state, err := session(rt, "s").State(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, int64(state.A), ran.Load())
		nothingLeft(t, rt, "s")
	}
	require.NotZero(t, all)
}

// When a call has lost its lease and its request runs again elsewhere, Cancel cancels the call that
// runs now. Proves FLOW-5.
func TestCancelAfterLostLease(t *testing.T) {
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
	require.ErrorIs(t, here.Cancel(t.Context(), "r"), pawl.ErrNotFound, "the call that lost its lease is no longer in flight")
	close(end)
	require.ErrorIs(t, testkit.Receive(t, old).err, pawl.ErrLeaseLost)
	nothingLeft(t, elsewhere)
}
