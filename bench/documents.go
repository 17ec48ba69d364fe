package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

// What the persisted chapters work on: the same small documents for everybody, and how they are picked.

// document is what every contender keeps, as JSON.
type document struct {
	Count   int64    `json:"count"`   // the units of work that are there
	Balance int64    `json:"balance"` // of wallets only: see transfers.go
	Name    string   `json:"name"`
	Tags    []string `json:"tags"`
}

// counted is a document with one unit more, as the peers do it.
func counted(doc []byte) ([]byte, error) {
	var d document
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	d.Count++
	return json.Marshal(d)
}

// newDocuments yields documents as they are in the beginning.
func newDocuments(ids ...string) iter.Seq2[string, string] {
	return func(yield func(id, doc string) bool) {
		for _, id := range ids {
			doc, err := json.Marshal(document{Name: "document " + id, Tags: []string{"benchmark", "small", "json"}})
			if err != nil {
				panic(err) // it is a plain struct
			}
			if !yield(id, string(doc)) {
				return
			}
		}
	}
}

// access is how a workload picks its documents.
type access struct {
	name  string
	rows  string                    // the ids of its documents, with * for any
	docs  iter.Seq2[string, string] // what they are in the beginning
	ids   []string                  // of the documents
	order []uint16                  // the places in ids as they are used, each writer from a place of its own; the same for every contender; nil: one after the other
	reads int                       // so many units in ten only read
}

// idOf returns the document of a writer's i-th unit.
func (a access) idOf(writer, i int) string {
	at := writer*7919 + i
	if a.order == nil {
		return a.ids[at%len(a.ids)]
	}
	return a.ids[a.order[at%len(a.order)]]
}

var (
	hotRow   = access{name: "one hot row", rows: "hot", docs: newDocuments("hot"), ids: []string{"hot"}}
	hotReads = access{name: "one hot row, 90 % reads", rows: hotRow.rows, docs: hotRow.docs, ids: hotRow.ids, reads: 9}

	manyIDs = ids(10_000)
	uniform = access{name: "10,000 rows, uniform", rows: "row-*", docs: newDocuments(manyIDs...), ids: manyIDs, order: draw(func(r *rand.Rand) func() int {
		return func() int { return r.IntN(len(manyIDs)) }
	})}
	zipfian = access{name: "10,000 rows, Zipf", rows: uniform.rows, docs: uniform.docs, ids: manyIDs, order: draw(func(r *rand.Rand) func() int {
		z := rand.NewZipf(r, 1.1, 1, uint64(len(manyIDs)-1))
		return func() int { return int(z.Uint64()) }
	})}
)

func ids(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("row-%05d", i))
	}
	return all
}

// draw picks from manyIDs, the same in every run. What it returns has no pointers: the collector is not to have more work in all chapters for it.
func draw(picker func(*rand.Rand) (next func() int)) []uint16 {
	next := picker(rand.New(rand.NewPCG(1, 2)))
	drawn := make([]uint16, 1<<17)
	for i := range drawn {
		drawn[i] = uint16(next())
	}
	return drawn
}

// strategy is a way to change documents, on any store.
type strategy struct {
	key   string
	name  func(store string) string
	open  func(b *bench, store string) (*contender, error)
	again func(ctx context.Context, place string) (*contender, error) // in a second process, where the first has opened it
}

// contender is somebody's documents in one store. It is opened once in a run: pools stay warm, and the rows are filled in once.
type contender struct {
	add       func(ctx context.Context, id string) error                  // adds one unit to a document; nil: that is durable
	read      func(ctx context.Context, id string) error                  // reads and decodes a document as it is now
	count     func(ctx context.Context, rows string) (n int64, err error) // the units in some documents, less what their balances are off, past all caches
	fill      func(ctx context.Context, docs iter.Seq2[string, string]) error
	conflicts atomic.Int64  // tries that lost to another writer and were made again
	locks     bool          // there are none
	cut       chan struct{} // closed when whoever sleeps between tries is to end; see load.cut
	place     string
	close     func()
}

// countSQL is count in SQL.
func countSQL(rows, from string, number func(field string) string) string {
	return fmt.Sprintf("SELECT coalesce(sum(%s) - abs(sum(%s)), 0) FROM %s WHERE id LIKE '%s'",
		number("count"), number("balance"), from, strings.ReplaceAll(rows, "*", "%"))
}

func pgNumber(field string) string   { return "(doc ->> '" + field + "')::int" } // whose sum is a bigint
func liteNumber(field string) string { return "(doc ->> '" + field + "')" }

// keep returns a strategy's contender in a store, with the documents of a. Both are made the first time.
func (b *bench) keep(s strategy, store string, a access) (*contender, error) {
	if b.kept == nil {
		b.kept, b.filled = map[string]*contender{}, map[string]bool{}
	}
	name := s.key + " on " + store
	c, old := b.kept[name]
	if !old {
		var err error
		if c, err = s.open(b, store); err != nil {
			return nil, err
		}
		b.cleanup(c.close)
		b.kept[name] = c
	}
	if documents := c.place + " " + a.rows; !b.filled[documents] {
		if err := c.fill(b.ctx, a.docs); err != nil {
			return nil, fmt.Errorf("filling: %w", err)
		}
		b.filled[documents] = true
	}
	if !old {
		return c, c.warm(b.ctx)
	}
	return c, nil
}

// warm lets the pool make its connections before the clock runs.
func (c *contender) warm(ctx context.Context) error {
	_, err := drive(ctx, &instance{do: func(ctx context.Context, _, _ int) error { return c.read(ctx, "hot") }}, load{writers: 64, each: 8})
	return err
}

// start begins a repetition, and returns what ends it.
func (c *contender) start() (end func()) {
	cut := make(chan struct{})
	c.cut = cut
	return func() { close(cut) }
}

// on returns the side that works in a store with a strategy, on documents picked by a.
func (a access) on(s strategy, store string) side {
	return side{name: s.name(store), open: func(b *bench, l load) (*instance, error) {
		c, err := b.keep(s, store, a)
		if err != nil {
			return nil, err
		}
		before, err := c.count(b.ctx, a.rows)
		if err != nil {
			return nil, err
		}
		conflicts, reads := c.conflicts.Load(), new(atomic.Int64)
		in := &instance{
			do: func(ctx context.Context, writer, i int) error {
				id := a.idOf(writer, i)
				if a.reads == 0 || (writer+i)%10 >= a.reads {
					return c.add(ctx, id)
				}
				err := c.read(ctx, id)
				if err == nil {
					reads.Add(1)
				}
				return err
			},
			present: func(ctx context.Context) (int64, error) {
				after, err := c.count(ctx, a.rows)
				return after - before + reads.Load(), err
			},
			ending: c.start(),
			remote: s.key,
			place:  c.place,
		}
		if !c.locks {
			in.conflicts = func() int64 { return c.conflicts.Load() - conflicts }
		}
		return in, nil
	}}
}
