package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// unfit is an event without a JSON form.
type unfit struct {
	Call func() `json:"call"`
}

// New refuses what cannot work.
func TestConfig(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(t.Context())
	bare, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	defer bare.Close(t.Context())
	for _, none := range []*pawl.Runtime{nil, bare} {
		_, err := stream.New(none, stream.Config{})
		require.ErrorIs(t, err, pawl.ErrNoStore)
	}
	for name, c := range map[string]stream.Config{
		"TTL":            {TTL: -1},
		"lease":          {Lease: -1},
		"poll":           {Poll: -1},
		"snapshots":      {SnapshotEvery: -1},
		"concurrency":    {Concurrency: -1},
		"retry":          {Retry: pawl.Retry{Attempts: -1}},
		"no name":        {Events: []stream.Type{stream.Of[packed]("")}},
		"zero type":      {Events: []stream.Type{{}}},
		"name twice":     {Events: []stream.Type{stream.Of[packed]("a"), stream.Of[moved]("a")}},
		"type twice":     {Events: []stream.Type{stream.Of[packed]("a"), stream.Of[packed]("b")}},
		"name not UTF-8": {Events: []stream.Type{stream.Of[packed]("a\xff")}},
	} {
		_, err := stream.New(rt, c)
		var bad *pawl.ArgumentError
		require.ErrorAs(t, err, &bad, name)
	}
	log, err := stream.New(rt, stream.Config{Name: strings.Repeat("k", 300), Events: []stream.Type{stream.Of[packed]("packed")}})
	require.NoError(t, err)
	_, err = log.Append(t.Context(), "p", stream.Any, packed{"x"})
	var limit *pawl.LimitError
	require.ErrorAs(t, err, &limit, "the first operation refuses the name")
}

// An append that cannot be made returns the documented error and writes nothing.
func TestAppendInput(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		ctx := t.Context()
		var (
			argument *pawl.ArgumentError
			limit    *pawl.LimitError
			event    *stream.EventError
		)
		var none context.Context
		_, err := d.Append(none, "p", stream.Any, packed{"x"})
		require.ErrorAs(t, err, &argument)
		for _, e := range []stream.Expect{-3, math.MinInt64, stream.At(-2), stream.At(-3)} {
			_, err = d.Append(ctx, "p", e, packed{"x"})
			require.ErrorAs(t, err, &argument, "expected version %d", e)
			_, err = stream.Act(ctx, d.Log, "p", e, route, add(packed{"x"}))
			require.ErrorAs(t, err, &argument, "expected version %d", e)
		}
		made, err := d.Append(ctx, "p", stream.At(77))
		require.NoError(t, err, "no events: nothing is done")
		require.Empty(t, made)
		_, err = d.Append(ctx, "p", stream.Any, make([]any, stream.MaxEvents+1)...)
		require.ErrorAs(t, err, &limit)
		require.Equal(t, []any{"events", stream.MaxEvents, stream.MaxEvents + 1}, []any{limit.What, limit.Limit, limit.Got})
		_, err = stream.Act(ctx, d.Log, "p", stream.Any, route, add(steps("w", 0, stream.MaxEvents+1)...))
		require.ErrorAs(t, err, &limit)
		_, err = d.Append(ctx, "p", stream.Any, packed{strings.Repeat("x", pawl.DefaultMaxDoc)})
		require.ErrorAs(t, err, &limit)
		require.Equal(t, "entry", limit.What)

		for name, c := range map[string]struct {
			event any
			typ   string
		}{
			"not registered":      {struct{ A int }{1}, "struct { A int }"},
			"pointer":             {&packed{"x"}, "*stream_test.packed"},
			"nil":                 {nil, "<nil>"},
			"no JSON form":        {unfit{func() {}}, "unfit"},
			"raw without type":    {stream.Raw{Data: []byte(`1`)}, ""},
			"raw without data":    {stream.Raw{Type: "a"}, "a"},
			"raw, not JSON":       {stream.Raw{Type: "a", Data: []byte(`{`)}, "a"},
			"raw, two values":     {stream.Raw{Type: "a", Data: []byte(`1 2`)}, "a"},
			"raw, not UTF-8":      {stream.Raw{Type: "a", Data: []byte("\"\xff\"")}, "a"},
			"raw, type not UTF-8": {stream.Raw{Type: "a\xff", Data: []byte(`1`)}, "a\xff"},
		} {
			_, err = d.Append(ctx, "p", stream.Any, packed{"before"}, c.event)
			require.ErrorAs(t, err, &event, name)
			require.Equal(t, []any{"", int64(-1), c.typ}, []any{event.Stream, event.Version, event.Type}, name)
			require.Equal(t, 422, pawl.HTTPStatus(err))
			require.Error(t, errors.Unwrap(event))
			require.Contains(t, event.Error(), "stream: event of type")
		}
		require.Zero(t, tap.Commits.Load())
		require.EqualValues(t, -1, d.last(t, "p"))
	}, func(c *depotConfig) { c.Events = append(c.Events, stream.Of[unfit]("unfit")) })
}

// One append may have MaxEvents events.
func TestLargestAppend(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		d, n := newDepot(t, stores.OpenFor(t, location)), stream.MaxEvents
		if stores.Name(location) == "fs" {
			n /= 100 // each event is two files
		}
		made, err := d.Append(t.Context(), "p", stream.Absent, steps("w", 0, n)...)
		require.NoError(t, err)
		require.Equal(t, from(0, int64(n)), versions(made))
		last, err := d.Last(t.Context(), "p", 2)
		require.NoError(t, err)
		require.Equal(t, []any{moved{"w", n - 2}, moved{"w", n - 1}}, []any{last[0].Data, last[1].Data})
	})
}

// The name of a stream is any text of 1 to 255 bytes without control characters. Streams with names
// that look alike are different.
func TestStreamNames(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open(func(c *depotConfig) { c.SnapshotEvery = 2 })
		names := []string{
			"a", "A", "a/", "a/b", "a/b/c", "/", "//", "..", ".", "a.b", "a b", " ", "ä", "a\u0308", "日本", "🐦", "%2F", "%", "#", "a#b", `a"b`, `a\b`, "a'b",
			"<&>", "\u2028", strings.Repeat("n", 255), strings.Repeat("n", 254), strings.Repeat("ä", 127), strings.Repeat("/", 255),
			"#" + strings.Repeat("0", 64),
		}
		for i, name := range names {
			_, err := d.Append(ctx, name, stream.Absent, steps(name, i, 2)...)
			require.NoError(t, err, "%q", name)
			_, _, err = stream.Load(ctx, d.Log, name, route)
			require.NoError(t, err, "%q", name)
		}
		for i, name := range names {
			events := d.all(t, name)
			require.Len(t, events, 2, "%q", name)
			require.Equal(t, moved{name, i}, events[0].Data)
			require.Equal(t, name, events[0].Stream)
			loaded, _, err := stream.Load(ctx, d.Log, name, route)
			require.NoError(t, err)
			require.Equal(t, trip{nil, 2*i + 1, 2}, loaded)
		}
		found := map[string]int{}
		for e, err := range d.ReadAll(ctx, stream.AllQuery{}) {
			require.NoError(t, err)
			found[e.Stream]++
		}
		require.Len(t, found, len(names))
		require.NoError(t, d.DeleteStream(ctx, "a"))
		require.Len(t, d.all(t, "a/b"), 2)

		for name, bad := range map[string]string{
			"empty": "", "too long": strings.Repeat("n", 256), "control": "a\nb", "zero": "a\x00b", "not UTF-8": "a\xff",
		} {
			var limit *pawl.LimitError
			_, err := d.Append(ctx, bad, stream.Any, packed{"x"})
			require.ErrorAs(t, err, &limit, name)
			_, err = d.Head(ctx, bad)
			require.ErrorAs(t, err, &limit, name)
			_, err = lastError(t, d.Read(ctx, bad, stream.Query{}))
			require.ErrorAs(t, err, &limit, name)
			_, err = lastError(t, d.Watch(ctx, bad, -1))
			require.ErrorAs(t, err, &limit, name)
			_, err = d.Last(ctx, bad, 1)
			require.ErrorAs(t, err, &limit, name)
			require.ErrorAs(t, d.CloseStream(ctx, bad, stream.Any, nil), &limit, name)
			require.ErrorAs(t, d.Trim(ctx, bad, 1), &limit, name)
			require.ErrorAs(t, d.DeleteStream(ctx, bad), &limit, name)
			_, err = stream.Act(ctx, d.Log, bad, stream.Any, route, add(packed{"x"}))
			require.ErrorAs(t, err, &limit, name)
		}
	})
}

// Calls without a context, a function or with a negative number are refused.
func TestArguments(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		d.fill(t, "p", 3)
		var none context.Context
		load := func(ctx context.Context, f stream.Fold[trip]) error {
			_, _, err := stream.Load(ctx, d.Log, "p", f)
			return err
		}
		act := func(ctx context.Context, f stream.Fold[trip], decide func(context.Context, trip) ([]any, error)) error {
			_, err := stream.Act(ctx, d.Log, "p", stream.Any, f, decide)
			return err
		}
		read := func(read func(yield func(stream.Event, error) bool)) error {
			_, err := lastError(t, read)
			return err
		}
		long := route
		long.Name = strings.Repeat("f", stream.MaxFold+1)
		for name, err := range map[string]error{
			"Load, ctx":          load(none, route),
			"Load, Apply":        load(ctx, stream.Fold[trip]{}),
			"Load, name":         load(ctx, long),
			"Act, ctx":           act(none, route, add()),
			"Act, Apply":         act(ctx, stream.Fold[trip]{}, add()),
			"Act, decide":        act(ctx, route, nil),
			"Act, name":          act(ctx, long, add()),
			"Head, ctx":          errorOf(d.Head(none, "p")),
			"Read, ctx":          read(d.Read(none, "p", stream.Query{})),
			"Read, From":         read(d.Read(ctx, "p", stream.Query{From: -1})),
			"Read, Before":       read(d.Read(ctx, "p", stream.Query{Before: -1})),
			"Read, Limit":        read(d.Read(ctx, "p", stream.Query{Limit: -1})),
			"ReadAll, ctx":       read(d.ReadAll(none, stream.AllQuery{})),
			"ReadAll, Limit":     read(d.ReadAll(ctx, stream.AllQuery{Limit: -1})),
			"Watch, ctx":         read(d.Watch(none, "p", -1)),
			"Last, ctx":          errorOf(d.Last(none, "p", 1)),
			"Last, 0":            errorOf(d.Last(ctx, "p", 0)),
			"Last, negative":     errorOf(d.Last(ctx, "p", -1)),
			"Trim, ctx":          d.Trim(none, "p", 1),
			"Trim, negative":     d.Trim(ctx, "p", -1),
			"CloseStream, ctx":   d.CloseStream(none, "p", stream.Any, nil),
			"CloseStream, seed":  d.CloseStream(none, "p", stream.Any, nil, packed{"x"}),
			"DeleteStream, ctx":  d.DeleteStream(none, "p"),
			"In, no transaction": errorOf(d.In(nil).Append(ctx, "p", stream.Any, packed{"x"})),
		} {
			var bad *pawl.ArgumentError
			require.ErrorAs(t, err, &bad, name)
			require.Equal(t, 500, pawl.HTTPStatus(err), name)
		}
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 2}, h)
	})
}

// errorOf returns the error of a call with two results.
func errorOf[T any](_ T, err error) error { return err }

// Reads of a store that does not answer return *pawl.UnavailableError, and those of a canceled
// context *pawl.CanceledError.
func TestUnavailable(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, _ func() *depot) {
		d.fill(t, "p", 1)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range []error{
			errorOf(d.Append(canceled, "p", stream.Any, packed{"x"})),
			errorOf(d.Head(canceled, "p")),
			errorOf(d.Last(canceled, "p", 1)),
			errorOf(lastError(t, d.ReadAll(canceled, stream.AllQuery{}))),
			d.DeleteStream(canceled, "p"), d.CloseStream(canceled, "p", stream.Any, nil), d.Trim(canceled, "p", 1),
		} {
			var left *pawl.CanceledError
			require.ErrorAs(t, err, &left)
			require.ErrorIs(t, err, context.Canceled)
		}
		hasty := newDepot(t, tap, func(c *depotConfig) { c.runtime.Retry.Within = 50 * time.Millisecond })
		tap.OnLoad(func(context.Context, ...persist.Key) error { return persist.ErrUnavailable })
		tap.OnCommit(func(context.Context, persist.Commit) error {
			return fmt.Errorf("%w: %w", persist.ErrNotApplied, persist.ErrUnavailable)
		})
		for _, err := range []error{
			errorOf(hasty.Append(t.Context(), "p", stream.Any, packed{"x"})),
			errorOf(hasty.Append(t.Context(), "p", stream.At(0), packed{"x"})),
			errorOf(hasty.Head(t.Context(), "p")),
			errorOf(hasty.Last(t.Context(), "p", 1)),
			errorOf(stream.Act(t.Context(), hasty.Log, "p", stream.Any, route, add(packed{"x"}))),
		} {
			require.ErrorIs(t, err, pawl.ErrUnavailable)
			require.True(t, pawl.IsRetryable(err))
		}
		tap.OnLoad(nil)
		tap.OnCommit(nil)
		require.Len(t, d.all(t, "p"), 1)
	})
}

// Raw data is stored as the JSON value that it is.
func TestRawEvents(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		values := []string{`null`, `1e400`, `123456789012345678901234567890.5`, `"\u0000\ud800"`, `{"b":1,"a":{"c":[]}}`, `"<&>"`, `""`, `{"a":1,"a":2}`}
		for i, v := range values {
			made, err := d.Append(ctx, "p", stream.At(int64(i-1)), stream.Raw{Type: "raw", Data: json.RawMessage(v)})
			require.NoError(t, err, v)
			require.Equal(t, v, string(made[0].Raw))
			require.Nil(t, made[0].Data)
		}
		for i, e := range d.all(t, "p") {
			require.Equal(t, values[i], unescaped(string(e.Raw)))
		}
		_, err := d.Append(ctx, "p", stream.Any, stream.Raw{Type: "packed", Data: []byte(`{"item":"raw"}`)})
		require.NoError(t, err)
		last, err := d.Last(ctx, "p", 1)
		require.NoError(t, err)
		require.Equal(t, packed{"raw"}, last[0].Data)
	})
}

// unescaped undoes what encoding/json does for HTML.
func unescaped(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(s)
}
