package pgtest

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

// momentVariable names the moment at which TestServersOfAChild waits to be killed.
const momentVariable = "PAWL_PGTEST_MOMENT"

// No server survives its test process, which is killed at chosen and at random moments.
func TestNoServerOutlivesItsProcess(t *testing.T) {
	find(t)
	moments := []string{"two servers", "a killed server"}
	for range 6 {
		moments = append(moments, "any")
	}
	for _, moment := range moments {
		t.Run(moment, func(t *testing.T) {
			folder := openFolder(t)
			child := testkit.Start(t, "TestServersOfAChild", "TMPDIR="+folder, momentVariable+"="+moment)
			testkit.Ready(child)
			if moment == "any" {
				time.Sleep(rand.N(2 * time.Second)) // any moment is right
			} else {
				child.Expect(moment)
				require.Equal(t, moment == "two servers", len(inside(t, folder, "postgres")) > 0)
			}
			child.Kill()
			testkit.EventuallyWithin(t, timeout, func() bool {
				left, err := os.ReadDir(folder)
				return err == nil && len(left) == 0 && len(inside(t, folder, "")) == 0
			})
		})
	}
}

// TestServersOfAChild runs in the child that TestNoServerOutlivesItsProcess kills.
func TestServersOfAChild(t *testing.T) {
	if testkit.Role() == "" {
		t.Skip("only as a child of TestNoServerOutlivesItsProcess")
	}
	waitAt := func(moment string) {
		if os.Getenv(momentVariable) == moment {
			testkit.Say("%s", moment)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
	}
	testkit.Begin()
	Connect(t, URL(t))
	s := New(t)
	Connect(t, s.URL("postgres"))
	waitAt("two servers")
	Stop()
	s.Kill()
	waitAt("a killed server")
	for {
		s.Restart()
	}
}

// openFolder returns a folder that every user can enter, unlike those of t.TempDir.
func openFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "pawl-orphans-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Chmod(folder, 0o777))
	return folder
}

// inside returns the processes whose working directory is in folder, as for all processes of a
// server. A name that is not empty selects by it.
func inside(t *testing.T, folder, name string) (found []string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, process := range processes {
		working, err := os.Readlink(filepath.Join(process, "cwd"))
		if err != nil || !strings.HasPrefix(working, folder) { // the process may have ended
			continue
		}
		called, err := os.ReadFile(filepath.Join(process, "comm"))
		if err == nil && (name == "" || strings.TrimSpace(string(called)) == name) {
			found = append(found, process)
		}
	}
	return found
}
