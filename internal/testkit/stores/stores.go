// Package stores opens every store for tests.
//
// A location says where a store is, for every process: "sqlite:/tmp/a/state.db", "fs:/tmp/b/state",
// "postgres://…". "memory:1" is a store in the memory of the process that made it. Each handle that
// [Open] or [OpenFor] returns stands for another process:
//
//	func TestTwoProcesses(t *testing.T) {
//		stores.Each(t, func(t *testing.T, location string) {
//			first, second := stores.OpenFor(t, location), stores.OpenFor(t, location)
//
// A child process, which package testkit starts, opens the store that its parent named:
//
//	p := testkit.Start(t, "writer", stores.Env(location)) // in the parent
//	store, err := stores.OpenGiven()                      // in the child
//
// TestMain ends the server of PostgreSQL, if one was started:
//
//	func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }
package stores

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

const (
	// Only names the environment variable with the one store to test, besides memory. Empty: all.
	Only = "PAWL_TEST_STORE_ONLY"
	// Variable names the environment variable with the location that a child is to open.
	Variable = "PAWL_TEST_STORE"
)

// Store is one of the stores that tests run on.
type Store struct {
	// Name is "memory", "sqlite", "fs" or "postgres".
	Name string
	// New returns the location of a new, empty store, which is removed when t ends.
	New func(t testing.TB) (location string)
}

// The stores. Processes can share all of them but Memory.
var (
	Memory   = Store{"memory", newMemory}
	SQLite   = Store{"sqlite", func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "state.db") }}
	FS       = Store{"fs", func(t testing.TB) string { return "fs:" + filepath.Join(t.TempDir(), "state") }}
	Postgres = Store{"postgres", func(t testing.TB) string { return pgtest.URL(t) }}
)

// Shared are the stores that several processes can share, in so far as [Only] wants them tested.
var Shared = slices.DeleteFunc([]Store{SQLite, FS, Postgres}, func(s Store) bool { return !wanted(s.Name) })

// wanted reports whether a store is to be tested.
func wanted(name string) bool { return os.Getenv(Only) == "" || os.Getenv(Only) == name }

// Need skips t if [Only] names another store than name.
func Need(t testing.TB, name string) {
	t.Helper()
	if !wanted(name) {
		t.Skipf("%s=%s", Only, os.Getenv(Only))
	}
}

// Each runs test as a subtest on a new store of every kind.
func Each(t *testing.T, test func(t *testing.T, location string)) {
	t.Helper()
	each(t, append([]Store{Memory}, Shared...), test)
}

// EachShared runs test as a subtest on a new store of every kind that processes can share.
func EachShared(t *testing.T, test func(t *testing.T, location string)) {
	t.Helper()
	each(t, Shared, test)
}

func each(t *testing.T, all []Store, test func(t *testing.T, location string)) {
	t.Helper()
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) { test(t, s.New(t)) })
	}
}

// EachOpen runs test as a subtest with an open store of every kind.
func EachOpen(t *testing.T, test func(t *testing.T, store persist.Store)) {
	t.Helper()
	Each(t, func(t *testing.T, location string) { test(t, OpenFor(t, location)) })
}

// Name returns the name of the store at a location.
func Name(location string) string {
	name, _, _ := strings.Cut(location, ":")
	return name
}

// Flag returns a location in the form that the flag -store of the examples takes.
func Flag(location string) string {
	switch name, rest, _ := strings.Cut(location, ":"); name {
	case "sqlite":
		return rest
	case "fs":
		return "dir:" + rest
	}
	return location
}

// Open returns another handle on the store at a location, in any process.
func Open(location string) (persist.Store, error) {
	ctx := context.Background()
	name, rest, _ := strings.Cut(location, ":")
	switch name {
	case "memory":
		return openMemory(location)
	case "sqlite":
		return sqlite.Open(ctx, rest, sqlite.Config{})
	case "fs":
		return fs.Open(ctx, rest, fs.Config{LockTimeout: time.Minute}) // on a busy disk the default is too short
	case "postgres":
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return nil, fmt.Errorf("no store at %q", location)
}

// OpenFor is [Open], and closes the handle when t ends.
func OpenFor(t testing.TB, location string) persist.Store {
	t.Helper()
	store, err := Open(location)
	if err != nil {
		t.Fatalf("open %s: %v", location, err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close %s: %v", location, err)
		}
	})
	return store
}

// Env returns what makes a child open the store at a location, for testkit.Start.
func Env(location string) string { return Variable + "=" + location }

// OpenGiven opens, in a child, the store that the parent named with [Env].
func OpenGiven() (persist.Store, error) { return Open(os.Getenv(Variable)) }

// Stop ends the PostgreSQL server of this process, if one was started.
func Stop() { pgtest.Stop() }

// memories holds the stores in memory, by location.
var memories = struct {
	sync.Mutex // protects the rest
	stores     map[string]*memory.Store
	made       int
}{stores: map[string]*memory.Store{}}

func newMemory(t testing.TB) string {
	memories.Lock()
	defer memories.Unlock()
	memories.made++
	location := "memory:" + strconv.Itoa(memories.made)
	memories.stores[location] = memory.New()
	t.Cleanup(func() {
		memories.Lock()
		defer memories.Unlock()
		if err := memories.stores[location].Close(); err != nil {
			t.Errorf("close %s: %v", location, err)
		}
		delete(memories.stores, location)
	})
	return location
}

// handle is one of several handles on a store in memory. Closing it leaves the others open.
type handle struct{ *memory.Store }

func (handle) Close() error { return nil }

func openMemory(location string) (persist.Store, error) {
	memories.Lock()
	defer memories.Unlock()
	store, ok := memories.stores[location]
	if !ok {
		return nil, fmt.Errorf("no store at %q in this process", location)
	}
	return handle{store}, nil
}
