// Command bench compares Pawl with its alternatives in one run, and reports which goals are met. The
// alternatives are libraries, and code that a program would otherwise contain itself.
//
//	go run . -quick           everything, briefly (below a minute)
//	go run . -only P1,M3      some chapters; -list names them
//	go run . -check           exit 1 when a mandatory goal is missed
//	go run . -load            everything beside one busy process per core
//
// It needs PostgreSQL's programs on this machine (make need-postgres) and starts its own server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"
)

// options holds the values of the flags.
type options struct {
	quick, load, check, docs bool
	only, results            string
}

func main() {
	if isChild() {
		return
	}
	var o options
	flag.BoolVar(&o.quick, "quick", false, "measure briefly: once or twice each, in less than a minute")
	flag.BoolVar(&o.load, "load", false, "measure beside one busy process per core; check no goals, and exit 1 when a call fails")
	flag.StringVar(&o.only, "only", "", "chapters to run, such as P1,M3 (default: all)")
	flag.BoolVar(&o.check, "check", false, "exit 1 when a mandatory goal is missed, or another by more than 1.5 times")
	flag.BoolVar(&o.docs, "docs", false, "publish a full run: its figures in results/, README.md and docs/performance.md")
	flag.StringVar(&o.results, "results", "results/latest", "the folder for the results of this run")
	list := flag.Bool("list", false, "list the chapters")
	flag.Parse()
	if *list {
		for _, c := range chapters {
			fmt.Printf("%-4s %s\n", c.id, c.text)
		}
		return
	}
	if o.docs && (o.quick || o.only != "") {
		fmt.Fprintln(os.Stderr, "bench: -docs is for a full run")
		os.Exit(2)
	}
	if o.check && o.load {
		fmt.Fprintln(os.Stderr, "bench: -check is for a quiet run: goals are not checked beside a load")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

// run measures the chapters that o selects, prints and writes the results, and returns the exit
// code.
func run(ctx context.Context, o options) (code int, err error) {
	picked, err := pick(o.only)
	if err != nil {
		return 1, err
	}
	b := newBench(ctx, o.quick)
	defer b.close()
	kind, banner := quietRun, ""
	if o.load {
		if err := b.startBusy(runtime.NumCPU()); err != nil {
			return 1, err
		}
		kind = loadedRun
		banner = fmt.Sprintf("LOADED RUN, beside %s: goals are not checked, no call may fail\n", busyProcesses(len(b.busy)))
		fmt.Fprint(os.Stderr, banner)
	}
	if err := b.measure(picked); err != nil {
		return 1, err
	}
	if err := kind.write(o.results, kind.name+".json", b.rows); err != nil {
		return 1, err
	}
	if o.docs {
		if err := kind.publish("..", b.rows); err != nil {
			return 1, err
		}
	}
	fmt.Print(banner)
	printTable(os.Stdout, b.rows)
	fmt.Println()
	if o.load {
		return b.concludeLoaded(), nil
	}
	v := judge(picked, b.rows)
	for _, broken := range v.broken {
		fmt.Println(broken)
	}
	fmt.Printf("%d of %d goals met\n", v.met, v.goals)
	if o.check && len(v.broken) > 0 {
		return 1, nil
	}
	return 0, nil
}

// measure runs the chapters in their order.
func (b *bench) measure(picked []chapter) error {
	start := time.Now()
	for i, c := range picked {
		fmt.Fprintf(os.Stderr, "[%2d/%d %4.0fs] %s %s\n", i+1, len(picked), time.Since(start).Seconds(), c.id, c.text)
		b.chapter = c.id
		if err := c.run(b); err != nil {
			return fmt.Errorf("%s: %w", c.id, err)
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
		if err := b.stillBusy(); err != nil {
			return fmt.Errorf("%s: %w", c.id, err)
		}
	}
	return nil
}

// concludeLoaded prints the result of a loaded run, and returns the exit code.
func (b *bench) concludeLoaded() (code int) {
	found := flaws(b.rows)
	for _, flaw := range found {
		fmt.Println(flaw)
	}
	if len(found) > 0 {
		fmt.Printf("loaded run: FAILED, %s with failed calls or lost updates\n", count(len(found), "row"))
		return 1
	}
	fmt.Println("loaded run: no call failed, no update was lost, goals were not checked")
	return 0
}

// pick returns the chapters whose ids are in the list, in the order of the suite. An empty list
// selects all chapters.
func pick(only string) (picked []chapter, err error) {
	if only == "" {
		return chapters, nil
	}
	wanted := strings.Split(strings.ToUpper(only), ",")
	for i, id := range wanted {
		wanted[i] = strings.TrimSpace(id)
		if !slices.ContainsFunc(chapters, func(c chapter) bool { return c.id == wanted[i] }) {
			return nil, fmt.Errorf("no chapter %q (-list shows all)", id)
		}
	}
	for _, c := range chapters {
		if slices.Contains(wanted, c.id) {
			picked = append(picked, c)
		}
	}
	return picked, nil
}
