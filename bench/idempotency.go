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

// endpoint is a handler behind a middleware.
type endpoint struct {
	http.Handler
	runs  atomic.Int64 // executions of the handler
	close func()
}

// endpointSides are the contenders, Pawl first.
var endpointSides = []struct {
	name string
	open func(b *bench, store string, e *endpoint) (http.Handler, error)
}{
	{"Pawl", openKeys},
	{"get-then-set", openGetSetKeys},
	{"bare handler", func(_ *bench, _ string, e *endpoint) (http.Handler, error) { return http.HandlerFunc(e.work), nil }},
}

var endpointStores = []string{"memory", inSQLite, inPostgres}

// work is the handler behind the middleware.
func (e *endpoint) work(w http.ResponseWriter, r *http.Request) {
	n := e.runs.Add(1)
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"order":%d,"status":"created","currency":"EUR","lines":[{"item":7,"count":1},{"item":8,"count":2}]}`, n)
}

func openEndpoint(b *bench, store string, side int) (*endpoint, error) {
	e := &endpoint{close: func() {}}
	var err error
	e.Handler, err = endpointSides[side].open(b, store, e)
	return e, err
}

func openKeys(b *bench, store string, e *endpoint) (http.Handler, error) {
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
func (e *endpoint) order(ctx context.Context, key string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(`{"item":7,"count":1}`))
	if err != nil {
		return 0, err
	}
	r.Header.Set(idempotency.Header, key)
	w := &recordedResponse{header: http.Header{}}
	e.ServeHTTP(w, r)
	return w.status, nil
}

// recordedResponse is an http.ResponseWriter that keeps the response.
type recordedResponse struct {
	header http.Header
	status int
	body   []byte
}

func (p *recordedResponse) Header() http.Header { return p.header }
func (p *recordedResponse) WriteHeader(s int)   { p.status = s }
func (p *recordedResponse) Write(b []byte) (int, error) {
	p.body = append(p.body, b...)
	return len(b), nil
}

var errStatus = errors.New("not created")

func w5(b *bench) error {
	for _, store := range endpointStores {
		for _, work := range []struct {
			name string
			key  func(writer, i int) string
		}{
			{"first requests", func(writer, i int) string { return fmt.Sprintf("%d-%d", writer, i) }},
			{"repeats", func(writer, _ int) string { return fmt.Sprint(writer) }},
		} {
			on := func(n int) side {
				return side{endpointSides[n].name, func(b *bench, _ load) (*instance, error) {
					e, err := openEndpoint(b, store, n)
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
				d := comparison{work: work.name, store: store, ours: on(0), peer: on(1), also: []side{on(2)}, times: b.pick(3, 1)}
				d.load = load{writers: writers, lasts: b.lasting(700, 300)}
				if err := b.runComparisons(d); err != nil {
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
	const requests = 8
	keys := b.pick(200, 20)
	r := Row{ID: b.chapter, Work: "8 requests with one key at once", Store: store, Writers: requests, Unit: "duplicates", PeerName: endpointSides[1].name}
	for n, figure := range []*float64{&r.Ours, &r.Peer} {
		e, err := openEndpoint(b, store, n)
		if err != nil {
			return err
		}
		for k := range keys {
			var all sync.WaitGroup
			at := make(chan struct{})
			for range requests {
				all.Go(func() {
					<-at
					_, _ = e.order(b.ctx, fmt.Sprint("requests-", k)) // 409 counts as an answer
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
