package persisttest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// The environment of a child process.
const (
	roleVariable     = "PAWL_PERSISTTEST_ROLE"
	locationVariable = "PAWL_PERSISTTEST_LOCATION"
	nameVariable     = "PAWL_PERSISTTEST_NAME"
)

// childTimeout limits the time of a child.
const childTimeout = 2 * time.Minute

var calledMain bool

// Main runs the tests of m and returns the exit code. TestMain must call it unless Run gets
// Options.Volatile: the suite starts the test binary again as a child process, and Main runs the
// child instead of the tests. The parameter open is the one that Run gets.
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

// IsChild reports whether this process is a child that the suite started. A TestMain that starts
// servers does so only in the parent: the children get its locations.
func IsChild() bool { return os.Getenv(roleVariable) != "" }

// refuseChild fails the test in a child whose TestMain does not call Main. Such a child would start
// children itself.
func refuseChild(t *testing.T) {
	t.Helper()
	if IsChild() {
		t.Fatal("this is a child of the suite, but TestMain does not call persisttest.Main")
	}
}

// child is the argument of a role.
type child struct {
	store persist.Store
	name  string
}

var roles = map[string]func(context.Context, *child) error{
	"open":      func(context.Context, *child) error { return nil },
	"increment": incrementRole,
	"forever":   foreverRole,
	"create":    createRole,
	"transfer":  transferRole,
	"change":    changeRole,
	"watch":     watchRole,

	"append":         appendRole,
	"append forever": appendForeverRole,
}

// runChild waits for the parent's signal, opens the store and runs the role.
func runChild(role func(context.Context, *child) error, open Opener) error {
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	testkit.Begin()
	store, err := open(os.Getenv(locationVariable))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if err := role(ctx, &child{store: store, name: os.Getenv(nameVariable)}); err != nil {
		return err
	}
	return store.Close()
}

// spawn starts a child and waits until it is ready.
func (s suite) spawn(t *testing.T, role, location, name string) *testkit.Process {
	t.Helper()
	require.True(t, calledMain, "TestMain must call persisttest.Main, or Run get Options.Volatile")
	p := testkit.Spawn(t, roleVariable+"="+role, locationVariable+"="+location, nameVariable+"="+name)
	p.Expect("ready")
	return p
}

// crowd runs n children of a role at the same time and returns the lines that each printed.
func (s suite) crowd(t *testing.T, n int, role, location string) [][]string {
	t.Helper()
	var processes []*testkit.Process
	for i := range n {
		processes = append(processes, s.spawn(t, role, location, fmt.Sprintf("p%d", i)))
	}
	for _, p := range processes {
		p.Go()
	}
	var said [][]string
	for _, p := range processes {
		said = append(said, p.Wait())
	}
	return said
}
