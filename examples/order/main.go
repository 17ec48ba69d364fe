// Order shows a webhook that is delivered three times and starts one run. The run charges a card,
// packs and ships. Its state is in an SQLite file in a temporary folder.
//
//	go run ./examples/order
//	go run ./examples/order -store dir:./data
//	go run ./examples/order -store postgres://user:secret@localhost/shop
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/persist/open"
)

func main() {
	location := flag.String("store", "", "an SQLite file, dir:FOLDER or postgres://...; empty: a temporary file")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := start(ctx, *location); err != nil {
		log.Fatal(err)
	}
}

// start runs the demo on the store at location, or on a temporary one.
func start(ctx context.Context, location string) error {
	if location == "" {
		folder, err := os.MkdirTemp("", "order")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		location = filepath.Join(folder, "shop.db")
	}
	return demo(ctx, os.Stdout, location)
}

// demo delivers a webhook twice, works on its run, and delivers the webhook again.
func demo(ctx context.Context, out io.Writer, location string) (err error) {
	store, err := open.Store(ctx, location, open.Options{Scheme: "sqlite"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Ledgers}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close(context.Background())) }()
	engine := run.NewEngine(rt, run.Config{})
	shop := &Shop{out: out}
	shop.runs = run.Register(engine, shop.definition())

	address, stop, err := serve(shop)
	if err != nil {
		return err
	}
	defer stop()
	const body = `{"order":"789","item":"ratchet","cents":4200}`
	var id string
	for range 2 {
		if id, err = deliver(ctx, out, address, "msg-1", body); err != nil {
			return err
		}
	}

	// Until here the engine only creates runs. Now it works on them, too.
	if err := engine.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Stop(context.Background())) }()
	for r, err := range shop.runs.Watch(ctx, id) {
		if err != nil {
			return err
		}
		if r.Status.Finished() {
			fmt.Fprintf(out, "run: %s, parcel %s\n", r.Status, r.State.Parcel)
			break
		}
	}

	if _, err := deliver(ctx, out, address, "msg-1", body); err != nil {
		return err
	}
	ledger, err := Ledgers.Scope(rt, "shop").State(ctx)
	fmt.Fprintf(out, "charges: %d, %d cents\n", ledger.Charges, ledger.Cents)
	return err
}

// serve serves the webhooks of a shop on a free port of this machine.
func serve(shop *Shop) (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /webhooks/orders", shop.webhook)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	return "http://" + listener.Addr().String() + "/webhooks/orders", func() { server.Close() }, nil
}

// deliver sends a webhook as its sender does, prints the answer and returns the id of the run.
func deliver(ctx context.Context, out io.Writer, address, message, body string) (id string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Webhook-Id", message)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer Answer
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", err
	}
	fmt.Fprintf(out, "webhook %s: %s, status %s\n", message, response.Status, answer.Status)
	return answer.Run, nil
}
