// Chat is an agent and chat server: sessions, credits, tools, streamed answers, and a page that
// shows them. Its state is in an SQLite file, or in another store. Kill it, double-click, open two
// tabs, or start two servers on one database: nothing is lost, doubled or stuck.
//
//	go run ./examples/chat
//	go run ./examples/chat -inspect
//	go run ./examples/chat -store dir:./data
//	go run ./examples/chat -store postgres://user:secret@localhost/chat -addr :8081
//	OPENAI_API_KEY=... go run ./examples/chat -model gpt-4o-mini
//
// The server is the package in the folder server. Programs that add something to it, such as metrics
// in otel/chat, are built on that package too.
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/pawl-go/pawl/examples/chat/server"
)

func main() {
	c := server.Command{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	c.Flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
