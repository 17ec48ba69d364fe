package stream_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// usage is what calls asked of a store.
type usage struct {
	calls, written, bytesWritten, read, bytesRead int
}

func (u usage) String() string {
	return fmt.Sprintf("%d calls, %d written with %d bytes, %d read with %d bytes", u.calls, u.written, u.bytesWritten, u.read, u.bytesRead)
}

// gauge is a store that adds up what it is asked for. It is used by one goroutine.
type gauge struct {
	persist.Store
	usage
}

// logGauge is a gauge of a store that keeps logs.
type logGauge struct{ *gauge }

// newGauge returns a gauge in front of a store, which keeps logs if the store does.
func newGauge(store persist.Store) (persist.Store, *usage) {
	g := &gauge{Store: store}
	if _, ok := store.(persist.Logger); ok {
		return logGauge{g}, &g.usage
	}
	return g, &g.usage
}

func (g *gauge) record(records ...persist.Record) {
	for _, r := range records {
		g.read++
		g.bytesRead += len(r.Doc)
	}
}

func (g *gauge) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	g.calls++
	r, err := g.Store.Load(ctx, key)
	g.record(r)
	return r, err
}

func (g *gauge) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	g.calls++
	all, err := g.Store.(persist.Reader).LoadAll(ctx, keys)
	g.record(all...)
	return all, err
}

func (g *gauge) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	g.calls++
	page, err := g.Store.List(ctx, q)
	g.record(page.Records...)
	return page, err
}

func (g *gauge) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	g.calls++
	for _, w := range c.Writes {
		g.written++
		g.bytesWritten += len(w.Doc)
		if w.Log != nil {
			g.written += len(w.Log.Entries)
			for _, e := range w.Log.Entries {
				g.bytesWritten += len(e)
			}
		}
	}
	return g.Store.Commit(ctx, c)
}

func (g logGauge) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	g.calls++
	entries, err := g.Store.(persist.Logger).ReadLog(ctx, q)
	for _, e := range entries {
		g.read++
		g.bytesRead += len(e.Data)
	}
	return entries, err
}

func (g logGauge) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	return g.Store.(persist.Logger).ReadOrder(ctx, q)
}

func (g logGauge) LastPosition(ctx context.Context) (uint64, error) {
	return g.Store.(persist.Logger).LastPosition(ctx)
}

// An append, and a read of the last events, ask the store for the same on a short and on a long
// stream: as many calls, as many documents and entries, and as many bytes but for the digits of
// numbers. Proves STREAM-8.
func TestCostDoesNotGrow(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		store, used := newGauge(stores.OpenFor(t, location))
		d, long := newDepot(t, store), testkit.Times(10_000, 2_000)
		if stores.Name(location) == "fs" {
			long = testkit.Times(1_000, 300) // each event is two files
		}
		operations := []struct {
			name string
			do   func(name string) error
		}{
			{"append", func(name string) error { return errorOf(d.Append(t.Context(), name, stream.Any, moved{"w", 10})) }},
			{"append with a version", func(name string) error {
				h, err := d.Head(t.Context(), name)
				require.NoError(t, err)
				return errorOf(d.Append(t.Context(), name, stream.At(h.Last), moved{"w", 10}))
			}},
			{"transaction", func(name string) error { return errorOf(d.put(t.Context(), name, stream.Any, moved{"w", 10})) }},
			{"last", func(name string) error { return errorOf(d.Last(t.Context(), name, 5)) }},
			{"page from the end", func(name string) error {
				return errorOf(collect(t, d.Read(t.Context(), name, stream.Query{Backward: true, Limit: 5})), nil)
			}},
			{"page in the middle", func(name string) error {
				h, err := d.Head(t.Context(), name)
				require.NoError(t, err)
				return errorOf(collect(t, d.Read(t.Context(), name, stream.Query{From: h.Last / 2, Limit: 5})), nil)
			}},
		}
		measure := func(name string) (all []usage) {
			for range 2 { // the second time with a cached head
				for _, o := range operations {
					before := *used
					require.NoError(t, o.do(name), o.name)
					all = append(all, usage{used.calls - before.calls, used.written - before.written, used.bytesWritten - before.bytesWritten, used.read - before.read, used.bytesRead - before.bytesRead})
				}
			}
			return all
		}
		d.fill(t, "s", 10)
		short := measure("s")
		d.fill(t, "l", long)
		for i, l := range measure("l") {
			s, name := short[i], operations[i%len(operations)].name
			require.Equal(t, []int{s.calls, s.written, s.read}, []int{l.calls, l.written, l.read}, "%s: %v, and with %d events %v", name, s, long, l)
			require.InDelta(t, s.bytesWritten, l.bytesWritten, 40, "%s: %v, and with %d events %v", name, s, long, l)
			require.InDelta(t, s.bytesRead, l.bytesRead, 100, "%s: %v, and with %d events %v", name, s, long, l)
		}
		t.Logf("append: %v", short[0])
	})
}

// A read that is limited to a few events of a rare type does not ask for each event alone.
// Proves STREAM-8.
func TestCostOfAFilteredRead(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		store, used := newGauge(stores.OpenFor(t, location))
		d := newDepot(t, store)
		_, err := d.Append(t.Context(), "p", stream.Any, packed{"rare"})
		require.NoError(t, err)
		d.fill(t, "p", 200)
		before := used.calls
		found := collect(t, d.Read(t.Context(), "p", stream.Query{Types: []string{"packed"}, Backward: true, Limit: 1}))
		require.Equal(t, []int64{0}, versions(found))
		require.Less(t, used.calls-before, 10)
	})
}
