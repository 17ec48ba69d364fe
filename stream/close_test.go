package stream_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// archive keeps the events that CloseStream passes to it.
type archive struct {
	mu    sync.Mutex // protects the fields below
	books [][]stream.Event
	fail  error // of the next call
}

// take is an archive function.
func (a *archive) take(_ context.Context, events iter.Seq2[stream.Event, error]) error {
	var book []stream.Event
	for e, err := range events {
		if err != nil && e.ID == "" {
			return err
		}
		book = append(book, e)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.fail; err != nil {
		a.fail = nil
		return err
	}
	a.books = append(a.books, book)
	return nil
}

// never is an archive function that must not be called.
func never(t testing.TB) func(context.Context, iter.Seq2[stream.Event, error]) error {
	return func(context.Context, iter.Seq2[stream.Event, error]) error {
		t.Error("the archive was called")
		return nil
	}
}

// requireClosed asserts that a stream refuses appends.
func requireClosed(t testing.TB, d *depot, name string) {
	t.Helper()
	for _, e := range []stream.Expect{stream.Any, stream.At(d.last(t, name)), stream.Absent} {
		_, err := d.Append(context.Background(), name, e, packed{"late"})
		var closed *stream.ClosedError
		require.ErrorAs(t, err, &closed)
		require.Equal(t, stream.ClosedError{Stream: name}, *closed)
		require.Equal(t, "STREAM_CLOSED", pawl.Code(err))
		require.Equal(t, 409, pawl.HTTPStatus(err))
		require.False(t, pawl.IsRetryable(err))
	}
	_, err := stream.Act(context.Background(), d.Log, name, stream.Any, route, add(packed{"late"}))
	var closed *stream.ClosedError
	require.ErrorAs(t, err, &closed)
	h, err := d.Head(context.Background(), name)
	require.NoError(t, err)
	require.True(t, h.Closed)
}

// CloseStream archives all events and removes them. Without a seed the stream stays closed until it
// is deleted. Proves STREAM-6.
func TestCloseStream(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		events, a := d.fill(t, "p", 5), &archive{}
		other.fill(t, "q", 1)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, a.take))
		require.Len(t, a.books, 1)
		require.Equal(t, texts(events), texts(a.books[0]))
		require.Equal(t, events[3].Data, a.books[0][3].Data)
		require.Empty(t, d.all(t, "p"))
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 4, First: 5, Closed: true}, h)
		require.Len(t, collect(t, d.ReadAll(ctx, stream.AllQuery{})), 1, "the event of the other stream")
		requireClosed(t, d, "p")
		requireClosed(t, other, "p")
		require.NoError(t, other.CloseStream(ctx, "p", stream.Any, never(t)), "closing it again does nothing")
		requireClosed(t, d, "p")
		require.NoError(t, d.DeleteStream(ctx, "p"))
		made, err := other.Append(ctx, "p", stream.Absent, packed{"anew"})
		require.NoError(t, err)
		require.EqualValues(t, 0, made[0].Version)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, nil), "nil archives nothing")
		require.Empty(t, d.all(t, "p"))
		require.NoError(t, d.DeleteStream(ctx, "p"))
		require.ErrorIs(t, d.CloseStream(ctx, "p", stream.Any, never(t)), pawl.ErrNotFound)
	})
}

// With a seed the stream starts with it, and its versions go on without a gap. Proves STREAM-6.
func TestCloseStreamWithASeed(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, a := t.Context(), open(), &archive{}
		first := d.fill(t, "p", 3)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, a.take, packed{"sum"}, packed{"rest"}))
		require.Equal(t, []string{`3:packed:{"item":"sum"}`, `4:packed:{"item":"rest"}`}, texts(d.all(t, "p")))
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 4, First: 3}, h)
		_, err = open().Append(ctx, "p", stream.At(4), moved{"on", 1})
		require.NoError(t, err)
		state, version, err := stream.Load(ctx, d.Log, "p", route)
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"sum", "rest"}, 1, 3}, state)
		require.EqualValues(t, 5, version)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, a.take, packed{"second"}))
		require.Equal(t, [][]string{texts(first), {`3:packed:{"item":"sum"}`, `4:packed:{"item":"rest"}`, `5:moved:{"by":"on","step":1}`}},
			[][]string{texts(a.books[0]), texts(a.books[1])})
		require.Equal(t, []int64{6}, versions(d.all(t, "p")))

		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, nil))
		requireClosed(t, d, "p")
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, never(t), packed{"open"}), "a seed opens a closed stream")
		require.Equal(t, []int64{7}, versions(d.all(t, "p")))
	})
}

// A seed that cannot be stored is refused before anything is closed. Proves STREAM-6.
func TestCloseStreamWithABadSeed(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		d.fill(t, "p", 2)
		var (
			bad   *stream.EventError
			limit *pawl.LimitError
		)
		for _, seed := range []any{struct{}{}, nil, stream.Raw{Type: "a", Data: []byte("\"\xff\"")}} {
			require.ErrorAs(t, d.CloseStream(ctx, "p", stream.Any, never(t), seed), &bad)
		}
		require.ErrorAs(t, d.CloseStream(ctx, "p", stream.Any, never(t), steps("s", 0, stream.MaxEvents+1)...), &limit)
		require.ErrorAs(t, d.CloseStream(ctx, "p", stream.Any, never(t), packed{strings.Repeat("x", pawl.DefaultMaxDoc)}), &limit)
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 1}, h)
		require.Len(t, d.all(t, "p"), 2)
	})
}

// With an expected version CloseStream closes what the caller has seen, or nothing. Called again for
// books that are closed, it does nothing. Proves STREAM-6.
func TestCloseStreamExpects(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other, a := t.Context(), open(), open(), &archive{}
		d.fill(t, "p", 3)
		for _, v := range []int64{0, 1, 3} {
			err := other.CloseStream(ctx, "p", stream.At(v), never(t), packed{"seed"})
			require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: v, Last: 2}, concurrency(t, err))
		}
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 2}, h)
		for range 2 {
			require.NoError(t, d.CloseStream(ctx, "p", stream.At(2), a.take, packed{"seed"}))
			require.Equal(t, []int64{3}, versions(d.all(t, "p")))
			require.Len(t, a.books, 1)
		}
		d.fill(t, "p", 2)
		require.NoError(t, other.CloseStream(ctx, "p", stream.At(2), never(t)))
		require.NoError(t, d.CloseStream(ctx, "p", stream.At(5), a.take))
		for range 2 {
			require.NoError(t, other.CloseStream(ctx, "p", stream.At(5), never(t)))
			require.NoError(t, other.CloseStream(ctx, "p", stream.At(2), never(t), packed{"late"}), "an older book")
			requireClosed(t, other, "p")
		}
		require.Equal(t, [][]int64{{0, 1, 2}, {3, 4, 5}}, [][]int64{versions(a.books[0]), versions(a.books[1])})
		var bad *pawl.ArgumentError
		require.ErrorAs(t, d.CloseStream(ctx, "p", stream.Absent, never(t)), &bad)
	})
}

// An append comes between the first test of CloseStream and its guard. With an expected version the
// stream is not closed. Without, the event is archived. Proves STREAM-6.
func TestAppendBeforeTheGuard(t *testing.T) {
	for _, e := range []stream.Expect{stream.At(2), stream.Any} {
		onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
			d.fill(t, "p", 3)
			elsewhere, a := other(), &archive{}
			var once sync.Once
			tap.OnCommit(func(context.Context, persist.Commit) error {
				once.Do(func() { elsewhere.fill(t, "p", 1) })
				return nil
			})
			err := d.CloseStream(t.Context(), "p", e, a.take)
			if e == stream.Any {
				require.NoError(t, err)
				require.Len(t, a.books[0], 4)
				return
			}
			require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 2, Last: 3}, concurrency(t, err))
			require.Empty(t, a.books)
			elsewhere.fill(t, "p", 1)
		})
	}
}

// The error of the archive is returned unchanged. The stream is closed, its events are there, and the
// next call goes on. Proves STREAM-6.
func TestArchiveFails(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		a := &archive{fail: errors.New("the tape is torn")}
		events := d.fill(t, "p", 3)
		torn := a.fail
		require.Equal(t, torn, d.CloseStream(ctx, "p", stream.Any, a.take))
		requireClosed(t, d, "p")
		require.Equal(t, texts(events), texts(d.all(t, "p")))
		require.NoError(t, open().CloseStream(ctx, "p", stream.Any, a.take))
		require.Equal(t, texts(events), texts(a.books[0]))
		require.Empty(t, d.all(t, "p"))
	})
}

// An archive that returns before it has read all events, or that overlooks that some are gone, does not
// count: nothing is removed. Proves STREAM-6.
func TestArchiveReadsAPart(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 3)
		for range 2 {
			err := d.CloseStream(ctx, "p", stream.At(2), func(_ context.Context, events iter.Seq2[stream.Event, error]) error {
				for e := range events {
					if e.Version == 1 {
						break
					}
				}
				return nil
			})
			require.ErrorContains(t, err, "ended after event 0 of 2")
			require.Len(t, d.all(t, "p"), 3)
		}
		d.fill(t, "q", 1)
		var once sync.Once
		d.Interrupt(func(point, _ string) { once.Do(func() { require.NoError(t, other.Trim(ctx, "q", 1)) }) })
		overlook := func(_ context.Context, events iter.Seq2[stream.Event, error]) error {
			for range events {
			}
			return nil
		}
		require.ErrorIs(t, d.CloseStream(ctx, "q", stream.Any, overlook), pawl.ErrConflict)
		h, err := other.Head(ctx, "q")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 0, First: 1, Closed: true}, h)
	})
}

// errCrash ends a call of CloseStream in the middle.
var errCrash = errors.New("crash")

// crashAt makes CloseStream of d panic at a point, once.
func crashAt(d *depot, point string) {
	var once sync.Once
	d.Interrupt(func(p, _ string) {
		if p == point {
			once.Do(func() { panic(errCrash) })
		}
	})
}

// crashing returns what fn panics with.
func crashing(fn func() error) (err error) {
	defer func() { err, _ = recover().(error) }()
	return fn()
}

// CloseStream stops at each point and is called again, by another process. The events are archived as
// a whole and removed, and the seed is there once. Proves STREAM-6.
func TestCloseStreamGoesOn(t *testing.T) {
	for _, seed := range [][]any{nil, {packed{"seed"}}} {
		for _, point := range stream.ClosePoints {
			name := point
			if seed != nil {
				name += " with a seed"
			}
			t.Run(name, func(t *testing.T) {
				onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
					ctx, d, other, a := t.Context(), open(), open(), &archive{}
					events := d.fill(t, "p", 3)
					crashAt(d, point)
					require.Equal(t, errCrash, crashing(func() error { return d.CloseStream(ctx, "p", stream.At(2), a.take, seed...) }))
					if point != "ended" {
						requireClosed(t, other, "p")
					}
					require.NoError(t, other.CloseStream(ctx, "p", stream.At(2), a.take, seed...))
					requireEnd(t, other, "p", seed)
					for _, book := range a.books {
						require.Equal(t, texts(events), texts(book))
					}
					calls := map[string]int{"guarded": 1, "archived": 2, "recorded": 1, "ended": 1}
					require.Len(t, a.books, calls[point])
				})
			})
		}
	}
}

// requireEnd asserts that a stream of three events was closed.
func requireEnd(t testing.TB, d *depot, name string, seed []any) {
	t.Helper()
	if seed == nil {
		requireClosed(t, d, name)
		require.Empty(t, d.all(t, name))
		return
	}
	require.Equal(t, []string{`3:packed:{"item":"seed"}`}, texts(d.all(t, name)))
	_, err := d.Append(context.Background(), name, stream.At(3), packed{"on"})
	require.NoError(t, err)
}

// Writers append while the stream is closed. Each append is in the archive or was refused.
// Proves STREAM-6.
func TestAppendsRaceTheClose(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const writers = 4
		depots, closer := []*depot{open(patient), open(patient)}, open(patient)
		rounds := testkit.Times(10, 3)
		for round := range rounds {
			var (
				all   sync.WaitGroup
				mu    sync.Mutex // protects the next two
				acked = map[string]bool{}
				n     int
				begun = make(chan struct{})
			)
			for w := range writers {
				all.Go(func() {
					for i := 0; ; i++ {
						made, err := depots[w%2].Append(context.Background(), "p", stream.Any, moved{"w", i})
						if _, refused := errors.AsType[*stream.ClosedError](err); refused {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						acked[made[0].ID] = true
						if n++; n == 2*writers {
							close(begun)
						}
						mu.Unlock()
					}
				})
			}
			testkit.Receive(t, begun)
			a := &archive{}
			require.NoError(t, closer.CloseStream(t.Context(), "p", stream.Any, a.take))
			all.Wait()
			archived := map[string]bool{}
			for i, e := range a.books[0] {
				require.EqualValues(t, i, e.Version)
				archived[e.ID] = true
			}
			require.Equal(t, acked, archived, "round %d", round)
			require.NoError(t, closer.DeleteStream(t.Context(), "p"))
		}
	})
}

// Two processes close the stream at the same time. Each archive that succeeds has all events, and the
// seed is there once. Proves STREAM-6.
func TestTwoCloses(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		depots := []*depot{open(patient), open(patient)}
		rounds := testkit.Times(10, 4)
		for round := range rounds {
			events, a := depots[0].fill(t, "p", 4), &archive{}
			errs := make([]error, 2)
			var all sync.WaitGroup
			for i, d := range depots {
				all.Go(func() { errs[i] = d.CloseStream(context.Background(), "p", stream.Any, a.take) })
			}
			all.Wait()
			require.True(t, errs[0] == nil || errs[1] == nil, "%v", errs)
			for i, err := range errs {
				if err != nil { // its archive did not get all events
					require.ErrorIs(t, err, pawl.ErrConflict)
					require.NoError(t, depots[i].CloseStream(t.Context(), "p", stream.Any, never(t)))
				}
			}
			require.NotEmpty(t, a.books)
			for _, book := range a.books {
				require.Equal(t, texts(events), texts(book), "round %d", round)
			}
			requireClosed(t, depots[0], "p")
			require.NoError(t, depots[1].DeleteStream(t.Context(), "p"))
		}
	})
}

// A call of CloseStream that was overtaken does not pass a part of the events to its archive as if
// they were all. Proves STREAM-6.
func TestOvertakenClose(t *testing.T) {
	for _, seed := range [][]any{nil, {packed{"seed"}}} {
		onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
			ctx, slow, fast, a := t.Context(), open(), open(), &archive{}
			events := slow.fill(t, "p", 3)
			var once sync.Once
			slow.Interrupt(func(point, _ string) {
				if point == "guarded" {
					once.Do(func() { require.NoError(t, fast.CloseStream(ctx, "p", stream.Any, a.take, seed...)) })
				}
			})
			err := slow.CloseStream(ctx, "p", stream.Any, a.take, seed...)
			require.ErrorIs(t, err, pawl.ErrConflict)
			require.Equal(t, 409, pawl.HTTPStatus(err))
			require.Len(t, a.books, 1)
			require.Equal(t, texts(events), texts(a.books[0]))
			requireEnd(t, fast, "p", seed)
		})
	}
}

// A late call of CloseStream finds its phase gone, and leaves the stream alone. Proves STREAM-6.
func TestLateClose(t *testing.T) {
	for _, point := range []string{"archived", "recorded"} {
		t.Run(point, func(t *testing.T) {
			onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
				ctx, slow, fast, a := t.Context(), open(), open(), &archive{}
				slow.fill(t, "p", 3)
				var once sync.Once
				slow.Interrupt(func(p, _ string) {
					if p == point {
						once.Do(func() {
							require.NoError(t, fast.CloseStream(ctx, "p", stream.Any, a.take, packed{"seed"}))
							fast.fill(t, "p", 2)
						})
					}
				})
				require.NoError(t, slow.CloseStream(ctx, "p", stream.Any, a.take, packed{"seed"}))
				require.Equal(t, []int64{3, 4, 5}, versions(fast.all(t, "p")))
			})
		})
	}
}

// A commit of CloseStream whose answer is lost is settled: the guard and the seed are there once.
// Proves STREAM-6, STREAM-7.
func TestCloseStreamLosesItsAnswers(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		events, a := d.fill(t, "p", 3), &archive{}
		lost := 0
		tap.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at, err := commit()
			if err == nil && lost < 3 {
				lost++
				return time.Time{}, errAnswer
			}
			return at, err
		})
		require.NoError(t, d.CloseStream(t.Context(), "p", stream.Any, a.take, packed{"seed"}))
		require.Equal(t, 3, lost)
		tap.Around(nil)
		require.Len(t, a.books, 1)
		require.Equal(t, texts(events), texts(a.books[0]))
		requireEnd(t, d, "p", []any{packed{"seed"}})
	})
}
