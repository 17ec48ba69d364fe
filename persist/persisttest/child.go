package persisttest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// The environment of a child process.
const (
	roleVariable     = "PAWL_PERSISTTEST_ROLE"
	locationVariable = "PAWL_PERSISTTEST_LOCATION"
	nameVariable     = "PAWL_PERSISTTEST_NAME"
)

// childTimeout ends a child that nobody ends.
const childTimeout = 2 * time.Minute

var calledMain bool

// Main must be called from TestMain by adapters whose stores are shared by several processes: the
// suite executes the test binary again, and Main is where such a child turns off. It returns the
// code to exit with. open is the one that Run gets.
func Main(m *testing.M, open Opener) int {
	calledMain = true
	role, ok := roles[os.Getenv(roleVariable)]
	if !ok {
		return m.Run()
	}
	if err := runChild(role, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// refuseChild ends a child whose TestMain did not call Main, before it starts children itself.
func refuseChild(t *testing.T) {
	t.Helper()
	if os.Getenv(roleVariable) != "" {
		t.Fatal("this is a child of the suite, but TestMain does not call persisttest.Main")
	}
}

// child is what a role gets.
type child struct {
	store persist.Store
	name  string
	mu    sync.Mutex // protects out
	out   io.Writer
}

// say reports one line to the parent. Lines are written at once, so that a child that is killed
// has said all that it claims.
func (c *child) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, format+"\n", args...)
}

var roles = map[string]func(context.Context, *child) error{
	"open":      func(context.Context, *child) error { return nil },
	"increment": incrementRole,
	"forever":   foreverRole,
	"create":    createRole,
	"transfer":  transferRole,
	"change":    changeRole,
	"watch":     watchRole,
}

// runChild waits for the parent's sign, opens the store and plays the role.
func runChild(role func(context.Context, *child) error, open Opener) error {
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("the parent is gone: %w", err)
	}
	store, err := open(os.Getenv(locationVariable))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if err := role(ctx, &child{store: store, name: os.Getenv(nameVariable), out: os.Stdout}); err != nil {
		return err
	}
	return store.Close()
}

// process is a child as its parent sees it.
type process struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	errors  strings.Builder
}

// spawn starts a child and waits until it is ready.
func (s suite) spawn(t *testing.T, role, location, name string) *process {
	t.Helper()
	require.True(t, calledMain, "TestMain must call persisttest.Main, or Run get Options.Volatile")
	p := &process{t: t, command: exec.Command(os.Args[0])}
	p.command.Env = append(os.Environ(), roleVariable+"="+role, locationVariable+"="+location, nameVariable+"="+name)
	p.command.Stderr = &p.errors
	var err error
	p.in, err = p.command.StdinPipe()
	require.NoError(t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewScanner(out)
	require.NoError(t, p.command.Start())
	t.Cleanup(func() {
		if p.command.ProcessState == nil { // the test failed before it waited
			_ = p.command.Process.Kill()
			_ = p.command.Wait()
		}
	})
	require.True(t, p.out.Scan(), "the child does not start: %s", &p.errors)
	require.Equal(t, "ready", p.out.Text())
	return p
}

// start gives the child its sign.
func (p *process) start() {
	p.t.Helper()
	_, err := io.WriteString(p.in, "go\n")
	require.NoError(p.t, err)
}

// wait returns the lines that the child still has to say, and requires that it ends well.
func (p *process) wait() []string {
	p.t.Helper()
	lines := p.rest()
	require.NoError(p.t, p.command.Wait(), "%s", &p.errors)
	return lines
}

// kill ends the child without warning and returns the lines that it had said.
func (p *process) kill() []string {
	p.t.Helper()
	require.NoError(p.t, p.command.Process.Kill())
	lines := p.rest()
	_ = p.command.Wait()
	return lines
}

func (p *process) rest() []string {
	var lines []string
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	return lines
}

// crowd runs n children of a role at the same time and returns what each said.
func (s suite) crowd(t *testing.T, n int, role, location string) [][]string {
	t.Helper()
	var processes []*process
	for i := range n {
		processes = append(processes, s.spawn(t, role, location, fmt.Sprintf("p%d", i)))
	}
	for _, p := range processes {
		p.start()
	}
	var said [][]string
	for _, p := range processes {
		said = append(said, p.wait())
	}
	return said
}
