// Package crashtest lets a test start its own binary again as a child, hear line by line what the child says, and kill it at any moment.
package crashtest

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

// Variable names the environment variable that tells the binary what to be instead of a test.
const Variable = "PAWL_TEST_CHILD"

// patience is how long a child may take for anything before the test fails.
const patience = 2 * time.Minute

// Child is a child as its parent sees it.
type Child struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
	bound  *time.Timer
}

// Start starts the binary as the child that role names, with further variables in its environment. The child waits in [Begin] until Go.
func Start(t testing.TB, role string, env ...string) *Child {
	t.Helper()
	c := &Child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), Variable+"="+role), env...)
	c.cmd.Stderr = &c.stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, 1<<20)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.bound = time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	t.Cleanup(func() {
		if c.cmd.ProcessState == nil { // the test failed before it waited
			c.Kill()
		}
	})
	return c
}

// Go lets the child begin.
func (c *Child) Go() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "go\n"); err != nil {
		c.t.Fatalf("the child is gone: %v\n%s", err, &c.stderr)
	}
}

// Next returns the next line, and false when there is none because the child has ended.
func (c *Child) Next() (string, bool) {
	if !c.out.Scan() {
		return "", false
	}
	return c.out.Text(), true
}

// Kill ends the child without warning, as kill -9 does, and returns the lines that it had said and nobody had read.
func (c *Child) Kill() []string {
	_ = c.cmd.Process.Kill()
	lines := c.rest()
	_ = c.cmd.Wait()
	c.bound.Stop()
	return lines
}

// Wait returns the lines that the child still has to say, and fails the test unless it ends by itself, with 0.
func (c *Child) Wait() []string {
	c.t.Helper()
	lines := c.rest()
	err := c.cmd.Wait()
	c.bound.Stop()
	if err != nil {
		c.t.Fatalf("the child ended badly: %v\n%s", err, &c.stderr)
	}
	return lines
}

// Stderr returns what an ended child wrote there.
func (c *Child) Stderr() string { return c.stderr.String() }

func (c *Child) rest() (lines []string) {
	for c.out.Scan() {
		lines = append(lines, c.out.Text())
	}
	return lines
}

// Begin is called by a child that is ready. It returns when the parent says Go, and ends the child if the parent is gone.
func Begin() {
	Say("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Fprintln(os.Stderr, "the parent is gone:", err)
		os.Exit(3)
	}
}

var saying sync.Mutex

// Say writes a line to the parent. It is one write, so that a child that is killed has said a line entirely or not at all, and it returns
// after the line has left the process.
func Say(format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	if _, err := os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n"); err != nil {
		os.Exit(3) // nobody listens
	}
}

// Ready waits until the children have called Begin, and lets them go, all at once.
func Ready(children ...*Child) {
	for _, c := range children {
		c.t.Helper()
		if line, ok := c.Next(); !ok || line != "ready" {
			c.t.Fatalf("the child does not start: %q", line)
		}
	}
	for _, c := range children {
		c.Go()
	}
}
