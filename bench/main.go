// Command bench measures Pawl against what one would use or write instead, side by side in one run, and tells which goals are met.
//
//	go run . -quick           everything, briefly (below a minute)
//	go run . -only P1,M3      some chapters; -list names them
//	go run . -check           exit 1 when too much is missed
//
// It needs PostgreSQL's programs on this machine (make need-postgres) and starts a server of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	if childOf(os.Args) {
		return
	}
	var (
		quick   = flag.Bool("quick", false, "measure briefly: once or twice each, in less than a minute")
		only    = flag.String("only", "", "chapters to run, such as P1,M3 (default: all)")
		check   = flag.Bool("check", false, "exit 1 when a mandatory goal is missed, more than three others, or one of them by more than 1.5 times")
		list    = flag.Bool("list", false, "name the chapters")
		results = flag.String("results", "results", "the folder for latest.json and the plots")
		docs    = flag.Bool("docs", false, "put the tables into README.md and docs/performance.md; for a full run")
	)
	flag.Parse()
	if *docs && (*quick || *only != "") {
		fmt.Fprintln(os.Stderr, "bench: -docs is for a full run")
		os.Exit(2)
	}
	if *list {
		for _, c := range chapters {
			fmt.Printf("%-4s %s\n", c.id, c.text)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, *quick, *only, *results, *docs, *check)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

// run measures the chapters that were picked, prints and writes what it found, and returns the exit code.
func run(ctx context.Context, quick bool, only, results string, docs, check bool) (code int, err error) {
	picked, err := pick(only)
	if err != nil {
		return 1, err
	}
	b := newBench(ctx, quick)
	defer b.close()
	start := time.Now()
	for i, c := range picked {
		fmt.Fprintf(os.Stderr, "[%2d/%d %4.0fs] %s %s\n", i+1, len(picked), time.Since(start).Seconds(), c.id, c.text)
		b.chapter = c.id
		if err := c.run(b); err != nil {
			return 1, fmt.Errorf("%s: %w", c.id, err)
		}
		if err := ctx.Err(); err != nil {
			return 1, err
		}
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return 1, err
	}
	if err := writeJSON(filepath.Join(results, "latest.json"), b.rows); err != nil {
		return 1, err
	}
	if err := writeLost(results, b.rows); err != nil {
		return 1, err
	}
	if err := writePlots(results, b.rows); err != nil {
		return 1, err
	}
	if docs {
		if err := writeDocs("..", b.rows); err != nil {
			return 1, err
		}
	}
	printTable(os.Stdout, b.rows)
	v := judge(picked, b.rows)
	fmt.Println()
	for _, broken := range v.broken {
		fmt.Println(broken)
	}
	fmt.Printf("%d of %d goals met\n", v.met, v.goals)
	if check && len(v.broken) > 0 {
		return 1, nil
	}
	return 0, nil
}

// pick returns the chapters that a list of ids names, in their own order; all of them for an empty list.
func pick(only string) (picked []chapter, err error) {
	if only == "" {
		return chapters, nil
	}
	wanted := strings.Split(strings.ToUpper(only), ",")
	for i, id := range wanted {
		wanted[i] = strings.TrimSpace(id)
		if !slices.ContainsFunc(chapters, func(c chapter) bool { return c.id == wanted[i] }) {
			return nil, fmt.Errorf("no chapter %q (-list names them)", id)
		}
	}
	for _, c := range chapters {
		if slices.Contains(wanted, c.id) {
			picked = append(picked, c)
		}
	}
	return picked, nil
}
