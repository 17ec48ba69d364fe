package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// reactTry is one call of a handler.
type reactTry struct {
	At      time.Time
	Attempt int
	Version int64
	Key     string
}

// A failed event is handled again, with a higher attempt and the same key, and not before the due
// time that was stored. The pause is below a bound that doubles. Proves LEASE-3.
func TestReactionBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := make(chan reactTry, 10)
		l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
			Backoff: pawl.Retry{First: time.Minute, Max: 4 * time.Minute}, MaxRetries: 5,
			Handle: func(_ context.Context, d *stream.Delivery) error {
				tries <- reactTry{time.Now(), d.Attempt, d.Version, d.Key()}
				if d.Version == 1 && d.Attempt < 6 {
					return fmt.Errorf("failure %d", d.Attempt)
				}
				return nil
			},
		})
		made := reactAppend(t, l, "s", 3)
		reactStart(t, l)
		synctest.Wait()
		require.EqualValues(t, 0, (<-tries).Version)
		for attempt := range 6 {
			try := <-tries
			require.Equal(t, "r/"+made[1].ID, try.Key)
			require.Equal(t, attempt+1, try.Attempt)
			require.EqualValues(t, 1, try.Version)
			synctest.Wait()
			if attempt == 5 {
				break
			}
			p := reactPosition(t, l, "s")
			require.EqualValues(t, 1, p.Next)
			require.Equal(t, attempt+1, p.Retry)
			require.Equal(t, fmt.Sprint("failure ", attempt+1), p.Reason)
			require.False(t, p.Blocked)
			require.Empty(t, p.Holder)
			wait := time.Until(p.Due)
			require.LessOrEqual(t, wait, min(time.Minute<<attempt, 4*time.Minute))
			time.Sleep(wait - time.Microsecond)
			synctest.Wait()
			require.Empty(t, tries, "before its due time")
			time.Sleep(time.Millisecond)
			synctest.Wait()
			require.NotEmpty(t, tries, "at its due time, long before the poll")
		}
		require.EqualValues(t, 2, (<-tries).Version)
		require.Equal(t, reactDone("s", 3), reactPosition(t, l, "s"))
	})
}

// The due time and the count are stored: another process handles the event no earlier, and goes on
// counting. Proves LEASE-3.
func TestReactionBackoffInAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		tries := make(chan reactTry, 10)
		log := func(holder string) *stream.Log {
			return reactLog(t, reactOpen(t, store, holder), reactConfig(), stream.Reaction{
				Backoff: pawl.Retry{First: time.Hour, Max: time.Hour}, MaxRetries: 1,
				Handle: func(_ context.Context, d *stream.Delivery) error {
					tries <- reactTry{Attempt: d.Attempt, Key: d.Key()}
					return errReact
				},
			})
		}
		first, second := log("first"), log("second")
		reactAppend(t, first, "s", 1)
		require.Equal(t, 1, reactDrain(t, first))
		one := <-tries
		due := reactPosition(t, second, "s").Due
		time.Sleep(time.Until(due) - time.Microsecond)
		require.Equal(t, 0, reactDrain(t, second))
		require.Equal(t, 0, reactDrain(t, first))
		time.Sleep(time.Microsecond)
		require.Equal(t, 1, reactDrain(t, second))
		two := <-tries
		require.Equal(t, []int{1, 2}, []int{one.Attempt, two.Attempt})
		require.Equal(t, one.Key, two.Key)
		require.True(t, reactPosition(t, first, "s").Blocked, "the budget is that of both")
	})
}

// A process that has just started handles an event that another one left for later, when it is due. It
// does not wait for its poll. Proves LEASE-3, LEASE-10.
func TestReactionDueOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		handled := make(chan time.Time, 10)
		log := func(holder string) *stream.Log {
			return reactLog(t, reactOpen(t, store, holder), reactConfig(), stream.Reaction{Handle: func(context.Context, *stream.Delivery) error {
				handled <- time.Now()
				if len(handled) == 1 {
					return stream.Defer(90 * time.Minute) // the poll comes after an hour, and after two
				}
				return nil
			}})
		}
		first := log("first")
		reactAppend(t, first, "s", 1)
		require.Equal(t, 1, reactDrain(t, first))
		due := reactPosition(t, first, "s").Due
		reactStart(t, log("second"))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Len(t, handled, 2)
		<-handled
		require.WithinRange(t, <-handled, due, due.Add(time.Second))
	})
}

// The budget counts the attempts after the first one. A stream that is blocked is not claimed, and
// holds up no other stream. Proves LEASE-4.
func TestReactionBudget(t *testing.T) {
	for name, c := range map[string]struct {
		reaction stream.Reaction
		err      error
		attempts int
	}{
		"default":                    {stream.Reaction{}, errReact, 1 + stream.DefaultMaxRetries},
		"three retries":              {stream.Reaction{MaxRetries: 3}, errReact, 4},
		"one retry":                  {stream.Reaction{MaxRetries: 1}, errReact, 2},
		"no retries":                 {stream.Reaction{MaxRetries: stream.NoRetries}, errReact, 1},
		"non-retryable":              {stream.Reaction{MaxRetries: 3}, pawl.NonRetryable(errReact), 1},
		"wrapped non-retryable":      {stream.Reaction{MaxRetries: 3}, fmt.Errorf("here: %w", pawl.NonRetryable(errReact)), 1},
		"non-retryable, for ever":    {stream.Reaction{RetryForever: true}, pawl.NonRetryable(errReact), 1},
		"a retryable error of pawl":  {stream.Reaction{MaxRetries: 2}, pawl.ErrConflict, 3},
		"no retries, but for ever":   {stream.Reaction{MaxRetries: stream.NoRetries, RetryForever: true}, errReact, 0},
		"for ever, whatever retries": {stream.Reaction{MaxRetries: 2, RetryForever: true}, errReact, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reactEachIf(t, name == "three retries", func(t *testing.T, store persist.Store) {
				const forever = 30
				rt := reactOpen(t, store, "host")
				var attempts []int
				fixed := false
				r := c.reaction
				r.Backoff, r.Name = reactAtOnce, "r"
				r.Handle = func(_ context.Context, d *stream.Delivery) error {
					if d.Stream != "bad" || d.Version != 1 || fixed {
						return nil
					}
					attempts = append(attempts, d.Attempt)
					if c.attempts == 0 && d.Attempt > forever {
						return nil
					}
					return c.err
				}
				cfg := reactConfig()
				cfg.Concurrency = 1
				l := reactLog(t, rt, cfg, r)
				reactAppend(t, l, "bad", 3)
				reactDrain(t, l)
				reactAppend(t, l, "good", 3)
				reactDrain(t, l)
				require.Equal(t, reactDone("good", 3), reactPosition(t, l, "good"))
				if c.attempts == 0 {
					require.Len(t, attempts, forever+1)
					require.Equal(t, reactDone("bad", 3), reactPosition(t, l, "bad"))
					return
				}
				for i, a := range attempts {
					require.Equal(t, i+1, a)
				}
				require.Len(t, attempts, c.attempts)
				p := reactPosition(t, l, "bad")
				require.Equal(t, stream.Position{
					Reaction: "r", Stream: "bad", Next: 1, Pending: true, Retry: c.attempts, Blocked: true, Reason: c.err.Error(),
				}, p)
				reactAppend(t, l, "bad", 1)
				require.Equal(t, 0, reactDrain(t, l), "it is not claimed")

				fixed = true
				n, err := l.Unblock(t.Context(), stream.Filter{})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				reactDrain(t, l)
				require.Equal(t, reactDone("bad", 4), reactPosition(t, l, "bad"))
			})
		})
	}
}

// An event that succeeded does not count for the next one, and failures of one event add up over
// claims. Proves LEASE-3.
func TestReactionBudgetPerEvent(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
		Backoff: reactAtOnce, MaxRetries: 2,
		Handle: func(_ context.Context, d *stream.Delivery) error {
			if d.Attempt <= 2 {
				return errReact
			}
			return nil
		},
	})
	reactAppend(t, l, "s", 5)
	reactDrain(t, l)
	require.Equal(t, reactDone("s", 5), reactPosition(t, l, "s"))
}

// An event that does not decode blocks at once, with the reason, and the handler is not called. One
// of a type that the reaction does not want, or that is not registered, does not. Proves LEASE-4.
func TestReactionUndecodableEvent(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig(),
			stream.Reaction{Name: "all", RetryForever: true, Handle: calls.handle(nil)},
			stream.Reaction{Name: "other", Types: []string{"other"}, Handle: new(reactCalls).handle(nil)})
		reactAppend(t, l, "s", 1)
		_, err := l.Append(t.Context(), "s", stream.Any,
			stream.Raw{Type: "unknown", Data: json.RawMessage(`"x"`)},
			stream.Raw{Type: "noted", Data: json.RawMessage(`{"n":"no number"}`)},
			reactOther{},
		)
		require.NoError(t, err)
		reactDrain(t, l)
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		p := reactPositionOf(t, l, "all", "s")
		require.True(t, p.Blocked)
		require.EqualValues(t, 2, p.Next)
		require.Contains(t, p.Reason, `event 2 of "s", type noted`)
		require.Contains(t, p.Reason, "cannot unmarshal string")
		require.EqualValues(t, 4, reactPositionOf(t, l, "other", "s").Next)
	})
}

// A panic while an event is decoded blocks at once too. Proves LEASE-4.
func TestReactionPanickingDecoder(t *testing.T) {
	c := reactConfig()
	c.Events = []stream.Type{stream.Of[reactBomb]("bomb")}
	l := reactLog(t, reactOpen(t, memory.New(), "host"), c, stream.Reaction{RetryForever: true, Handle: new(reactCalls).handle(nil)})
	_, err := l.Append(t.Context(), "s", stream.Any, stream.Raw{Type: "bomb", Data: json.RawMessage(`{}`)})
	require.NoError(t, err)
	require.Equal(t, 1, reactDrain(t, l))
	p := reactPosition(t, l, "s")
	require.True(t, p.Blocked)
	require.Contains(t, p.Reason, "UnmarshalJSON panicked: boom")
}

type reactBomb struct{}

func (*reactBomb) UnmarshalJSON([]byte) error { panic("boom") }

// Every error of an OnCommit function is a failure of the event, also one that looks like an error of the
// claim. Proves LEASE-3.
func TestReactionFailsInOnCommit(t *testing.T) {
	for _, e := range []error{errReact, pawl.ErrClosed, &pawl.LeaseLostError{}, &pawl.CanceledError{Phase: pawl.PhaseCommitting}} {
		calls := new(reactCalls)
		l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
			Backoff: pawl.Retry{First: time.Hour, Max: time.Hour},
			Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
				d.OnCommit(func(context.Context, *pawl.Tx) error { return fmt.Errorf("elsewhere: %w", e) })
				return nil
			}),
		})
		reactAppend(t, l, "s", 1)
		require.Equal(t, 1, reactDrain(t, l), "%T", e)
		p := reactPosition(t, l, "s")
		require.Equal(t, 1, p.Retry, "%T", e)
		require.Contains(t, p.Reason, "elsewhere: ")
		require.Equal(t, 1, calls.count())
	}
}

// Of events whose commit the store refuses, as one that is too large, half are committed, and so on.
// Proves LEASE-5.
func TestReactionCommitsHalf(t *testing.T) {
	tap := &stores.Tap{Store: memory.New()}
	rt := reactOpen(t, tap, "host")
	l := reactLog(t, rt, reactConfig(), stream.Reaction{
		MaxRetries: stream.NoRetries,
		Handle: func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts(d.ID))
			return nil
		},
	})
	made := reactAppend(t, l, "s", 64)
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if len(c.Writes) > 20 {
			return fmt.Errorf("%w: too many records", persist.ErrNotApplied)
		}
		return nil
	})
	require.Less(t, reactDrain(t, l), 10)
	require.Equal(t, reactDone("s", 64), reactPosition(t, l, "s"))
	for _, e := range made {
		require.Equal(t, 1, reactCount(t, rt, e.ID))
	}
}

// A stream whose claim could not be recorded is not claimed again at once. Proves LEASE-9.
func TestReactionUnrecordedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap, tries, notes := &stores.Tap{Store: memory.New()}, make(chan time.Time, 100), new(reactNotes)
		rt := reactOpen(t, tap, "host", func(c *pawl.Config) { c.Observer = notes })
		l := reactLog(t, rt, reactConfig(), stream.Reaction{
			Handle: func(context.Context, *stream.Delivery) error { tries <- time.Now(); return nil },
		})
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if reactAck(c) {
				return fmt.Errorf("%w: refused", persist.ErrNotApplied)
			}
			return nil
		})
		reactAppend(t, l, "s", 1)
		reactStart(t, l)
		last := <-tries
		for range 3 {
			now := <-tries
			require.GreaterOrEqual(t, now.Sub(last), time.Second)
			last = now
		}
		// The lease is given back before the observer is told, so the next claim may come first.
		require.Contains(t, strings.Join(notes.take(), "\n"), "lost stream.position/s/r 0: ")
		tap.OnCommit(nil)
	})
}

// An entry that is no event of this package, because another program wrote it, blocks too. It does
// not make the process look for it again and again. Proves LEASE-4.
func TestReactionUnreadableEntry(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := reactOpen(t, store, "host")
		calls := new(reactCalls)
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: calls.handle(nil)},
			stream.Reaction{Name: "typed", Types: []string{"noted"}, Handle: new(reactCalls).handle(nil)})
		reactAppend(t, l, "s", 2)
		foreign := pawl.Kind[pawl.Doc]{Name: stream.DefaultName, Log: true}
		scope := foreign.Scope(reactOpen(t, store, "foreign"), "s")
		_, err := scope.AtomicState(t.Context(), func(ctx context.Context, head *pawl.Doc) error {
			(*head)["next"] = 3
			return scope.AppendLog(ctx, 2, json.RawMessage(`"no event"`))
		})
		require.NoError(t, err)
		reactAppend(t, l, "s", 1)
		reactDrain(t, l)
		require.Equal(t, []string{"s/0", "s/1"}, calls.take())
		p := reactPosition(t, l, "s")
		require.True(t, p.Blocked)
		require.EqualValues(t, 2, p.Next)
		require.Contains(t, p.Reason, `event 2 of "s"`)
		require.EqualValues(t, 4, reactPositionOf(t, l, "typed", "s").Next, "an event without a type is not wanted")
	})
}

// An entry that is no event blocks a reaction also where it is the last one, and hides none before it.
// Proves LEASE-4, STREAM-6.
func TestReactionUnreadableLastEntry(t *testing.T) {
	store := memory.New()
	calls := new(reactCalls)
	l := reactLog(t, reactOpen(t, store, "host"), reactConfig(), stream.Reaction{Handle: calls.handle(nil)})
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	reactAppend(t, l, "s", 1)
	foreign := pawl.Kind[pawl.Doc]{Name: stream.DefaultName, Log: true}
	scope := foreign.Scope(reactOpen(t, store, "foreign"), "s")
	_, err := scope.AtomicState(t.Context(), func(ctx context.Context, head *pawl.Doc) error {
		(*head)["next"] = 3
		return scope.AppendLog(ctx, 2, json.RawMessage(`"no event"`))
	})
	require.NoError(t, err)
	reactDrain(t, l)
	require.Equal(t, []string{"s/0", "s/1"}, calls.take())
	p := reactPosition(t, l, "s")
	require.True(t, p.Blocked)
	require.EqualValues(t, 2, p.Next)
}

// ErrStopped of a handler that Stop did not interrupt, such as that of another log, is a failure.
// Proves LEASE-3.
func TestReactionReturnsErrStopped(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{Backoff: reactAtOnce, MaxRetries: 1,
		Handle: func(context.Context, *stream.Delivery) error {
			return fmt.Errorf("the other log: %w", stream.ErrStopped)
		}})
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	p := reactPosition(t, l, "s")
	require.True(t, p.Blocked)
	require.Equal(t, 2, p.Retry)
}

// A panic and runtime.Goexit in a handler are failures: they are counted, and the process goes on.
// Proves LEASE-3, LEASE-4.
func TestReactionHandlerPanics(t *testing.T) {
	for name, c := range map[string]struct {
		fails  func() error
		reason string
	}{
		"panic":  {func() error { panic("no") }, "the function panicked: no"},
		"Goexit": {func() error { runtime.Goexit(); return nil }, "the function called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
				Backoff: reactAtOnce, MaxRetries: 1,
				Handle: func(_ context.Context, d *stream.Delivery) error {
					if d.Version == 1 {
						return c.fails()
					}
					return nil
				},
			})
			reactAppend(t, l, "s", 3)
			require.Equal(t, 2, reactDrain(t, l))
			require.Equal(t, stream.Position{
				Reaction: "r", Stream: "s", Next: 1, Pending: true, Retry: 2, Blocked: true, Reason: c.reason,
			}, reactPosition(t, l, "s"))
		})
	}
}

// A reason that a document cannot hold is stored all the same. Proves LEASE-4.
func TestReactionReasonIsStorable(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig(), stream.Reaction{
			MaxRetries: stream.NoRetries,
			Handle: func(context.Context, *stream.Delivery) error {
				return errors.New("caf\xe9\x00" + string(make([]byte, 100_000)))
			},
		})
		reactAppend(t, l, "s", 1)
		reactDrain(t, l)
		p := reactPosition(t, l, "s")
		require.True(t, p.Blocked)
		require.Contains(t, p.Reason, "caf\ufffd\ufffd")
	})
}

// Defer asks for the same event after a time, by the store's clock, and is not counted: neither as a
// failure, nor as a lost lease. Proves LEASE-3.
func TestReactionDefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []reactTry
		l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
			MaxRetries: stream.NoRetries, MaxLost: 1,
			Handle: func(_ context.Context, d *stream.Delivery) error {
				tries = append(tries, reactTry{At: time.Now(), Attempt: d.Attempt, Version: d.Version})
				if d.Version == 1 && len(tries) < 12 {
					return fmt.Errorf("not yet: %w", stream.Defer(time.Hour))
				}
				return nil
			},
		})
		began := time.Now()
		reactAppend(t, l, "s", 3)
		require.Equal(t, 1, reactDrain(t, l))
		p := reactPosition(t, l, "s")
		require.WithinDuration(t, began.Add(time.Hour), p.Due, time.Millisecond)
		require.Equal(t, []any{int64(1), 0, 0, false, "not yet: stream: deferred for 1h0m0s"}, []any{p.Next, p.Retry, p.Lost, p.Blocked, p.Reason})
		reactStart(t, l)
		time.Sleep(10*time.Hour + time.Minute)
		synctest.Wait()
		require.Equal(t, reactDone("s", 3), reactPosition(t, l, "s"))
		require.Len(t, tries, 13)
		for i, try := range tries {
			require.Equal(t, 1, try.Attempt)
			if i > 0 && i < 12 {
				require.WithinDuration(t, began.Add(time.Duration(i-1)*time.Hour), try.At, time.Second)
			}
		}
	})
}

// A negative time of Defer is none.
func TestReactionDeferAtOnce(t *testing.T) {
	calls := new(reactCalls)
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
		Handle: calls.handle(func(_ context.Context, d *stream.Delivery) error {
			if calls.count() < 3 {
				return stream.Defer(-time.Hour)
			}
			return nil
		}),
	})
	reactAppend(t, l, "s", 1)
	require.Equal(t, 3, reactDrain(t, l))
	require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
}

// Timeout ends the context of a handler, which counts as a failure if the handler fails because of it.
// Proves LEASE-3.
func TestReactionTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{
			Timeout: time.Minute, MaxRetries: stream.NoRetries,
			Handle: func(ctx context.Context, d *stream.Delivery) error {
				if d.Version == 0 {
					time.Sleep(59 * time.Second)
					return ctx.Err()
				}
				began := time.Now()
				<-ctx.Done()
				require.Equal(t, time.Minute, time.Since(began), "each event has the whole time")
				return context.Cause(ctx)
			},
		})
		reactAppend(t, l, "s", 2)
		_, err := l.Drain(context.Background())
		require.NoError(t, err)
		p := reactPosition(t, l, "s")
		require.Equal(t, []any{int64(1), true, context.DeadlineExceeded.Error()}, []any{p.Next, p.Blocked, p.Reason})
	})
}

// The contexts of a handler and of its OnCommit have the correlation and the actor of the event, and the
// ID of the event as the causation. Proves STREAM-5.
func TestReactionMeta(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig())
	require.NoError(t, l.React(stream.Reaction{Name: "r", Types: []string{"noted"}, Handle: func(ctx context.Context, d *stream.Delivery) error {
		d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
			_, err := l.In(tx).Append(ctx, "echo", stream.Any, reactEcho{})
			return err
		})
		_, err := l.Append(ctx, "echo", stream.Any, reactEcho{})
		return err
	}}))
	made, err := l.Append(stream.WithMeta(t.Context(), stream.Meta{Correlation: "c", Causation: "x", Actor: "ada"}), "s", stream.Any, reactNoted{})
	require.NoError(t, err)
	reactDrain(t, l)
	echoes := reactRead(t, l, "echo")
	require.Len(t, echoes, 2)
	for _, e := range echoes {
		require.Equal(t, stream.Meta{Correlation: "c", Causation: made[0].ID, Actor: "ada"}, e.Meta)
	}
}

// React refuses a reaction that cannot work.
func TestReactionArguments(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig())
	fine := new(reactCalls).handle(nil)
	long := string(make([]byte, stream.MaxReaction+1))
	for name, r := range map[string]stream.Reaction{
		"no name":           {Handle: fine},
		"slash":             {Name: "a/b", Handle: fine},
		"control character": {Name: "a\nb", Handle: fine},
		"long name":         {Name: long, Handle: fine},
		"no handler":        {Name: "a"},
		"retries":           {Name: "a", Handle: fine, MaxRetries: -2},
		"lost":              {Name: "a", Handle: fine, MaxLost: -1},
		"timeout":           {Name: "a", Handle: fine, Timeout: -1},
		"batch":             {Name: "a", Handle: fine, Batch: -1},
		"concurrency":       {Name: "a", Handle: fine, Concurrency: -1},
		"first backoff":     {Name: "a", Handle: fine, Backoff: pawl.Retry{First: -1}},
		"longest backoff":   {Name: "a", Handle: fine, Backoff: pawl.Retry{Max: -1}},
	} {
		require.ErrorAs(t, l.React(r), new(*pawl.ArgumentError), name)
	}
	require.NoError(t, l.React(stream.Reaction{Name: "a", Handle: fine}))
	require.ErrorAs(t, l.React(stream.Reaction{Name: "a", Handle: fine}), new(*pawl.ArgumentError), "twice")
	require.NoError(t, l.Start(t.Context()))
	require.NoError(t, l.Start(t.Context()), "twice")
	require.ErrorAs(t, l.React(stream.Reaction{Name: "b", Handle: fine}), new(*pawl.ArgumentError), "after Start")
	require.NoError(t, l.Stop(t.Context()))
	require.NoError(t, l.Stop(t.Context()), "twice")
	require.ErrorIs(t, l.Start(t.Context()), stream.ErrStopped)
	_, err := l.Drain(t.Context())
	require.ErrorIs(t, err, stream.ErrStopped)
}
