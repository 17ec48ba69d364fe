package fs

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/internal/crashtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// children are what the test binary can be instead of a test, by role.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	code := 0
	if child, ok := children[os.Getenv(crashtest.Variable)]; ok {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	} else {
		code = persisttest.Main(m, openAny)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func openAny(dir string) (persist.Store, error) {
	return Open(context.Background(), dir, Config{LockTimeout: time.Minute}) // on a busy disk the default is soon over
}

// Proves STORE-1, STORE-3.
func TestConformance(t *testing.T) { persisttest.Run(t, openAny, persisttest.Options{}) }
