package stream_test

import (
	"context"
	"fmt"
	"os"
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

func init() { testkit.Child("react-poison", reactPoisoned) }

// reactCutOff makes a store refuse all commits, as if its process could not reach it. Leases of the
// process are not renewed then, and run out.
func reactCutOff(tap *stores.Tap) {
	tap.OnCommit(func(context.Context, persist.Commit) error {
		return fmt.Errorf("%w: cut off by the test", persist.ErrNotApplied)
	})
}

// When a lease has run out, another process claims the stream. The count of failures stays, the lost
// lease is not an attempt, and the handler that lost it is told by its context, with the reason as
// the cause. It is not called for another event. Proves LEASE-5.
func TestReactionLeaseRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		tap := &stores.Tap{Store: store}
		c := reactConfig()
		c.Lease = 10 * time.Second
		firstCalls, secondCalls := new(reactCalls), new(reactCalls)
		backoff := pawl.Retry{First: 1, Max: 1}
		var cause error
		var ended time.Duration
		first := reactLog(t, reactOpen(t, tap, "first"), c, stream.Reaction{
			Backoff: backoff, MaxRetries: 1,
			Handle: firstCalls.handle(func(ctx context.Context, d *stream.Delivery) error {
				if d.Attempt == 1 {
					return errReact
				}
				reactCutOff(tap)
				began := time.Now()
				<-ctx.Done()
				cause, ended = context.Cause(ctx), time.Since(began)
				return nil
			}),
		})
		var attempts []int
		second := reactLog(t, reactOpen(t, store, "second"), c, stream.Reaction{
			Backoff: backoff, MaxRetries: 1,
			Handle: secondCalls.handle(func(_ context.Context, d *stream.Delivery) error {
				attempts = append(attempts, d.Attempt)
				return nil
			}),
		})
		reactAppend(t, second, "s", 3)
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = first.Drain(context.Background())
		}()
		synctest.Wait()
		p := reactPosition(t, second, "s")
		require.Equal(t, []any{"first", 1, 1}, []any{p.Holder, p.Retry, p.Lost})
		time.Sleep(time.Until(p.Until) - time.Microsecond)
		require.Equal(t, 0, reactDrain(t, second), "held to the end")
		time.Sleep(time.Microsecond)
		synctest.Wait()
		require.ErrorIs(t, cause, pawl.ErrLeaseLost)
		require.ErrorAs(t, cause, new(*pawl.LeaseLostError))
		require.Less(t, ended, c.Lease, "the handler is told before another one can begin")
		p = reactPosition(t, second, "s")
		require.Equal(t, []any{"", 1, 1, int64(0)}, []any{p.Holder, p.Retry, p.Lost, p.Next})

		require.Equal(t, 1, reactDrain(t, second))
		require.Equal(t, []int{2, 1, 1}, attempts)
		require.Equal(t, reactDone("s", 3), reactPosition(t, second, "s"))
		tap.OnCommit(nil)
		<-drained
		require.Equal(t, []string{"s/0", "s/0"}, firstCalls.take(), "no event is handled after the lease is lost")
	})
}

// A handler that runs for much longer than its lease keeps it: no other process gets the stream.
// Proves LEASE-5.
func TestReactionLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		calls := new(reactCalls)
		log := func(holder string) *stream.Log {
			c := reactConfig()
			c.Lease, c.Poll = 3*time.Second, time.Second
			l := reactLog(t, reactOpen(t, store, holder), c, stream.Reaction{
				Handle: calls.handle(func(ctx context.Context, d *stream.Delivery) error {
					time.Sleep(10 * time.Minute)
					d.OnCommit(reactCounts("all"))
					return ctx.Err()
				}),
			})
			reactStart(t, l)
			return l
		}
		first, second := log("first"), log("second")
		reactAppend(t, first, "s", 3)
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"s/0", "s/1", "s/2"}, calls.take())
		require.Equal(t, reactDone("s", 3), reactPosition(t, second, "s"))
		require.Equal(t, 3, reactCount(t, reactOpen(t, store, "third"), "all"))
	})
}

// Leases that are lost in a row have a budget: then the stream is blocked before the handler runs
// again. An end that was recorded begins the count anew. Proves LEASE-5.
func TestReactionLostBudget(t *testing.T) {
	for _, most := range []int{0, 1, 3} { // 0: the default
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				tap := &stores.Tap{Store: store}
				var calls atomic.Int32
				var dies atomic.Bool
				reaction := stream.Reaction{
					MaxLost: most, RetryForever: true, Backoff: reactAtOnce,
					Handle: func(ctx context.Context, d *stream.Delivery) error {
						calls.Add(1)
						require.Equal(t, 1, d.Attempt)
						if dies.Load() {
							reactCutOff(tap)
							<-ctx.Done()
						}
						return nil
					},
				}
				l := reactLog(t, reactOpen(t, tap, "host"), reactConfig(), reaction)
				want := most
				if most == 0 {
					want = stream.DefaultMaxLost
				}
				lose := func(times int) {
					t.Helper()
					dies.Store(true)
					for i := range times {
						go func() { _, _ = l.Drain(context.Background()) }()
						synctest.Wait()
						time.Sleep(time.Minute)
						synctest.Wait()
						tap.OnCommit(nil)
						p := reactPosition(t, l, "s")
						require.Equal(t, []any{i + 1, "", false}, []any{p.Lost, p.Holder, p.Blocked})
					}
					dies.Store(false)
				}
				reactAppend(t, l, "s", 1)
				lose(want - 1)
				reactDrain(t, l)
				require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"), "the budget is not spent")
				reactAppend(t, l, "s", 1)
				lose(want)
				require.EqualValues(t, 2*want, calls.Load())
				reactDrain(t, l)
				require.EqualValues(t, 2*want, calls.Load(), "the handler is not called")
				p := reactPosition(t, l, "s")
				require.True(t, p.Blocked, "%+v", p)
				require.Equal(t, fmt.Sprintf("%d leases in a row were lost", want), p.Reason)
				n, err := l.Unblock(context.Background(), stream.Filter{})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				reactDrain(t, l)
				require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
			})
		})
	}
}

// reactPoisonLease is the lease of processes that end in their handler.
const reactPoisonLease = 400 * time.Millisecond

// reactPoison is the reaction of the test of poisoned events.
func reactPoison(handle reactHandle) stream.Reaction {
	return stream.Reaction{Name: "r", MaxLost: 2, Handle: handle}
}

// reactPoisoned is a process that the second event of a stream ends.
func reactPoisoned() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Logger: reactQuiet})
	if err != nil {
		return err
	}
	c := reactConfig()
	c.Lease, c.Poll = reactPoisonLease, 50*time.Millisecond
	l, err := stream.New(rt, c)
	if err != nil {
		return err
	}
	err = l.React(reactPoison(func(_ context.Context, d *stream.Delivery) error {
		testkit.Say("%d", d.Version)
		if d.Version == 1 {
			os.Exit(0)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	if err := l.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// An event that ends every process that handles it blocks its stream after MaxLost processes. Other
// streams are handled. Proves LEASE-5.
func TestReactionPoisonedEvent(t *testing.T) {
	t.Parallel() // it mostly waits
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel()
		calls := new(reactCalls)
		c := reactConfig()
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "healthy"), c, reactPoison(calls.handle(nil)))
		reactAppend(t, l, "s", 3)
		for range 2 {
			p := testkit.Start(t, "react-poison", stores.Env(location))
			require.Equal(t, []string{"0", "1"}, p.Wait(), "the batch was not acknowledged")
		}
		reactAppend(t, l, "fine", 2)
		testkit.Eventually(t, func() bool {
			reactDrain(t, l)
			return reactPosition(t, l, "s").Blocked
		})
		require.Equal(t, []string{"fine/0", "fine/1"}, calls.take())
		p := reactPosition(t, l, "s")
		require.Equal(t, []any{int64(0), 1, "2 leases in a row were lost", ""}, []any{p.Next, p.Retry, p.Reason, p.Holder})
	})
}
