// Package need skips or fails a test that needs a program which is not on every machine.
//
// `go test ./...` skips such a test and says so. If [Variable] lists the program, as in every
// target of the Makefile, the test fails instead.
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

// Variable names the environment variable that lists the required programs, separated by commas or
// spaces: PAWL_TEST_REQUIRE="postgres strace".
const Variable = "PAWL_TEST_REQUIRE"

// written holds the lines that this process has written to stderr.
var written sync.Map

// Missing ends a test that cannot run because a program is missing. The test fails if Variable
// lists the program, and is skipped otherwise. Reason says where it was searched for, remedy says
// how to get it. A skip is also written to stderr, once per process, because go test shows skipped
// tests only with -v.
func Missing(t testing.TB, program, reason, remedy string) {
	t.Helper()
	line := fmt.Sprintf("%s is missing: %s; to get it: %s", program, reason, remedy)
	if Required(program) {
		t.Fatalf("%s (%s lists it)", line, Variable)
	}
	if _, again := written.LoadOrStore(line, true); !again {
		fmt.Fprintf(os.Stderr, "skipped: %s and other tests: %s\n", t.Name(), line)
	}
	t.Skip(line)
}

// Required reports whether Variable lists the program.
func Required(program string) bool {
	listed := strings.FieldsFunc(os.Getenv(Variable), func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(listed, program)
}

// Strace returns the path of an strace that is allowed to trace. Without one the test ends by
// [Missing]. On systems other than Linux it is always skipped.
func Strace(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("strace runs on Linux only")
	}
	const remedy = "make need-strace"
	path, err := exec.LookPath("strace")
	if err != nil {
		Missing(t, "strace", "not found in PATH", remedy)
	}
	if output, err := exec.Command(path, "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		Missing(t, "strace", fmt.Sprintf("not allowed to trace (%s)", strings.TrimSpace(string(output))),
			"allow ptrace, in a container with --cap-add=SYS_PTRACE")
	}
	return path
}
