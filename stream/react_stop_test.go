package stream_test

import (
	"context"
	"errors"
	"regexp"
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

// reactEnded is a context that has ended.
func reactEnded() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errReactEnded)
	return ctx
}

var errReactEnded = errors.New("no time left")

// Stop in each phase: no lease is left, the interrupted attempt is not counted, neither as a failure
// nor as a lost lease, and another process goes on at once. Writes and appends are made once. Proves
// LEASE-5, LEASE-2, STREAM-5.
func TestReactionStopInEachPhase(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		for _, point := range []string{"routed", "moved", "claimed", "handled", "acked", "failed"} {
			t.Run(point, func(t *testing.T) {
				var logs []*stream.Log
				rt := reactOpen(t, stores.OpenFor(t, location), "second")
				c := reactConfig()
				c.Name = point
				name := "s-" + point
				for _, own := range []*pawl.Runtime{reactOpen(t, stores.OpenFor(t, location), "first"), rt} {
					l := reactLog(t, own, c)
					require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Batch: 2, MaxRetries: 1, MaxLost: 1, Backoff: reactAtOnce,
						Handle: func(ctx context.Context, d *stream.Delivery) error {
							d.OnCommit(reactInOrder(d))
							if _, err := l.Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)}); err != nil {
								return err
							}
							if d.Version == 2 && d.Attempt == 1 {
								return errReact
							}
							return nil
						}}))
					logs = append(logs, l)
				}
				first, second := logs[0], logs[1]
				reached, goOn := make(chan struct{}), make(chan struct{})
				once := make(chan struct{}, 1)
				first.ReactHook(func(p, _ string) {
					if p == point {
						select {
						case once <- struct{}{}:
							close(reached)
							<-goOn
						default:
						}
					}
				})
				reactAppend(t, second, name, 5)
				require.NoError(t, first.Start(t.Context()))
				testkit.Receive(t, reached)
				require.ErrorIs(t, first.Stop(reactEnded()), errReactEnded)
				close(goOn)
				require.NoError(t, first.Stop(t.Context()))
				for _, p := range reactPositions(t, second, stream.Filter{}) {
					require.Equal(t, []any{"", 0, false}, []any{p.Holder, p.Lost, p.Blocked}, "%+v", p)
					require.LessOrEqual(t, p.Retry, 1)
				}
				testkit.Eventually(t, func() bool {
					reactDrain(t, second)
					return reactPosition(t, second, name) == reactDone(name, 5)
				})
				require.Equal(t, 5, reactCount(t, rt, name))
				require.Equal(t, []string{"e/0", "e/1", "e/2", "e/3", "e/4"}, reactEchoes(t, second, "echo"))
			})
		}
	})
}

// A handler that Stop interrupts is told by the cause of its context. Its error is not counted, and
// another process handles the event at once, long before the lease would run out. Events before it
// are acknowledged. Proves LEASE-5.
func TestReactionStopInterrupts(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		began, causes := make(chan struct{}, 1), make(chan error, 1)
		first := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), stream.Reaction{
			MaxRetries: stream.NoRetries, Handle: func(ctx context.Context, d *stream.Delivery) error {
				if d.Version == 0 {
					return nil
				}
				began <- struct{}{}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			},
		})
		attempts := make(chan int, 10)
		second := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "second"), reactConfig(), stream.Reaction{
			Handle: func(_ context.Context, d *stream.Delivery) error {
				attempts <- d.Attempt
				return nil
			},
		})
		require.NoError(t, first.Start(t.Context()))
		reactAppend(t, first, "s", 3)
		testkit.Receive(t, began)
		require.ErrorIs(t, first.Stop(reactEnded()), errReactEnded)
		require.NoError(t, first.Stop(t.Context()))
		require.ErrorIs(t, testkit.Receive(t, causes), stream.ErrStopped)
		p := reactPosition(t, second, "s")
		require.Equal(t, []any{int64(1), 0, 0, false, "", stream.ErrStopped.Error()}, []any{p.Next, p.Retry, p.Lost, p.Blocked, p.Holder, p.Reason})
		require.Equal(t, 1, reactDrain(t, second))
		require.Equal(t, []int{1, 1}, []int{<-attempts, <-attempts})
		require.Equal(t, reactDone("s", 3), reactPosition(t, second, "s"))
	})
}

// The end of the context of Start interrupts like Stop, and Stop still waits.
func TestReactionStartContextEnds(t *testing.T) {
	store := memory.New()
	began := make(chan struct{})
	l := reactLog(t, reactOpen(t, store, "host"), reactConfig(), stream.Reaction{Handle: func(ctx context.Context, d *stream.Delivery) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, l.Start(ctx))
	reactAppend(t, l, "s", 1)
	testkit.Receive(t, began)
	cancel()
	require.NoError(t, l.Stop(t.Context()))
	p := reactPosition(t, l, "s")
	require.Equal(t, []any{int64(0), 0, 0, ""}, []any{p.Next, p.Retry, p.Lost, p.Holder})
	require.ErrorIs(t, l.Start(t.Context()), stream.ErrStopped)
	other := reactLog(t, reactOpen(t, store, "other"), reactConfig())
	require.ErrorIs(t, other.Start(reactEnded()), errReactEnded)
}

// A handler that answers Stop with a final error blocks: it says that the event can not be handled.
// Proves LEASE-4.
func TestReactionStopAndNonRetryable(t *testing.T) {
	began := make(chan struct{})
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{Handle: func(ctx context.Context, d *stream.Delivery) error {
		close(began)
		<-ctx.Done()
		return pawl.NonRetryable(errors.Join(errReact, context.Cause(ctx)))
	}})
	require.NoError(t, l.Start(t.Context()))
	reactAppend(t, l, "s", 1)
	testkit.Receive(t, began)
	require.Error(t, l.Stop(reactEnded()))
	require.NoError(t, l.Stop(t.Context()))
	require.True(t, reactPosition(t, l, "s").Blocked)
}

// Stop waits for a handler that ends in time, and its event is acknowledged. Proves LEASE-2.
func TestReactionStopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{Handle: func(ctx context.Context, _ *stream.Delivery) error {
			time.Sleep(10 * time.Minute)
			return ctx.Err()
		}})
		require.NoError(t, l.Start(context.Background()))
		reactAppend(t, l, "s", 2)
		synctest.Wait()
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		require.NoError(t, l.Stop(ctx))
		require.Equal(t, 20*time.Minute, time.Since(began))
		require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	})
}

// A handler that never returns: Stop returns an error when its context ends. The process keeps the
// lease as long as it lives, so no other process handles the stream. Other streams are handled. When
// the handler returns, Stop can wait for it. Proves LEASE-5.
func TestReactionHandlerNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		returns := make(chan struct{})
		r := func(calls *reactCalls) stream.Reaction {
			return stream.Reaction{Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
				if d.Stream == "stuck" {
					<-returns
					return errReact
				}
				return nil
			})}
		}
		first, second := new(reactCalls), new(reactCalls)
		l := reactLog(t, reactOpen(t, store, "first"), reactConfig(), r(first))
		c := reactConfig()
		c.Poll = time.Second
		other := reactLog(t, reactOpen(t, store, "second"), c, r(second))
		require.NoError(t, l.Start(context.Background()))
		reactAppend(t, l, "stuck", 2)
		synctest.Wait()
		reactStart(t, other)
		reactAppend(t, l, "fine", 1)
		synctest.Wait()
		limited, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.ErrorIs(t, l.Stop(limited), context.DeadlineExceeded)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, "first", reactPosition(t, other, "stuck").Holder, "an hour is 120 leases")
		require.NotContains(t, second.take(), "stuck/0")
		require.Equal(t, reactDone("fine", 1), reactPosition(t, other, "fine"))
		require.NoError(t, other.Stop(context.Background()))
		close(returns)
		require.NoError(t, l.Stop(context.Background()))
		p := reactPosition(t, other, "stuck")
		require.Equal(t, []any{"", 0, 0, int64(0)}, []any{p.Holder, p.Retry, p.Lost, p.Next}, "it was interrupted")
	})
}

// Stop of a log that was not started, and of one that has nothing to do.
func TestReactionStopIdle(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := reactOpen(t, store, "host")
		fresh := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: new(reactCalls).handle(nil)})
		require.NoError(t, fresh.Stop(t.Context()))
		require.ErrorIs(t, fresh.Start(t.Context()), stream.ErrStopped)
		idle := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: new(reactCalls).handle(nil)})
		require.NoError(t, idle.Start(t.Context()))
		require.NoError(t, idle.Stop(t.Context()))
		require.NoError(t, idle.Stop(t.Context()))
		made, err := idle.Append(t.Context(), "s", stream.Any, reactNoted{})
		require.NoError(t, err, "appends need no loop")
		require.Len(t, made, 1)
	})
}

// Drain ends with its context, and the interrupted event is not counted.
func TestReactionDrainIsInterrupted(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{Handle: func(ctx context.Context, _ *stream.Delivery) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	reactAppend(t, l, "s", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	l.ReactHook(func(point, _ string) {
		if point == "claimed" {
			cancel(errReactEnded)
		}
	})
	n, err := l.Drain(ctx)
	require.ErrorIs(t, err, errReactEnded)
	require.Equal(t, 1, n)
	p := reactPosition(t, l, "s")
	require.Equal(t, []any{int64(0), 0, 0, ""}, []any{p.Next, p.Retry, p.Lost, p.Holder})
}
