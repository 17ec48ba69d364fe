package pawl_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Observers passes each event to every observer, in order, and skips nil ones.
func TestObservers(t *testing.T) {
	assert.Nil(t, pawl.Observers())
	assert.Nil(t, pawl.Observers(nil, nil))
	var told []string
	tell := func(name string) pawl.Observer {
		return pawl.ObserverFunc(func(_ context.Context, e pawl.Event) { told = append(told, name+" "+e.Type.String()) })
	}
	list := []pawl.Observer{nil, tell("a"), nil, tell("b")}
	both := pawl.Observers(list...)
	assert.Nil(t, list[0], "Observers does not change its argument")
	list[1] = nil
	both.Observe(t.Context(), pawl.Event{Type: pawl.EventStarted})
	assert.Equal(t, []string{"a started", "b started"}, told)

	told = nil
	pawl.Observers(nil, tell("c")).Observe(t.Context(), pawl.Event{Type: pawl.EventQueued})
	assert.Equal(t, []string{"c queued"}, told)

	rt := openRuntime(t, pawl.Config{Observer: pawl.Observers(nil)})
	_, err := pawl.Memory[board](rt, "a").IncState(t.Context(), "count", 1)
	require.NoError(t, err)
}

// LogObserver logs five types of event at warn and the others at debug, under a message that names
// the subject.
func TestLogObserverLevels(t *testing.T) {
	warn := []pawl.EventType{pawl.EventTimedOut, pawl.EventPanicked, pawl.EventStuck, pawl.EventAbandoned, pawl.EventLeaseLost}
	for typ := pawl.EventQueued; typ < pawl.EventNoted; typ++ {
		require.NotEqual(t, "unknown", typ.String(), typ)
		var log syncBuffer
		o := pawl.LogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		o.Observe(t.Context(), pawl.Event{Type: typ, Verb: "Inc", Err: pawl.ErrUnavailable})
		level := "level=DEBUG"
		for _, w := range warn {
			if typ == w {
				level = "level=WARN"
			}
		}
		assert.Contains(t, log.String(), level, typ)
		message := `"pawl: mutation ` + typ.String() + `"`
		if typ > pawl.EventAbandoned {
			message = `"pawl: ` + typ.String() + `"`
		}
		assert.Contains(t, log.String(), message)
		assert.NotContains(t, log.String(), "path=", "the event has no path")
	}
}

// A layer above passes its own events to the observer of the runtime.
func TestEventsOfLayers(t *testing.T) {
	var log syncBuffer
	rt := openRuntime(t, pawl.Config{Observer: pawl.LogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))})
	rt.Observe(t.Context(), pawl.Event{Type: pawl.EventNoted, Path: "stream", Verb: "claimed", Key: pawl.Key{Kind: "k", ID: "a"}})
	assert.Contains(t, log.String(), `level=DEBUG msg="pawl: stream claimed" scope=k/a path=stream verb=claimed`)
	assert.Equal(t, "unknown", (pawl.EventNoted + 1).String())
	openRuntime(t, pawl.Config{}).Observe(t.Context(), pawl.Event{Type: pawl.EventNoted}) // without an observer
}

// An observer that panics at every event harms no mutation, transaction or lease. Each panic is
// logged once, with its stack. Proves CAS-12.
func TestObserverThatPanics(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"in memory": pawl.Memory[counts], "persisted": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			var told atomic.Int64
			observer := pawl.ObserverFunc(func(context.Context, pawl.Event) {
				told.Add(1)
				panic("a bug in the observer")
			})
			bubble(t, pawl.Config{Store: memory.New(), Observer: observer, Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, rt *pawl.Runtime) {
				s := scope(rt, "a")
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() { _, err := s.IncState(t.Context(), "n", 1); assert.NoError(t, err) })
					all.Go(func() {
						_, err := s.AtomicState(t.Context(), func(_ context.Context, c *counts) error { c.N++; return nil })
						assert.NoError(t, err)
					})
					all.Go(func() {
						_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error { return errMutator })
						assert.ErrorIs(t, err, errMutator)
					})
					all.Go(func() {
						assert.Panics(t, func() {
							_, _ = s.AtomicState(t.Context(), func(context.Context, *counts) error { panic("mine") })
						})
					})
				}
				all.Wait()
				release, result := block(s)
				require.Error(t, <-result, "the budget has ended")
				release()
				synctest.Wait()
				snap, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				assert.GreaterOrEqual(t, snap.ReadOnly().N, 20)
				stored := pawl.Session[counts](rt, "b")
				require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
					_, err := stored.In(tx).IncState(ctx, "n", 1)
					return err
				}))
				require.NoError(t, stored.Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
					_, err := stored.IncState(ctx, "n", 1)
					return err
				}))
			})
			assert.Positive(t, told.Load())
			assert.EqualValues(t, told.Load(), strings.Count(log.String(), "observer panicked"), "each panic is logged once")
			assert.Contains(t, log.String(), "TestObserverThatPanics", "the stack")
		})
	}
}

// A stuck function is logged once: by LogObserver if that is the observer, by the runtime if there
// is no observer. Proves CAS-12.
func TestStuckFunctionIsLoggedOnce(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"in memory": pawl.Memory[counts], "persisted": pawl.Session[counts]} {
		for _, observed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var log syncBuffer
				logger := slog.New(slog.NewTextHandler(&log, nil))
				config := pawl.Config{Store: memory.New(), Logger: logger}
				if observed {
					config.Observer = pawl.LogObserver(logger)
				}
				bubble(t, config, func(t *testing.T, rt *pawl.Runtime) {
					s := scope(rt, "a")
					release, result := block(s)
					require.Error(t, <-result, "the budget has ended")
					release()
					synctest.Wait()
				})
				assert.Equal(t, 1, strings.Count(log.String(), "stuck"), log.String())
				assert.Contains(t, log.String(), "verb=Atomic took=30")
			})
		}
	}
}

// An event that ends a mutation reports how long the mutation waited for its turn, on both paths.
func TestFinalEventsReportTheWait(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"lock": pawl.Memory[counts], "cas": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			var events eventLog
			store := newTap()
			store.OnCommit(func(context.Context, persist.Commit) error { time.Sleep(time.Second); return nil })
			bubble(t, pawl.Config{Store: store, Observer: &events}, func(t *testing.T, rt *pawl.Runtime) {
				s, ctx := scope(rt, "a"), t.Context()
				go func() { // delays the others by a second, in the function or in its commit
					_, err := s.AtomicState(ctx, func(_ context.Context, c *counts) error {
						if name == "lock" {
							time.Sleep(time.Second)
						}
						c.N = 7
						return nil
					})
					assert.NoError(t, err)
				}()
				synctest.Wait()
				go func() { _, err := s.PushState(ctx, "done", "x"); assert.NoError(t, err) }()
				go func() { _, err := s.IncState(ctx, "n", 0); assert.NoError(t, err) }()
				go func() {
					_, err := s.AtomicState(ctx, func(context.Context, *counts) error { return errMutator })
					assert.True(t, errors.Is(err, errMutator))
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
			})
			for _, end := range []struct {
				typ  pawl.EventType
				verb string
			}{{pawl.EventCommitted, "Push"}, {pawl.EventUnchanged, "Inc"}, {pawl.EventFailed, "Atomic"}} {
				e := events.find(end.typ)
				require.Equal(t, end.verb, e.Verb)
				require.Equal(t, name, e.Path)
				assert.InDelta(t, time.Second, e.Waited, float64(5*time.Millisecond), end.verb)
				assert.GreaterOrEqual(t, e.Took, e.Waited, end.verb)
				if name == "cas" {
					assert.GreaterOrEqual(t, e.Took-e.Waited, time.Second, "the commit is not part of the wait")
				}
			}
		})
	}
}
