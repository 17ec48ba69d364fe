// Proof runs the tests of faults and races (kills, power failures, failing system calls, cut
// connections, stopped processes, many clients, schedules) and writes what they did into a table.
//
//	go run ./internal/proof                the short form of all, in about ten minutes
//	go run ./internal/proof -long          the long form, in hours
//	go run ./internal/proof -only power    those whose name matches
//	go run ./internal/proof -list          list the proofs, run nothing
//
// With -docs it publishes the run: the rows in docs/reliability.md, and what the tests printed in
// docs/reliability.log.gz. A proof fails if one of its tests fails, is skipped, or reports no figures;
// its row says so, and the program exits with 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.long, "long", false, "run the long form")
	flag.BoolVar(&o.docs, "docs", false, "publish the figures")
	flag.StringVar(&o.only, "only", "", "run the proofs whose name matches this `regexp`")
	list := flag.Bool("list", false, "list the proofs and run nothing")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *list {
		for _, p := range proofs {
			fmt.Printf("%s\t%s\t%s\n", p.name, p.claim, p.command(o.long))
		}
	} else {
		err = o.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	long, docs bool
	only       string
}

// run runs the proofs that o selects, one after another, and publishes their figures if o says so.
func (o options) run(ctx context.Context) error {
	match, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	var (
		failed []string
		rows   []row
	)
	for _, p := range proofs {
		if !match.MatchString(p.name) {
			continue
		}
		start := time.Now()
		r, err := p.run(ctx, root, o.long)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		took := time.Since(start).Round(time.Second)
		if err != nil {
			failed = append(failed, p.name)
			fmt.Printf("%s: FAILED after %v: %v\n%s\n", p.name, took, err, r.output)
			r.figures = []string{"**failed**"}
			rows = append(rows, row{p, o.long, start, r})
			continue
		}
		rows = append(rows, row{p, o.long, start, r})
		fmt.Printf("%s: passed in %v\n", p.name, took)
		for _, figures := range r.figures {
			fmt.Println("   ", figures)
		}
	}
	if len(rows) == 0 {
		return errors.New("no proof matches")
	}
	if o.docs {
		err = publish(filepath.Join(root, "docs"), rows)
	}
	if len(failed) > 0 {
		err = errors.Join(err, fmt.Errorf("failed: %s", strings.Join(failed, ", ")))
	}
	return err
}

// moduleRoot returns the folder of the module around the working directory.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
