package stream_test

import (
	"context"
	"fmt"
	"regexp"
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

// A stream is deleted while one of its events is handled. The handler loses its lease: its context
// ends, its append and its ack are refused, and nothing is left to handle. Proves LEASE-5, STREAM-5.
func TestReactionDeleteWhileHandled(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		t.Parallel() // it waits for a renewal
		gate := newReactGate()
		rt := reactOpen(t, stores.OpenFor(t, location), "first")
		c := reactConfig()
		c.Lease = time.Second
		var l *stream.Log
		var cause, refused error
		l = reactLog(t, rt, c, stream.Reaction{Source: regexp.MustCompile("^s$"), Handle: func(ctx context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts("all"))
			gate.began <- d.Stream
			<-ctx.Done()
			cause = context.Cause(ctx)
			_, refused = l.Append(context.WithoutCancel(ctx), "echo", stream.Any, reactEcho{})
			return nil
		}})
		admin := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig())
		reactAppend(t, admin, "s", 3)
		drained := make(chan int, 1)
		go func() { drained <- reactDrain(t, l) }()
		testkit.Receive(t, gate.began)
		require.NoError(t, admin.DeleteStream(t.Context(), "s"))
		require.Equal(t, 1, testkit.Receive(t, drained))
		require.ErrorIs(t, cause, pawl.ErrLeaseLost)
		require.ErrorIs(t, refused, pawl.ErrLeaseLost)
		require.Zero(t, reactCount(t, rt, "all"))
		require.Empty(t, reactPositions(t, admin, stream.Filter{}))
		require.Empty(t, reactRead(t, admin, "echo"))
	})
}

// A stream is deleted and made anew while an event of the old one is handled. The new stream is
// handled from its first event on, once, and the old handler's ack changes nothing. It comes before
// the new event is routed, or after that event was handled. Proves LEASE-2, LEASE-5.
func TestReactionRecreateWhileHandled(t *testing.T) {
	for _, order := range []string{"ack before the new stream is handled", "ack after it"} {
		t.Run(order, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				gate, calls := newReactGate(), new(reactCalls)
				first := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), stream.Reaction{
					Handle: func(ctx context.Context, d *stream.Delivery) error {
						d.OnCommit(reactCounts("old"))
						return gate.handle(ctx, d)
					},
				})
				rt := reactOpen(t, stores.OpenFor(t, location), "second")
				second := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
					d.OnCommit(reactCounts(d.ID))
					require.Equal(t, 1, d.Attempt)
					return nil
				})})
				reactAppend(t, second, "s", 2)
				ctx, cancel := context.WithCancel(t.Context())
				drained := make(chan struct{})
				go func() {
					defer close(drained)
					_, _ = first.Drain(ctx)
				}()
				testkit.Receive(t, gate.began)
				cancel() // it claims no other stream
				require.NoError(t, second.DeleteStream(t.Context(), "s"))
				made := reactAppend(t, second, "s", 3)
				if order == "ack after it" {
					require.Equal(t, 1, reactDrain(t, second))
				}
				close(gate.goOn)
				testkit.Receive(t, drained)
				if order != "ack after it" {
					require.Equal(t, 1, reactDrain(t, second))
				}
				require.Equal(t, []string{"s/0", "s/1", "s/2"}, calls.take())
				require.Equal(t, reactDone("s", 3), reactPosition(t, second, "s"))
				require.Zero(t, reactCount(t, rt, "old"))
				for _, e := range made {
					require.Equal(t, 1, reactCount(t, rt, e.ID))
				}
			})
		})
	}
}

// A stream is deleted while its events are routed: the position that comes too late is of no stream.
// It is claimed once, and then left alone. A new stream of that name is handled. Proves LEASE-1.
func TestReactionDeleteWhileRouted(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		slow, admin, tap := reactPair(t, location, stream.Reaction{Handle: calls.handle(nil)})
		reactAppend(t, admin, "s", 3)
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactTells(c) {
				once.Do(func() { require.NoError(t, admin.DeleteStream(t.Context(), "s")) })
			}
			return nil
		})
		require.NoError(t, slow.ReactRoute(t.Context()))
		require.Equal(t, 1, reactDrain(t, slow))
		require.Empty(t, calls.take())
		for _, p := range reactPositions(t, admin, stream.Filter{}) {
			require.False(t, p.Pending, "%+v", p)
		}
		require.Zero(t, reactDrain(t, slow))
		reactAppend(t, admin, "s", 2)
		reactDrain(t, slow)
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		require.Equal(t, reactDone("s", 2), reactPosition(t, admin, "s"))
	})
}

// A router that is late by a whole life of a stream does not disturb the position of the new one.
// Proves LEASE-2.
func TestReactionRecreateWhileRouted(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		slow, quick, tap := reactPair(t, location, stream.Reaction{Handle: calls.handle(nil)})
		reactAppend(t, quick, "s", 5)
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactTells(c) {
				once.Do(func() {
					require.NoError(t, quick.DeleteStream(t.Context(), "s"))
					reactAppend(t, quick, "s", 2)
					require.Equal(t, 1, reactDrain(t, quick))
				})
			}
			return nil
		})
		require.NoError(t, slow.ReactRoute(t.Context()))
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		require.Equal(t, reactDone("s", 2), reactPosition(t, quick, "s"))
		require.Zero(t, reactDrain(t, slow))
		require.Zero(t, reactDrain(t, quick))
	})
}

// The position on a stream that has expired is claimed once more, and then left alone, also after
// Unblock and Reset. A new stream of that name is handled from its first event on, with a full budget.
// Proves LEASE-4, LEASE-6.
func TestReactionOnExpiredStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := reactConfig()
		c.TTL = time.Hour
		fail := true
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, memory.New(), "host"), c, stream.Reaction{
			MaxRetries: stream.NoRetries, Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
				if d.Version == 1 && fail {
					return errReact
				}
				return nil
			}),
		})
		reactAppend(t, l, "s", 3)
		reactDrain(t, l)
		require.True(t, reactPosition(t, l, "s").Blocked)
		time.Sleep(2 * time.Hour)
		for _, act := range []func(context.Context, stream.Filter) (int, error){l.Unblock, l.Reset} {
			n, err := act(context.Background(), stream.Filter{Streams: []string{"s"}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, 1, reactDrain(t, l))
			require.Zero(t, reactDrain(t, l))
			p := reactPosition(t, l, "s")
			require.Equal(t, []any{int64(0), false, false}, []any{p.Next, p.Pending, p.Blocked})
		}
		calls.take()
		fail = false
		reactAppend(t, l, "s", 2)
		reactDrain(t, l)
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	})
}

// A stream has expired and is made anew between the routing and the claim of a position on the old
// one. Its events are handled once: their writes and appends are made once, although they are routed
// while they are handled. Proves LEASE-2, STREAM-5.
func TestReactionExpiredStreamIsRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &reactTaken{Store: memory.New()}
		c := reactConfig()
		c.TTL = time.Hour
		rt := reactOpen(t, store, "host")
		other := reactLog(t, reactOpen(t, store.Store, "other"), c)
		var l *stream.Log
		l = reactLog(t, rt, c, stream.Reaction{
			Source: regexp.MustCompile("^s$"), Backoff: reactAtOnce,
			Handle: func(ctx context.Context, d *stream.Delivery) error {
				if d.Data.(reactNoted).N == 77 {
					return stream.Defer(2 * time.Hour) // the old stream
				}
				_, err := l.Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)})
				require.NoError(t, err)
				require.NoError(t, l.ReactRoute(context.Background()))
				d.OnCommit(reactCounts(fmt.Sprint(d.Version)))
				if d.Version == 1 && d.Attempt == 1 {
					return errReact
				}
				return nil
			},
		})
		_, err := l.Append(context.Background(), "s", stream.Absent, reactNoted{77})
		require.NoError(t, err)
		require.Equal(t, 1, reactDrain(t, l))
		time.Sleep(3 * time.Hour)
		var once sync.Once
		store.before.Store(func() {
			once.Do(func() {
				_, err := other.Append(context.Background(), "s", stream.Absent, reactNoted{0}, reactNoted{1})
				require.NoError(t, err)
			})
		})
		reactDrain(t, l)
		require.Equal(t, []int{1, 1}, []int{reactCount(t, rt, "0"), reactCount(t, rt, "1")})
		require.Equal(t, []string{"e/0", "e/1"}, reactEchoes(t, l, "echo"))
		require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	})
}

// Events that were trimmed, or archived by CloseStream, are not handled again by Reset: a reaction
// goes on with the first event that is kept. Proves LEASE-6.
func TestReactionAfterTrim(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig(), stream.Reaction{Handle: calls.handle(nil)})
		reactAppend(t, l, "s", 5)
		reactDrain(t, l)
		calls.take()
		require.NoError(t, l.Trim(t.Context(), "s", 3))
		n, err := l.Reset(t.Context(), stream.Filter{Streams: []string{"s"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		reactDrain(t, l)
		require.Equal(t, []string{"s/3", "s/4"}, calls.take())
		require.NoError(t, l.CloseStream(t.Context(), "s", stream.Any, nil, reactNoted{N: 9}))
		reactDrain(t, l)
		require.Equal(t, []string{"s/5"}, calls.take(), "the seed")
		require.Equal(t, reactDone("s", 6), reactPosition(t, l, "s"))
	})
}
