package pawl_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// children are what this test binary does instead of testing when PAWL_TEST_CHILD names one of them: tests that need a process of
// their own, to kill it for example, start the binary again that way. Files register theirs in an init.
var children = map[string]func() int{}

// child runs the one that is named run and returns its exit code.
func child(run string) int {
	f, ok := children[run]
	if !ok {
		fmt.Fprintf(os.Stderr, "PAWL_TEST_CHILD: nothing is named %q\n", run)
		return 2
	}
	return f()
}

func TestMain(m *testing.M) {
	if run := os.Getenv("PAWL_TEST_CHILD"); run != "" {
		os.Exit(child(run))
	}
	code := m.Run()
	pgtest.Stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
