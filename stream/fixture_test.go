package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// Events of a parcel.
type (
	packed struct {
		Item string `json:"item"`
	}
	moved struct {
		By   string `json:"by"`
		Step int    `json:"step"`
	}
)

// shelf is a document that changes together with a stream.
type shelf struct {
	Parcels int `json:"parcels"`
}

var shelves = pawl.Kind[shelf]{Name: "shelf"}

// depot is a log of parcels, as one process has it.
type depot struct {
	*stream.Log
	rt    *pawl.Runtime
	store persist.Store
}

// depotConfig is the configuration of a depot.
type depotConfig struct {
	stream.Config
	runtime pawl.Config
}

// newDepot opens a log of parcels on a store.
func newDepot(t testing.TB, store persist.Store, change ...func(c *depotConfig)) *depot {
	t.Helper()
	c := depotConfig{
		Config: stream.Config{
			Events: []stream.Type{stream.Of[packed]("packed"), stream.Of[moved]("moved")},
			Logger: slog.New(slog.DiscardHandler),
		},
		runtime: pawl.Config{Store: store},
	}
	for _, fn := range change {
		fn(&c)
	}
	rt, err := pawl.Open(c.runtime)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	log, err := stream.New(rt, c.Config)
	require.NoError(t, err)
	return &depot{log, rt, store}
}

// patient lets a call meet any number of conflicts.
func patient(c *depotConfig) { c.runtime.Retry.Attempts = 1000 }

// onDepots runs test on every store. Each call of open stands for another process.
func onDepots(t *testing.T, test func(t *testing.T, open func(change ...func(c *depotConfig)) *depot)) {
	t.Helper()
	stores.Each(t, func(t *testing.T, location string) {
		test(t, func(change ...func(c *depotConfig)) *depot {
			t.Helper()
			return newDepot(t, stores.OpenFor(t, location), change...)
		})
	})
}

// meter is a tap that also counts the log entries that are read.
type meter struct {
	*stores.Tap
	entries atomic.Int64
}

func (m *meter) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	entries, err := m.Tap.ReadLog(ctx, q)
	m.entries.Add(int64(len(entries)))
	return entries, err
}

// onTaps runs test on every store, with a depot whose store is tapped. Each call of other stands for
// another process, which is not tapped.
func onTaps(t *testing.T, test func(t *testing.T, d *depot, tap *meter, other func() *depot), change ...func(c *depotConfig)) {
	t.Helper()
	stores.Each(t, func(t *testing.T, location string) {
		tap := &meter{Tap: &stores.Tap{Store: stores.OpenFor(t, location)}}
		test(t, newDepot(t, tap, change...), tap, func() *depot {
			t.Helper()
			return newDepot(t, stores.OpenFor(t, location), change...)
		})
	})
}

// steps returns n events of a writer, the first of them with this step.
func steps(by string, first, n int) (events []any) {
	for i := range n {
		events = append(events, moved{by, first + i})
	}
	return events
}

// fill appends n events to a stream, and returns them.
func (d *depot) fill(t testing.TB, name string, n int) (all []stream.Event) {
	t.Helper()
	for n > 0 {
		some := min(n, 1000)
		made, err := d.Append(t.Context(), name, stream.Any, steps("fill", len(all), some)...)
		require.NoError(t, err)
		all, n = append(all, made...), n-some
	}
	return all
}

// all returns the events of a stream, which all decode.
func (d *depot) all(t testing.TB, name string) (events []stream.Event) {
	t.Helper()
	return collect(t, d.Read(context.Background(), name, stream.Query{}))
}

// last returns the version of the last event of a stream.
func (d *depot) last(t testing.TB, name string) int64 {
	t.Helper()
	h, err := d.Head(context.Background(), name)
	require.NoError(t, err)
	return h.Last
}

// collect returns what a read yields. It fails the test at an error.
func collect(t testing.TB, read func(yield func(stream.Event, error) bool)) (events []stream.Event) {
	t.Helper()
	for e, err := range read {
		require.NoError(t, err)
		events = append(events, e)
	}
	return events
}

// lastError returns the events that a read yields before its error, which must come, as the last pair.
func lastError(t testing.TB, read func(yield func(stream.Event, error) bool)) (events []stream.Event, failure error) {
	t.Helper()
	for e, err := range read {
		require.NoError(t, failure, "an error is the last pair")
		if failure = err; err == nil {
			events = append(events, e)
		}
	}
	require.Error(t, failure)
	return events, failure
}

// texts returns "version:type:data" of events.
func texts(events []stream.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d:%s:%s", e.Version, e.Type, e.Raw))
	}
	return out
}

// versions returns the versions of events.
func versions(events []stream.Event) []int64 {
	out := []int64{}
	for _, e := range events {
		out = append(out, e.Version)
	}
	return out
}

// from returns the numbers from first up to before.
func from(first, before int64) []int64 {
	out := []int64{}
	for ; first < before; first++ {
		out = append(out, first)
	}
	return out
}

// rawHead is the kind of the heads of streams, whose documents a test changes.
var rawHead = pawl.Kind[pawl.Doc]{Name: stream.DefaultName, Log: true}

// tamper changes the head of a stream, as a program that does not use package stream would.
func tamper(t testing.TB, store persist.Store, name string, fn func(ctx context.Context, s pawl.Scope[pawl.Doc], d pawl.Doc) error) {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	s := rawHead.Scope(rt, name)
	_, err = s.AtomicState(context.Background(), func(ctx context.Context, d *pawl.Doc) error { return fn(ctx, s, *d) }, pawl.IfExists())
	require.NoError(t, err)
	require.NoError(t, rt.Close(context.Background()))
}

// nextOf returns the number of the next event of a head.
func nextOf(t testing.TB, d pawl.Doc) uint64 {
	t.Helper()
	raw, err := json.Marshal(d["next"])
	require.NoError(t, err)
	var next uint64
	require.NoError(t, json.Unmarshal(raw, &next))
	return next
}

// insert appends an entry to the log of a stream as it is, without a test of what it says.
func insert(t testing.TB, store persist.Store, name, raw string) {
	t.Helper()
	tamper(t, store, name, func(ctx context.Context, s pawl.Scope[pawl.Doc], d pawl.Doc) error {
		next := nextOf(t, d)
		d["next"] = next + 1
		return s.AppendLog(ctx, next, json.RawMessage(raw))
	})
}

// concurrency returns err as *stream.ConcurrencyError.
func concurrency(t testing.TB, err error) stream.ConcurrencyError {
	t.Helper()
	var lost *stream.ConcurrencyError
	require.ErrorAs(t, err, &lost)
	return *lost
}

// decodeDoc returns the document of a record.
func decodeDoc(t testing.TB, r persist.Record) (d pawl.Doc) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Doc, &d))
	return d
}
