// Batch makes 200 thumbnails, each for 5 points, and can be stopped at any moment. The first Ctrl-C
// cancels the job: its points are refunded and its files removed. The second one quits at once. A
// job whose process was killed goes on when the program is started again.
//
//	go run ./examples/batch
//	go run ./examples/batch -store dir:./data
//	go run ./examples/batch -store postgres://user:secret@localhost/shop
//
// The state and the files are in the folder batch-data. Remove it, or name another -job, to begin
// anew.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/persist/open"
)

// config holds the flags.
type config struct {
	dir, store, job string
	items           int
	lease           time.Duration
	work            func(ctx context.Context, p Picture) error // the costly part of a call
}

func main() {
	var c config
	flag.StringVar(&c.dir, "dir", "batch-data", "folder of the thumbnails, and of the state without -store")
	flag.StringVar(&c.store, "store", "", "an SQLite file, dir:FOLDER or postgres://...; empty: an SQLite file in -dir")
	flag.StringVar(&c.job, "job", "thumbnails", "id of the job")
	flag.IntVar(&c.items, "items", 200, "number of thumbnails")
	call := flag.Duration("call", 50*time.Millisecond, "how long it takes to make a thumbnail")
	flag.DurationVar(&c.lease, "lease", 2*time.Second, "how long the job of a killed process waits for the next one")
	flag.Parse()
	c.work = func(ctx context.Context, _ Picture) error {
		select {
		case <-time.After(*call):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := run(context.Background(), os.Stdout, c); err != nil {
		log.Fatal(err)
	}
}

// run submits the job, works on it until it is over, and reports what it has cost.
func run(ctx context.Context, out io.Writer, c config) (err error) {
	studio := &Studio{folder: filepath.Join(c.dir, "thumbnails"), work: c.work}
	if err := os.MkdirAll(studio.folder, 0o700); err != nil {
		return err
	}
	if c.store == "" {
		c.store = filepath.Join(c.dir, "state.db")
	}
	store, err := open.Store(ctx, c.store, open.Options{Scheme: "sqlite"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Wallets}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close(context.Background())) }()
	queue, err := studio.queue(rt, c.lease)
	if err != nil {
		return err
	}

	// Each job has an account of its own, so that several of them can share a store.
	if err := openAccount(ctx, rt, c.job); err != nil {
		return err
	}
	p, created, err := queue.Submit(ctx, batch.Job[Picture]{ID: c.job, Account: c.job, Items: pictures(c.items)})
	if err != nil {
		return err
	}
	show := newDisplay(out, p.Items)
	if created {
		show.line("job %s: %d thumbnails for %d points each, Ctrl-C cancels it", c.job, p.Items, price)
	} else {
		show.line("job %s was submitted before: %s, %d of %d made", c.job, p.Status, p.Done, p.Items)
	}

	if err := queue.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Stop(context.Background())) }()
	if p, err = follow(ctx, queue, c.job, show); err != nil {
		return err
	}
	return studio.report(ctx, rt, queue, p, show)
}

// follow shows the progress of a job until it is over. An interrupt cancels the job, and the next
// one ends the process.
func follow(ctx context.Context, queue *batch.Queue[Picture, Thumbnail], id string, show *display) (last batch.Progress, err error) {
	interrupted, restore := signal.NotifyContext(ctx, os.Interrupt)
	defer restore()
	answered := make(chan error, 1)
	ignore := context.AfterFunc(interrupted, func() {
		restore() // from now on an interrupt does what it does in any program
		c, err := queue.Cancel(ctx, id)
		if err == nil {
			show.line("cancel: %s, %d points refunded so far", c.Answer, c.Progress.Refunded)
		}
		answered <- err
	})
	for p, err := range queue.Watch(ctx, id) {
		if err != nil {
			return last, err
		}
		show.progress(p)
		last = p
	}
	if !ignore() {
		err = <-answered
	}
	return last, errors.Join(err, context.Cause(ctx))
}
