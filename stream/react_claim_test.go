package stream_test

import (
	"context"
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

// reactTen are the streams of a test.
func reactTen(t testing.TB, l *stream.Log) (names []string) {
	t.Helper()
	for i := range 10 {
		names = append(names, fmt.Sprint("s", i))
		reactAppend(t, l, names[i], 2)
	}
	return names
}

// One worker claims as many streams as it may. A second one gets the rest, and does not wait for
// those that are held. Each stream is handled once. Proves LEASE-1.
func TestReactionClaimSkipsHeld(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		gate, calls := newReactGate(), new(reactCalls)
		c := reactConfig()
		c.Concurrency = 4
		rt := reactOpen(t, stores.OpenFor(t, location), "first")
		first := reactLog(t, rt, c, stream.Reaction{Handle: gate.handle})
		second := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig(),
			stream.Reaction{Handle: calls.handle(nil)})
		names := reactTen(t, first)
		require.NoError(t, first.Start(t.Context()))
		var held []string
		for range 4 {
			held = append(held, testkit.Receive(t, gate.began))
		}

		require.Equal(t, 6, reactDrain(t, second), "claims")
		var got []string
		for _, call := range calls.take() {
			got = append(got, call[:2])
		}
		slices.Sort(got)
		got = slices.Compact(got)
		require.ElementsMatch(t, names, append(got, held...))
		for _, name := range held {
			p := reactPosition(t, second, name)
			require.Equal(t, "first", p.Holder)
			require.True(t, p.Pending)
			require.EqualValues(t, 0, p.Next)
			require.Equal(t, 1, p.Lost, "the claim in progress")
			left := time.Until(p.Until)
			require.True(t, left > pawl.DefaultLease/2 && left < 2*pawl.DefaultLease, left)
		}
		close(gate.goOn)
		require.NoError(t, first.Stop(context.Background()))
		require.Equal(t, 0, reactDrain(t, second))
		for _, name := range names {
			require.Equal(t, reactDone(name, 2), reactPosition(t, second, name))
		}
		require.Zero(t, calls.count(), "handled again")
	})
}

// A worker that takes the whole frontier leaves nothing: a second one claims nothing, at once, and
// gets a stream that comes later. Proves LEASE-1.
func TestReactionClaimWholeFrontier(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		gate, calls := newReactGate(), new(reactCalls)
		first := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), stream.Reaction{Handle: gate.handle})
		second := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig(), stream.Reaction{Handle: calls.handle(nil)})
		reactTen(t, second)
		drained := make(chan int, 1)
		go func() {
			n, err := first.Drain(context.Background())
			require.NoError(t, err)
			drained <- n
		}()
		for range 10 {
			testkit.Receive(t, gate.began)
		}
		require.Equal(t, 0, reactDrain(t, second))
		reactAppend(t, second, "late", 1)
		require.Equal(t, 1, reactDrain(t, second))
		require.Equal(t, []string{"late/0"}, calls.take())
		close(gate.goOn)
		require.Equal(t, 10, testkit.Receive(t, drained))
		require.Equal(t, 0, reactDrain(t, second))
		require.Empty(t, calls.take())
	})
}

// Many workers that claim at the same moment share out the streams: each event is handled once.
// Proves LEASE-1.
func TestReactionClaimsAreShared(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		var logs []*stream.Log
		for i := range 4 {
			rt := reactOpen(t, stores.OpenFor(t, location), fmt.Sprint("worker ", i))
			logs = append(logs, reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(nil)}))
		}
		var want []string
		for i := range 20 {
			name := fmt.Sprintf("s%02d", i)
			reactAppend(t, logs[0], name, 2)
			want = append(want, name+"/0", name+"/1")
		}
		var all sync.WaitGroup
		for _, l := range logs {
			all.Go(func() { reactDrain(t, l) })
		}
		all.Wait()
		require.ElementsMatch(t, want, calls.take())
		require.Equal(t, 0, reactDrain(t, logs[0]))
		for _, p := range reactPositions(t, logs[0], stream.Filter{}) {
			require.Equal(t, reactDone(p.Stream, 2), p)
		}
	})
}

// Positions shows next event, failures, reason, due time, holder and expiry, and takes no lease: no
// record changes. Proves LEASE-8.
func TestReactionPositions(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		rt := reactOpen(t, store, "host")
		gate := newReactGate()
		l := reactLog(t, rt, reactConfig(), stream.Reaction{
			Backoff: pawl.Retry{First: time.Hour, Max: time.Hour},
			Handle: func(ctx context.Context, d *stream.Delivery) error {
				switch {
				case d.Version == 0:
					return nil
				case d.Stream == "blocked":
					return pawl.NonRetryable(errReact)
				case d.Stream == "failed":
					return errReact
				case d.Stream == "held":
					return gate.handle(ctx, d)
				}
				return nil
			},
		}, stream.Reaction{Name: "unused", Source: regexp.MustCompile("^never$"), Handle: new(reactCalls).handle(nil)})
		for _, name := range []string{"blocked", "done", "failed", "held"} {
			reactAppend(t, l, name, 2)
		}
		before := time.Now()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			reactDrain(t, l)
		}()
		testkit.Receive(t, gate.began)
		testkit.Eventually(t, func() bool {
			return reactPosition(t, l, "failed").Retry == 1 && reactPosition(t, l, "blocked").Blocked && !reactPosition(t, l, "done").Pending
		})
		reactAppend(t, l, "unrouted", 1)
		versions := reactVersions(t, store)
		all := reactPositions(t, l, stream.Filter{})
		require.Equal(t, versions, reactVersions(t, store))

		require.Len(t, all, 4, "%+v", all)
		require.Equal(t, stream.Position{Reaction: "r", Stream: "blocked", Next: 1, Pending: true, Retry: 1, Blocked: true, Reason: errReact.Error()}, all[0])
		require.Equal(t, reactDone("done", 2), all[1])
		failed := all[2]
		require.WithinRange(t, failed.Due, before.Add(-time.Minute), time.Now().Add(time.Hour+time.Minute))
		failed.Due = time.Time{}
		require.Equal(t, stream.Position{Reaction: "r", Stream: "failed", Next: 1, Pending: true, Retry: 1, Reason: errReact.Error()}, failed)
		held := all[3]
		require.WithinRange(t, held.Until, before, time.Now().Add(2*pawl.DefaultLease))
		require.False(t, held.Due.IsZero())
		held.Until, held.Due = time.Time{}, time.Time{}
		require.Equal(t, stream.Position{Reaction: "r", Stream: "held", Pending: true, Lost: 1, Holder: "host"}, held)
		close(gate.goOn)
		testkit.Receive(t, drained)
	})
}

// reactVersions returns the versions and leases of all positions.
func reactVersions(t testing.TB, store persist.Store) map[string]string {
	t.Helper()
	page, err := store.List(context.Background(), persist.Query{Kind: "stream.position"})
	require.NoError(t, err)
	all := map[string]string{}
	for _, r := range page.Records {
		all[r.ID] = fmt.Sprint(r.Version, " ", r.Lease.Token)
	}
	return all
}

// An append to a stream that is handled takes no notice of the lease, whatever version it asserts,
// and the handler keeps its lease. Proves LEASE-7.
func TestReactionAppendBesideLease(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		gate := newReactGate()
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), stream.Reaction{Handle: gate.handle, Batch: 1})
		other := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig())
		reactAppend(t, l, "s", 1)
		drained := make(chan int, 1)
		go func() { drained <- reactDrain(t, l) }()
		testkit.Receive(t, gate.began)
		held := reactPosition(t, l, "s")
		for i, from := range []*stream.Log{l, other, l, other} {
			made, err := from.Append(t.Context(), "s", stream.At(int64(i)), reactNoted{N: i + 1})
			require.NoError(t, err)
			require.EqualValues(t, i+1, made[0].Version)
		}
		_, err := other.Append(t.Context(), "s", stream.At(0), reactNoted{})
		require.ErrorAs(t, err, new(*stream.ConcurrencyError))
		now := reactPosition(t, l, "s")
		require.Equal(t, held.Holder, now.Holder)
		require.EqualValues(t, 0, now.Next)
		close(gate.goOn)
		require.Equal(t, 5, testkit.Receive(t, drained), "one claim for each event")
		require.Equal(t, reactDone("s", 5), reactPosition(t, l, "s"))
	})
}

// Claims, acknowledgements and failures do not write the head of a stream: a writer that asserts a
// version is not disturbed by them. Proves LEASE-7.
func TestReactionLeaseBesideAppends(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		fail := true
		l := reactLog(t, reactOpen(t, store, "first"), reactConfig(), stream.Reaction{
			Backoff: reactAtOnce, MaxRetries: 3,
			Handle: func(context.Context, *stream.Delivery) error {
				if fail = !fail; fail {
					return errReact
				}
				return nil
			},
		})
		reactAppend(t, l, "s", 3)
		head := persist.Key{Kind: stream.DefaultName, ID: "s"}
		before, err := store.Load(t.Context(), head)
		require.NoError(t, err)
		reactDrain(t, l)
		require.Equal(t, reactDone("s", 3), reactPosition(t, l, "s"))
		after, err := store.Load(t.Context(), head)
		require.NoError(t, err)
		require.Equal(t, before.Version, after.Version)
		require.Equal(t, before.Lease, after.Lease)
	})
}

// Reactions are independent: each has positions of its own, and one that is blocked holds up no
// other. Proves LEASE-4, LEASE-8.
func TestReactionsAreIndependent(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		fine, broken := new(reactCalls), new(reactCalls)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "host"), reactConfig(),
			stream.Reaction{Name: "fine", Handle: fine.handle(nil)},
			stream.Reaction{Name: "broken", MaxRetries: stream.NoRetries, Handle: broken.handle(func(_ context.Context, d *stream.Delivery) error {
				if d.Stream == "a" {
					return errReact
				}
				return nil
			})},
		)
		reactAppend(t, l, "a", 2)
		reactAppend(t, l, "b", 2)
		reactDrain(t, l)
		require.ElementsMatch(t, []string{"a/0", "a/1", "b/0", "b/1"}, fine.take())
		require.ElementsMatch(t, []string{"a/0", "b/0", "b/1"}, broken.take())
		require.True(t, reactPositionOf(t, l, "broken", "a").Blocked)
		require.EqualValues(t, 2, reactPositionOf(t, l, "fine", "a").Next)
		require.EqualValues(t, 2, reactPositionOf(t, l, "broken", "b").Next)
	})
}

// Only the wanted types and streams are handled. Other events are skipped, and the position moves
// behind them.
func TestReactionTypesAndSource(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "host"), reactConfig(), stream.Reaction{
			Source: regexp.MustCompile("^in-"), Types: []string{"noted", "echo"}, Batch: 2, Handle: calls.handle(nil),
		})
		for _, name := range []string{"in-a", "out-a", "in-b"} {
			_, err := l.Append(t.Context(), name, stream.Any,
				reactOther{}, reactNoted{N: 1}, reactOther{}, reactOther{}, reactEcho{}, reactNoted{}, reactOther{})
			require.NoError(t, err)
		}
		_, err := l.Append(t.Context(), "in-c", stream.Any, reactOther{})
		require.NoError(t, err)
		reactDrain(t, l)
		got := calls.take()
		slices.Sort(got)
		require.Equal(t, []string{"in-a/1", "in-a/4", "in-a/5", "in-b/1", "in-b/4", "in-b/5"}, got)
		all := reactPositions(t, l, stream.Filter{})
		require.Len(t, all, 2, "none for a stream without a wanted event: %+v", all)
		for _, p := range all {
			require.Contains(t, []int64{6, 7}, p.Next)
			require.False(t, p.Pending)
		}
	})
}

// A batch is the number of events that one claim handles and one commit acknowledges.
func TestReactionBatch(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		l := reactLog(t, reactOpen(t, tap, "host"), reactConfig(), stream.Reaction{Batch: 3, Handle: new(reactCalls).handle(nil)})
		reactAppend(t, l, "s", 8)
		var mu sync.Mutex
		acks := 0
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			mu.Lock()
			defer mu.Unlock()
			if reactAck(c) {
				acks++
			}
			return nil
		})
		require.Equal(t, 3, reactDrain(t, l))
		require.Equal(t, 3, acks)
		require.Equal(t, reactDone("s", 8), reactPosition(t, l, "s"))
	})
}

// The events of one stream are handled in their order, also over several batches and failures.
// Proves LEASE-3.
func TestReactionOrder(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "host"), reactConfig(), stream.Reaction{
			Batch: 2, Backoff: reactAtOnce, Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
				if d.Version == 3 && d.Attempt == 1 {
					return errReact
				}
				return nil
			}),
		})
		reactAppend(t, l, "s", 5)
		reactDrain(t, l)
		require.Equal(t, []string{"s/0", "s/1", "s/2", "s/3", "s/3", "s/4"}, calls.take())
	})
}

// A reaction with a higher priority gets the slots first.
func TestReactionPriority(t *testing.T) {
	calls := new(reactCalls)
	named := func(name string, priority int) stream.Reaction {
		return stream.Reaction{Name: name, Priority: priority, Handle: func(_ context.Context, d *stream.Delivery) error {
			calls.add(&stream.Delivery{Event: stream.Event{Stream: name, Version: int64(priority)}})
			return nil
		}}
	}
	c := reactConfig()
	c.Concurrency = 1
	l := reactLog(t, reactOpen(t, memory.New(), "host"), c, named("low", -1), named("high", 7), named("middle", 0))
	for i := range 3 {
		reactAppend(t, l, fmt.Sprint("s", i), 1)
	}
	require.Equal(t, 9, reactDrain(t, l))
	require.Equal(t, []string{"high/7", "high/7", "high/7", "middle/0", "middle/0", "middle/0", "low/-1", "low/-1", "low/-1"}, calls.take())
}

// A reaction handles no more streams at a time than its Concurrency, a process no more than
// Config.Concurrency, and the other slots are used by other reactions.
func TestReactionConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		handle := func(name string) reactHandle {
			return func(context.Context, *stream.Delivery) error {
				mu.Lock()
				for _, n := range []string{name, "all"} {
					running[n]++
					most[n] = max(most[n], running[n])
				}
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				running[name]--
				running["all"]--
				return nil
			}
		}
		c := reactConfig()
		c.Concurrency = 6
		l := reactLog(t, reactOpen(t, stores.Bare{Store: memory.New()}, "host"), c,
			stream.Reaction{Name: "one", Concurrency: 1, Handle: handle("one")},
			stream.Reaction{Name: "two", Concurrency: 2, Priority: 1, Handle: handle("two")},
			stream.Reaction{Name: "rest", Handle: handle("rest")},
		)
		for i := range 20 {
			reactAppend(t, l, fmt.Sprint("s", i), 1)
		}
		began := time.Now()
		reactStart(t, l)
		// The slowest is "one": 20 streams one after the other. No slot waits for a poll.
		time.Sleep(20*time.Second + time.Millisecond)
		synctest.Wait()
		for _, p := range reactPositions(t, l, stream.Filter{}) {
			require.False(t, p.Pending, "%+v after %v", p, time.Since(began))
		}
		require.Equal(t, map[string]int{"one": 1, "two": 2, "rest": 3, "all": 6}, most)
	})
}

// The slot of a claim that was lost is used at once by the next stream of its reaction, without a hint.
// Proves LEASE-5, LEASE-10.
func TestReactionSlotOfLostClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := &stores.Tap{Store: reactDeaf{memory.New()}}
		handled := make(chan string, 10)
		var lost time.Time
		l := reactLog(t, reactOpen(t, tap, "host"), reactConfig(), stream.Reaction{Concurrency: 1, Handle: func(ctx context.Context, d *stream.Delivery) error {
			if lost.IsZero() {
				reactCutOff(tap)
				<-ctx.Done()
				lost = time.Now()
				tap.OnCommit(nil)
				return nil
			}
			handled <- d.Stream
			return nil
		}})
		reactAppend(t, l, "a", 1)
		reactAppend(t, l, "b", 1)
		reactStart(t, l)
		<-handled
		require.Less(t, time.Since(lost), time.Second)
	})
}
