package machine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// children are what this binary does instead of testing when PAWL_TEST_CHILD names one of them.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	if role := os.Getenv("PAWL_TEST_CHILD"); role != "" {
		if err := children[role](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
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

// place is where a store can be.
type place struct {
	name     string
	location func(t testing.TB) string
}

// onlyStore names a store that alone is to be tested; empty: all.
var onlyStore = os.Getenv("PAWL_TEST_STORE_ONLY")

// shared are the stores that several processes can open.
var shared = slices.DeleteFunc([]place{
	{"sqlite", func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "state.db") }},
	{"fs", func(t testing.TB) string { return "fs:" + filepath.Join(t.TempDir(), "state") }},
	{"postgres", func(t testing.TB) string { return pgtest.URL(t) }},
}, func(p place) bool { return onlyStore != "" && onlyStore != p.name })

// openStore opens the store at a location, in any process.
func openStore(location string) (persist.Store, error) {
	ctx := context.Background()
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "memory":
		return memory.New(), nil
	case "sqlite":
		return sqlite.Open(ctx, rest, sqlite.Config{})
	case "fs":
		return fs.Open(ctx, rest, fs.Config{LockTimeout: time.Minute}) // on a busy disk the default is soon over
	case "postgres":
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return nil, fmt.Errorf("no store is at %q", location)
}

// onShared runs test with a new location on every store that processes can share.
func onShared(t *testing.T, test func(t *testing.T, location string)) {
	t.Helper()
	for _, p := range shared {
		t.Run(p.name, func(t *testing.T) { test(t, p.location(t)) })
	}
}

// onStores runs test on every store, memory included.
func onStores(t *testing.T, test func(t *testing.T, store persist.Store)) {
	t.Helper()
	for _, p := range append([]place{{"memory", func(testing.TB) string { return "memory:" }}}, shared...) {
		t.Run(p.name, func(t *testing.T) {
			store, err := openStore(p.location(t))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			test(t, store)
		})
	}
}
