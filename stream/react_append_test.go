package stream_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// reactAppender returns a log with the reaction "r" on streams that begin with "s". The handler can
// append.
func reactAppender(t testing.TB, store persist.Store, handle func(l *stream.Log) reactHandle) *stream.Log {
	t.Helper()
	l := reactLog(t, reactOpen(t, store, "host"), reactConfig())
	require.NoError(t, l.React(stream.Reaction{
		Name: "r", Source: regexp.MustCompile("^s"), Backoff: reactAtOnce, Handle: handle(l),
	}))
	return l
}

// A handler that fails after its first append, and again after its second, makes each append once.
// The repeated call gets the events of the first time. The append asserts no version: the stream has
// moved meanwhile, and the version that the handler asserts is wrong. Proves STREAM-5.
func TestReactionAppendsOnce(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		var first, second []stream.Event
		l := reactAppender(t, store, func(l *stream.Log) reactHandle {
			return func(ctx context.Context, d *stream.Delivery) error {
				made, err := l.Append(ctx, "echo", stream.Absent, reactEcho{"a", d.Attempt}, reactEcho{"b", d.Attempt})
				require.NoError(t, err)
				if d.Attempt == 1 {
					first = made
					return errReact
				}
				require.Len(t, made, 2)
				for i := range made {
					require.Equal(t, []any{first[i].ID, first[i].Stream, first[i].Version}, []any{made[i].ID, made[i].Stream, made[i].Version})
				}
				if d.Attempt == 2 { // another writer, between the two appends
					_, err = l.Append(context.Background(), "echo", stream.At(2), reactEcho{"other", 0})
					require.NoError(t, err)
				}
				made, err = l.Append(ctx, "echo", stream.At(77), reactEcho{"c", d.Attempt})
				require.NoError(t, err)
				if d.Attempt == 2 {
					second = made
					return errReact
				}
				require.Equal(t, second[0].ID, made[0].ID)
				require.EqualValues(t, 4, made[0].Version)
				_, err = l.Append(ctx, "echo", stream.Absent, reactEcho{"d", d.Attempt})
				return err
			}
		})
		_, err := l.Append(t.Context(), "echo", stream.Absent, reactEcho{"before", 0})
		require.NoError(t, err)
		reactAppend(t, l, "s", 1)
		require.Equal(t, 3, reactDrain(t, l))
		require.Equal(t, []string{"before/0", "a/1", "b/1", "other/0", "c/2", "d/3"}, reactEchoes(t, l, "echo"))
		require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
	})
}

// Each event has appends of its own, also within one batch, and each reaction. Proves STREAM-5.
func TestReactionAppendsPerEvent(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig())
		for _, name := range []string{"r", "q"} {
			require.NoError(t, l.React(stream.Reaction{Name: name, Source: regexp.MustCompile("^s"), Backoff: reactAtOnce,
				Handle: func(ctx context.Context, d *stream.Delivery) error {
					for i := range 2 {
						if _, err := l.Append(ctx, "echo-"+name, stream.Any, reactEcho{fmt.Sprint(d.Version), i}); err != nil {
							return err
						}
					}
					if d.Version == 2 && d.Attempt == 1 {
						return errReact
					}
					return nil
				}}))
		}
		reactAppend(t, l, "s", 4)
		reactDrain(t, l)
		for _, name := range []string{"r", "q"} {
			require.Equal(t, []string{"0/0", "0/1", "1/0", "1/1", "2/0", "2/1", "3/0", "3/1"}, reactEchoes(t, l, "echo-"+name))
		}
	})
}

// An append that was refused is not counted as one that was made: the handler goes on, fails and runs
// again, and each append that was made stays the only one. Proves STREAM-5.
func TestReactionAppendAfterRefusedAppend(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactAppender(t, store, func(l *stream.Log) reactHandle {
			return func(ctx context.Context, d *stream.Delivery) error {
				_, err := l.Append(ctx, "closed", stream.Any, reactEcho{"no", 0})
				require.ErrorAs(t, err, new(*stream.ClosedError), "in attempt %d", d.Attempt)
				made, err := l.Append(ctx, "echo", stream.Any, reactEcho{"yes", d.Attempt})
				require.NoError(t, err)
				require.Equal(t, "echo", made[0].Stream)
				if d.Attempt == 1 {
					return errReact
				}
				return nil
			}
		})
		_, err := l.Append(t.Context(), "closed", stream.Any, reactEcho{})
		require.NoError(t, err)
		require.NoError(t, l.CloseStream(t.Context(), "closed", stream.Any, nil))
		reactAppend(t, l, "s", 1)
		reactDrain(t, l)
		require.Equal(t, []string{"yes/1"}, reactEchoes(t, l, "echo"))
	})
}

// A handler that looks first and does not repeat what it finds done still makes its other appends.
// Proves STREAM-5.
func TestReactionAppendsDependOnState(t *testing.T) {
	fold := stream.Fold[int]{Apply: func(n *int, _ stream.Event) error { *n++; return nil }}
	ways := map[string]func(ctx context.Context, l *stream.Log, name string) error{
		"Append": func(ctx context.Context, l *stream.Log, name string) error {
			n, _, err := stream.Load(ctx, l, name, fold)
			if err != nil || n > 0 {
				return err
			}
			_, err = l.Append(ctx, name, stream.Any, reactEcho{"first", 1})
			return err
		},
		"Act": func(ctx context.Context, l *stream.Log, name string) error {
			_, err := stream.Act(ctx, l, name, stream.Any, fold, func(_ context.Context, n int) ([]any, error) {
				if n > 0 {
					return nil, nil
				}
				return []any{reactEcho{"first", 1}}, nil
			})
			return err
		},
	}
	for way, once := range ways {
		for _, target := range []string{"one", "two"} {
			t.Run(way+"/"+target, func(t *testing.T) {
				l := reactAppender(t, memory.New(), func(l *stream.Log) reactHandle {
					return func(ctx context.Context, d *stream.Delivery) error {
						if err := once(ctx, l, "one"); err != nil {
							return err
						}
						if d.Attempt == 1 {
							return errReact
						}
						made, err := l.Append(ctx, target, stream.Any, reactOther{})
						require.NoError(t, err)
						require.Equal(t, []string{target, "other"}, []string{made[0].Stream, made[0].Type})
						if d.Attempt == 2 {
							return errReact
						}
						return nil
					}
				})
				reactAppend(t, l, "s", 1)
				reactDrain(t, l)
				require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
				types := func(name string) (all []string) {
					for _, e := range reactRead(t, l, name) {
						all = append(all, e.Type)
					}
					return all
				}
				if target == "one" {
					require.Equal(t, []string{"echo", "other"}, types("one"))
					return
				}
				require.Equal(t, []string{"echo"}, types("one"))
				require.Equal(t, []string{"other"}, types("two"))
			})
		}
	}
}

// Appends of several goroutines of one handler are all made, and once each. Proves STREAM-5.
func TestReactionAppendsConcurrently(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		const appends = 8
		l := reactAppender(t, store, func(l *stream.Log) reactHandle {
			return func(ctx context.Context, d *stream.Delivery) error {
				var all sync.WaitGroup
				errs := make([]error, appends)
				for i := range appends {
					all.Go(func() { _, errs[i] = l.Append(ctx, fmt.Sprint("echo", i), stream.Any, reactEcho{"e", i}) })
				}
				all.Wait()
				if d.Attempt == 1 {
					return errors.Join(append(errs, errReact)...)
				}
				return errors.Join(errs...)
			}
		})
		reactAppend(t, l, "s", 1)
		reactDrain(t, l)
		require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
		for i := range appends {
			require.Equal(t, []string{fmt.Sprint("e/", i)}, reactEchoes(t, l, fmt.Sprint("echo", i)))
		}
	})
}

// An append stays the only one when the stream was blocked after it, and unblocked. Proves STREAM-5,
// LEASE-4.
func TestReactionAppendsOnceOverUnblock(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		blocks := true
		l := reactAppender(t, store, func(l *stream.Log) reactHandle {
			return func(ctx context.Context, d *stream.Delivery) error {
				if _, err := l.Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)}); err != nil {
					return err
				}
				if blocks {
					return pawl.NonRetryable(errReact)
				}
				return nil
			}
		})
		reactAppend(t, l, "s", 2)
		reactDrain(t, l)
		blocks = false
		n, err := l.Unblock(t.Context(), stream.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		reactDrain(t, l)
		require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
		require.Equal(t, []string{"e/0", "e/1"}, reactEchoes(t, l, "echo"))
	})
}

// Reset begins anew: the event that was blocked after its append makes the append again. Proves
// LEASE-6.
func TestReactionResetForgetsAppends(t *testing.T) {
	blocks := true
	l := reactAppender(t, memory.New(), func(l *stream.Log) reactHandle {
		return func(ctx context.Context, d *stream.Delivery) error {
			if _, err := l.Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)}); err != nil {
				return err
			}
			if d.Version == 1 && blocks {
				return pawl.NonRetryable(errReact)
			}
			return nil
		}
	})
	reactAppend(t, l, "s", 2)
	reactDrain(t, l)
	blocks = false
	n, err := l.Reset(t.Context(), stream.Filter{Blocked: true})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	reactDrain(t, l)
	require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	require.Equal(t, []string{"e/0", "e/1", "e/0", "e/1"}, reactEchoes(t, l, "echo"))
}

// If the answer of the append is lost, or its commit meets a conflict, the events are there once.
// Proves STREAM-5.
func TestReactionAppendInDoubt(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		tap := &stores.Tap{Store: stores.OpenFor(t, location)}
		l := reactAppender(t, tap, func(l *stream.Log) reactHandle {
			return func(ctx context.Context, d *stream.Delivery) error {
				_, err := l.Append(ctx, "echo", stream.Any, reactEcho{"e", int(d.Version)})
				return err
			}
		})
		other := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "other"), reactConfig())
		reactAppend(t, l, "s", 2)
		both := func(c persist.Commit) bool {
			return reactWrites(c, stream.DefaultName) && reactWrites(c, "stream.position")
		}
		var lost, raced atomic.Bool
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if both(c) && !raced.Swap(true) {
				_, err := other.Append(t.Context(), "echo", stream.Any, reactEcho{"other", 0})
				require.NoError(t, err)
			}
			return nil
		})
		tap.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
			if both(c) && err == nil && !lost.Swap(true) {
				return time.Time{}, persist.ErrUnavailable
			}
			return at, err
		})
		reactDrain(t, l)
		require.True(t, lost.Load() && raced.Load(), "the append is one commit with the note in the position")
		require.Equal(t, []string{"other/0", "e/0", "e/1"}, reactEchoes(t, l, "echo"))
		require.Equal(t, reactDone("s", 2), reactPosition(t, l, "s"))
	})
}

// An append of a handler that reaches the store after its lease has run out is refused, while another
// process has handled the event and appended. The events are there once. Proves STREAM-5, LEASE-5.
func TestReactionLateAppend(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		var late error
		var first, second *stream.Log
		appends := func(l **stream.Log, err *error) stream.Reaction {
			return stream.Reaction{Source: regexp.MustCompile("^s$"), Handle: func(ctx context.Context, d *stream.Delivery) (failed error) {
				// The end of its context does not stop it: the store has to refuse.
				_, failed = (*l).Append(context.WithoutCancel(ctx), "echo", stream.Any, reactEcho{"e", int(d.Version)})
				if err != nil {
					*err = failed
				}
				return failed
			}}
		}
		ready := func(before, after *stream.Log) { first, second = before, after }
		is := func(c persist.Commit) bool {
			return reactWrites(c, "stream.position") && reactWrites(c, stream.DefaultName) && !reactReleases(c)
		}
		reactOutliveWith(t, location, is, appends(&first, &late), appends(&second, nil), ready)
		require.ErrorIs(t, late, pawl.ErrLeaseLost)
		require.Equal(t, []string{"e/0", "e/1"}, reactEchoes(t, second, "echo"))
	})
}

// An append with a context that is not the handler's is an append like any other: it is made again.
// So is one to another log. Proves STREAM-5.
func TestReactionAppendOutsideHandler(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host")
	c := reactConfig()
	c.Name = "another"
	another := reactLog(t, rt, c)
	l := reactLog(t, rt, reactConfig())
	require.NoError(t, l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Backoff: reactAtOnce, Handle: func(ctx context.Context, d *stream.Delivery) error {
		_, err := l.Append(context.Background(), "echo", stream.Any, reactEcho{"e", d.Attempt})
		require.NoError(t, err)
		_, err = another.Append(ctx, "echo", stream.Any, reactEcho{"e", d.Attempt})
		require.NoError(t, err)
		_, err = another.Append(ctx, "echo", stream.At(100), reactEcho{"e", d.Attempt})
		require.ErrorAs(t, err, new(*stream.ConcurrencyError))
		if d.Attempt == 1 {
			return errReact
		}
		return nil
	}}))
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	require.Equal(t, []string{"e/1", "e/2"}, reactEchoes(t, l, "echo"))
	require.Equal(t, []string{"e/1", "e/2"}, reactEchoes(t, another, "echo"))
}

// What a handler leaves behind without its lease appends like any other caller, also after the handler
// has returned. Proves STREAM-5.
func TestReactionLeavesWorkBehind(t *testing.T) {
	var behind context.Context
	l := reactAppender(t, memory.New(), func(l *stream.Log) reactHandle {
		return func(ctx context.Context, d *stream.Delivery) error {
			_, err := l.Append(context.WithoutCancel(pawl.Detach(ctx)), "echo", stream.Any, reactEcho{"in", int(d.Version)})
			require.NoError(t, err)
			behind = context.WithoutCancel(pawl.WithoutLeases(ctx))
			_, err = l.Append(behind, "echo", stream.Any, reactEcho{"behind", d.Attempt})
			require.NoError(t, err)
			if d.Attempt == 1 {
				return errReact
			}
			return nil
		}
	})
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	_, err := l.Append(behind, "echo", stream.Any, reactEcho{"behind", 3})
	require.NoError(t, err)
	require.Equal(t, []string{"in/0", "behind/1", "behind/2", "behind/3"}, reactEchoes(t, l, "echo"))
}

// A handler that appends to its own stream is called for its own events, if it wants them, once each.
// Proves STREAM-5, LEASE-7.
func TestReactionAppendsToItsStream(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		l := reactLog(t, reactOpen(t, store, "host"), reactConfig())
		calls := new(reactCalls)
		require.NoError(t, l.React(stream.Reaction{Name: "r", Handle: calls.handle(func(ctx context.Context, d *stream.Delivery) error {
			if d.Version < 5 {
				_, err := l.Append(ctx, d.Stream, stream.Absent, reactNoted{})
				return err
			}
			return nil
		})}))
		reactAppend(t, l, "s", 1)
		reactDrain(t, l)
		require.Equal(t, []string{"s/0", "s/1", "s/2", "s/3", "s/4", "s/5"}, calls.take())
		require.Len(t, reactRead(t, l, "s"), 6)
		require.Equal(t, reactDone("s", 6), reactPosition(t, l, "s"))
		require.True(t, slices.IsSortedFunc(reactRead(t, l, "s"), func(a, b stream.Event) int { return int(a.Version - b.Version) }))
	})
}

// The notes of appends do not grow over a whole batch: many appends end a claim. Proves LEASE-1.
func TestReactionManyAppends(t *testing.T) {
	rt := reactOpen(t, memory.New(), "host", func(c *pawl.Config) { c.MaxDoc = 1 << 14 })
	l := reactLog(t, rt, reactConfig())
	require.NoError(t, l.React(stream.Reaction{
		Name: "r", Types: []string{"noted"}, MaxRetries: stream.NoRetries,
		Handle: func(ctx context.Context, d *stream.Delivery) error {
			for i := range 20 {
				if _, err := l.Append(ctx, fmt.Sprint("member-", i), stream.Any, reactEcho{"x", int(d.Version)}); err != nil {
					return err
				}
			}
			return nil
		},
	}))
	reactAppend(t, l, "s", 20) // with 400 notes of more than 80 bytes
	reactDrain(t, l)
	require.Equal(t, reactDone("s", 20), reactPosition(t, l, "s"))
	require.Len(t, reactRead(t, l, "member-7"), 20)
}

// The handler of one event can make MaxAppends appends, also if they fail. Proves LEASE-1.
func TestReactionMaxAppends(t *testing.T) {
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig())
	require.NoError(t, l.React(stream.Reaction{
		Name: "r", Types: []string{"noted"}, MaxRetries: stream.NoRetries,
		Handle: func(ctx context.Context, d *stream.Delivery) error {
			for range stream.MaxAppends {
				_, err := l.Append(ctx, "closed", stream.Any, reactEcho{"x", 1})
				require.ErrorAs(t, err, new(*stream.ClosedError))
			}
			_, err := l.Append(ctx, "open", stream.Any, reactEcho{"x", 1})
			return err
		},
	}))
	_, err := l.Append(t.Context(), "closed", stream.Any, reactEcho{"x", 0})
	require.NoError(t, err)
	require.NoError(t, l.CloseStream(t.Context(), "closed", stream.Any, nil))
	reactAppend(t, l, "s", 1)
	reactDrain(t, l)
	p := reactPosition(t, l, "s")
	require.True(t, p.Blocked)
	require.Contains(t, p.Reason, "appends: limit 1000, got 1001")
}
