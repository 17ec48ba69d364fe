package stream_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// trip is the state of a parcel.
type trip struct {
	Items []string `json:"items"`
	Steps int      `json:"steps"` // the sum
	Seen  int      `json:"seen"`  // events
}

var errRoute = errors.New("no route")

// route makes a trip of events. Its snapshots have the name "route".
var route = stream.Fold[trip]{Name: "route", Apply: func(s *trip, e stream.Event) error {
	s.Seen++
	switch data := e.Data.(type) {
	case packed:
		if data.Item == "unfit" {
			return errRoute
		}
		s.Items = append(s.Items, data.Item)
	case moved:
		s.Steps += data.Step
	}
	return nil
}}

// add returns a function that decides to append events.
func add(events ...any) func(context.Context, trip) ([]any, error) {
	return func(context.Context, trip) ([]any, error) { return events, nil }
}

// Act gives the fold of the events to decide, appends what it returns, and returns the state after
// that. Proves STREAM-4.
func TestAct(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		state, err := stream.Act(ctx, d.Log, "p", stream.Absent, route, func(_ context.Context, s trip) ([]any, error) {
			require.Zero(t, s)
			return []any{packed{"a"}, moved{"w", 2}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"a"}, 2, 2}, state)
		_, err = d.Append(ctx, "p", stream.Any, stream.Raw{Type: "unheard", Data: []byte(`1`)}, moved{"w", 3})
		require.NoError(t, err)
		state, err = stream.Act(ctx, open().Log, "p", stream.Any, route, func(_ context.Context, s trip) ([]any, error) {
			require.Equal(t, trip{[]string{"a"}, 5, 4}, s)
			return []any{packed{"b"}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"a", "b"}, 5, 5}, state)
		loaded, version, err := stream.Load(ctx, d.Log, "p", route)
		require.NoError(t, err)
		require.Equal(t, state, loaded)
		require.EqualValues(t, 4, version)
		loaded, version, err = stream.Load(ctx, d.Log, "absent", route)
		require.NoError(t, err)
		require.Zero(t, loaded)
		require.EqualValues(t, -1, version)
	})
}

// Another process appends before Act does. Act loads, folds and decides again, on the new events.
// Proves STREAM-4.
func TestActStartsAgain(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const conflicts = 3
		d, other := open(), open()
		var saw []int
		state, err := stream.Act(t.Context(), d.Log, "p", stream.Any, route, func(_ context.Context, s trip) ([]any, error) {
			if saw = append(saw, s.Steps); len(saw) <= conflicts {
				other.fill(t, "p", 1)
				_, err := other.Append(t.Context(), "p", stream.Any, moved{"other", 10})
				require.NoError(t, err)
			}
			return []any{moved{"act", s.Steps}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, []int{0, 10, 20, 30}, saw)
		require.Equal(t, trip{nil, 60, 2*conflicts + 1}, state)
		events := d.all(t, "p")
		require.Equal(t, moved{"act", 30}, events[2*conflicts].Data)
		require.Len(t, events, 2*conflicts+1)
	})
}

// A stream is deleted and made anew, with as many events, before Act appends. The new stream is
// another one, so Act decides again. Proves STREAM-4.
func TestActMeetsANewLife(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d, other := open(), open()
		d.fill(t, "p", 2)
		runs := 0
		state, err := stream.Act(t.Context(), d.Log, "p", stream.Any, route, func(_ context.Context, s trip) ([]any, error) {
			if runs++; runs == 1 {
				require.NoError(t, other.DeleteStream(t.Context(), "p"))
				_, err := other.Append(t.Context(), "p", stream.Any, moved{"new", 7}, moved{"new", 8})
				require.NoError(t, err)
			}
			return []any{packed{fmt.Sprint(s.Steps)}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"15"}, 15, 3}, state)
		require.Equal(t, 2, runs)
	})
}

// Many callers of several processes take from a stock that never becomes negative, because each
// decides on all events before its own. Proves STREAM-4.
func TestActKeepsAnInvariant(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const processes, callers = 2, 6
		stock := testkit.Times(20, 8)
		generous := func(c *depotConfig) {
			patient(c)
			c.Retry = pawl.Retry{Attempts: 1000, First: time.Millisecond, Max: 20 * time.Millisecond}
			c.SnapshotEvery = 5
		}
		errEmpty := errors.New("empty")
		depots := []*depot{open(generous), open(generous)}
		_, err := depots[0].Append(t.Context(), "p", stream.Absent, moved{"stock", stock})
		require.NoError(t, err)
		var all sync.WaitGroup
		errs := make([]error, callers)
		taken := make([]int, callers)
		for c := range callers {
			all.Go(func() {
				for errs[c] == nil {
					_, errs[c] = stream.Act(context.Background(), depots[c%processes].Log, "p", stream.Any, route,
						func(_ context.Context, s trip) ([]any, error) {
							if s.Steps == 0 {
								return nil, errEmpty
							}
							return []any{moved{fmt.Sprint(c), -1}}, nil
						})
					if errs[c] == nil {
						taken[c]++
					}
				}
			})
		}
		all.Wait()
		sum := 0
		for c := range callers {
			require.ErrorIs(t, errs[c], errEmpty)
			sum += taken[c]
		}
		require.Equal(t, stock, sum)
		state, _, err := stream.Load(t.Context(), depots[0].Log, "p", route)
		require.NoError(t, err)
		require.Equal(t, trip{nil, 0, stock + 1}, state)
	})
}

// Act gives up after Config.Retry.Attempts, with *ConcurrencyError, and has appended nothing.
// Proves STREAM-4.
func TestActBudget(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		const attempts = 3
		other := open()
		d := open(func(c *depotConfig) {
			c.Retry = pawl.Retry{Attempts: attempts, First: time.Millisecond, Max: time.Millisecond}
		})
		runs := 0
		_, err := stream.Act(t.Context(), d.Log, "p", stream.Any, route, func(context.Context, trip) ([]any, error) {
			runs++
			other.fill(t, "p", 1)
			return []any{packed{"never"}}, nil
		})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: attempts - 2, Last: attempts - 1}, concurrency(t, err))
		require.True(t, pawl.IsRetryable(err))
		require.Equal(t, attempts, runs)
		require.Len(t, d.all(t, "p"), attempts)
	})
}

// Act gives up when Config.Retry.Within is over, and when its context ends while it waits.
// Proves STREAM-4.
func TestActGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		other := newDepot(t, store)
		d := newDepot(t, store, func(c *depotConfig) {
			c.Retry = pawl.Retry{Attempts: 1 << 30, First: time.Second, Max: time.Second, Within: 10 * time.Second}
		})
		began := time.Now()
		lose := func(context.Context, trip) ([]any, error) {
			other.fill(t, "p", 1)
			return []any{packed{"never"}}, nil
		}
		_, err := stream.Act(t.Context(), d.Log, "p", stream.Any, route, lose)
		concurrency(t, err)
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
		require.Greater(t, time.Since(began), 8*time.Second)

		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = stream.Act(ctx, d.Log, "p", stream.Any, route, lose)
		require.Error(t, err)
		require.Equal(t, 3*time.Second, time.Since(began))
		synctest.Wait()
	})
}

// With an expected version Act does not start again. It does not call decide if the version is not
// the last one. Proves STREAM-4.
func TestActWithAVersion(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 3)
		never := func(context.Context, trip) ([]any, error) {
			t.Error("decide was called")
			return nil, nil
		}
		for _, e := range []stream.Expect{stream.Absent, stream.At(0), stream.At(3)} {
			_, err := stream.Act(ctx, d.Log, "p", e, route, never)
			require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: int64(e), Last: 2}, concurrency(t, err))
		}
		_, err := stream.Act(ctx, d.Log, "absent", stream.At(0), route, never)
		require.Equal(t, stream.ConcurrencyError{Stream: "absent", Expected: 0, Last: -1}, concurrency(t, err))
		runs := 0
		_, err = stream.Act(ctx, d.Log, "p", stream.At(2), route, func(context.Context, trip) ([]any, error) {
			runs++
			other.fill(t, "p", 1)
			return []any{packed{"x"}}, nil
		})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 2, Last: 3}, concurrency(t, err))
		require.Equal(t, 1, runs)
		_, err = stream.Act(ctx, d.Log, "p", stream.At(3), route, add(packed{"y"}))
		require.NoError(t, err)
		require.EqualValues(t, 4, d.last(t, "p"))
	})
}

// The error of decide is returned unchanged, and nothing is written. The same holds for an error of
// the fold, and if decide returns no events. Proves STREAM-4.
func TestActWritesNothing(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		ctx := t.Context()
		d.fill(t, "p", 3)
		commits := tap.Commits.Load()
		_, err := stream.Act(ctx, d.Log, "p", stream.Any, route, func(context.Context, trip) ([]any, error) {
			return []any{packed{"x"}}, errRoute
		})
		require.Equal(t, errRoute, err)
		state, err := stream.Act(ctx, d.Log, "p", stream.At(2), route, add())
		require.NoError(t, err)
		require.Equal(t, trip{nil, 3, 3}, state)
		_, err = stream.Act(ctx, d.Log, "absent", stream.Any, route, add())
		require.NoError(t, err)
		_, err = stream.Act(ctx, d.Log, "p", stream.Any, route, add(packed{"x"}, struct{}{}))
		var bad *stream.EventError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, commits, tap.Commits.Load())
		require.EqualValues(t, 2, d.last(t, "p"))

		_, err = d.Append(ctx, "p", stream.Any, packed{"unfit"})
		require.NoError(t, err)
		commits = tap.Commits.Load()
		_, err = stream.Act(ctx, d.Log, "p", stream.Any, route, add(packed{"x"}))
		require.Equal(t, errRoute, err)
		_, _, err = stream.Load(ctx, d.Log, "p", route)
		require.Equal(t, errRoute, err)
		require.Equal(t, commits, tap.Commits.Load())
	})
}

// An event that does not decode ends Act and Load with *EventError. Proves STREAM-4.
func TestActMeetsAnUndecodableEvent(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		for name, breakIt := range map[string]func(d *depot, name string){
			"data": func(d *depot, name string) {
				_, err := d.Append(t.Context(), name, stream.Any, stream.Raw{Type: "moved", Data: []byte(`"far"`)})
				require.NoError(t, err)
			},
			"entry": func(d *depot, name string) { insert(t, d.store, name, `[1]`) },
		} {
			d := open()
			d.fill(t, name, 2)
			breakIt(d, name)
			d.fill(t, name, 1)
			_, err := stream.Act(t.Context(), d.Log, name, stream.Any, route, add(packed{"x"}))
			var bad *stream.EventError
			require.ErrorAs(t, err, &bad, name)
			require.EqualValues(t, 2, bad.Version)
			require.Equal(t, name, bad.Stream)
			_, _, err = stream.Load(t.Context(), d.Log, name, route)
			require.ErrorAs(t, err, &bad, name)
			require.EqualValues(t, 3, d.last(t, name))
		}
	})
}

// snapshotDoc is a snapshot as it is stored.
type snapshotDoc = pawl.Doc

var rawSnapshots = pawl.Kind[snapshotDoc]{Name: stream.DefaultName + ".snapshot"}

// snapshotOf returns the stored snapshot of a stream, nil if there is none.
func (d *depot) snapshotOf(t testing.TB, name string) pawl.Doc {
	t.Helper()
	r, err := d.store.Load(context.Background(), persist.Key{Kind: rawSnapshots.Name, ID: name + "/route"})
	if errors.Is(err, persist.ErrNotFound) || r.Deleted {
		return nil
	}
	require.NoError(t, err)
	return decodeDoc(t, r)
}

// spoil changes the stored snapshot of a stream.
func (d *depot) spoil(t testing.TB, name string, fn func(s pawl.Doc)) {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: d.store})
	require.NoError(t, err)
	_, err = rawSnapshots.Scope(rt, name+"/route").AtomicState(context.Background(), func(_ context.Context, s *pawl.Doc) error {
		fn(*s)
		return nil
	}, pawl.IfExists())
	require.NoError(t, err)
	require.NoError(t, rt.Close(context.Background()))
}

// every10 keeps a snapshot every ten events.
func every10(c *depotConfig) { c.SnapshotEvery = 10 }

// A load uses the snapshot and reads only the events after it. The state is that of all events.
// Proves STREAM-4.
func TestSnapshots(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
		ctx := t.Context()
		d.fill(t, "p", 9)
		_, _, err := stream.Load(ctx, d.Log, "p", route)
		require.NoError(t, err)
		require.Nil(t, d.snapshotOf(t, "p"), "nine events are too few")
		state, err := stream.Act(ctx, d.Log, "p", stream.Any, route, add(packed{"a"}))
		require.NoError(t, err)
		require.EqualValues(t, 9, d.snapshotOf(t, "p")["version"], "the event that Act appended is in it")
		d.fill(t, "p", 3)
		for range 2 {
			read := tap.entries.Load()
			state, err = stream.Act(ctx, d.Log, "p", stream.Any, route, add(packed{"b"}))
			require.NoError(t, err)
			require.LessOrEqual(t, tap.entries.Load()-read, int64(4))
		}
		require.Equal(t, trip{[]string{"a", "b", "b"}, 36 + 3, 15}, state)
		d.fill(t, "p", 20)
		state, version, err := stream.Load(ctx, other().Log, "p", route)
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"a", "b", "b"}, 36 + 3 + 190, 35}, state)
		require.EqualValues(t, 34, version)
		require.EqualValues(t, 34, d.snapshotOf(t, "p")["version"], "Load keeps one, too")
		unnamed := route
		unnamed.Name = ""
		read := tap.entries.Load()
		whole, _, err := stream.Load(ctx, d.Log, "p", unnamed)
		require.NoError(t, err)
		require.Equal(t, state, whole)
		require.EqualValues(t, 35, tap.entries.Load()-read, "a fold without a name has no snapshots")
	}, every10)
}

// A snapshot is not used if it is of another version of the fold, of another life of the stream, from
// before the seed that a stream went on with, ahead of the stream, or damaged. Proves STREAM-4.
func TestSnapshotsThatAreNotUsed(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, d *depot, f *stream.Fold[trip]){
		"raised version of the fold": func(_ *testing.T, _ *depot, f *stream.Fold[trip]) { f.Version++ },
		"new life": func(t *testing.T, d *depot, _ *stream.Fold[trip]) {
			old := d.snapshotOf(t, "p")
			require.NoError(t, d.DeleteStream(t.Context(), "p"))
			require.Nil(t, d.snapshotOf(t, "p"))
			d.fill(t, "p", 12)
			_, _, err := stream.Load(t.Context(), d.Log, "p", route)
			require.NoError(t, err)
			d.spoil(t, "p", func(s pawl.Doc) { s["life"], s["state"] = old["life"], wrong }) // as one that comes late
		},
		"seed": func(t *testing.T, d *depot, _ *stream.Fold[trip]) {
			require.NoError(t, d.CloseStream(t.Context(), "p", stream.Any, nil, steps("seed", 0, 12)...))
		},
		"ahead": func(t *testing.T, d *depot, _ *stream.Fold[trip]) {
			d.spoil(t, "p", func(s pawl.Doc) { s["version"] = 100 })
		},
		"other form": func(t *testing.T, d *depot, _ *stream.Fold[trip]) {
			d.spoil(t, "p", func(s pawl.Doc) {
				s["state"] = map[string]any{"items": []string{"half"}, "seen": 7, "steps": "many"}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
				ctx, fold := t.Context(), route
				d.fill(t, "p", 12)
				_, _, err := stream.Load(ctx, d.Log, "p", fold)
				require.NoError(t, err)
				d.spoil(t, "p", func(s pawl.Doc) { s["state"] = wrong })
				loaded, _, err := stream.Load(ctx, d.Log, "p", fold)
				require.NoError(t, err)
				require.Equal(t, 1000, loaded.Steps, "this snapshot is used")
				spoil(t, d, &fold)
				read := tap.entries.Load()
				loaded, version, err := stream.Load(ctx, d.Log, "p", fold)
				require.NoError(t, err)
				require.Equal(t, trip{nil, 66, 12}, loaded)
				require.Equal(t, d.last(t, "p"), version)
				require.EqualValues(t, 12, tap.entries.Load()-read)
			}, every10)
		})
	}
}

// wrong is the state of a snapshot that must not be used.
var wrong = map[string]any{"steps": 1000}

// A snapshot saves work and nothing else: after Trim, a load gives the same state with and without
// one. Proves STREAM-4.
func TestSnapshotAfterTrim(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d, plain := open(every10), route
		plain.Name = ""
		d.fill(t, "p", 25)
		for _, before := range []int64{0, 5, 24, 25} {
			require.NoError(t, d.Trim(t.Context(), "p", before))
			for range 2 {
				with, _, err := stream.Load(t.Context(), d.Log, "p", route)
				require.NoError(t, err)
				without, _, err := stream.Load(t.Context(), d.Log, "p", plain)
				require.NoError(t, err)
				require.Equal(t, without, with, "trimmed before %d", before)
				require.EqualValues(t, 25-before, with.Seen)
			}
		}
	})
}

// A snapshot that cannot be read or written fails neither Act nor Load. Proves STREAM-4.
func TestSnapshotFailures(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		ctx := t.Context()
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if c.Writes[0].Kind == rawSnapshots.Name {
				return persist.ErrUnsupported // without a retry
			}
			return nil
		})
		d.fill(t, "p", 12)
		state, err := stream.Act(ctx, d.Log, "p", stream.Any, route, add(packed{"a"}))
		require.NoError(t, err)
		require.Equal(t, trip{[]string{"a"}, 66, 13}, state)
		require.Nil(t, d.snapshotOf(t, "p"))
		tap.OnCommit(nil)
		_, _, err = stream.Load(ctx, d.Log, "p", route)
		require.NoError(t, err)
		require.NotNil(t, d.snapshotOf(t, "p"))
		tap.OnLoad(func(_ context.Context, keys ...persist.Key) error {
			if keys[0].Kind == rawSnapshots.Name {
				return persist.ErrUnavailable
			}
			return nil
		})
		loaded, version, err := stream.Load(ctx, d.Log, "p", route)
		require.NoError(t, err)
		require.Equal(t, state, loaded)
		require.EqualValues(t, 12, version)
	}, every10)
}

// The stream is deleted, made anew or trimmed between the read of its head and that of its events.
// Load does not mix the two: it loads again. Proves STREAM-4.
func TestLoadOfAChangingStream(t *testing.T) {
	for name, change := range map[string]struct {
		do      func(t *testing.T, other *depot)
		want    trip
		version int64
	}{
		"deleted": {func(t *testing.T, other *depot) { require.NoError(t, other.DeleteStream(t.Context(), "p")) }, trip{}, -1},
		"made anew": {func(t *testing.T, other *depot) {
			require.NoError(t, other.DeleteStream(t.Context(), "p"))
			other.fill(t, "p", 2)
		}, trip{nil, 1, 2}, 1},
		"trimmed": {func(t *testing.T, other *depot) { require.NoError(t, other.Trim(t.Context(), "p", 4)) }, trip{nil, 9, 2}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				tap := &meter{Tap: &stores.Tap{Store: stores.OpenFor(t, location)}}
				d, other := newDepot(t, &interposed{meter: tap}), newDepot(t, stores.OpenFor(t, location))
				d.fill(t, "p", 6)
				var once sync.Once
				d.store.(*interposed).before = func() { once.Do(func() { change.do(t, other) }) }
				state, version, err := stream.Load(t.Context(), d.Log, "p", route)
				require.NoError(t, err)
				require.Equal(t, change.want, state)
				require.Equal(t, change.version, version)
			})
		})
	}
}

// interposed is a store that calls a function before each read of a log.
type interposed struct {
	*meter
	before func() // nil: nothing
}

func (s *interposed) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	if s.before != nil {
		s.before()
	}
	return s.meter.ReadLog(ctx, q)
}

// A conflict inside Act is met in the commit itself, after the events were computed: Act still starts
// again. Proves STREAM-4.
func TestActLosesItsCommit(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
		d.fill(t, "p", 1)
		elsewhere := other()
		var once sync.Once
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if c.Writes[0].Kind == stream.DefaultName {
				once.Do(func() { elsewhere.fill(t, "p", 2) })
			}
			return nil
		})
		var saw []int
		state, err := stream.Act(t.Context(), d.Log, "p", stream.Any, route, func(_ context.Context, s trip) ([]any, error) {
			saw = append(saw, s.Seen)
			return []any{packed{"a"}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, []int{1, 3}, saw)
		require.Equal(t, trip{[]string{"a"}, 1, 4}, state)
		require.Equal(t, []int64{0, 1, 2, 3}, versions(d.all(t, "p")))
	})
}
