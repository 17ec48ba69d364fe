package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// queueOf returns the queue of a scope, the zero QueueStats if it is idle.
func queueOf(rt *pawl.Runtime, key pawl.Key) pawl.QueueStats {
	for _, q := range rt.Stats().Queues {
		if q.Scope == key {
			return q
		}
	}
	return pawl.QueueStats{}
}

// Stats shows the function that runs, since when, and the mutations that wait behind it.
func TestStatsOfQueues(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s, before := scopeOf[board](p, "a"), time.Now()
		// A batch starts with data: on the persisted path it would wait for the second caller.
		_, err := s.IncState(t.Context(), "count", 1)
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { return len(p.rt.Stats().Queues) == 0 }, "idle")

		running, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 3)
		go func() {
			_, err := s.AtomicState(context.Background(), func(context.Context, *board) error {
				close(running)
				<-release
				return nil
			}, pawl.WithTimeout(time.Minute), pawl.WithRetry(pawl.Retry{Within: time.Minute}))
			done <- err
		}()
		testkit.Receive(t, running)
		q := queueOf(p.rt, s.Key())
		require.Equal(t, p.store == nil, q.InMemory)
		require.Zero(t, q.Waiting)
		require.Equal(t, 1, q.Turn)
		require.Len(t, q.Running, 1)
		require.Equal(t, "Atomic", q.Running[0].Verb)
		require.False(t, q.Running[0].Stuck)
		require.False(t, q.Running[0].Since.Before(before) || q.Running[0].Since.After(time.Now()))

		if p.store == nil { // a slow function of a persisted scope lets the others go on
			for range 2 {
				go func() {
					_, err := s.IncState(context.Background(), "count", 1)
					done <- err
				}()
			}
			testkit.Eventually(t, func() bool { q = queueOf(p.rt, s.Key()); return q.Waiting == 2 }, "two waiters")
			testkit.Eventually(t, func() bool { return queueOf(p.rt, s.Key()).LongestWait > q.LongestWait }, "a wait that grows")
		} else {
			done <- nil
			done <- nil
		}
		close(release)
		for range 3 {
			require.NoError(t, testkit.Receive(t, done))
		}
		testkit.Eventually(t, func() bool { return len(p.rt.Stats().Queues) == 0 }, "idle")
	})
}

// A function is stuck when it has outlived the budget of its call, also after its caller has left.
func TestStatsOfStuckFunction(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s, ran, release := scopeOf[board](p, "a"), false, make(chan struct{})
		for budget := time.Millisecond; !ran; budget *= 2 { // until the function starts within it
			started := make(chan struct{})
			_, err := s.AtomicState(t.Context(), func(context.Context, *board) error { close(started); <-release; return nil },
				pawl.WithTimeout(budget), pawl.WithRetry(pawl.Retry{Within: budget}))
			require.Error(t, err)
			select {
			case <-started:
				ran = true
			default:
			}
		}
		testkit.Eventually(t, func() bool {
			q := queueOf(p.rt, s.Key())
			return len(q.Running) == 1 && q.Running[0].Stuck
		}, "a stuck function")
		close(release)
		testkit.Eventually(t, func() bool { return len(queueOf(p.rt, s.Key()).Running) == 0 }, "no function")
	})
}

// Stats counts watchers, leases and scopes, those of a Local too. Kinds describes the kinds.
func TestStatsOfRuntime(t *testing.T) {
	labeled := pawl.Kind[board]{Name: "labeled", Label: "title", TTL: time.Hour, Upgrades: []pawl.Upgrade{func(pawl.Doc) error { return nil }}}
	onStores(t, func(t *testing.T, p path) {
		require.Equal(t, []pawl.KindInfo{{Name: "labeled", Label: "title", TTL: time.Hour, Schema: 1}}, p.rt.Kinds())
		require.Zero(t, p.rt.Stats().Watchers)
		local := pawl.NewLocal(p.rt)
		defer local.Close()
		inMemory := pawl.Target[board](local, "a")
		_, err := inMemory.IncState(t.Context(), "count", 1)
		require.NoError(t, err)
		s := labeled.Scope(p.rt, "a")
		lease, err := s.Acquire(t.Context(), pawl.HeldBy("me"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := s.Changes(ctx)
		testkit.Receive(t, changes)

		got := p.rt.Stats()
		require.Len(t, got.Leases, 1)
		require.True(t, got.Leases[0].Until.After(time.Now()))
		got.Leases[0].Until = time.Time{}
		require.Equal(t, pawl.LeaseStats{Scope: s.Key(), Holder: "me", Token: lease.Token()}, got.Leases[0])
		require.Equal(t, 1, got.Watchers)
		require.Equal(t, 1, got.InMemory)
		require.Equal(t, 1, got.Persisted)
		require.Len(t, p.rt.Kinds(), 2)

		require.NoError(t, lease.Release(t.Context()))
		cancel()
		for range changes {
		}
		require.Empty(t, p.rt.Stats().Leases)
		require.Zero(t, p.rt.Stats().Watchers)
		require.NoError(t, p.rt.Close(t.Context()))
		require.Zero(t, p.rt.Stats().Persisted)
	}, func(c *pawl.Config) {
		if c.Store != nil {
			c.Kinds = []pawl.AnyKind{labeled}
		}
	})
}

// Stats can be called while everything moves.
func TestStatsUnderLoad(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		done := make(chan error, 4)
		for i := range 4 {
			go func() {
				var err error
				for n := range 25 {
					s := scopeOf[board](p, fmt.Sprint(n%3))
					if i%2 == 0 {
						_, err = s.IncState(context.Background(), "count", 1)
					} else {
						_, err = s.AtomicState(context.Background(), func(_ context.Context, b *board) error { b.Count++; return nil })
					}
					if err != nil {
						break
					}
				}
				done <- err
			}()
		}
		for ended := 0; ended < 4; {
			p.rt.Stats()
			select {
			case err := <-done:
				require.NoError(t, err)
				ended++
			default:
			}
		}
	})
}

// nextRecord returns the next record of a watch.
func nextRecord(t *testing.T, next func() (persist.Record, error, bool)) persist.Record {
	t.Helper()
	r, err, ok := next()
	require.True(t, ok)
	require.NoError(t, err)
	return r
}

// WatchRecord shows documents of any schema, and changes of this process and of another. It
// registers no kind.
func TestWatchRecord(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		key := pawl.Key{Kind: pawl.KindSession, ID: "a"}
		next, stop := iter.Pull2(p.rt.WatchRecord(testkit.Within(t, testkit.Patience), key))
		defer stop()
		require.True(t, nextRecord(t, next).Absent())
		require.Empty(t, p.rt.Kinds())

		until := func(version uint64) persist.Record {
			for {
				if r := nextRecord(t, next); r.Version >= version {
					return r
				}
			}
		}
		s := pawl.Session[board](p.rt, "a")
		_, err := s.SetState(t.Context(), board{Title: "here"})
		require.NoError(t, err)
		require.Contains(t, string(until(1).Doc), "here")
		_, err = pawl.Session[board](p.another(t), "a").PatchState(t.Context(), pawl.Patch{"title": "there"})
		require.NoError(t, err)
		require.Contains(t, string(until(2).Doc), "there")
		lease, err := s.Acquire(t.Context())
		require.NoError(t, err)
		for !nextRecord(t, next).Held(time.Now()) {
		}
		require.NoError(t, lease.Release(t.Context()))
		for nextRecord(t, next).Held(time.Now()) { // although no version has moved
		}
		p.put(t, key, `{"title":"newer"}`, 7)
		require.Equal(t, 7, until(3).Schema)
	})
}

// WatchRecord ends with one error.
func TestWatchRecordErrors(t *testing.T) {
	first := func(rt *pawl.Runtime, ctx context.Context, key pawl.Key) (err error) {
		for _, err = range rt.WatchRecord(ctx, key) {
			if err == nil {
				return nil
			}
		}
		return err
	}
	key := pawl.Key{Kind: "k", ID: "a"}
	require.ErrorIs(t, first(openRuntime(t, pawl.Config{}), t.Context(), key), pawl.ErrNoStore)
	onStores(t, func(t *testing.T, p path) {
		var limit *pawl.LimitError
		require.ErrorAs(t, first(p.rt, t.Context(), pawl.Key{Kind: "k", ID: "a\x00"}), &limit)
		var argument *pawl.ArgumentError
		require.ErrorAs(t, first(p.rt, nil, key), &argument) //nolint:staticcheck // the test is about nil
		p.store.OnLoad(func(context.Context, ...persist.Key) error { return errors.New("down") })
		var unavailable *pawl.UnavailableError
		require.ErrorAs(t, first(p.rt, t.Context(), key), &unavailable)
		p.store.OnLoad(nil)
		require.Zero(t, p.rt.Stats().Watchers)
		next, stop := iter.Pull2(p.rt.WatchRecord(t.Context(), key))
		defer stop()
		nextRecord(t, next)
		require.NoError(t, p.rt.Close(t.Context()))
		_, err, _ := next()
		require.ErrorIs(t, err, pawl.ErrClosed)
		require.ErrorIs(t, first(p.rt, t.Context(), key), pawl.ErrClosed)
	})
}

func ExampleRuntime_Stats() {
	rt, err := pawl.Open(pawl.Config{})
	if err != nil {
		panic(err)
	}
	defer rt.Close(context.Background())
	_, err = pawl.Memory[board](rt, "a").AtomicState(context.Background(), func(context.Context, *board) error {
		for _, q := range rt.Stats().Queues {
			fmt.Println(q.Scope, q.Running[0].Verb, q.Waiting)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// memory/a Atomic 0
	// <nil>
}

// A tool gives up the function that it saw, by the time of its start, and no later one.
//
// Proves INSPECT-1.
func TestAbandonByStats(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s, release, done := scopeOf[board](p, "a"), make(chan struct{}), make(chan error, 2)
		defer close(release)
		start := func() time.Time {
			t.Helper()
			running := make(chan struct{})
			go func() {
				_, err := s.AtomicState(context.Background(), func(context.Context, *board) error { close(running); <-release; return nil },
					pawl.WithTimeout(time.Minute), pawl.WithRetry(pawl.Retry{Within: time.Minute}))
				done <- err
			}()
			testkit.Receive(t, running)
			return queueOf(p.rt, s.Key()).Running[0].Since
		}
		first := start()
		require.False(t, p.rt.Abandon(pawl.Key{Kind: s.Key().Kind, ID: "b"}, first))
		require.False(t, p.rt.Abandon(s.Key(), time.Time{}))
		require.True(t, p.rt.Abandon(s.Key(), time.Unix(0, first.UnixNano())), "the moment as text")
		require.ErrorIs(t, testkit.Receive(t, done), pawl.ErrAbandoned)
		second := start()
		require.False(t, p.rt.Abandon(s.Key(), first))
		require.Len(t, queueOf(p.rt, s.Key()).Running, 1, "it runs on")
		require.True(t, p.rt.Abandon(s.Key(), second))
		require.ErrorIs(t, testkit.Receive(t, done), pawl.ErrAbandoned)
	})
}

// The state of a sweeper says whether it runs, and what it has done.
func TestStatsOfSweeper(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{Interval: time.Hour})
		require.NoError(t, err)
		state := func() pawl.WorkerStats { return sweeper.Workers()[0] }
		require.Equal(t, pawl.WorkerStats{Name: "sweeper", Interval: time.Hour}, state())
		_, err = scopeOf[board](p, "a").IncState(t.Context(), "count", 1, pawl.WithTTL(time.Microsecond))
		require.NoError(t, err)
		require.NoError(t, sweeper.Start(t.Context()))
		testkit.Eventually(t, func() bool { return state().Done == 1 && !state().Working }, "a sweep")
		require.True(t, state().Running)
		require.NoError(t, state().Failure)
		require.False(t, state().Round.IsZero())
		require.NoError(t, sweeper.Stop(t.Context()))
		require.False(t, state().Running)
	})
}
