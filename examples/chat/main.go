// Chat is a chat server's state layer over HTTP: sessions, credits and answers, in an SQLite file, or in another store.
//
//	go run ./examples/chat
//	go run ./examples/chat -store dir:./data
//	go run ./examples/chat -store postgres://user:secret@localhost/chat
//
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
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	location := flag.String("store", "chat.db", "an SQLite file, dir:FOLDER or postgres://...; several servers may share it")
	flag.Parse()
	if err := serve(*addr, *location); err != nil {
		log.Fatal(err)
	}
}

// openStore opens the store at a location. All that comes after is the same for each.
func openStore(ctx context.Context, location string) (persist.Store, error) {
	if folder, ok := strings.CutPrefix(location, "dir:"); ok {
		return fs.Open(ctx, folder, fs.Config{})
	}
	if strings.HasPrefix(location, "postgres://") {
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return sqlite.Open(ctx, location, sqlite.Config{})
}

func serve(addr, location string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := openStore(ctx, location)
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
	log.Printf("listening on http://%s", addr)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return rt.Close(end)
}
