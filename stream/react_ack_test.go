package stream_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// An acknowledgement moves the position behind the last event, ends the lease and clears the count
// of failures and its reason. The writes of OnCommit are there. Proves LEASE-2.
func TestReactionAck(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		rt := reactOpen(t, stores.OpenFor(t, location), "host")
		calls, fail := new(reactCalls), true
		l := reactLog(t, rt, reactConfig(), stream.Reaction{
			Backoff: pawl.Retry{First: time.Hour, Max: time.Hour},
			Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
				d.OnCommit(reactCounts(d.ID))
				d.OnCommit(reactCounts("all"))
				if d.Version == 1 && fail {
					return errReact
				}
				return nil
			}),
		})
		made := reactAppend(t, l, "s", 3)
		require.Equal(t, 1, reactDrain(t, l))
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		p := reactPosition(t, l, "s")
		require.EqualValues(t, 1, p.Next, "the events before the failure are acknowledged")
		require.Equal(t, []any{1, 0, errReact.Error(), ""}, []any{p.Retry, p.Lost, p.Reason, p.Holder})
		require.Equal(t, []int{1, 0, 0, 1}, []int{reactCount(t, rt, made[0].ID), reactCount(t, rt, made[1].ID), reactCount(t, rt, made[2].ID), reactCount(t, rt, "all")})

		fail = false
		n, err := l.Unblock(t.Context(), stream.Filter{})
		require.NoError(t, err)
		require.Zero(t, n)
		due := reactDueNow(t, rt, "s")
		require.Equal(t, 1, reactDrain(t, l), due)
		require.Equal(t, []string{"s/1", "s/2"}, calls.take())
		require.Equal(t, reactDone("s", 3), reactPosition(t, l, "s"))
		require.Equal(t, []int{1, 1, 1, 3}, []int{reactCount(t, rt, made[0].ID), reactCount(t, rt, made[1].ID), reactCount(t, rt, made[2].ID), reactCount(t, rt, "all")})
	})
}

// reactDueNow makes the position of the reaction "r" on a stream due, as if its backoff had passed.
func reactDueNow(t testing.TB, rt *pawl.Runtime, name string) string {
	t.Helper()
	other := reactOpen(t, rt.Store(), "clock")
	due := time.Now().Add(-time.Hour).UTC()
	raw := pawl.Kind[pawl.Doc]{Name: "stream.position", Label: "label", Due: "due"}
	_, err := raw.Scope(other, name+"/r").PatchState(context.Background(), pawl.Patch{"due": due.Format(time.RFC3339Nano)})
	require.NoError(t, err)
	return due.String()
}

// The writes of OnCommit and the position are one commit: both are there, or neither. Proves LEASE-2.
func TestReactionAckIsOneCommit(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		rt := reactOpen(t, tap, "host")
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts("all"))
			return nil
		}})
		reactAppend(t, l, "s", 4)
		var mu sync.Mutex
		refuse, acks := true, 0
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, reactAck(c), reactWrites(c, reactSums.Name), "%+v", c)
			if !reactAck(c) {
				return nil
			}
			if acks++; refuse {
				return fmt.Errorf("%w: refused by the test", persist.ErrUnavailable)
			}
			return nil
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			reactDrain(t, l)
		}()
		testkit.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return acks > 0
		})
		require.EqualValues(t, 0, reactPosition(t, l, "s").Next)
		require.Equal(t, 0, reactCount(t, rt, "all"))
		mu.Lock()
		refuse = false
		mu.Unlock()
		testkit.Receive(t, done)
		require.Equal(t, 4, reactCount(t, rt, "all"))
		require.Equal(t, reactDone("s", 4), reactPosition(t, l, "s"))
	})
}

// If the ack meets a conflict, OnCommit runs again and the handler does not. Its writes are made once.
// Proves LEASE-2.
func TestReactionAckConflict(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		rt, other := reactOpen(t, tap, "host"), reactOpen(t, stores.OpenFor(t, location), "other")
		calls := new(reactCalls)
		var commits atomic.Int32
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
				commits.Add(1)
				_, err := reactSums.Scope(tx, "all").AtomicState(ctx, func(_ context.Context, s *reactSum) error {
					s.Count++
					return nil
				})
				return err
			})
			return nil
		})})
		reactAppend(t, l, "s", 1)
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactAck(c) {
				once.Do(func() {
					_, err := reactSums.Scope(other, "all").IncState(t.Context(), "count", 10)
					require.NoError(t, err)
				})
			}
			return nil
		})
		require.Equal(t, 1, reactDrain(t, l))
		require.Equal(t, 1, calls.count())
		require.Equal(t, int32(2), commits.Load())
		require.Equal(t, 11, reactCount(t, rt, "all"))
	})
}

// reactOutlive runs a claim of the stream "s" whose lease runs out while one of its commits is on its
// way to the store. Another log handles the stream meanwhile, and then the commit arrives.
func reactOutlive(t *testing.T, location string, is func(c persist.Commit) bool, first, second stream.Reaction) (after *stream.Log, rt *pawl.Runtime) {
	t.Helper()
	return reactOutliveWith(t, location, is, first, second, func(_, _ *stream.Log) {})
}

// reactOutliveWith is reactOutlive, and passes the logs to ready before they begin.
func reactOutliveWith(t *testing.T, location string, is func(c persist.Commit) bool, first, second stream.Reaction, ready func(before, after *stream.Log)) (after *stream.Log, rt *pawl.Runtime) {
	t.Helper()
	tap := &stores.Tap{Store: stores.OpenFor(t, location)}
	c := reactConfig()
	c.Lease = 500 * time.Millisecond
	before := reactLog(t, reactOpen(t, tap, "first"), c, first)
	rt = reactOpen(t, stores.OpenFor(t, location), "second")
	after = reactLog(t, rt, reactConfig(), second)
	ready(before, after)
	reactAppend(t, after, "s", 2)
	arrived, late := make(chan struct{}), make(chan struct{})
	var once sync.Once
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		switch {
		case reactRenews(c):
			return fmt.Errorf("%w: refused by the test", persist.ErrNotApplied)
		case is(c):
			once.Do(func() {
				close(arrived)
				<-late
			})
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = before.Drain(context.Background())
	}()
	testkit.Receive(t, arrived)
	testkit.Eventually(t, func() bool { return reactDrain(t, after) > 0 })
	want := reactPosition(t, after, "s")
	close(late)
	testkit.Receive(t, done)
	require.Equal(t, want, reactPosition(t, after, "s"), "the late commit changes nothing")
	return after, rt
}

// An acknowledgement that reaches the store after the lease has run out, and after another process
// has handled the events, is refused with the writes of OnCommit. Proves LEASE-2, LEASE-5.
func TestReactionLateAck(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		count := func(id string) stream.Reaction {
			return stream.Reaction{Handle: func(_ context.Context, d *stream.Delivery) error {
				d.OnCommit(reactCounts(id))
				return nil
			}}
		}
		after, rt := reactOutlive(t, location, reactAck, count("first"), count("second"))
		require.Equal(t, reactDone("s", 2), reactPosition(t, after, "s"))
		require.Equal(t, []int{0, 2}, []int{reactCount(t, rt, "first"), reactCount(t, rt, "second")})
	})
}

// A failure that reaches the store late does not block the position. Proves LEASE-4, LEASE-5.
func TestReactionLateBlock(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		after, _ := reactOutlive(t, location, reactAck,
			stream.Reaction{Handle: func(context.Context, *stream.Delivery) error { return pawl.NonRetryable(errReact) }},
			stream.Reaction{Handle: new(reactCalls).handle(nil)})
		require.Equal(t, reactDone("s", 2), reactPosition(t, after, "s"))
	})
}

// An acknowledgement that reaches the store after another process has blocked the stream does not
// unblock it. Proves LEASE-4, LEASE-5.
func TestReactionLateAckAfterBlock(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		after, _ := reactOutlive(t, location, reactAck,
			stream.Reaction{Handle: new(reactCalls).handle(nil)},
			stream.Reaction{Handle: func(context.Context, *stream.Delivery) error { return pawl.NonRetryable(errReact) }})
		p := reactPosition(t, after, "s")
		require.Equal(t, []any{int64(0), true, 1}, []any{p.Next, p.Blocked, p.Retry})
	})
}

// If a write of OnCommit fails, its event has failed, and no other: those before it are acknowledged
// with their writes, and those after it are handled again. A panic and runtime.Goexit are failures.
// Proves LEASE-2, LEASE-3.
func TestReactionOnCommitFails(t *testing.T) {
	for name, fails := range map[string]func() error{
		"error":         func() error { return errReact },
		"panic":         func() error { panic(errReact.Error()) },
		"Goexit":        func() error { runtime.Goexit(); return nil },
		"non-retryable": func() error { return pawl.NonRetryable(errReact) },
		"deferred":      func() error { return stream.Defer(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			reactEachIf(t, name == "error" || name == "panic", func(t *testing.T, store persist.Store) {
				rt := reactOpen(t, store, "host")
				calls, broken := new(reactCalls), true
				l := reactLog(t, rt, reactConfig(), stream.Reaction{
					Backoff: pawl.Retry{First: time.Hour, Max: time.Hour},
					Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
						d.OnCommit(reactCounts(d.ID))
						d.OnCommit(func(context.Context, *pawl.Tx) error {
							if d.Version == 2 && broken {
								return fails()
							}
							return nil
						})
						return nil
					}),
				})
				made := reactAppend(t, l, "s", 5)
				counts := func() (all []int) {
					for _, e := range made {
						all = append(all, reactCount(t, rt, e.ID))
					}
					return all
				}
				require.Equal(t, 1, reactDrain(t, l))
				require.Equal(t, []string{"s/0", "s/1", "s/2", "s/3", "s/4"}, calls.take())
				p := reactPosition(t, l, "s")
				require.EqualValues(t, 2, p.Next, "%+v", p)
				require.Equal(t, name == "non-retryable", p.Blocked)
				require.Equal(t, name != "deferred", p.Retry == 1, "%+v", p)
				require.NotEmpty(t, p.Reason)
				require.Empty(t, p.Holder)
				require.Equal(t, []int{1, 1, 0, 0, 0}, counts())

				broken = false
				if p.Blocked {
					n, err := l.Unblock(t.Context(), stream.Filter{})
					require.NoError(t, err)
					require.Equal(t, 1, n)
				} else {
					reactDueNow(t, rt, "s")
				}
				require.Equal(t, 1, reactDrain(t, l))
				require.Equal(t, []string{"s/2", "s/3", "s/4"}, calls.take())
				require.Equal(t, []int{1, 1, 1, 1, 1}, counts())
				require.Equal(t, reactDone("s", 5), reactPosition(t, l, "s"))
			})
		})
	}
}

// A failed handler and a failed write of OnCommit before it: the earlier event counts. Proves LEASE-2.
func TestReactionOnCommitFailsBeforeHandler(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host")
	l := reactLog(t, rt, reactConfig(), stream.Reaction{
		Backoff: pawl.Retry{First: time.Hour, Max: time.Hour},
		Handle: func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(func(context.Context, *pawl.Tx) error {
				if d.Version == 1 {
					return errReact
				}
				return nil
			})
			if d.Version == 3 {
				return pawl.NonRetryable(fmt.Errorf("another error"))
			}
			return nil
		},
	})
	reactAppend(t, l, "s", 5)
	require.Equal(t, 1, reactDrain(t, l))
	p := reactPosition(t, l, "s")
	require.EqualValues(t, 1, p.Next)
	require.False(t, p.Blocked)
	require.Equal(t, 1, p.Retry)
	require.Equal(t, errReact.Error(), p.Reason)
}

// A store that panics in the commit that ends a claim does not end the process or the loop: the
// events are handled again. Proves LEASE-2.
func TestReactionStorePanicsInAck(t *testing.T) {
	tap := &stores.Tap{Store: memory.New()}
	rt := reactOpen(t, tap, "host")
	calls := new(reactCalls)
	l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(func(context.Context, *stream.Delivery) error {
		return errReact
	}), Backoff: reactAtOnce, MaxRetries: 1})
	reactAppend(t, l, "s", 1)
	var once atomic.Bool
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if reactAck(c) && !once.Swap(true) {
			panic("the store is broken")
		}
		return nil
	})
	reactDrain(t, l)
	require.True(t, once.Load())
	p := reactPosition(t, l, "s")
	require.True(t, p.Blocked, "%+v", p)
	require.Equal(t, 2, p.Retry)
}

// If the answer of the ack is lost, the commit is settled: the events are not handled again, and the
// writes are there once. Proves LEASE-2.
func TestReactionAckInDoubt(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		rt := reactOpen(t, tap, "host")
		calls := new(reactCalls)
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts("all"))
			return nil
		})})
		reactAppend(t, l, "s", 3)
		var once atomic.Bool
		tap.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
			if reactAck(c) && err == nil && !once.Swap(true) {
				return time.Time{}, persist.ErrUnavailable
			}
			return at, err
		})
		require.Equal(t, 1, reactDrain(t, l))
		require.True(t, once.Load())
		require.Equal(t, 3, calls.count())
		require.Equal(t, 3, reactCount(t, rt, "all"))
		require.Equal(t, reactDone("s", 3), reactPosition(t, l, "s"))
	})
}
