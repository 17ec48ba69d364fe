// Planted breaks each mechanism of the library on purpose and shows that a test fails.
//
// A passing test proves little until it has failed once. Each planted bug is a piece of a source
// file and its broken version. Go's -overlay flag replaces one by the other; the tests that claim
// to prove the mechanism must then fail. The source itself is never changed.
//
//	go run ./internal/planted               all bugs
//	go run ./internal/planted -short        bugs that are noticed within seconds
//	go run ./internal/planted -only lock    bugs whose name or file matches
//	go run ./internal/planted -list         list the bugs, run nothing
//
// It exits with 1 if a bug is not noticed, if a broken version does not compile, or if its text is
// not found exactly once.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	workers := flag.Int("p", 2, "how many bugs to run at a time")
	list := flag.Bool("list", false, "list the bugs and run nothing")
	only := flag.String("only", "", "run the bugs whose name or file matches this `regexp`")
	short := flag.Bool("short", false, "run only the bugs that are noticed quickly")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *workers, *list, *only, *short); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, workers int, list bool, only string, short bool) error {
	chosen, err := choose(bugs(), only, short)
	if err != nil {
		return err
	}
	if list {
		for _, b := range chosen {
			fmt.Printf("%s\t%s\t%s\t%s\n", b.Name, b.File, strings.Join(b.Proves, " "), b.Mechanism)
		}
		return nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	t := newTable(os.Stdout, chosen)
	if err := (runner{root, max(workers, 1)}).run(ctx, chosen, t.add); err != nil {
		return err
	}
	return t.summarize()
}

// choose returns the bugs that the flags select.
func choose(all []Bug, only string, short bool) ([]Bug, error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	var chosen []Bug
	for _, b := range all {
		if (match.MatchString(b.Name) || match.MatchString(b.File)) && (b.Quick || !short) {
			chosen = append(chosen, b)
		}
	}
	if len(chosen) == 0 && only != "" {
		return nil, fmt.Errorf("no bug matches %q", only)
	}
	return chosen, nil
}

// moduleRoot returns the folder of the module around the working directory.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// A table prints results as they arrive, in columns wide enough for every bug.
type table struct {
	out             io.Writer
	name, mechanism int // widths of the columns
	count           int // results
	failed          []result
}

func newTable(out io.Writer, bugs []Bug) *table {
	t := &table{out: out, name: len("bug"), mechanism: len("mechanism")}
	for _, b := range bugs {
		t.name, t.mechanism = max(t.name, len(b.Name)), max(t.mechanism, len(b.Mechanism))
	}
	t.row("bug", "mechanism", "noticed by", "time")
	return t
}

func (t *table) row(bug, mechanism, by, took string) {
	fmt.Fprintf(t.out, "%-*s | %-*s | %-40s | %s\n", t.name, bug, t.mechanism, mechanism, by, took)
}

func (t *table) add(r result) {
	t.count++
	by := r.by
	if r.err != nil {
		by = "!! " + r.err.Error()
		t.failed = append(t.failed, r)
	}
	t.row(r.bug.Name, r.bug.Mechanism, by, r.took.Round(100*time.Millisecond).String())
}

// summarize prints the totals and the output of go test for each bug that failed. It returns an
// error if there are any.
func (t *table) summarize() error {
	for _, r := range t.failed {
		fmt.Fprintf(t.out, "\n%s: %v\n    in %s, by go test -run %q %s\n", r.bug.Name, r.err, r.bug.File, r.bug.Run, r.bug.Pkg)
		for line := range strings.Lines(tail(r.text, 4000)) {
			fmt.Fprint(t.out, "    ", line)
		}
	}
	fmt.Fprintf(t.out, "\n%d of %d planted bugs noticed\n", t.count-len(t.failed), t.count)
	if len(t.failed) > 0 {
		return fmt.Errorf("%d of %d planted bugs failed", len(t.failed), t.count)
	}
	return nil
}

// tail returns the last n bytes of s.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "...\n" + s[len(s)-n:]
}
