package flow_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
)

type ask struct{ Words []string }

type reply struct{ Count int }

// An action has its own input and output types. The flow's options apply to it: among them the
// timeout of in-memory mutations, which the runtime's timeout does not change. Proves FLOW-1.
func TestDefine(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Kind: "chat", Timeout: 20 * time.Millisecond})
	count := flow.Define(f, "count", func(_ context.Context, c *flow.Call, in ask) (reply, error) {
		if c.Action != "count" || c.Request == "" {
			return reply{}, errOfTheAction
		}
		return reply{len(in.Words)}, nil
	})
	got, err := count.Do(t.Context(), flow.IDs{}, ask{[]string{"a", "b"}})
	require.NoError(t, err)
	require.Equal(t, reply{2}, got)

	hang := flow.Define(f, "hang", func(ctx context.Context, c *flow.Call, _ struct{}) (struct{}, error) {
		release := make(chan struct{})
		defer close(release)
		_, err := pawl.Sequencer[thread](c, "board").AtomicState(ctx, func(context.Context, *thread) error { <-release; return nil })
		return struct{}{}, err
	})
	_, err = hang.Do(t.Context(), flow.IDs{}, struct{}{})
	var late *pawl.ScopeMutationTimeoutError
	require.ErrorAs(t, err, &late)
	require.Equal(t, 20*time.Millisecond, late.Budget)

	other := newFlow(t, rt, flow.Config{Kind: "other", Timeout: time.Minute, Options: []pawl.CallOption{pawl.WithTimeout(30 * time.Millisecond)}})
	_, err = flow.Define(other, "hang", func(ctx context.Context, c *flow.Call, _ struct{}) (struct{}, error) {
		release := make(chan struct{})
		defer close(release)
		_, err := pawl.Target[thread](c, "tool").AtomicState(ctx, func(context.Context, *thread) error { <-release; return nil })
		return struct{}{}, err
	}).Do(t.Context(), flow.IDs{}, struct{}{})
	require.ErrorAs(t, err, &late)
	require.Equal(t, 30*time.Millisecond, late.Budget)
}

// New refuses an invalid flow, and Define an invalid action. Proves FLOW-1.
func TestInvalidDefinitions(t *testing.T) {
	rt, _ := inMemory(t).runtime(t)
	for name, c := range map[string]flow.Config{
		"flow.Config.Timeout":    {Kind: "x", Timeout: -2},
		"flow.Config.Admit":      {Kind: "x", Admit: 3},
		"flow.Config.Per":        {Kind: "x", Per: 3},
		"flow.Config.Lease":      {Kind: "x", Lease: -1},
		"flow.Config.MaxWaiting": {Kind: "x", MaxWaiting: -1},
		"flow.Config.Options":    {Kind: "x", Options: []pawl.CallOption{nil}},
	} {
		_, err := flow.New(rt, c)
		var bad *pawl.ArgumentError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, name, bad.Argument)
	}
	for _, kind := range []string{"", strings.Repeat("x", flow.MaxKind+1), "a\nb", "\xff"} {
		_, err := flow.New(rt, flow.Config{Kind: kind})
		require.True(t, isA[*pawl.KindError](err) || isA[*pawl.LimitError](err), "%q: %v", kind, err)
	}
	_, err := flow.New(nil, flow.Config{Kind: "x"})
	require.Error(t, err)
	bare, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	_, err = flow.New(bare, flow.Config{Kind: "x"})
	require.ErrorIs(t, err, pawl.ErrNoStore)
	require.NoError(t, bare.Close(t.Context()))

	f := newFlow(t, rt, flow.Config{Kind: strings.Repeat("x", flow.MaxKind)})
	fn := func(context.Context, *flow.Call, string) (string, error) { return "", nil }
	_, err = flow.Define(f, "a", fn).Do(t.Context(), flow.IDs{}, "")
	require.NoError(t, err, "a kind of the maximum length works")
	require.Panics(t, func() { flow.Define(f, "a", fn) })
	require.Panics(t, func() { flow.Define(f, "", fn) })
	require.Panics(t, func() { flow.Define[string, string](f, "b", nil) })
	require.Panics(t, func() { flow.Define(nil, "b", fn) })
}

// Invalid calls are refused before anything is read or written. Proves FLOW-1.
func TestBadInput(t *testing.T) {
	rt, store := inMemory(t).runtime(t)
	f := newFlow(t, rt, flow.Config{Admit: flow.Queue})
	ran := false
	a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) { ran = true; return "", nil })
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errOfTheAction)
	long := strings.Repeat("x", pawl.MaxID+1)
	for _, c := range []struct {
		ctx context.Context
		ids flow.IDs
		is  func(error) bool
	}{
		{nil, flow.IDs{Session: "s"}, isA[*pawl.ArgumentError]},
		{t.Context(), flow.IDs{}, isA[*pawl.ArgumentError]}, // no session
		{t.Context(), flow.IDs{User: "u"}, isA[*pawl.ArgumentError]},
		{t.Context(), flow.IDs{Session: long}, isA[*pawl.LimitError]},
		{t.Context(), flow.IDs{Session: "s", Request: long}, isA[*pawl.LimitError]},
		{t.Context(), flow.IDs{Session: "s", User: "a\x00b"}, isA[*pawl.LimitError]},
		{t.Context(), flow.IDs{Session: "s", Org: "\xff"}, isA[*pawl.LimitError]},
		{ended, flow.IDs{Session: "s"}, func(err error) bool { return err == errOfTheAction }},
	} {
		_, err := a.Do(c.ctx, c.ids, "")
		require.True(t, c.is(err), "%v", err)
		require.True(t, c.is(a.Go(c.ctx, c.ids, "")))
	}
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.Do(ctx, flow.IDs{Session: "s"}, "")
		return err
	})
	require.ErrorIs(t, err, pawl.ErrOutsideTx)
	require.True(t, isA[*pawl.LimitError](f.Cancel(t.Context(), "")))
	var none context.Context
	require.True(t, isA[*pawl.ArgumentError](f.Cancel(none, "x")))
	require.True(t, isA[*pawl.ArgumentError](f.Stop(none)))
	require.False(t, ran)
	require.Zero(t, store.Commits.Load())
	require.Zero(t, store.Loads.Load())
}

func isA[E error](err error) bool {
	for ; err != nil; err = unwrap(err) {
		if _, ok := err.(E); ok {
			return true
		}
	}
	return false
}

// unwrap is like errors.Unwrap, but also unwraps the first of several joined errors.
func unwrap(err error) error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return e.Unwrap()
	case interface{ Unwrap() []error }:
		return e.Unwrap()[0]
	}
	return nil
}

// A call's persisted scopes are those of its ids, on every store. Its in-memory scopes are its own
// and end with it. Proves FLOW-2.
func TestScopesOfACall(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		f, _ := s.flow(t, flow.Config{})
		var board, tool pawl.Scope[thread]
		a := flow.Define(f, "a", func(ctx context.Context, c *flow.Call, text string) (int, error) {
			for _, scope := range []pawl.Scope[thread]{
				pawl.Request[thread](c, c.Request), session(c, c.Session), pawl.User[thread](c, c.User), pawl.Org[thread](c, c.Org),
			} {
				if _, err := scope.PushState(ctx, "log", text); err != nil {
					return 0, err
				}
			}
			board, tool = pawl.Sequencer[thread](c, "board"), pawl.Target[thread](c, "board")
			if _, err := tool.PushState(ctx, "log", "tool"); err != nil {
				return 0, err
			}
			snap, err := board.PushState(ctx, "log", text)
			return len(snap.ReadOnly().Log), err
		})
		ids := flow.IDs{Request: "r", Session: "s", User: "u", Org: "o"}
		for range 2 {
			n, err := a.Do(t.Context(), ids, "hi")
			require.NoError(t, err)
			require.Equal(t, 1, n, "each call has its own board")
			for _, scope := range []pawl.Scope[thread]{board, tool} {
				_, err = scope.State(t.Context())
				require.ErrorIs(t, err, pawl.ErrClosed)
				_, err = scope.PushState(t.Context(), "log", "late")
				require.ErrorIs(t, err, pawl.ErrClosed)
			}
		}
		elsewhere, _ := s.runtime(t)
		for _, scope := range []pawl.Scope[thread]{
			pawl.Request[thread](elsewhere, "r"), session(elsewhere, "s"), pawl.User[thread](elsewhere, "u"), pawl.Org[thread](elsewhere, "o"),
		} {
			state, err := scope.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"hi", "hi"}, state.Log)
		}
		nothingLeft(t, elsewhere)
	})
}

// Two concurrent calls have separate boards under the same name. A nested call of the same request
// shares the outer call's board. Proves FLOW-2.
func TestBoardPerRequest(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{})
	inner := flow.Define(f, "inner", func(ctx context.Context, c *flow.Call, _ int) (int, error) {
		snap, err := pawl.Sequencer[thread](c, "board").PushState(ctx, "log", "x")
		return len(snap.ReadOnly().Log), err
	})
	tools := newFlow(t, rt, flow.Config{Kind: "tools"})
	other := flow.Define(tools, "other", func(ctx context.Context, c *flow.Call, _ int) (int, error) {
		snap, err := pawl.Sequencer[thread](c, "board").PushState(ctx, "log", "x")
		return len(snap.ReadOnly().Log), err
	})
	met := make(chan struct{}, 1)
	outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, _ int) (int, error) {
		select { // both calls run at the same time
		case met <- struct{}{}:
			for len(met) > 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		case <-met:
		}
		if _, err := inner.Do(ctx, c.IDs, 0); err != nil {
			return 0, err
		}
		if n, err := inner.Do(ctx, flow.IDs{}, 0); n != 1 || err != nil { // another request
			return -1, err
		}
		return other.Do(ctx, c.IDs, 0)
	})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			n, err := outer.Do(t.Context(), flow.IDs{}, 0)
			if err != nil || n != 2 {
				t.Errorf("got %d, %v, want 2", n, err)
			}
		})
	}
	wg.Wait()
	nothingLeft(t, rt)
}

// A result, error or panic of an action reaches its caller unchanged, and the call is over.

// Proves FLOW-1.
func TestResultErrorAndPanic(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{Admit: flow.Reject})
	a := flow.Define(f, "a", func(_ context.Context, _ *flow.Call, how string) (int, error) {
		switch how {
		case "panic":
			panic(how)
		case "error":
			return 7, errOfTheAction
		}
		return 8, nil
	})
	ids := flow.IDs{Session: "s"}
	n, err := a.Do(t.Context(), ids, "error")
	require.Equal(t, errOfTheAction, err)
	require.Equal(t, 7, n)
	require.PanicsWithValue(t, "panic", func() { _, _ = a.Do(t.Context(), ids, "panic") })
	for _, how := range []string{"panic", "error"} {
		testkit.Eventually(t, func() bool {
			err := a.Go(t.Context(), ids, how)
			require.True(t, err == nil || isA[*flow.BusyError](err), "%v", err)
			return err == nil
		})
	}
	testkit.Eventually(t, func() bool { n, err = a.Do(t.Context(), ids, ""); return err == nil })
	require.Equal(t, 8, n)
	nothingLeft(t, rt, "s")
}
