package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

func init() { testkit.Child("batch", child) }

// Environment variables of a child.
const (
	envDir   = "BATCH_TEST_DIR"
	envLimit = "BATCH_TEST_LIMIT" // the number of the first picture whose call does not end by itself
	envDeaf  = "BATCH_TEST_DEAF"  // not empty: such a call does not end with its context either
)

// items is the number of thumbnails. Each of them makes a line of its own.
const items = 20

// child runs the program.
func child() error {
	limit, err := strconv.Atoi(os.Getenv(envLimit))
	if err != nil {
		return err
	}
	return run(context.Background(), os.Stdout, config{
		dir: os.Getenv(envDir), store: stores.Flag(os.Getenv(stores.Variable)), job: "j", items: items, lease: time.Second,
		work: func(ctx context.Context, p Picture) error {
			if p.Number < limit {
				return nil
			}
			if os.Getenv(envDeaf) != "" {
				ctx = context.Background()
			}
			<-ctx.Done()
			return context.Cause(ctx)
		},
	})
}

// start starts the program. The calls of the pictures from limit on do not end.
func start(t *testing.T, location, dir string, limit int, env ...string) *testkit.Process {
	t.Helper()
	env = append(env, stores.Env(location), envDir+"="+dir, envLimit+"="+strconv.Itoa(limit))
	return testkit.Start(t, "batch", env...)
}

// awaitLine reads the lines of a child up to one with a prefix.
func awaitLine(t *testing.T, p *testkit.Process, prefix string) string {
	t.Helper()
	for {
		if line := p.Line(); strings.HasPrefix(line, prefix) {
			return line
		}
	}
}

// made is the prefix of the line that says that n thumbnails are made.
func made(n int) string { return fmt.Sprintf("running: %d of %d made", n, items) }

// completed are the last lines about a job whose thumbnails are all made.
var completed = []string{
	"completed: 20 of 20 made, 0 canceled",
	"points before: 1200, charged: 100, refunded: 0, balance: 1100",
	"files left: 20",
	"the books balance: 20 thumbnails are paid for",
}

// The program runs to the end. Started again, it reports the same.
func TestToTheEnd(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // much of it is waiting for leases
		dir := t.TempDir()
		lines := start(t, location, dir, items).Wait()
		require.Equal(t, "job j: 20 thumbnails for 5 points each, Ctrl-C cancels it", lines[0])
		require.Equal(t, completed, lines[len(lines)-len(completed):])
		lines = start(t, location, dir, items).Wait()
		require.Equal(t, append([]string{"job j was submitted before: completed, 20 of 20 made"}, completed...), lines)
	})
}

// The program is killed again and again while calls are in progress. The last start makes the rest,
// with the totals of a run that was not disturbed. Proves CANCEL-11.
func TestKilled(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // much of it is waiting for leases
		dir := t.TempDir()
		for _, limit := range []int{3, 9, 16} {
			p := start(t, location, dir, limit)
			awaitLine(t, p, made(limit))
			p.Kill()
		}
		lines := start(t, location, dir, items).Wait()
		require.Equal(t, "job j was submitted before: running, 16 of 20 made", lines[0])
		require.Equal(t, completed, lines[len(lines)-len(completed):])
	})
}

// A file that is missing is noticed.
func TestMissingFile(t *testing.T) {
	c := config{
		dir: t.TempDir(), job: "j", items: 2, lease: time.Minute,
		work: func(context.Context, Picture) error { return nil },
	}
	require.NoError(t, run(t.Context(), io.Discard, c))
	files, err := filepath.Glob(filepath.Join(c.dir, "thumbnails", "*.png"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.NoError(t, os.Remove(files[0]))
	require.ErrorContains(t, run(t.Context(), io.Discard, c), "the books do not balance")
}

// An account that lasts for a part of the items pays for that part.
func TestTooFewPoints(t *testing.T) {
	var out strings.Builder
	c := config{
		dir: t.TempDir(), job: "j", items: points/price + 1, lease: time.Minute,
		work: func(context.Context, Picture) error { return nil },
	}
	require.NoError(t, run(t.Context(), &out, c))
	require.Contains(t, out.String(), `reason: batch: account "j" has 0 points and needs 5`)
	require.Contains(t, out.String(), "the books balance: 240 thumbnails are paid for")
}
