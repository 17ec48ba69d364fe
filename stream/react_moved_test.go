package stream_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// An append of a handler whose position Reset has moved is refused, and the claim ends without effect:
// nothing is acknowledged, and the observer is told so. Then all events are handled again, and each
// makes its appends. Proves LEASE-6, LEASE-9, STREAM-5.
func TestReactionAppendAfterReset(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		notes := new(reactNotes)
		rt := reactOpen(t, store, "host", func(c *pawl.Config) { c.Observer = notes })
		l := reactLog(t, rt, reactConfig())
		var once sync.Once
		require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Handle: func(ctx context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts("all"))
			_, err := l.Append(ctx, "echo", stream.Any, reactEcho{"a", int(d.Version)})
			require.NoError(t, err)
			once.Do(func() {
				n, err := l.Reset(t.Context(), stream.Filter{Streams: []string{"s"}})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				_, err = l.Append(ctx, "echo", stream.Any, reactOther{})
				require.ErrorIs(t, err, stream.ErrMoved)
			})
			return nil
		}}))
		reactAppend(t, l, "s", 1)
		require.Equal(t, 2, reactDrain(t, l))
		require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
		require.Equal(t, 1, reactCount(t, rt, "all"))
		require.Equal(t, []string{"a/0", "a/0"}, reactEchoes(t, l, "echo"), "one before Reset and one after it")
		require.Equal(t, []string{
			"claimed stream.position/s/r 0",
			"released stream.position/s/r 0: " + stream.ErrMoved.Error(),
			"claimed stream.position/s/r 0",
			"acked stream.position/s/r 0",
		}, notes.take())
	})
}

// Delivery.OnCommit can append, in the commit that acknowledges the event: once, also if that commit
// meets a conflict. Proves STREAM-5, LEASE-2.
func TestReactionAppendInOnCommit(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		l := reactLog(t, reactOpen(t, tap, "host"), reactConfig())
		other := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "other"), reactConfig())
		require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Backoff: reactAtOnce, Handle: func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
				_, err := l.In(tx).Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)})
				return err
			})
			if d.Version == 1 && d.Attempt == 1 {
				return errReact
			}
			return nil
		}}))
		reactAppend(t, other, "s", 3)
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactAck(c) {
				once.Do(func() {
					_, err := other.Append(t.Context(), "echo", stream.Any, reactEcho{"other", 0})
					require.NoError(t, err)
				})
			}
			return nil
		})
		reactDrain(t, l)
		require.Equal(t, []string{"other/0", "e/0", "e/1", "e/2"}, reactEchoes(t, l, "echo"))
	})
}

// An append inside a transaction of a handler would not be made once, so it is refused. So is one with
// the context of a handler that has returned. Proves STREAM-5.
func TestReactionAppendIsRefused(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host")
	l := reactLog(t, rt, reactConfig())
	var over context.Context
	require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Handle: func(ctx context.Context, d *stream.Delivery) error {
		over = ctx
		err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := l.In(tx).Append(ctx, "echo", stream.Any, reactEcho{})
			return err
		})
		require.ErrorAs(t, err, new(*pawl.ArgumentError))
		return nil
	}}))
	reactAppend(t, l, "s", 1)
	require.Equal(t, 1, reactDrain(t, l))
	_, err := l.Append(over, "echo", stream.Any, reactEcho{})
	require.ErrorAs(t, err, new(*pawl.ArgumentError))
	_, err = l.Append(context.WithoutCancel(over), "echo", stream.Any, reactEcho{})
	require.ErrorAs(t, err, new(*pawl.ArgumentError))
	require.Empty(t, reactRead(t, l, "echo"))
}

// Act and an append of one type on one stream are told apart. Proves STREAM-5.
func TestReactionActAndAppend(t *testing.T) {
	fold := stream.Fold[int]{Apply: func(n *int, _ stream.Event) error { *n++; return nil }}
	l := reactAppender(t, memory.New(), func(l *stream.Log) reactHandle {
		return func(ctx context.Context, d *stream.Delivery) error {
			if d.Attempt > 1 { // this time it comes first
				made, err := l.Append(ctx, "echo", stream.Any, stream.Raw{Type: "act", Data: []byte(`1`)})
				require.NoError(t, err)
				require.EqualValues(t, 1, made[0].Version)
			}
			_, err := stream.Act(ctx, l, "echo", stream.Any, fold, func(context.Context, int) ([]any, error) {
				return []any{reactEcho{"e", d.Attempt}}, nil
			})
			require.NoError(t, err)
			if d.Attempt == 1 {
				return errReact
			}
			return nil
		}
	})
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	var types []string
	for _, e := range reactRead(t, l, "echo") {
		types = append(types, e.Type)
	}
	require.Equal(t, []string{"echo", "act"}, types)
}

// An event whose writes the store refuses fails alone: the others of its batch are acknowledged, and
// the stream is blocked at it when its budget is spent. Proves LEASE-2, LEASE-4.
func TestReactionRefusedWrites(t *testing.T) {
	tap := &stores.Tap{Store: memory.New()}
	rt := reactOpen(t, tap, "host")
	l := reactLog(t, rt, reactConfig(), stream.Reaction{Backoff: reactAtOnce, MaxRetries: 1, Handle: func(_ context.Context, d *stream.Delivery) error {
		d.OnCommit(reactCounts(fmt.Sprint(d.Version)))
		return nil
	}})
	reactAppend(t, l, "s", 5)
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Kind == reactSums.Name && w.ID == "2" }) {
			return fmt.Errorf("%w: refused by the test", persist.ErrNotApplied)
		}
		return nil
	})
	counts := func() (all []int) {
		for i := range 5 {
			all = append(all, reactCount(t, rt, fmt.Sprint(i)))
		}
		return all
	}
	reactDrain(t, l)
	p := reactPosition(t, l, "s")
	require.Equal(t, []any{int64(2), true, 2}, []any{p.Next, p.Blocked, p.Retry}, "%+v", p)
	require.Contains(t, p.Reason, "refused by the test")
	require.Equal(t, []int{1, 1, 0, 0, 0}, counts())
	tap.OnCommit(nil)
	n, err := l.Unblock(t.Context(), stream.Filter{})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	reactDrain(t, l)
	require.Equal(t, []int{1, 1, 1, 1, 1}, counts())
	require.Equal(t, reactDone("s", 5), reactPosition(t, l, "s"))
}

// Forget removes the positions of one reaction. If it comes back, it starts with the first events.
func TestReactionForget(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := reactOpen(t, store, "host")
		kept, gone := new(reactCalls), new(reactCalls)
		both := []stream.Reaction{{Name: "kept", Handle: kept.handle(nil)}, {Name: "gone", Handle: gone.handle(nil)}}
		l := reactLog(t, rt, reactConfig(), both...)
		reactAppend(t, l, "a", 2)
		reactAppend(t, l, "b", 1)
		reactDrain(t, l)
		kept.take()
		require.NoError(t, l.Forget(t.Context(), "gone"))
		require.Equal(t, "a/kept b/kept", reactIDs(reactPositions(t, l, stream.Filter{}), nil))
		require.NoError(t, l.Forget(t.Context(), "never"))
		gone.take()
		reactDrain(t, reactLog(t, rt, reactConfig(), both...))
		require.Empty(t, kept.take())
		require.ElementsMatch(t, []string{"a/0", "a/1", "b/0"}, gone.take())
	})
}

// A new reaction, which has all history before it, does not hold up the events of another one. Proves
// LEASE-10.
func TestReactionNewOneHoldsUpNone(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host")
	fine := new(reactCalls).handle(nil)
	before := reactLog(t, rt, reactConfig(), stream.Reaction{Name: "old", Handle: fine})
	for range 3 { // pages of history
		var page []any
		for i := range 500 {
			page = append(page, reactNoted{i})
		}
		_, err := before.Append(t.Context(), "history", stream.Any, page...)
		require.NoError(t, err)
	}
	reactDrain(t, before)
	after := reactLog(t, rt, reactConfig(), stream.Reaction{Name: "old", Handle: fine}, stream.Reaction{Name: "new", Handle: fine})
	reactAppend(t, after, "s", 1)
	moves := 0
	after.ReactHook(func(point, _ string) {
		if point != "moved" {
			return
		}
		if moves++; moves == 1 {
			require.True(t, reactPositionOf(t, after, "old", "s").Pending, "it is routed first")
			require.Empty(t, reactPositions(t, after, stream.Filter{Reactions: []string{"new"}}))
		}
	})
	reactDrain(t, after)
	require.GreaterOrEqual(t, moves, 4)
	require.EqualValues(t, 1500, reactPositionOf(t, after, "new", "history").Next)
	require.EqualValues(t, 1, reactPositionOf(t, after, "new", "s").Next)
	require.EqualValues(t, 1, reactPositionOf(t, after, "old", "s").Next)
}

// A position that the store refuses to write holds up no other. The next event of its stream tells it
// again. Proves LEASE-1.
func TestReactionRefusedPosition(t *testing.T) {
	tap := &stores.Tap{Store: memory.New()}
	calls := new(reactCalls)
	l := reactLog(t, reactOpen(t, tap, "host"), reactConfig(), stream.Reaction{Handle: calls.handle(nil)})
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.ID == "bad/r" }) {
			return fmt.Errorf("%w: refused by the test", persist.ErrNotApplied)
		}
		return nil
	})
	reactAppend(t, l, "bad", 1)
	reactAppend(t, l, "good", 1)
	reactDrain(t, l)
	require.Equal(t, []string{"good/0"}, calls.take())
	tap.OnCommit(nil)
	reactAppend(t, l, "bad", 1)
	reactDrain(t, l)
	require.Equal(t, []string{"bad/0", "bad/1"}, calls.take())
}
