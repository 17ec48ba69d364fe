package stream_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// Read yields a range of versions, forward and backward, filtered by type and limited, over several
// pages. Proves STREAM-1.
func TestRead(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		n := int64(1203) // three pages
		if testkit.Short {
			n = 503
		}
		d.fill(t, "p", int(n-3))
		_, err := d.Append(ctx, "p", stream.Any, packed{"a"}, moved{"x", 1}, packed{"b"})
		require.NoError(t, err)
		d.fill(t, "other", 3)
		reverse := func(v []int64) []int64 { slices.Reverse(v); return v }
		for _, c := range []struct {
			q    stream.Query
			want []int64
		}{
			{stream.Query{}, from(0, n)},
			{stream.Query{Backward: true}, reverse(from(0, n))},
			{stream.Query{From: 5}, from(5, n)},
			{stream.Query{Before: 7}, from(0, 7)},
			{stream.Query{From: 5, Before: 7, Backward: true}, []int64{6, 5}},
			{stream.Query{From: 7, Before: 7}, []int64{}},
			{stream.Query{From: n}, []int64{}},
			{stream.Query{From: n + 100, Before: n + 200}, []int64{}},
			{stream.Query{Before: n + 100, From: n - 1}, []int64{n - 1}},
			{stream.Query{Limit: 3}, []int64{0, 1, 2}},
			{stream.Query{Limit: 501}, from(0, 501)},
			{stream.Query{Limit: 2, Backward: true}, []int64{n - 1, n - 2}},
			{stream.Query{Types: []string{"packed"}}, []int64{n - 3, n - 1}},
			{stream.Query{Types: []string{"packed"}, Limit: 1}, []int64{n - 3}},
			{stream.Query{Types: []string{"packed"}, Backward: true, Limit: 2}, []int64{n - 1, n - 3}},
			{stream.Query{Types: []string{"packed", "moved"}, From: n - 2}, []int64{n - 2, n - 1}},
			{stream.Query{Types: []string{"unheard"}}, []int64{}},
		} {
			require.Equal(t, c.want, versions(collect(t, d.Read(ctx, "p", c.q))), "%+v", c.q)
		}
		for e := range d.Read(ctx, "p", stream.Query{}) {
			require.EqualValues(t, 0, e.Version)
			break // a reader may stop
		}
		last, err := d.Last(ctx, "p", 2)
		require.NoError(t, err)
		require.Equal(t, []int64{n - 2, n - 1}, versions(last))
		require.Equal(t, packed{"b"}, last[1].Data)
		last, err = d.Last(ctx, "other", 10)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1, 2}, versions(last))
	})
}

// A stream that does not exist has no events. Reading it is no error.
func TestReadAbsent(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		require.Empty(t, d.all(t, "absent"))
		last, err := d.Last(ctx, "absent", 5)
		require.NoError(t, err)
		require.Empty(t, last)
		h, err := d.Head(ctx, "absent")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: -1}, h)
		require.Empty(t, collect(t, d.ReadAll(ctx, stream.AllQuery{})))
		require.NoError(t, d.Trim(ctx, "absent", 5))
		require.NoError(t, d.DeleteStream(ctx, "absent"))
		require.ErrorIs(t, d.CloseStream(ctx, "absent", stream.Any, nil), pawl.ErrNotFound)
		require.EqualValues(t, -1, d.last(t, "absent"))
	})
}

// Read shows no event that is appended after it has begun. Proves STREAM-1.
func TestReadEndsAtItsHead(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d := open()
		d.fill(t, "p", 500) // a page
		n := 0
		for e, err := range d.Read(t.Context(), "p", stream.Query{}) {
			require.NoError(t, err)
			require.EqualValues(t, n, e.Version)
			if n++; n == 1 {
				d.fill(t, "p", 2)
			}
		}
		require.Equal(t, 500, n)
	})
}

// ReadAll yields the events of all streams after a position, filtered by stream and type, and limited.
// Proves STREAM-1.
func TestReadAll(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		other := open(func(c *depotConfig) { c.Name = "elsewhere" }) // another log on the same store
		var want []string
		for i := range 4 {
			for _, name := range []string{"a-1", "a-2", "b-1"} {
				made, err := d.Append(ctx, name, stream.Any, packed{fmt.Sprint(i)}, moved{name, i})
				require.NoError(t, err)
				want = append(want, made[0].ID, made[1].ID)
			}
			other.fill(t, "a-1", 1)
		}
		ids := func(q stream.AllQuery) (ids []string) {
			for _, e := range collect(t, d.ReadAll(ctx, q)) {
				require.NotZero(t, e.Position)
				ids = append(ids, e.ID)
			}
			return ids
		}
		require.Equal(t, want, ids(stream.AllQuery{}))
		all := collect(t, d.ReadAll(ctx, stream.AllQuery{}))
		require.Equal(t, want[7:], ids(stream.AllQuery{After: all[6].Position}))
		require.Equal(t, want[7:9], ids(stream.AllQuery{After: all[6].Position, Limit: 2}))
		require.Empty(t, ids(stream.AllQuery{After: all[23].Position + 1000}))
		require.Len(t, ids(stream.AllQuery{Stream: regexp.MustCompile("^a-")}), 16)
		require.Len(t, ids(stream.AllQuery{Stream: regexp.MustCompile("^a-"), Types: []string{"packed"}}), 8)
		require.Len(t, ids(stream.AllQuery{Types: []string{"moved"}, Limit: 5}), 5)
		require.Len(t, collect(t, other.ReadAll(ctx, stream.AllQuery{})), 4)
		for range d.ReadAll(ctx, stream.AllQuery{}) {
			break // a reader may stop
		}
	})
}

// ReadAll goes over several pages, also if the first ones have nothing that is wanted.
// Proves STREAM-1.
func TestReadAllPages(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		d := newDepot(t, stores.OpenFor(t, location))
		n := 1100
		if testkit.Short {
			n = 600
		}
		d.fill(t, "p", n)
		made, err := d.Append(t.Context(), "q", stream.Any, packed{"last"})
		require.NoError(t, err)
		found := collect(t, d.ReadAll(t.Context(), stream.AllQuery{Stream: regexp.MustCompile("^q$")}))
		require.Len(t, found, 1)
		require.Equal(t, made[0].ID, found[0].ID)
		require.Len(t, collect(t, d.ReadAll(t.Context(), stream.AllQuery{})), n+1)
	})
}

// An event of a type that is not registered has only Raw. One that does not decode comes without
// Data, with *EventError, and the read goes on.
func TestUndecodableEvents(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		d.fill(t, "p", 1)
		_, err := d.Append(ctx, "p", stream.Any, stream.Raw{Type: "unheard", Data: []byte(`{"a":1}`)}, stream.Raw{Type: "moved", Data: []byte(`"far"`)})
		require.NoError(t, err)
		insert(t, d.store, "p", `["not an event"]`)
		insert(t, d.store, "p", `{"life":7}`)
		d.fill(t, "p", 1)
		check := func(what string, events []stream.Event, errs []error) {
			t.Helper()
			require.Equal(t, from(0, 6), versions(events), what)
			for i, e := range events {
				require.NotEmpty(t, e.ID, what)
				require.Equal(t, "p", e.Stream)
				if i == 0 || i == 5 {
					require.IsType(t, moved{}, e.Data, what)
				} else {
					require.Nil(t, e.Data, what)
				}
				if i < 2 || i == 5 {
					require.NoError(t, errs[i], what)
					continue
				}
				var bad *stream.EventError
				require.ErrorAs(t, errs[i], &bad, what)
				require.Equal(t, []any{"p", int64(i)}, []any{bad.Stream, bad.Version}, what)
				require.Error(t, bad.Unwrap())
				require.Equal(t, "EVENT", pawl.Code(errs[i]))
				require.Contains(t, bad.Error(), fmt.Sprintf("event %d of \"p\"", i))
			}
			require.Equal(t, `{"a":1}`, string(events[1].Raw))
			require.Equal(t, "unheard", events[1].Type)
			require.Equal(t, `"far"`, string(events[2].Raw))
		}
		gather := func(read func(yield func(stream.Event, error) bool), limit int) (events []stream.Event, errs []error) {
			for e, err := range read {
				events, errs = append(events, e), append(errs, err)
				if len(events) == limit {
					break
				}
			}
			return events, errs
		}
		events, errs := gather(d.Read(ctx, "p", stream.Query{}), 0)
		check("Read", events, errs)
		events, errs = gather(d.Read(ctx, "p", stream.Query{Backward: true}), 0)
		slices.Reverse(events)
		slices.Reverse(errs)
		check("Read backward", events, errs)
		events, errs = gather(d.ReadAll(ctx, stream.AllQuery{}), 0)
		check("ReadAll", events, errs)
		events, errs = gather(d.Watch(ctx, "p", -1), 6)
		check("Watch", events, errs)

		events, err = d.Last(ctx, "p", 10)
		require.Equal(t, from(0, 6), versions(events))
		var bad *stream.EventError
		require.ErrorAs(t, err, &bad)
		for i := 2; i < 5; i++ {
			require.ErrorContains(t, err, fmt.Sprintf("event %d of \"p\"", i))
		}
	})
}

// watching is a Watch in the background.
type watching struct {
	t      testing.TB
	events chan stream.Event
	cancel context.CancelFunc
	ended  chan struct{} // closed when Watch has ended
	err    error         // of Watch
}

// watch starts to watch a stream until the test ends.
func (d *depot) watch(t testing.TB, name string, after int64) *watching {
	return watch(t, func(ctx context.Context) iter.Seq2[stream.Event, error] { return d.Watch(ctx, name, after) })
}

func watch(t testing.TB, begin func(ctx context.Context) iter.Seq2[stream.Event, error]) *watching {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{t: t, events: make(chan stream.Event), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for e, err := range begin(ctx) {
			if err != nil && e.ID == "" {
				w.err = err
				return
			}
			select {
			case w.events <- e:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(w.stop)
	return w
}

// stop ends the watch, and waits until it has ended.
func (w *watching) stop() {
	w.cancel()
	<-w.ended
	require.NoError(w.t, w.err)
}

// expect waits for events with these versions.
func (w *watching) expect(versions ...int64) (events []stream.Event) {
	w.t.Helper()
	for _, v := range versions {
		e := testkit.Receive(w.t, w.events, "event ", v)
		require.Equal(w.t, v, e.Version)
		events = append(events, e)
	}
	return events
}

// Watch yields the events that are there, then those that any process appends. One that resumes
// after a version yields what follows. Proves STREAM-1.
func TestWatch(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 2)
		all, later, absent := d.watch(t, "p", -1), d.watch(t, "p", 3), other.watch(t, "new", -1)
		all.expect(0, 1)
		other.fill(t, "p", 3)
		all.expect(2, 3, 4)
		later.expect(4)
		_, err := other.Append(ctx, "p", stream.At(4), packed{"x"}, packed{"y"})
		require.NoError(t, err)
		require.Equal(t, packed{"y"}, all.expect(5, 6)[1].Data)
		later.expect(5, 6)
		d.fill(t, "new", 1)
		absent.expect(0)
		all.stop()
		resumed := other.watch(t, "p", 4)
		resumed.expect(5, 6)
		d.fill(t, "p", 1)
		resumed.expect(7)
		later.expect(7)
	})
}

// Watch goes on with the first event of a stream that was deleted and made anew.
// Proves STREAM-1.
func TestWatchANewLife(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 3)
		w := other.watch(t, "p", 1)
		first := w.expect(2)[0]
		require.NoError(t, d.DeleteStream(ctx, "p"))
		d.fill(t, "p", 2)
		anew := w.expect(0, 1)
		require.NotEqual(t, first.ID, anew[0].ID)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, nil, packed{"seed"}))
		w.expect(2)
		require.NoError(t, d.Trim(ctx, "p", 3))
		d.fill(t, "p", 1)
		w.expect(3)
	})
}

// WatchAfter goes on after the event with an ID. It begins with the first event if the stream is a new
// one since, or if the ID is none. Proves STREAM-1.
func TestWatchAfter(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d, other := open(), open()
		after := func(id string) *watching {
			return watch(t, func(ctx context.Context) iter.Seq2[stream.Event, error] { return other.WatchAfter(ctx, "p", id) })
		}
		events := d.fill(t, "p", 3)
		for _, id := range []string{"", "-", "x", "-1", events[0].ID + "x", events[0].ID[:16], "other-2"} {
			after(id).expect(0, 1, 2)
		}
		known := after(events[1].ID)
		known.expect(2)
		insert(t, d.store, "p", `["not an event"]`)
		unreadable := known.expect(3)[0]
		d.fill(t, "p", 1)
		known.expect(4)
		after(unreadable.ID).expect(4)
		ahead := after(eventIDAt(events[0], 5))
		d.fill(t, "p", 2)
		ahead.expect(6)
		require.NoError(t, d.DeleteStream(t.Context(), "p"))
		gone := after(events[1].ID)
		d.fill(t, "p", 8)
		gone.expect(from(0, 8)...)
		ahead.expect(from(0, 8)...)
		after(events[2].ID).expect(from(0, 8)...)
	})
}

// eventIDAt returns the ID of another event of the stream of e.
func eventIDAt(e stream.Event, version int64) string {
	return fmt.Sprintf("%s-%d", e.ID[:strings.LastIndex(e.ID, "-")], version)
}

// A watcher sees each event once and in order, while writers of several processes append.
// Proves STREAM-1.
func TestWatchManyWriters(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const writers = 4
		each := testkit.Times(30, 10)
		w := open().watch(t, "p", -1)
		var all sync.WaitGroup
		depots := []*depot{open(patient), open(patient)}
		for i := range writers {
			all.Go(func() {
				for n := range each {
					if _, err := depots[i%2].Append(context.Background(), "p", stream.Any, moved{fmt.Sprint(i), n}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		w.expect(from(0, int64(writers*each))...)
		all.Wait()
	})
}

// Watch ends with its context, without an error. It yields the error of a runtime that is closed,
// and of a version that makes no sense.
func TestWatchEnds(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d := open()
		d.fill(t, "p", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		for _, err := range d.Watch(ctx, "p", -1) {
			require.NoError(t, err)
			n++
			cancel()
		}
		require.Equal(t, 1, n)
		_, err := lastError(t, d.Watch(t.Context(), "p", -2))
		var bad *pawl.ArgumentError
		require.ErrorAs(t, err, &bad)
		require.NoError(t, d.rt.Close(t.Context()))
		_, err = lastError(t, d.Watch(t.Context(), "p", -1))
		require.ErrorIs(t, err, pawl.ErrClosed)
		_, err = lastError(t, d.ReadAll(t.Context(), stream.AllQuery{}))
		require.ErrorIs(t, err, pawl.ErrClosed)
		_, err = lastError(t, d.Read(t.Context(), "p", stream.Query{}))
		require.ErrorIs(t, err, pawl.ErrClosed)
		_, err = d.Append(t.Context(), "p", stream.Any, packed{"x"})
		require.ErrorIs(t, err, pawl.ErrClosed)
	})
}

// A watch after the highest version there can be yields nothing.
func TestWatchAfterTheHighestVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(t, memory.New())
		d.fill(t, "p", 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for e, err := range d.Watch(ctx, "p", math.MaxInt64) {
				t.Error(e.Version, err)
			}
		}()
		synctest.Wait()
	})
}
