// Chat is the server of examples/chat with a store that goes on when a machine is lost. It has the flags
// of that program, and -store accepts etcd:// too.
//
//	go run ./persist/etcd/chat -store etcd://host1:2379,host2:2379,host3:2379/chat
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
	"github.com/pawl-go/pawl/persist/etcd/scheme"
	"github.com/pawl-go/pawl/persist/open"
)

func main() {
	c := server.Command{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Schemes: open.Standard()}
	scheme.Add(c.Schemes)
	c.Flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
