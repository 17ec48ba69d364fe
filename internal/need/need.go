// Package need decides what becomes of a test that needs a program which is not on every machine.
//
// `go test ./...` skips such a test and says so. Where [Variable] lists the program, as it does in
// every target of the Makefile, the test fails instead: what was meant to run is never skipped.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Variable names the environment variable that lists what must not be missing, separated by
// commas or spaces: PAWL_TEST_REQUIRE="postgres strace".
const Variable = "PAWL_TEST_REQUIRE"

// said holds the lines that this process has written to stderr.
var said sync.Map

// Missing ends a test that cannot run because it lacks what: it fails if Variable lists what, and is
// skipped otherwise. why says what was looked for, how says how to get it. A skip is also announced
// on stderr, once per process, because go test shows skipped tests only to those who ask for them.
func Missing(t testing.TB, what, why, how string) {
	t.Helper()
	line := fmt.Sprintf("needs %s: %s; to get it: %s", what, why, how)
	if Required(what) {
		t.Fatalf("%s (%s lists it)", line, Variable)
	}
	if _, again := said.LoadOrStore(line, true); !again {
		fmt.Fprintf(os.Stderr, "skipped: %s and its like: %s\n", t.Name(), line)
	}
	t.Skip(line)
}

// Required reports whether Variable lists what.
func Required(what string) bool {
	listed := strings.FieldsFunc(os.Getenv(Variable), func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(listed, what)
}

// Strace returns the path of an strace that is allowed to trace. Without one the test ends as
// [Missing] says, except where there can be none: outside Linux it is skipped.
func Strace(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("strace runs on Linux only")
	}
	const how = "make need-strace"
	path, err := exec.LookPath("strace")
	if err != nil {
		Missing(t, "strace", "it is not in PATH", how)
	}
	if output, err := exec.Command(path, "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		Missing(t, "strace", fmt.Sprintf("it may not trace here (%s)", strings.TrimSpace(string(output))),
			"allow ptrace, in a container with --cap-add=SYS_PTRACE")
	}
	return path
}
