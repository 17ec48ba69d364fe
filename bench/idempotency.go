package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// W5 measures the cost of an idempotency key. Handlers are called directly, without a network, which
// would hide the difference.

// edge is a handler behind a middleware.
type edge struct {
	http.Handler
	runs  atomic.Int64 // executions of the handler
	close func()
}

// edgeSides are the contenders, Pawl first.
var edgeSides = []struct {
	name string
	open func(b *bench, store string, e *edge) (http.Handler, error)
}{
	{"Pawl", openKeys},
	{"get-then-set", openGetSetKeys},
	{"bare handler", func(_ *bench, _ string, e *edge) (http.Handler, error) { return http.HandlerFunc(e.work), nil }},
}

var edgeStores = []string{"memory", inSQLite, inPostgres}

// work is the handler behind the middleware.
func (e *edge) work(w http.ResponseWriter, r *http.Request) {
	n := e.runs.Add(1)
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"order":%d,"status":"created","currency":"EUR","lines":[{"item":7,"count":1},{"item":8,"count":2}]}`, n)
}

func openEdge(b *bench, store string, side int) (*edge, error) {
	e := &edge{close: func() {}}
	var err error
	e.Handler, err = edgeSides[side].open(b, store, e)
	return e, err
}

func openKeys(b *bench, store string, e *edge) (http.Handler, error) {
	var kept persist.Store = memory.New()
	if store != "memory" {
		place, err := b.placeIn(store)
		if err != nil {
			return nil, err
		}
		if store == inSQLite {
			kept, err = sqlite.Open(b.ctx, place, sqlite.Config{})
		} else {
			kept, err = postgres.Open(b.ctx, place, postgres.Config{})
		}
		if err != nil {
			return nil, err
		}
	}
	rt, err := pawl.Open(pawl.Config{Store: kept})
	if err != nil {
		return nil, err
	}
	e.close = func() {
		_ = rt.Close(context.Background())
		_ = kept.Close()
	}
	keys, err := idempotency.New(rt, idempotency.Config{Principal: func(*http.Request) string { return "ann" }})
	if err != nil {
		return nil, err
	}
	return keys.Middleware(http.HandlerFunc(e.work)), nil
}

// order sends a request with a key and returns its status.
func (e *edge) order(ctx context.Context, key string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(`{"item":7,"count":1}`))
	if err != nil {
		return 0, err
	}
	r.Header.Set(idempotency.Header, key)
	w := &page{header: http.Header{}}
	e.ServeHTTP(w, r)
	return w.status, nil
}

// page is a recorded response.
type page struct {
	header http.Header
	status int
	body   []byte
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(s int)   { p.status = s }
func (p *page) Write(b []byte) (int, error) {
	p.body = append(p.body, b...)
	return len(b), nil
}

var errStatus = errors.New("not created")

func w5(b *bench) error {
	for _, store := range edgeStores {
		for _, work := range []struct {
			name string
			key  func(writer, i int) string
		}{
			{"first requests", func(writer, i int) string { return fmt.Sprintf("%d-%d", writer, i) }},
			{"repeats", func(writer, _ int) string { return fmt.Sprint(writer) }},
		} {
			on := func(n int) side {
				return side{edgeSides[n].name, func(b *bench, _ load) (*instance, error) {
					e, err := openEdge(b, store, n)
					if err != nil {
						return nil, err
					}
					return &instance{close: e.close, do: func(ctx context.Context, writer, i int) error {
						status, err := e.order(ctx, work.key(writer, i))
						if err == nil && status != http.StatusCreated {
							err = errStatus
						}
						return err
					}}, nil
				}}
			}
			for _, writers := range []int{1, 16} {
				d := duel{work: work.name, store: store, ours: on(0), peer: on(1), also: []side{on(2)}, times: b.pick(3, 1)}
				d.load = load{writers: writers, lasts: b.lasting(700, 300)}
				if err := b.fights(d); err != nil {
					return err
				}
			}
		}
		if err := b.duplicates(store); err != nil {
			return err
		}
	}
	return nil
}

// duplicates sends each key several times at once, and counts the executions of the handler beyond
// one per key.
func (b *bench) duplicates(store string) error {
	const crowd = 8
	keys := b.pick(200, 20)
	r := Row{ID: b.chapter, Work: "8 requests with one key at once", Store: store, Writers: crowd, Unit: "duplicates", PeerName: edgeSides[1].name}
	for n, figure := range []*float64{&r.Ours, &r.Peer} {
		e, err := openEdge(b, store, n)
		if err != nil {
			return err
		}
		for k := range keys {
			var all sync.WaitGroup
			at := make(chan struct{})
			for range crowd {
				all.Go(func() {
					<-at
					_, _ = e.order(b.ctx, fmt.Sprint("crowd-", k)) // 409 counts as an answer
				})
			}
			close(at)
			all.Wait()
		}
		*figure = float64(e.runs.Load()) - float64(keys)
		e.close()
	}
	if r.Peer > 0 {
		r.Ratio = r.Ours / r.Peer
	}
	b.add(r)
	return nil
}
