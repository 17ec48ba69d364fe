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

// Child processes. Each runs this program, with a task in its environment: to keep a processor busy
// (busy.go), to run a reaction (reactions.go), or to run half of the writers.

// childTask is the task of a child process.
type childTask struct {
	// Busy says how long to spin; 0: the task is another one.
	Busy time.Duration `json:"busy,omitempty"`
	// React is the place of the streams to react to; empty: the task is another one.
	React string `json:"react,omitempty"`

	// Half of the writers.
	Side    string        `json:"side,omitempty"`  // a name in remotes
	Place   string        `json:"place,omitempty"` // the store's URL or folder
	Writers int           `json:"writers,omitempty"`
	Lasts   time.Duration `json:"lasts,omitempty"`
	Each    int           `json:"each,omitempty"`
	Cut     bool          `json:"cut,omitempty"`
}

const taskVariable = "PAWL_BENCH_TASK"

// isChild reports whether this process is a child. If it is, isChild runs its task first.
func isChild() bool {
	text, ok := os.LookupEnv(taskVariable)
	if !ok {
		return false
	}
	if err := runTask(text); err != nil {
		fmt.Fprintln(os.Stderr, "bench: child process:", err)
		os.Exit(1)
	}
	return true
}

func runTask(text string) error {
	var e childTask
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	switch {
	case e.Busy > 0:
		spin(e.Busy)
		return nil
	case e.React != "":
		return e.react()
	}
	return e.driveHalf()
}

// child is a process that has reported that it is ready. It ends when its stdin is closed, also when
// this process is killed.
type child struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// ready is the line that a child prints when it is ready.
const ready = "ready\n"

// startChild starts a child and waits until it is ready.
func startChild(ctx context.Context, e childTask) (*child, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{Cmd: exec.CommandContext(ctx, program)}
	c.Env = append(os.Environ(), taskVariable+"="+string(text))
	c.Stderr = os.Stderr
	if c.stdin, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	c.stdout = bufio.NewReader(stdout)
	if line, err := c.stdout.ReadString('\n'); line != ready {
		return nil, fmt.Errorf("child process did not start: %q, %w", line, errors.Join(err, c.end()))
	}
	return c, nil
}

// end closes the child's stdin and waits for its exit.
func (c *child) end() error {
	_ = c.stdin.Close()
	return c.Wait()
}

// report is the result of a second process.
type report struct {
	Acknowledged, Failed, Late int64
	Error                      string // the error of one failed unit
	Elapsed                    time.Duration
	Counts                     map[int]uint32 // the buckets of the histogram
}

// remotes has the sides that a second process can open, at a place that the first has prepared.
var remotes = map[string]func(place string) (*instance, error){
	atomically.key: onHotRow(atomically),
	naive8.key:     onHotRow(naive8),
}

func onHotRow(s strategy) func(place string) (*instance, error) {
	return func(place string) (*instance, error) {
		ctx := context.Background()
		c, err := s.reopen(ctx, place)
		if err != nil {
			return nil, err
		}
		return &instance{do: func(ctx context.Context, _, _ int) error { return c.add(ctx, hotRow.ids[0]) }, ending: c.start(), close: c.close}, c.warm(ctx)
	}
}

// driveHalf runs in the second process. It opens the side of the task, prints ready, waits for a line
// on stdin, drives the side and writes a report.
func (e childTask) driveHalf() error {
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
	fmt.Print(ready)
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

// driveTwice drives in with half of the writers here, and the other half in a second process at the
// same place.
func (b *bench) driveTwice(in *instance, l load) (m measured, err error) {
	second, err := startChild(b.ctx, childTask{Side: in.remote, Place: in.place, Writers: l.writers / 2, Lasts: l.lasts, Each: l.each, Cut: l.cut})
	if err != nil {
		return m, err
	}
	defer func() {
		if eerr := second.end(); err == nil {
			err = eerr
		}
	}()
	if _, err := io.WriteString(second.stdin, "go\n"); err != nil {
		return m, err
	}
	half := l
	half.writers = l.writers - l.writers/2
	if m, err = drive(b.ctx, in, half); err != nil {
		return m, err
	}
	var r report
	if err := json.NewDecoder(second.stdout).Decode(&r); err != nil {
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
