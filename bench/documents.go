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

// The documents of the persisted chapters. Every contender has the same small documents, and picks
// them in the same order.

// document is the state of every contender, as JSON.
type document struct {
	Count   int64    `json:"count"`   // the units of work in it
	Balance int64    `json:"balance"` // of wallets only: see transfers.go
	Name    string   `json:"name"`
	Tags    []string `json:"tags"`
}

// counted returns doc with one more unit, the way that the peers change it.
func counted(doc []byte) ([]byte, error) {
	var d document
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	d.Count++
	return json.Marshal(d)
}

// newDocuments yields the initial documents.
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
	rows  string                    // a pattern for the ids of its documents, with * for any text
	docs  iter.Seq2[string, string] // the initial documents, by id
	ids   []string                  // the ids of the documents
	reads int                       // the number of units in ten that only read

	// order has the indices into ids in the order of use, the same for every contender. Each
	// writer starts at another index. Nil: one after the other.
	order []uint16
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

// draw picks indices into manyIDs, the same in every run. The result has no pointers, so that it is
// no work for the garbage collector in other chapters.
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
	key    string
	name   func(store string) string
	open   func(b *bench, store string) (*contender, error)
	reopen func(ctx context.Context, place string) (*contender, error) // open, in a second process
}

// contender has the documents of one strategy in one store. It is opened once in a run, so that
// pools stay warm and the documents are written once.
type contender struct {
	// add adds one unit to a document. Nil means that the unit is durable.
	add func(ctx context.Context, id string) error
	// read reads and decodes the current version of a document.
	read func(ctx context.Context, id string) error
	// count returns the units in the documents whose ids match rows, without a cache. A sum of
	// balances other than 0 is subtracted.
	count func(ctx context.Context, rows string) (n int64, err error)
	// fill writes the initial documents.
	fill func(ctx context.Context, docs iter.Seq2[string, string]) error
	// conflicts counts the tries that lost to another writer.
	conflicts atomic.Int64
	// locks says that the strategy locks documents and has no conflicts.
	locks bool
	// cut is closed when writers that sleep between tries have to end; see load.cut.
	cut   chan struct{}
	place string
	close func()
}

// countSQL returns the SQL of contender.count.
func countSQL(rows, from string, number func(field string) string) string {
	return fmt.Sprintf("SELECT coalesce(sum(%s) - abs(sum(%s)), 0) FROM %s WHERE id LIKE '%s'",
		number("count"), number("balance"), from, strings.ReplaceAll(rows, "*", "%"))
}

func pgNumber(field string) string   { return "(doc ->> '" + field + "')::int" } // int: its sum is a bigint
func liteNumber(field string) string { return "(doc ->> '" + field + "')" }

// openContender returns the contender of a strategy in a store, with the documents of a. The first call opens
// the contender and writes the documents.
func (b *bench) openContender(s strategy, store string, a access) (*contender, error) {
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

// warm lets the pool open its connections before the measurement.
func (c *contender) warm(ctx context.Context) error {
	_, err := drive(ctx, &instance{do: func(ctx context.Context, _, _ int) error { return c.read(ctx, "hot") }}, load{writers: 64, each: 8})
	return err
}

// start begins a repetition, and returns the function that ends it.
func (c *contender) start() (end func()) {
	cut := make(chan struct{})
	c.cut = cut
	return func() { close(cut) }
}

// on returns the side that changes documents picked by a, with a strategy, in a store.
func (a access) on(s strategy, store string) side {
	return side{name: s.name(store), open: func(b *bench, l load) (*instance, error) {
		c, err := b.openContender(s, store, a)
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
