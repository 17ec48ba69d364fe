// Chat is a chat server's state layer over HTTP: sessions, credits and answers, in an SQLite file.
//
//	go run ./examples/chat
//	curl -d '{"text":"hello"}' -H 'X-User: ann' localhost:8080/sessions/1/messages
//	curl localhost:8080/sessions/1
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	path := flag.String("db", "chat.db", "SQLite file; several servers may share it")
	flag.Parse()
	if err := serve(*addr, *path); err != nil {
		log.Fatal(err)
	}
}

func serve(addr, path string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		return err
	}
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Threads, Accounts}})
	if err != nil {
		return err
	}

	srv := &http.Server{Addr: addr, Handler: routes(rt), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Shutdown(context.Background())
	}()
	log.Printf("listening on http://%s, state in %s", addr, path)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return rt.Close(end)
}
