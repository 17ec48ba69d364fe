package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// Many writers of several processes append to the same streams. The versions of each stream have no
// gaps, and each append is there once, as a whole, where its answer said. Proves STREAM-1.
func TestVersionsOfManyWriters(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const processes, writers = 3, 6
		each := testkit.Times(20, 4)
		names := []string{"p0", "p1"}
		var (
			mu    sync.Mutex // protects acked
			acked = map[string]stream.Event{}
			all   sync.WaitGroup
		)
		depots := make([]*depot, processes)
		for i := range depots {
			depots[i] = open(patient)
		}
		for w := range writers {
			all.Go(func() {
				by, d := fmt.Sprint("w", w), depots[w%processes]
				for i := range each {
					name := names[(w+i)%len(names)]
					events := steps(by, 10*i, 1+i%3)
					made, err := d.Append(context.Background(), name, stream.Any, events...)
					if err != nil || len(made) != len(events) {
						t.Errorf("%d of %d events: %v", len(made), len(events), err)
						return
					}
					mu.Lock()
					for j, e := range made {
						if e.Version != made[0].Version+int64(j) || e.Stream != name || e.Data != events[j] {
							t.Errorf("event %d of the answer: %+v", j, e)
						}
						acked[e.ID] = e
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		found := 0
		for _, name := range names {
			events := depots[0].all(t, name)
			require.Equal(t, from(0, int64(len(events))), versions(events))
			last := map[string]int{}
			for _, e := range events {
				a, ok := acked[e.ID]
				require.True(t, ok, "not acknowledged: %+v", e)
				require.Equal(t, []any{a.Stream, a.Version, a.Type, a.Data}, []any{e.Stream, e.Version, e.Type, e.Data})
				require.JSONEq(t, string(a.Raw), string(e.Raw))
				require.False(t, e.At.IsZero())
				m := e.Data.(moved)
				require.True(t, last[m.By] < m.Step || last[m.By] == 0, "the order of one writer: %+v", e)
				last[m.By] = m.Step
			}
			found += len(events)
		}
		require.Len(t, acked, found, "each acknowledged event is there once")
	})
}

// A follower that always goes on after the last position, while writers of several processes append
// to many streams, sees each acknowledged event once, and those of one stream in order.
// Proves STREAM-1.
func TestFollowerMissesNothing(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const processes, writers = 2, 4
		each := testkit.Times(40, 8)
		var (
			mu    sync.Mutex // protects acked
			acked = map[string]bool{}
			all   sync.WaitGroup
		)
		for p := range processes {
			d := open(patient)
			for w := range writers / processes {
				all.Go(func() {
					for i := range each {
						name := fmt.Sprintf("s%d", (w+i)%5)
						made, err := d.Append(context.Background(), name, stream.Any, steps(fmt.Sprint(p, ".", w), i, 1+i%2)...)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, e := range made {
							acked[e.ID] = true
						}
						mu.Unlock()
					}
				})
			}
		}
		written := make(chan struct{})
		go func() {
			all.Wait()
			close(written)
		}()
		d, after := open(), uint64(0)
		seen, next := map[string]bool{}, map[string]int64{}
		for over := false; ; {
			for e, err := range d.ReadAll(t.Context(), stream.AllQuery{After: after}) {
				require.NoError(t, err)
				require.Greater(t, e.Position, after)
				require.False(t, seen[e.ID], "twice: %+v", e)
				require.Equal(t, next[e.Stream], e.Version, "the order of stream %s", e.Stream)
				seen[e.ID], next[e.Stream], after = true, e.Version+1, e.Position
			}
			if over {
				break
			}
			select {
			case <-written:
				over = true // one more read
			default:
			}
		}
		require.Equal(t, acked, seen)
	})
}

// An append that begins after another one was acknowledged has the higher position, whatever streams
// and processes they belong to, and whatever else is appended meanwhile. Proves STREAM-1.
func TestAcknowledgedBefore(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		rounds := testkit.Times(30, 10)
		noise, stop := sync.WaitGroup{}, make(chan struct{})
		for n := range 2 {
			d := open(patient)
			noise.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := d.Append(context.Background(), fmt.Sprint("noise", n), stream.Any, moved{"noise", i}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		writers := []*depot{open(patient), open(patient), open(patient)}
		var order []string
		for i := range rounds {
			made, err := writers[i%3].Append(t.Context(), fmt.Sprint("chain", i%4), stream.Any, moved{"chain", i})
			require.NoError(t, err)
			order = append(order, made[0].ID)
		}
		close(stop)
		noise.Wait()
		var found []string
		for e, err := range writers[0].ReadAll(t.Context(), stream.AllQuery{}) {
			require.NoError(t, err)
			if e.Data.(moved).By == "chain" {
				found = append(found, e.ID)
			}
		}
		require.Equal(t, order, found)
	})
}

// A stream that is deleted, by any process, has no events. The next append makes a new stream: its
// versions start at 0, its events have other IDs, and its positions are higher. Proves STREAM-1.
func TestNewLife(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, a, b := t.Context(), open(), open()
		old := a.fill(t, "p", 3)
		keep := a.fill(t, "q", 1)
		_, err := b.Append(ctx, "p", stream.At(2), packed{"b"}) // b has seen the first life
		require.NoError(t, err)
		require.NoError(t, a.DeleteStream(ctx, "p"))
		require.Empty(t, b.all(t, "p"))
		require.EqualValues(t, -1, b.last(t, "p"))
		before := collect(t, a.ReadAll(ctx, stream.AllQuery{}))
		require.Equal(t, []string{keep[0].ID}, []string{before[0].ID}, "the events of a deleted stream are gone")
		require.Len(t, before, 1)

		_, err = b.Append(ctx, "p", stream.At(3), packed{"late"})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 3, Last: -1}, concurrency(t, err))
		made, err := b.Append(ctx, "p", stream.Absent, packed{"new"}, packed{"newer"})
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1}, versions(made))
		require.NotEqual(t, old[0].ID, made[0].ID)
		_, err = a.Append(ctx, "p", stream.At(1), packed{"a"})
		require.NoError(t, err, "a process that has seen the first life")
		require.Equal(t, []string{`0:packed:{"item":"new"}`, `1:packed:{"item":"newer"}`, `2:packed:{"item":"a"}`}, texts(a.all(t, "p")))
		all := collect(t, a.ReadAll(ctx, stream.AllQuery{After: before[0].Position}))
		require.Equal(t, []int64{0, 1, 2}, versions(all))
		require.NoError(t, a.DeleteStream(ctx, "p"))
		require.NoError(t, b.DeleteStream(ctx, "p"), "nothing is left to delete")
	})
}

// A stream expires Config.TTL after its last append. The next append makes a new one.
// Proves STREAM-1.
func TestExpiredStream(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const short = 50 * time.Millisecond
		d := open(func(c *depotConfig) { c.TTL = short })
		old := d.fill(t, "p", 2)
		testkit.Eventually(t, func() bool { return d.last(t, "p") < 0 })
		require.Empty(t, d.all(t, "p"))
		made, err := d.Append(t.Context(), "p", stream.Absent, packed{"again"})
		require.NoError(t, err)
		require.EqualValues(t, 0, made[0].Version)
		require.NotEqual(t, old[0].ID, made[0].ID)
	})
}

// An append with an expected version appends, or returns *ConcurrencyError with the versions and
// writes nothing, also if this process has not seen what another one appended. Proves STREAM-2.
func TestExpect(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
		ctx := t.Context()
		try := func(name string, e stream.Expect, want int64) {
			t.Helper()
			commits, last := tap.Commits.Load(), d.last(t, name)
			made, err := d.Append(ctx, name, e, packed{"x"})
			if want < -1 {
				require.NoError(t, err)
				require.Equal(t, last+1, made[0].Version)
				require.Equal(t, last+1, d.last(t, name))
				return
			}
			require.Nil(t, made)
			require.Equal(t, stream.ConcurrencyError{Stream: name, Expected: int64(e), Last: want}, concurrency(t, err))
			require.Equal(t, commits, tap.Commits.Load(), "nothing is written")
			require.Equal(t, last, d.last(t, name))
		}
		const ok = -2
		try("a", stream.At(0), -1)
		try("a", stream.At(-1), ok) // the same as Absent
		try("a", stream.Absent, 0)
		try("a", stream.At(1), 0)
		try("a", stream.At(0), ok)
		try("a", stream.Any, ok)
		try("b", stream.Absent, ok)
		try("c", stream.Any, ok)

		elsewhere := other()
		elsewhere.fill(t, "a", 4)
		try("a", stream.At(2), 6)
		try("a", stream.At(6), ok)
		elsewhere.fill(t, "new", 1)
		try("new", stream.Absent, 0)
		require.NoError(t, elsewhere.DeleteStream(ctx, "a"))
		try("a", stream.At(7), -1)
		try("a", stream.Absent, ok)
	})
}

// *ConcurrencyError is a conflict, which a caller may retry.
func TestConcurrencyError(t *testing.T) {
	var err error = &stream.ConcurrencyError{Stream: "p", Expected: 3, Last: 5}
	require.ErrorIs(t, err, pawl.ErrConflict)
	require.Equal(t, "CONCURRENCY_ERROR", pawl.Code(err))
	require.Equal(t, 409, pawl.HTTPStatus(err))
	require.True(t, pawl.IsRetryable(err))
	require.False(t, pawl.OutcomeUnknown(err))
	require.EqualError(t, err, `stream: "p": expected last version 3, found 5`)
}

// Writers of several processes append with the same expected version. In each round one of them
// wins, and the others get *ConcurrencyError. Proves STREAM-2.
func TestOneWinnerOfARound(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const processes, writers = 2, 6
		depots := []*depot{open(patient), open(patient)}
		rounds := testkit.Times(20, 6)
		for round := range rounds {
			e := stream.Expect(round - 1) // Absent in the first round
			errs, made := make([]error, writers), make([][]stream.Event, writers)
			begin := make(chan struct{})
			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					<-begin
					made[w], errs[w] = depots[w%processes].Append(context.Background(), "p", e, moved{fmt.Sprint("w", w), round})
				})
			}
			close(begin)
			all.Wait()
			winner := -1
			for w, err := range errs {
				if err == nil {
					require.Equal(t, -1, winner, "writers %d and %d won round %d", winner, w, round)
					winner = w
					require.EqualValues(t, round, made[w][0].Version)
					continue
				}
				require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: int64(e), Last: int64(round)}, concurrency(t, err))
			}
			require.NotEqual(t, -1, winner, "%v", errs)
			events := depots[0].all(t, "p")
			require.Len(t, events, round+1)
			require.Equal(t, moved{fmt.Sprint("w", winner), round}, events[round].Data)
		}
	})
}

// An entry has the number of the next event, although the head does not know it. An append with an
// expected version then returns *ConcurrencyError, when its budget is spent, and appends nothing.
// Proves STREAM-3.
func TestNumberIsTaken(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx := t.Context()
		d := open(func(c *depotConfig) {
			c.runtime.Retry = pawl.Retry{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}
			c.Retry = c.runtime.Retry
		})
		first := d.fill(t, "p", 2)
		tamper(t, d.store, "p", func(ctx context.Context, s pawl.Scope[pawl.Doc], doc pawl.Doc) error {
			return s.AppendLog(ctx, nextOf(t, doc), json.RawMessage(`{"life":"other","type":"packed","data":{"item":"taken"}}`))
		})
		key := persist.Key{Kind: stream.DefaultName, ID: "p"}
		before, err := d.store.Load(ctx, key)
		require.NoError(t, err)
		made, err := d.Append(ctx, "p", stream.At(1), packed{"x"})
		require.Nil(t, made)
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 1, Last: 1}, concurrency(t, err))
		_, err = d.Append(ctx, "p", stream.Any, packed{"x"})
		var lost *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &lost, "without an expected version, the budget is spent")
		_, err = stream.Act(ctx, d.Log, "p", stream.Any, route, func(context.Context, trip) ([]any, error) { return []any{packed{"x"}}, nil })
		concurrency(t, err)
		after, err := d.store.Load(ctx, key)
		require.NoError(t, err)
		require.Equal(t, before.Version, after.Version)
		require.Equal(t, texts(first), texts(d.all(t, "p")))
	})
}

// Appends of one process without an expected version share commits. Proves STREAM-8.
func TestAppendsShareCommits(t *testing.T) {
	var queued atomic.Int64
	count := func(c *depotConfig) {
		c.runtime.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.EventQueued {
				queued.Add(1)
			}
		})
	}
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		const writers = 20
		d.fill(t, "p", 1)
		entered, release := tap.Hold()
		before := tap.Commits.Load()
		var all sync.WaitGroup
		errs := make([]error, writers)
		write := func(w int) {
			all.Go(func() { _, errs[w] = d.Append(context.Background(), "p", stream.Any, moved{"w", w}) })
		}
		write(0)
		testkit.Receive(t, entered)
		queued.Store(0)
		for w := 1; w < writers; w++ {
			write(w)
		}
		testkit.Eventually(t, func() bool { return queued.Load() == writers-1 })
		release()
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		require.LessOrEqual(t, tap.Commits.Load()-before, int64(4), "%d appends", writers)
		require.Len(t, d.all(t, "p"), 1+writers)
	}, count)
}

// Metadata of the context is stored with each event. Without metadata there is none.
func TestMeta(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d := open()
		meta := stream.Meta{Correlation: "request-1", Causation: "e-0", Actor: "ada"}
		ctx := stream.WithMeta(t.Context(), meta)
		require.Equal(t, meta, stream.MetaOf(ctx))
		made, err := d.Append(ctx, "p", stream.Any, packed{"x"})
		require.NoError(t, err)
		require.Equal(t, meta, made[0].Meta)
		d.fill(t, "p", 1)
		events := d.all(t, "p")
		require.Equal(t, meta, events[0].Meta)
		require.Zero(t, events[1].Meta)
		require.Equal(t, meta, collect(t, d.ReadAll(t.Context(), stream.AllQuery{Limit: 1}))[0].Meta)
	})
}

// Callers leave while their appends wait, run or are committed. An append that was acknowledged is
// there, one that was withdrawn is not, and no event is there in part or twice. Proves STREAM-1.
func TestCanceledAppends(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		d := newDepot(t, stores.OpenFor(t, location))
		const writers = 8
		each := testkit.Times(150, 60)
		if stores.Name(location) == "memory" {
			each *= 10
		}
		type answer struct {
			made []stream.Event
			err  error
		}
		answers := make([][]answer, writers)
		var all sync.WaitGroup
		for w := range writers {
			answers[w] = make([]answer, each)
			all.Go(func() {
				for i := range each {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(time.Millisecond))))
					a := &answers[w][i]
					a.made, a.err = d.Append(ctx, "p", stream.Any, steps(fmt.Sprint(w, "/", i), 0, 2)...)
					cancel()
				}
			})
		}
		all.Wait()
		found := map[string][]stream.Event{}
		events := d.all(t, "p")
		require.Equal(t, from(0, int64(len(events))), versions(events))
		for _, e := range events {
			by := e.Data.(moved).By
			found[by] = append(found[by], e)
		}
		var acked, withdrawn int
		for w := range answers {
			for i, a := range answers[w] {
				got := found[fmt.Sprint(w, "/", i)]
				switch {
				case a.err == nil:
					acked++
					require.Equal(t, texts(a.made), texts(got))
				case !pawl.OutcomeUnknown(a.err):
					withdrawn++
					require.Empty(t, got, "%v", a.err)
				default:
					require.Contains(t, []int{0, 2}, len(got))
				}
			}
		}
		t.Logf("%d acknowledged, %d withdrawn, %d events", acked, withdrawn, len(events))
		require.Positive(t, withdrawn)
	})
}
