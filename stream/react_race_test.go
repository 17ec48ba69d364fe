package stream_test

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
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

// reactPair returns two logs on one store, as of two processes. The commits of the first go through
// the tap. The handler of both is called with the delivery.
func reactPair(t testing.TB, location string, r stream.Reaction) (first, second *stream.Log, tap *stores.Tap) {
	t.Helper()
	tap = &stores.Tap{Store: stores.OpenFor(t, location)}
	first = reactLog(t, reactOpen(t, tap, "first"), reactConfig(), r)
	second = reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig(), r)
	return first, second, tap
}

// reactTells reports whether a commit routes: it writes a position and ends no claim.
func reactTells(c persist.Commit) bool { return reactWrites(c, "stream.position") && !reactReleases(c) }

// An event is appended after the events were read and before the ack. It is handled, whether it is
// routed before the ack, inside the commit of the ack, after the ack, or at the same moment. Proves
// LEASE-2, LEASE-7.
func TestReactionRouteAndAck(t *testing.T) {
	// Each case is called by the handler of event 0, and returns what happens in the commit of the ack.
	for name, during := range map[string]func(t *testing.T, first, second *stream.Log, tap *stores.Tap){
		"routed before the ack": func(t *testing.T, _, second *stream.Log, _ *stores.Tap) {
			reactAppend(t, second, "s", 1)
			require.NoError(t, second.ReactRoute(t.Context()))
			require.True(t, reactPosition(t, second, "s").Pending)
		},
		"routed in the commit of the ack": func(t *testing.T, _, second *stream.Log, tap *stores.Tap) {
			reactAppend(t, second, "s", 1)
			var once sync.Once
			tap.OnCommit(func(_ context.Context, c persist.Commit) error {
				if reactAck(c) {
					once.Do(func() { require.NoError(t, second.ReactRoute(t.Context())) })
				}
				return nil
			})
		},
		"routed after the ack": func(t *testing.T, first, second *stream.Log, _ *stores.Tap) {
			reactAppend(t, second, "s", 1)
			var once sync.Once
			first.ReactHook(func(point, _ string) {
				if point == "acked" {
					once.Do(func() {
						require.Equal(t, reactDone("s", 1), reactPosition(t, second, "s"))
						require.NoError(t, second.ReactRoute(t.Context()))
						require.True(t, reactPosition(t, second, "s").Pending)
					})
				}
			})
		},
		"not routed by another process": func(t *testing.T, _, second *stream.Log, _ *stores.Tap) {
			reactAppend(t, second, "s", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				calls := new(reactCalls)
				var first, second *stream.Log
				var tap *stores.Tap
				first, second, tap = reactPair(t, location, stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
					if d.Version == 0 {
						during(t, first, second, tap)
					}
					return nil
				})})
				reactAppend(t, second, "s", 1)
				require.Equal(t, 2, reactDrain(t, first))
				require.Equal(t, []string{"s/0", "s/1"}, calls.take())
				require.Equal(t, reactDone("s", 2), reactPosition(t, second, "s"))
			})
		})
	}
}

// The commit that routes an event is overtaken by the ack of the event before it: the position is
// ready all the same. Proves LEASE-2.
func TestReactionAckOvertakesRoute(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		router, worker, tap := reactPair(t, location, stream.Reaction{Handle: calls.handle(nil)})
		reactAppend(t, worker, "s", 1)
		require.NoError(t, worker.ReactRoute(t.Context()))
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactTells(c) { // the router was told of event 1
				once.Do(func() {
					require.Equal(t, 1, reactDrain(t, worker), "it handles both")
				})
			}
			return nil
		})
		reactAppend(t, worker, "s", 1)
		require.NoError(t, router.ReactRoute(t.Context()))
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		require.Equal(t, reactDone("s", 2), reactPosition(t, worker, "s"))
		require.Zero(t, reactDrain(t, worker))
	})
}

// Two processes route the same events. The slower one, which comes when all is handled, makes no
// position ready and moves no cursor back, at whatever moment it was held up. Proves LEASE-10.
func TestReactionTwoRouters(t *testing.T) {
	for _, held := range []string{"before the positions", "before the cursor"} {
		t.Run(held, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				calls := new(reactCalls)
				slow, quick, tap := reactPair(t, location, stream.Reaction{Handle: calls.handle(nil)})
				reactAppend(t, quick, "s", 3)
				var once sync.Once
				overtake := func() {
					once.Do(func() {
						require.Equal(t, 1, reactDrain(t, quick))
						reactAppend(t, quick, "later", 1)
						require.Equal(t, 1, reactDrain(t, quick))
					})
				}
				if held == "before the positions" {
					tap.OnCommit(func(_ context.Context, c persist.Commit) error {
						if reactTells(c) {
							overtake()
						}
						return nil
					})
				} else {
					slow.ReactHook(func(point, _ string) {
						if point == "routed" {
							overtake()
						}
					})
				}
				require.Zero(t, reactDrain(t, slow))
				require.Equal(t, []string{"s/0", "s/1", "s/2", "later/0"}, calls.take())
				for _, name := range []string{"s", "later"} {
					require.False(t, reactPosition(t, quick, name).Pending)
				}
				reactAppend(t, slow, "s", 1)
				require.Equal(t, 1, reactDrain(t, slow))
				require.Equal(t, []string{"s/3"}, calls.take())
			})
		})
	}
}

// Reset while a handler runs: the ack neither makes the writes of the handler nor moves the position.
// All events are handled again. Reset comes before the commit of the ack, or inside it. A Reset after
// the ack is no race. Proves LEASE-6.
func TestReactionResetAndAck(t *testing.T) {
	for _, moment := range []string{"in the handler", "in the commit", "after the ack"} {
		t.Run(moment, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				calls := new(reactCalls)
				var admin *stream.Log
				var once sync.Once
				reset := func() {
					once.Do(func() {
						n, err := admin.Reset(t.Context(), stream.Filter{Streams: []string{"s"}})
						require.NoError(t, err)
						require.Equal(t, 1, n)
					})
				}
				worker, second, tap := reactPair(t, location, stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
					d.OnCommit(reactCounts("all"))
					if moment == "in the handler" && d.Version == 2 {
						reset()
					}
					return nil
				})})
				admin = second
				tap.OnCommit(func(_ context.Context, c persist.Commit) error {
					if moment == "in the commit" && reactAck(c) {
						reset()
					}
					return nil
				})
				worker.ReactHook(func(point, _ string) {
					if moment == "after the ack" && point == "acked" {
						reset()
					}
				})
				reactAppend(t, admin, "s", 3)
				require.Equal(t, 2, reactDrain(t, worker))
				require.Equal(t, []string{"s/0", "s/1", "s/2", "s/0", "s/1", "s/2"}, calls.take())
				require.Equal(t, reactDone("s", 3), reactPosition(t, admin, "s"))
				writes := 3
				if moment == "after the ack" {
					writes = 6
				}
				require.Equal(t, writes, reactCount(t, reactOpen(t, stores.OpenFor(t, location), "reader"), "all"))
			})
		})
	}
}

// Reset while a handler runs that then fails for good: the position starts again, and is not blocked.
// Proves LEASE-6.
func TestReactionResetAndBlock(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		var admin *stream.Log
		calls := new(reactCalls)
		worker, second, _ := reactPair(t, location, stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
			if calls.count() == 2 {
				_, err := admin.Reset(t.Context(), stream.Filter{Reactions: []string{"r"}})
				require.NoError(t, err)
				return pawl.NonRetryable(errReact)
			}
			return nil
		})})
		admin = second
		reactAppend(t, admin, "s", 2)
		reactDrain(t, worker)
		require.Equal(t, []string{"s/0", "s/1", "s/0", "s/1"}, calls.take())
		require.Equal(t, reactDone("s", 2), reactPosition(t, admin, "s"))
	})
}

// reactListed is a store that calls after each listing of positions.
type reactListed struct {
	*memory.Store
	after func()
}

func (l reactListed) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	page, err := l.Store.List(ctx, q)
	if q.Kind == "stream.position" && !q.Due {
		l.after()
	}
	return page, err
}

// Unblock finds a blocked position that another Unblock was faster with, and that is handled already:
// it changes nothing. Proves LEASE-6.
func TestReactionUnblockAndAck(t *testing.T) {
	store := memory.New()
	fail := true
	r := stream.Reaction{MaxRetries: stream.NoRetries, Handle: func(context.Context, *stream.Delivery) error {
		if fail {
			return errReact
		}
		return nil
	}}
	l := reactLog(t, reactOpen(t, store, "first"), reactConfig(), r)
	reactAppend(t, l, "s", 2)
	reactDrain(t, l)
	fail = false
	var once sync.Once
	slow := reactLog(t, reactOpen(t, reactListed{store, func() {
		once.Do(func() {
			n, err := l.Unblock(t.Context(), stream.Filter{})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, 1, reactDrain(t, l))
		})
	}}, "second"), reactConfig(), r)
	n, err := slow.Unblock(t.Context(), stream.Filter{})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	require.Zero(t, reactDrain(t, l))
}

// Unblock before the commit that blocks finds nothing to do. One after it lets the stream go on.
// Proves LEASE-4, LEASE-6.
func TestReactionUnblockAndBlock(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		worker, admin, tap := reactPair(t, location, stream.Reaction{Handle: func(context.Context, *stream.Delivery) error {
			return pawl.NonRetryable(errReact)
		}})
		reactAppend(t, admin, "s", 1)
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactAck(c) {
				n, err := admin.Unblock(t.Context(), stream.Filter{})
				require.NoError(t, err)
				require.Zero(t, n)
			}
			return nil
		})
		reactDrain(t, worker)
		require.True(t, reactPosition(t, admin, "s").Blocked)
		n, err := admin.Unblock(t.Context(), stream.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.False(t, reactPosition(t, admin, "s").Blocked)
	})
}

// A wake-up that comes while the process looks for work is remembered: it looks again, also if the
// look has read the store before the append. Proves LEASE-10.
func TestReactionWakeDuringTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &reactTaken{Store: memory.New()}
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig(), stream.Reaction{Handle: calls.handle(nil)})
		reactStart(t, l)
		synctest.Wait()
		held, release := make(chan struct{}), make(chan struct{})
		store.during.Store(func() {
			store.during.Store(func() {})
			close(held)
			<-release
		})
		reactAppend(t, l, "s", 1)
		<-held // the look has routed and claimed
		began := time.Now()
		reactAppend(t, l, "t", 1)
		synctest.Wait()
		close(release)
		synctest.Wait()
		require.ElementsMatch(t, []string{"s/0", "t/0"}, calls.take())
		require.Zero(t, time.Since(began))
	})
}

// reactTaken is a store without hints that calls a function before or after each Take.
type reactTaken struct {
	*memory.Store
	during atomic.Value // func(), after the Take
	before atomic.Value // func()
}

func (s *reactTaken) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if fn, ok := s.before.Load().(func()); ok {
		fn()
	}
	taken, err := s.Store.Take(ctx, q, a, change)
	if fn, ok := s.during.Load().(func()); ok {
		fn()
	}
	return taken, err
}

func (s *reactTaken) Watch(context.Context, func(persist.Hint)) error { return persist.ErrUnsupported }

// Two releases run side by side: the new one has another reaction. Each reaction handles all events
// from the first one on, once, whichever release routes or handles them. The old release leaves the
// positions alone that it does not know. Proves LEASE-10.
func TestReactionTwoReleases(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		shared, added, dropped := new(reactCalls), new(reactCalls), new(reactCalls)
		before := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "old"), reactConfig(),
			stream.Reaction{Name: "shared", Handle: shared.handle(nil)},
			stream.Reaction{Name: "dropped", Handle: dropped.handle(nil)})
		after := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "new"), reactConfig(),
			stream.Reaction{Name: "shared", Handle: shared.handle(nil)},
			stream.Reaction{Name: "added", Source: regexp.MustCompile("^a"), Handle: added.handle(nil)})
		reactAppend(t, before, "a", 2)
		reactAppend(t, before, "b", 1)
		reactDrain(t, before)
		require.ElementsMatch(t, []string{"a/0", "a/1", "b/0"}, shared.take())
		require.ElementsMatch(t, []string{"a/0", "a/1", "b/0"}, dropped.take())

		require.NoError(t, after.ReactRoute(t.Context()))
		require.Zero(t, reactDrain(t, before), "it does not claim for a reaction that it does not have")
		reactAppend(t, before, "a", 1)
		reactDrain(t, before)
		require.Equal(t, []string{"a/2"}, shared.take())
		require.Equal(t, []string{"a/2"}, dropped.take())
		reactDrain(t, after)
		require.Empty(t, shared.take())
		require.Equal(t, []string{"a/0", "a/1", "a/2"}, added.take())

		reactAppend(t, after, "a", 1)
		reactDrain(t, after)
		require.Equal(t, []string{"a/3"}, shared.take())
		require.Equal(t, []string{"a/3"}, added.take())
		reactDrain(t, before)
		require.Empty(t, shared.take())
		require.Equal(t, []string{"a/3"}, dropped.take())
	})
}

// Many events, many streams, several processes and random failures: each event is handled, in order,
// and its writes and appends are made once. Proves LEASE-1, LEASE-2, LEASE-3, STREAM-5.
func TestReactionsUnderLoad(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		streams, events := 8, testkit.Times(30, 10)
		if stores.Name(location) == "fs" { // its appends are slow
			streams, events = 4, testkit.Times(10, 5)
		}
		var logs []*stream.Log
		var all sync.WaitGroup
		for i := range 3 {
			rt := reactOpen(t, stores.OpenFor(t, location), fmt.Sprint("worker ", i))
			c := reactConfig()
			c.Concurrency = 4
			l := reactLog(t, rt, c)
			require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Batch: 3, Backoff: reactAtOnce, MaxRetries: 5,
				Handle: func(ctx context.Context, d *stream.Delivery) error {
					d.OnCommit(reactInOrder(d))
					if _, err := l.Append(ctx, "echo-"+d.Stream, stream.Any, reactEcho{d.Stream, int(d.Version)}); err != nil {
						return err
					}
					if (int(d.Version)+len(d.Stream))%4 == 0 && d.Attempt <= 2 {
						return errReact
					}
					return nil
				}}))
			reactStart(t, l)
			logs = append(logs, l)
		}
		for s := range streams {
			all.Go(func() {
				for range events {
					reactAppend(t, logs[s%len(logs)], fmt.Sprint("s", s), 1)
				}
			})
		}
		all.Wait()
		testkit.Eventually(t, func() bool {
			done := 0
			for _, p := range reactPositions(t, logs[0], stream.Filter{}) {
				if p == reactDone(p.Stream, int64(events)) {
					done++
				}
			}
			return done == streams
		})
		rt := reactOpen(t, stores.OpenFor(t, location), "reader")
		for s := range streams {
			name := fmt.Sprint("s", s)
			require.Equal(t, events, reactCount(t, rt, name))
			echoes := reactEchoes(t, logs[0], "echo-"+name)
			require.Len(t, echoes, events)
			for i, echo := range echoes {
				require.Equal(t, fmt.Sprint(name, "/", i), echo)
			}
		}
	})
}

// reactInOrder returns a function for OnCommit that counts the events of a stream, and fails if one is
// missing or comes twice.
func reactInOrder(d *stream.Delivery) func(ctx context.Context, tx *pawl.Tx) error {
	return func(ctx context.Context, tx *pawl.Tx) error {
		_, err := reactSums.Scope(tx, d.Stream).AtomicState(ctx, func(_ context.Context, s *reactSum) error {
			if s.Next != d.Version {
				return pawl.NonRetryable(fmt.Errorf("event %d of %s comes after %d", d.Version, d.Stream, s.Next-1))
			}
			s.Next++
			s.Count++
			return nil
		})
		return err
	}
}
