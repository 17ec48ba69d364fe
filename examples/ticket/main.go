// Ticket shows event streams: tickets are opened and assigned, a reaction escalates the one that is
// left alone, and a solved ticket is archived. The state is in an SQLite file in a temporary folder.
//
//	go run ./examples/ticket
//	go run ./examples/ticket -patience 5s
//	go run ./examples/ticket -store postgres://user:secret@localhost/desk
//
// Read desk.go first: the events, the reaction and the archive.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/open"
	"github.com/pawl-go/pawl/stream"
)

func main() {
	location := flag.String("store", "", "an SQLite file, dir:FOLDER or postgres://...; empty: a temporary file")
	patience := flag.Duration("patience", time.Second, "how long a ticket may wait for its owner")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+*patience)
	defer cancel()
	if err := start(ctx, *location, *patience); err != nil {
		log.Fatal(err)
	}
}

// start runs the demo on the store at location, or on a temporary one.
func start(ctx context.Context, location string, patience time.Duration) error {
	folder, err := os.MkdirTemp("", "ticket")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if location == "" {
		location = filepath.Join(folder, "desk.db")
	}
	return demo(ctx, os.Stdout, location, folder, patience)
}

// demo opens two tickets, assigns one of them, and waits until the other one is escalated. Then it
// solves and archives that one.
func demo(ctx context.Context, out io.Writer, location, archive string, patience time.Duration) (err error) {
	store, err := open.Store(ctx, location, open.Options{Scheme: "sqlite"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close(context.Background())) }()
	desk, err := newDesk(rt, patience, archive)
	if err != nil {
		return err
	}
	if err := errors.Join( // the tickets of an earlier run, if the store has them
		desk.log.DeleteStream(ctx, "ticket-1"),
		desk.log.DeleteStream(ctx, "ticket-2"),
		desk.Open(ctx, "ticket-1", "The printer prints hearts"),
		desk.Open(ctx, "ticket-2", "There is no coffee"),
		desk.Assign(ctx, "ticket-2", "ada"),
	); err != nil {
		return err
	}

	// Until here the log only keeps events. Now the reaction handles them, too.
	if err := desk.log.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, desk.log.Stop(context.Background())) }()
	for e, err := range desk.log.Watch(ctx, "ticket-1", -1) {
		if err != nil {
			return err
		}
		fmt.Fprintln(out, tell(e))
		if _, ok := e.Data.(Escalated); ok {
			break
		}
	}
	if err := errors.Join(desk.Assign(ctx, "ticket-1", "bob"), desk.Solve(ctx, "ticket-1", "bob")); err != nil {
		return err
	}
	fmt.Fprintln(out, "ticket-1, assigned again:", desk.Assign(ctx, "ticket-1", "eve"))

	if err := desk.Close(ctx, "ticket-1"); err != nil {
		return err
	}
	if err := report(out, filepath.Join(archive, "ticket-1.jsonl")); err != nil {
		return err
	}
	left, err := desk.log.Head(ctx, "ticket-1")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ticket-1: closed %t, events left %d\n", left.Closed, left.Last+1-left.First)
	for e, err := range desk.log.Read(ctx, "ticket-2", stream.Query{}) {
		if err != nil {
			return err
		}
		fmt.Fprintln(out, tell(e))
	}
	return nil
}

// report prints how many events a file has.
func report(out io.Writer, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	n := 0
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		n++
	}
	fmt.Fprintf(out, "%s: %d events\n", filepath.Base(name), n)
	return lines.Err()
}
