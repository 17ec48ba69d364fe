package stream_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// reactShelf returns a log with the reactions "one" (source "^a"), "two" (source "^a") and "all" (no
// source) on the streams a1, a2 and b1. Positions on a1 are blocked, and those of "two" on a2.
func reactShelf(t testing.TB, rt *pawl.Runtime) *stream.Log {
	t.Helper()
	handle := func(name string) reactHandle {
		return func(_ context.Context, d *stream.Delivery) error {
			if d.Version == 1 && (d.Stream == "a1" || name == "two") {
				return errReact
			}
			return nil
		}
	}
	l := reactLog(t, rt, reactConfig(),
		stream.Reaction{Name: "one", Source: regexp.MustCompile("^a"), MaxRetries: stream.NoRetries, Handle: handle("one")},
		stream.Reaction{Name: "two", Source: regexp.MustCompile("^a."), MaxRetries: stream.NoRetries, Handle: handle("two")},
		stream.Reaction{Name: "all", MaxRetries: stream.NoRetries, Handle: handle("all")},
	)
	for _, name := range []string{"a1", "a2", "b1"} {
		reactAppend(t, l, name, 3)
	}
	reactDrain(t, l)
	return l
}

// reactShelves are the filters of Positions, Unblock and Reset, and the positions that they select.
var reactShelves = map[string]struct {
	filter stream.Filter
	all    string // that Positions and Reset select
}{
	"reaction":            {stream.Filter{Reactions: []string{"one"}}, "a1/one a2/one"},
	"reactions":           {stream.Filter{Reactions: []string{"one", "two", "none"}}, "a1/one a1/two a2/one a2/two"},
	"stream":              {stream.Filter{Streams: []string{"a1"}}, "a1/all a1/one a1/two"},
	"streams":             {stream.Filter{Streams: []string{"b1", "a2"}}, "a2/all a2/one a2/two b1/all"},
	"pattern":             {stream.Filter{Stream: regexp.MustCompile("1$")}, "a1/all a1/one a1/two b1/all"},
	"source":              {stream.Filter{Source: "^a."}, "a1/two a2/two"},
	"unknown source":      {stream.Filter{Source: "^b"}, ""},
	"blocked":             {stream.Filter{Blocked: true}, "a1/all a1/one a1/two a2/two"},
	"stream and reaction": {stream.Filter{Reactions: []string{"two"}, Streams: []string{"a2"}}, "a2/two"},
	"all of them": {stream.Filter{
		Reactions: []string{"one", "two"}, Streams: []string{"a1", "b1"}, Stream: regexp.MustCompile("1"), Source: "^a", Blocked: true,
	}, "a1/one"},
	"no such": {stream.Filter{Reactions: []string{"none"}}, ""},
}

// reactBlocked are the blocked positions of a shelf.
var reactBlocked = []string{"a1/all", "a1/one", "a1/two", "a2/two"}

// reactIDs returns the ids of positions, as text.
func reactIDs(all []stream.Position, only func(p stream.Position) bool) string {
	text := ""
	for _, p := range all {
		if only == nil || only(p) {
			if text != "" {
				text += " "
			}
			text += p.Stream + "/" + p.Reaction
		}
	}
	return text
}

func reactWords(text string) []string { return regexp.MustCompile(`\S+`).FindAllString(text, -1) }

// Positions yields what a filter selects, in the order of streams and reactions. Proves LEASE-6, LEASE-8.
func TestReactionFilter(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactShelf(t, reactOpen(t, store, "host"))
		for name, c := range reactShelves {
			require.Equal(t, c.all, reactIDs(reactPositions(t, l, c.filter), nil), name)
		}
		require.Equal(t, "a1/all a1/one a1/two a2/all a2/one a2/two b1/all", reactIDs(reactPositions(t, l, stream.Filter{}), nil))
	})
}

// Unblock lets the blocked ones of a selection go on where they stopped, with a full budget, and
// leaves the others alone. Proves LEASE-6.
func TestReactionUnblock(t *testing.T) {
	for name, c := range reactShelves {
		t.Run(name, func(t *testing.T) {
			l := reactShelf(t, reactOpen(t, memory.New(), "host"))
			reactUnblocks(t, l, c.filter, slices.DeleteFunc(reactWords(c.all), func(id string) bool { return !slices.Contains(reactBlocked, id) }))
		})
	}
}

// An empty filter of Unblock means all that are blocked. Proves LEASE-6.
func TestReactionUnblockAll(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactShelf(t, reactOpen(t, store, "host"))
		reactUnblocks(t, l, stream.Filter{}, reactBlocked)
		n, err := l.Unblock(t.Context(), stream.Filter{})
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

// reactUnblocks checks that Unblock changes these positions and no others.
func reactUnblocks(t testing.TB, l *stream.Log, f stream.Filter, want []string) {
	t.Helper()
	before := reactPositions(t, l, stream.Filter{})
	n, err := l.Unblock(context.Background(), f)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	for i, p := range reactPositions(t, l, stream.Filter{}) {
		if !slices.Contains(want, p.Stream+"/"+p.Reaction) {
			require.Equal(t, before[i], p)
			continue
		}
		require.False(t, p.Due.IsZero())
		p.Due = time.Time{}
		require.Equal(t, stream.Position{Reaction: p.Reaction, Stream: p.Stream, Next: 1, Pending: true}, p)
	}
}

// Reset lets a selection start with event 0, blocked or not, and leaves the others alone. The empty
// filter is refused. Proves LEASE-6.
func TestReactionReset(t *testing.T) {
	for name, c := range reactShelves {
		t.Run(name, func(t *testing.T) {
			reactEachIf(t, name == "pattern", func(t *testing.T, store persist.Store) {
				l := reactShelf(t, reactOpen(t, store, "host"))
				before := reactPositions(t, l, stream.Filter{})
				n, err := l.Reset(t.Context(), stream.Filter{})
				require.Zero(t, n)
				require.ErrorAs(t, err, new(*pawl.ArgumentError))
				require.Equal(t, before, reactPositions(t, l, stream.Filter{}))

				want := reactWords(c.all)
				n, err = l.Reset(t.Context(), c.filter)
				require.NoError(t, err)
				require.Equal(t, len(want), n)
				for i, p := range reactPositions(t, l, stream.Filter{}) {
					if !slices.Contains(want, p.Stream+"/"+p.Reaction) {
						require.Equal(t, before[i], p)
						continue
					}
					p.Due = time.Time{}
					require.Equal(t, stream.Position{Reaction: p.Reaction, Stream: p.Stream, Pending: true}, p)
				}
			})
		})
	}
}

// After Reset all events are handled again, and their writes and appends are made again: a projection
// is built anew. Proves LEASE-6.
func TestReactionResetHandlesAgain(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := reactOpen(t, store, "host")
		calls := new(reactCalls)
		l := reactLog(t, rt, reactConfig())
		require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Handle: calls.handle(func(ctx context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts("all"))
			_, err := l.Append(ctx, "echo", stream.Any, reactEcho{d.Stream, int(d.Version)})
			return err
		})}))
		reactAppend(t, l, "s1", 2)
		reactAppend(t, l, "s2", 1)
		reactDrain(t, l)
		calls.take()
		n, err := l.Reset(t.Context(), stream.Filter{Streams: []string{"s1"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		reactDrain(t, l)
		require.Equal(t, []string{"s1/0", "s1/1"}, calls.take())
		require.Equal(t, 5, reactCount(t, rt, "all"))
		require.Len(t, reactEchoes(t, l, "echo"), 5)
		require.Equal(t, reactDone("s1", 2), reactPosition(t, l, "s1"))
	})
}

// Unblock of another process reaches a process whose poll is an hour away. Proves LEASE-6, LEASE-10.
func TestReactionUnblockWakes(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		handled := make(chan int, 10)
		r := stream.Reaction{MaxRetries: stream.NoRetries, Handle: func(_ context.Context, d *stream.Delivery) error {
			handled <- d.Attempt
			if len(handled) == 1 {
				return errReact
			}
			return nil
		}}
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), r)
		admin := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig())
		reactStart(t, l)
		reactAppend(t, l, "s", 1)
		testkit.Eventually(t, func() bool { return len(reactPositions(t, admin, stream.Filter{Blocked: true})) == 1 })
		n, err := admin.Unblock(t.Context(), stream.Filter{Reactions: []string{"r"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		testkit.Eventually(t, func() bool { return reactPosition(t, l, "s") == reactDone("s", 1) })
		require.Equal(t, []int{1, 1}, []int{<-handled, <-handled}, "with a full budget")
	})
}

// reactNotes collects the events that reactions pass to the observer, as text.
type reactNotes struct {
	mu  sync.Mutex
	all []string
}

func (n *reactNotes) Observe(_ context.Context, e pawl.Event) {
	if e.Type != pawl.EventNoted || e.Path != "stream" {
		return
	}
	text := fmt.Sprintf("%s %s %d", e.Verb, e.Key, e.Version)
	switch {
	case errors.Is(e.Err, pawl.ErrLeaseLost):
		text += ": lease lost"
	case e.Err != nil:
		text += ": " + e.Err.Error()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, text)
}

func (n *reactNotes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.all
	n.all = nil
	return taken
}

// The observer is told of each claim and of its end: acknowledged, released, blocked or lost. Proves
// LEASE-9.
func TestReactionObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notes := new(reactNotes)
		tap := &stores.Tap{Store: memory.New()}
		rt := reactOpen(t, tap, "host", func(c *pawl.Config) { c.Observer = notes })
		calls := 0
		l := reactLog(t, rt, reactConfig(), stream.Reaction{
			MaxRetries: 1, Backoff: reactAtOnce, Batch: 2,
			Handle: func(ctx context.Context, d *stream.Delivery) error {
				switch calls++; {
				case d.Version == 2 && d.Attempt == 1, d.Version == 3:
					return errReact
				case d.Version == 0 && calls == 1:
					reactCutOff(tap)
					<-ctx.Done()
				}
				return nil
			},
		})
		reactAppend(t, l, "s", 5)
		go func() { _, _ = l.Drain(context.Background()) }()
		synctest.Wait()
		time.Sleep(time.Minute)
		tap.OnCommit(nil)
		synctest.Wait()
		require.Equal(t, []string{
			"claimed stream.position/s/r 0",
			"lost stream.position/s/r 0: lease lost",
		}, notes.take()[:2])
		reactDrain(t, l)
		want := []string{
			"claimed stream.position/s/r 0",
			"acked stream.position/s/r 1",
			"claimed stream.position/s/r 2",
			"released stream.position/s/r 2: the handler failed",
			"claimed stream.position/s/r 2",
			"acked stream.position/s/r 2",
			"released stream.position/s/r 3: the handler failed",
			"claimed stream.position/s/r 3",
			"blocked stream.position/s/r 3: the handler failed",
		}
		got := notes.take()
		require.Equal(t, want, got)
		require.True(t, reactPosition(t, l, "s").Blocked)
	})
}

// An acknowledgement tells how many events were handled, how old the first of them was, and how long
// they took. Proves LEASE-9.
func TestReactionLagIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var acked []pawl.Event
		rt := reactOpen(t, memory.New(), "host", func(c *pawl.Config) {
			c.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
				if e.Type == pawl.EventNoted && e.Verb == stream.VerbAcked {
					acked = append(acked, e)
				}
			})
		})
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Batch: 2, Handle: func(context.Context, *stream.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}})
		reactAppend(t, l, "s", 2)
		time.Sleep(time.Minute)
		reactDrain(t, l)
		require.Len(t, acked, 1)
		require.Equal(t, 2, acked[0].Batch)
		require.InDelta(t, time.Minute+2*time.Second, acked[0].Waited, float64(time.Millisecond))
		require.InDelta(t, 2*time.Second, acked[0].Took, float64(time.Millisecond))
	})
}

// An observer that panics does not disturb a reaction. Proves LEASE-9.
func TestReactionObserverPanics(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host", func(c *pawl.Config) {
		c.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.EventNoted {
				panic("no")
			}
		})
	})
	l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: new(reactCalls).handle(nil)})
	reactAppend(t, l, "s", 2)
	require.Equal(t, 1, reactDrain(t, l))
	require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
}
