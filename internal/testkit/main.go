package testkit

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"go.uber.org/goleak"
)

// Variable names the environment variable with the role of a child process.
const Variable = "PAWL_TEST_CHILD"

// roles holds the functions that Child registered, by role.
var roles = map[string]func() error{}

// Child registers the function that this binary runs instead of its tests when [Start] names role.
// Call it from an init function. A child whose function returns an error exits with 1.
func Child(role string, run func() error) {
	if _, ok := roles[role]; ok || strings.HasPrefix(role, "Test") {
		panic(fmt.Sprintf("testkit: role %q is taken", role))
	}
	roles[role] = run
}

// Role returns the role of this process, and "" in a process that is no child.
func Role() string { return os.Getenv(Variable) }

// Main ends the process with the result of its tests, or of its role if it is a child. TestMain
// calls it with m.Run. After run, Main calls the functions in release. A process that succeeded so
// far fails if a goroutine is left.
//
// A role that is the name of a test runs that test alone, for children that need a *testing.T.
func Main(run func() int, release ...func()) {
	code := 0
	switch role := Role(); {
	case strings.HasPrefix(role, "Test"):
		flag.Parse()
		if err := flag.Set("test.run", "^"+role+"$"); err != nil {
			panic(err)
		}
		code = run()
	case role != "":
		code = runRole(role)
	default:
		code = run()
	}
	for _, f := range release {
		f()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// runRole returns the exit code of a child.
func runRole(role string) int {
	run, ok := roles[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: no role is named %q\n", Variable, role)
		return 2
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
