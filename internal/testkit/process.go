package testkit

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// lifetime is how long a child may run before it is killed, so that a hung child fails its test.
const lifetime = 2 * time.Minute

// Process is a child process as its parent sees it.
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr output
	bound  *time.Timer // kills the child after lifetime
}

// Start starts this binary again, in a role that [Child] registered or that names a test. env adds
// variables to the child's environment. The child is killed at the end of t if it still runs.
func Start(t testing.TB, role string, env ...string) *Process {
	t.Helper()
	return Spawn(t, append(env, Variable+"="+role)...)
}

// Spawn starts this binary again without a role, for test suites that tell their children by a
// variable of their own.
func Spawn(t testing.TB, env ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.bound = time.AfterFunc(lifetime, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil { // the test ended before it waited
			p.Kill()
		}
		if t.Failed() && p.Stderr() != "" {
			t.Logf("child process %d wrote to stderr:\n%s", p.PID(), p.Stderr())
		}
	})
	return p
}

// Ready waits until each child has called [Begin], then lets all of them continue at once.
func Ready(children ...*Process) {
	for _, p := range children {
		p.t.Helper()
		p.Expect("ready")
	}
	for _, p := range children {
		p.Go()
	}
}

// Limit lets the child run for d from now on, instead of two minutes from its start.
func (p *Process) Limit(d time.Duration) { p.bound.Reset(d) }

// PID returns the process id of the child.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Go lets a child continue that waits in [Begin].
func (p *Process) Go() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		p.t.Fatalf("the child has ended: %v\n%s", err, p.Stderr())
	}
}

// Next returns the next line of the child. It returns false if the child has ended without one.
func (p *Process) Next() (string, bool) {
	if !p.out.Scan() {
		return "", false
	}
	return p.out.Text(), true
}

// Line returns the next line of the child and fails the test if the child has ended without one.
func (p *Process) Line() string {
	p.t.Helper()
	line, ok := p.Next()
	if !ok {
		p.Kill() // and so wait for the rest of stderr
		p.t.Fatalf("the child has ended: %s", p.Stderr())
	}
	return line
}

// Expect fails the test unless the next line of the child is line.
func (p *Process) Expect(line string) {
	p.t.Helper()
	if got := p.Line(); got != line {
		p.t.Fatalf("the child said %q, want %q", got, line)
	}
}

// Kill ends the child as kill -9 does, and returns the lines that were not read yet.
func (p *Process) Kill() []string {
	_ = p.cmd.Process.Kill()
	lines := p.rest()
	_ = p.cmd.Wait()
	p.bound.Stop()
	return lines
}

// Wait returns the remaining lines of the child. It fails the test unless the child ends with 0.
func (p *Process) Wait() []string {
	p.t.Helper()
	lines := p.rest()
	err := p.cmd.Wait()
	p.bound.Stop()
	if err != nil {
		p.t.Fatalf("the child failed: %v\n%s", err, p.Stderr())
	}
	return lines
}

// Stderr returns what the child has written to its standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

func (p *Process) rest() (lines []string) {
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	return lines
}

// output collects the standard error of a running child.
type output struct {
	mu   sync.Mutex // protects text
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Begin is called by a child that is ready. It returns when the parent calls Go, and ends the
// process if the parent has ended.
func Begin() {
	Say("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Fprintln(os.Stderr, "the parent has ended:", err)
		os.Exit(3)
	}
}

// saying makes each line of a child one write.
var saying sync.Mutex

// Say sends a line to the parent and returns when it has left the process. A child that is killed
// has sent a line entirely or not at all.
func Say(format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	if _, err := os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n"); err != nil {
		os.Exit(3) // the parent has ended
	}
}
