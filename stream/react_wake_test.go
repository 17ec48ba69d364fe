package stream_test

import (
	"context"
	"fmt"
	"regexp"
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

func init() { testkit.Child("react-listener", reactListens) }

// An append wakes the reactions of its process at once, without a hint of the store: it is handled
// long before the poll. So is an append of a handler, and that of a stream that was closed with a
// seed. Proves LEASE-10.
func TestReactionWakesOwnProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reactLog(t, reactOpen(t, stores.Bare{Store: memory.New()}, "host"), reactConfig())
		handled := make(chan string, 10)
		require.NoError(t, l.React(stream.Reaction{Name: "r", Handle: func(ctx context.Context, d *stream.Delivery) error {
			handled <- fmt.Sprint(d.Stream, "/", d.Version)
			if d.Stream == "s" {
				_, err := l.Append(ctx, "echo", stream.Any, reactEcho{})
				return err
			}
			return nil
		}}))
		reactStart(t, l)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		began := time.Now()
		reactAppend(t, l, "s", 1)
		require.Equal(t, "s/0", <-handled)
		require.Equal(t, "echo/0", <-handled)
		synctest.Wait()
		require.NoError(t, l.CloseStream(context.Background(), "echo", stream.Any, nil, reactEcho{N: 1}))
		require.Equal(t, "echo/1", <-handled)
		require.Less(t, time.Since(began), time.Second)
	})
}

// An append of a handler wakes the reactions while the handler still runs. Proves LEASE-10.
func TestReactionHandlersAppendWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reactLog(t, reactOpen(t, stores.Bare{Store: memory.New()}, "host"), reactConfig())
		handled := make(chan time.Time, 10)
		require.NoError(t, l.React(stream.Reaction{Name: "r", Handle: func(ctx context.Context, d *stream.Delivery) error {
			if d.Stream != "s" {
				handled <- time.Now()
				return nil
			}
			_, err := l.Append(ctx, "echo", stream.Any, reactEcho{})
			time.Sleep(30 * time.Minute)
			return err
		}}))
		reactStart(t, l)
		synctest.Wait()
		began := time.Now()
		reactAppend(t, l, "s", 1)
		require.Less(t, (<-handled).Sub(began), time.Minute)
		time.Sleep(time.Hour) // the handler ends
	})
}

// Without hints, a process goes on by itself where there is more to do: after a full batch, and when
// a failed or deferred event is due. It does not wait for the poll. Proves LEASE-3, LEASE-10.
func TestReactionGoesOnWithoutHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 50
		l := reactLog(t, reactOpen(t, stores.Bare{Store: memory.New()}, "host"), reactConfig(), stream.Reaction{
			Batch: 2, Backoff: pawl.Retry{First: time.Minute, Max: time.Minute},
			Handle: func(_ context.Context, d *stream.Delivery) error {
				if d.Version == 20 && d.Attempt == 1 {
					return errReact
				}
				return nil
			},
		})
		reactStart(t, l)
		synctest.Wait()
		reactAppend(t, l, "s", events)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, reactDone("s", events), reactPosition(t, l, "s"))
	})
}

// A stream that Reset sent back while it was handled is handled again at once, without hints. Proves
// LEASE-6, LEASE-10.
func TestReactionGoesOnAfterReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newReactGate()
		l := reactLog(t, reactOpen(t, stores.Bare{Store: memory.New()}, "host"), reactConfig(), stream.Reaction{Handle: gate.handle})
		reactStart(t, l)
		reactAppend(t, l, "s", 1)
		<-gate.began
		n, err := l.Reset(context.Background(), stream.Filter{Streams: []string{"s"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		synctest.Wait()
		close(gate.goOn)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, gate.began, 1)
		require.Equal(t, reactDone("s", 1), reactPosition(t, l, "s"))
	})
}

// An append of another process wakes a process by a hint, on every store, and so does an append in a
// transaction. Proves LEASE-10.
func TestReactionWokenByHint(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		handled := make(chan string, 10)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "first"), reactConfig(), stream.Reaction{
			Handle: func(_ context.Context, d *stream.Delivery) error {
				handled <- fmt.Sprint(d.Stream, "/", d.Version)
				return nil
			},
		})
		rt := reactOpen(t, stores.OpenFor(t, location), "second")
		other := reactLog(t, rt, reactConfig())
		reactStart(t, l)
		reactAppend(t, other, "s", 1)
		require.Equal(t, "s/0", testkit.Receive(t, handled))
		err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := other.In(tx).Append(ctx, "s", stream.At(0), reactNoted{})
			return err
		})
		require.NoError(t, err)
		require.Equal(t, "s/1", testkit.Receive(t, handled))
	})
}

// An append in a transaction of the same process wakes it when the transaction has committed. Proves
// LEASE-10.
func TestReactionWokenByTransaction(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		handled := make(chan int64, 10)
		rt := reactOpen(t, store, "host")
		l := reactLog(t, rt, reactConfig(), stream.Reaction{Handle: func(_ context.Context, d *stream.Delivery) error {
			handled <- d.Version
			return nil
		}})
		reactStart(t, l)
		for v := range 5 {
			err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := l.In(tx).Append(ctx, "s", stream.Any, reactNoted{})
				return err
			})
			require.NoError(t, err)
			require.EqualValues(t, v, testkit.Receive(t, handled))
		}
	})
}

// reactListens is a process that looks for events once an hour unless it is woken.
func reactListens() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Logger: reactQuiet})
	if err != nil {
		return err
	}
	l, err := stream.New(rt, reactConfig())
	if err != nil {
		return err
	}
	err = l.React(stream.Reaction{Name: "r", Source: regexp.MustCompile("^s"), Handle: func(ctx context.Context, d *stream.Delivery) error {
		_, err := l.Append(ctx, "echo", stream.Any, reactEcho{d.Stream, int(d.Version)})
		return err
	}})
	if err != nil {
		return err
	}
	if err := l.Start(context.Background()); err != nil {
		return err
	}
	testkit.Begin()
	select {}
}

// Two processes wake each other: the one appends, the other handles and appends, and the first one
// handles that. Neither polls. Proves LEASE-10.
func TestReactionProcessesWakeEachOther(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		p := testkit.Start(t, "react-listener", stores.Env(location))
		testkit.Ready(p)
		handled := make(chan string, 100)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "host"), reactConfig(), stream.Reaction{
			Name: "echoes", Source: regexp.MustCompile("^echo$"), Handle: func(_ context.Context, d *stream.Delivery) error {
				echo := d.Data.(reactEcho)
				handled <- fmt.Sprint(echo.Of, "/", echo.N)
				return nil
			},
		})
		reactStart(t, l)
		for i := range 5 {
			reactAppend(t, l, "s", 1)
			require.Equal(t, fmt.Sprint("s/", i), testkit.Receive(t, handled))
		}
		p.Kill()
	})
}

// Where hints do not arrive, the poll finds an append of another process, within Poll and a quarter.
// Proves LEASE-10.
func TestReactionLostHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		handled := make(chan time.Time, 10)
		c := reactConfig()
		c.Poll = 0 // the default
		l := reactLog(t, reactOpen(t, reactDeaf{store}, "first"), c, stream.Reaction{Handle: func(context.Context, *stream.Delivery) error {
			handled <- time.Now()
			return nil
		}})
		other := reactLog(t, reactOpen(t, store, "second"), reactConfig())
		reactStart(t, l)
		synctest.Wait()
		for range 20 {
			time.Sleep(7 * time.Second)
			synctest.Wait()
			began := time.Now()
			reactAppend(t, other, "s", 1)
			took := (<-handled).Sub(began)
			require.LessOrEqual(t, took, stream.DefaultPoll+stream.DefaultPoll/4+time.Second)
		}
		require.Equal(t, 15*time.Second, stream.DefaultPoll)
	})
}

// reactDeaf is a store whose hints are lost.
type reactDeaf struct{ *memory.Store }

func (d reactDeaf) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return d.Store.Watch(ctx, func(hint persist.Hint) {
		if hint == (persist.Hint{}) {
			wake(hint)
		}
	})
}

// reactQueries is a store that counts queries.
type reactQueries struct {
	*memory.Store
	n atomic.Int64
}

func (q *reactQueries) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	q.n.Add(1)
	return q.Store.Load(ctx, key)
}

func (q *reactQueries) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	q.n.Add(1)
	return q.Store.LoadAll(ctx, keys)
}

func (q *reactQueries) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	q.n.Add(1)
	return q.Store.Versions(ctx, keys)
}

func (q *reactQueries) List(ctx context.Context, query persist.Query) (persist.Page, error) {
	q.n.Add(1)
	return q.Store.List(ctx, query)
}

func (q *reactQueries) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	q.n.Add(1)
	return q.Store.Commit(ctx, c)
}

func (q *reactQueries) Take(ctx context.Context, query persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	q.n.Add(1)
	return q.Store.Take(ctx, query, a, change)
}

func (q *reactQueries) ReadLog(ctx context.Context, query persist.LogQuery) ([]persist.LogEntry, error) {
	q.n.Add(1)
	return q.Store.ReadLog(ctx, query)
}

func (q *reactQueries) ReadOrder(ctx context.Context, query persist.OrderQuery) ([]persist.LogEntry, error) {
	q.n.Add(1)
	return q.Store.ReadOrder(ctx, query)
}

func (q *reactQueries) LastPosition(ctx context.Context) (uint64, error) {
	q.n.Add(1)
	return q.Store.LastPosition(ctx)
}

// An idle process asks the store once in five seconds on average, whatever its reactions, and however
// many streams are handled, blocked, due later or held by another process. Proves LEASE-10.
func TestReactionIdleCost(t *testing.T) {
	fine := new(reactCalls).handle(nil)
	for name, reactions := range map[string][]stream.Reaction{
		"one":      {{Name: "a", Handle: fine}},
		"several":  {{Name: "a", Handle: fine}, {Name: "b", Handle: fine}, {Name: "c", Types: []string{"echo"}, Handle: fine}},
		"ranked":   {{Name: "a", Handle: fine, Priority: 1}, {Name: "b", Handle: fine, Priority: 2}, {Name: "c", Handle: fine}},
		"limited":  {{Name: "a", Handle: fine, Concurrency: 1}, {Name: "b", Handle: fine, Concurrency: 2}, {Name: "c", Handle: fine}},
		"no match": {{Name: "a", Handle: fine, Source: regexp.MustCompile("^never$")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counter := &reactQueries{Store: memory.New()}
				c := reactConfig()
				c.Poll = 0 // the default
				reactions = append(reactions, stream.Reaction{Name: "failing", MaxRetries: stream.NoRetries, Handle: func(_ context.Context, d *stream.Delivery) error {
					if d.Stream == "s0" {
						return stream.Defer(24 * time.Hour)
					}
					return errReact
				}})
				l := reactLog(t, reactOpen(t, counter, "host"), c, reactions...)
				gate := newReactGate()
				defer close(gate.goOn)
				busy := reactLog(t, reactOpen(t, counter.Store, "busy"), c, stream.Reaction{Name: "a", Handle: gate.handle})
				reactAppend(t, l, "held", 1)
				go func() { _, _ = busy.Drain(context.Background()) }()
				<-gate.began
				for i := range 10 {
					reactAppend(t, l, fmt.Sprint("s", i), 2)
				}
				reactStart(t, l)
				synctest.Wait()
				require.Equal(t, "busy", reactPositionOf(t, l, "a", "held").Holder)
				time.Sleep(time.Minute)
				synctest.Wait()
				before := counter.n.Load()
				time.Sleep(time.Hour)
				synctest.Wait()
				asked := counter.n.Load() - before
				require.LessOrEqual(t, asked, int64(time.Hour/(5*time.Second)))
				require.GreaterOrEqual(t, asked, int64(3*time.Hour/(20*time.Second)), "it does look")
			})
		})
	}
}

// A log without reactions asks nothing. Proves LEASE-10.
func TestReactionNoneCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := &reactQueries{Store: memory.New()}
		c := reactConfig()
		c.Poll = time.Second
		l := reactLog(t, reactOpen(t, counter, "host"), c)
		reactStart(t, l)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, counter.n.Load())
	})
}

// Drain goes through all events, also where many in a row are wanted by no reaction.
func TestReactionDrainBehindUnwanted(t *testing.T) {
	calls := new(reactCalls)
	l := reactLog(t, reactOpen(t, memory.New(), "host"), reactConfig(), stream.Reaction{Types: []string{"noted"}, Handle: calls.handle(nil)})
	var unwanted []any
	for range 1100 { // more than two pages of the order
		unwanted = append(unwanted, reactOther{})
	}
	_, err := l.Append(t.Context(), "s", stream.Any, unwanted...)
	require.NoError(t, err)
	reactAppend(t, l, "s", 1)
	require.Equal(t, 1, reactDrain(t, l))
	require.Equal(t, []string{"s/1100"}, calls.take())
}
