package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A second process takes half of the writers. It is this program again; it opens the side that the instance names, says that it is
// ready, starts when it is told to, and writes what it measured.

// errand is what the second process is told, in its environment.
type errand struct {
	Side    string        `json:"side"`  // a name in remotes
	Place   string        `json:"place"` // the store's URL or folder
	Writers int           `json:"writers"`
	Lasts   time.Duration `json:"lasts"`
	Each    int           `json:"each"`
	Cut     bool          `json:"cut"`
}

// report is what the second process answers.
type report struct {
	Acknowledged, Failed, Late int64
	Error                      string // of one that failed
	Elapsed                    time.Duration
	Counts                     map[int]uint32 // of the histogram
}

const errandVariable = "PAWL_BENCH_ERRAND"

// remotes are the sides that a second process can open, on a place that the first has prepared.
var remotes = map[string]func(place string) (*instance, error){
	atomically.key: onHotRow(atomically),
	naive8.key:     onHotRow(naive8),
}

func onHotRow(s strategy) func(place string) (*instance, error) {
	return func(place string) (*instance, error) {
		ctx := context.Background()
		c, err := s.again(ctx, place)
		if err != nil {
			return nil, err
		}
		return &instance{do: func(ctx context.Context, _, _ int) error { return c.add(ctx, hotRow.ids[0]) }, ending: c.start(), close: c.close}, c.warm(ctx)
	}
}

// childOf reports whether this process is the second one, after it has done its errand.
func childOf([]string) bool {
	text, ok := os.LookupEnv(errandVariable)
	if !ok {
		return false
	}
	if err := runErrand(text); err != nil {
		fmt.Fprintln(os.Stderr, "bench: second process:", err)
		os.Exit(1)
	}
	return true
}

func runErrand(text string) error {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	open, ok := remotes[e.Side]
	if !ok {
		return fmt.Errorf("no side %q", e.Side)
	}
	in, err := open(e.Place)
	if err != nil {
		return err
	}
	if in.close != nil {
		defer in.close()
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	m, err := drive(context.Background(), in, load{writers: e.Writers, lasts: e.Lasts, each: e.Each, cut: e.Cut})
	if err != nil {
		return err
	}
	r := report{Acknowledged: m.acknowledged, Failed: m.failed, Late: m.late, Elapsed: m.elapsed, Counts: map[int]uint32{}}
	if m.err != nil {
		r.Error = m.err.Error()
	}
	for i, n := range m.latency.counts {
		if n > 0 {
			r.Counts[i] = n
		}
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// driveTwice drives in with half of the writers here, and the others in a second process on the same place.
func (b *bench) driveTwice(in *instance, l load) (m measured, err error) {
	text, err := json.Marshal(errand{Side: in.remote, Place: in.place, Writers: l.writers / 2, Lasts: l.lasts, Each: l.each, Cut: l.cut})
	if err != nil {
		return m, err
	}
	program, err := os.Executable()
	if err != nil {
		return m, err
	}
	child := exec.CommandContext(b.ctx, program)
	child.Env = append(os.Environ(), errandVariable+"="+string(text))
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		return m, err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return m, err
	}
	if err := child.Start(); err != nil {
		return m, err
	}
	defer func() {
		_ = stdin.Close()
		if werr := child.Wait(); err == nil {
			err = werr
		}
	}()
	answers := bufio.NewReader(stdout)
	if line, err := answers.ReadString('\n'); err != nil || line != "ready\n" {
		return m, fmt.Errorf("the second process did not start: %q, %w", line, err)
	}
	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		return m, err
	}
	half := l
	half.writers = l.writers - l.writers/2
	if m, err = drive(b.ctx, in, half); err != nil {
		return m, err
	}
	var r report
	if err := json.NewDecoder(answers).Decode(&r); err != nil {
		return m, err
	}
	m.acknowledged += r.Acknowledged
	m.failed += r.Failed
	m.late += r.Late
	if r.Error != "" {
		m.err = errors.New(r.Error)
	}
	m.elapsed = max(m.elapsed, r.Elapsed)
	for i, n := range r.Counts {
		m.latency.counts[i] += n
		m.latency.total += uint64(n)
	}
	return m, nil
}
