// Package persisttest is the conformance suite for stores, also for stores of other modules.
//
// An adapter calls Run from one test and Main from its TestMain:
//
//	func open(location string) (persist.Store, error) { return mystore.Open(location) }
//
//	func TestMain(m *testing.M) { os.Exit(persisttest.Main(m, open)) }
//
//	func TestConformance(t *testing.T) { persisttest.Run(t, open, persisttest.Options{}) }
package persisttest

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Opener opens the store at location. Two calls with one location open the same data, also in two
// processes.
type Opener = func(location string) (persist.Store, error)

// Options describes a store: where it is, and which tests do not apply to it. The suite skips these
// tests by name. The zero value is a store that can do everything.
type Options struct {
	// Location returns a location without a store, and removes the store there when t ends. Nil
	// means a new temporary folder.
	Location func(t *testing.T) string

	// SingleKey says that Commit of several keys returns persist.ErrUnsupported.
	SingleKey bool
	// Volatile says that records end with the store. It is opened once per location, in one
	// process.
	Volatile bool

	// Skewed opens the store as a process does whose host has a clock that is off by a time. Nil
	// says that the store takes no time from the hosts of its callers, or that all of them are on
	// one host.
	Skewed func(location string, off time.Duration) (persist.Store, error)
	// Link returns a link to the store at location, which ends with t. Nil says that the store is
	// part of the process, so that no answer can be lost on the way.
	Link func(t *testing.T, location string) Link
}

// Run runs every conformance test against stores that open returns. It tests the optional
// interfaces that the store implements (persist.Reader, persist.Leaser, persist.Purger,
// persist.Watcher, persist.Prober, persist.Limiter, persist.Restorer, persist.Native, persist.Logger,
// persist.LogRestorer), and skips the tests of the others by name.
func Run(t *testing.T, open Opener, o Options) {
	t.Helper()
	s := suite{open: open, options: o}
	s.run(t, []concern{
		{"Versions", s.versions()},
		{"Guards", s.guards()},
		{"Leases", s.leases()},
		{"Expiry", s.expiry()},
		{"Tombstones", s.tombstones()},
		{"Lists", s.lists()},
		{"Moments", s.moments()},
		{"Names", s.names()},
		{"Documents", s.documents()},
		{"Commits", s.commits()},
		{"Limits", s.limits()},
		{"Clocks", s.clocks()},
		{"Doubts", s.doubts()},
		{"Lifecycle", s.lifecycle()},
		{"Races", s.races()},
		{"Processes", s.processes()},
		{"Watching", s.watching()},
		{"Probing", s.probing()},
		{"Native", s.native()},
		{"Restoring", s.restoring()},
		{"Model", s.model()},
	})
	s.runLogs(t)
}

// RunLogs runs the tests of logs only. It is for a store that [persist.Logs] returns.
func RunLogs(t *testing.T, open Opener, o Options) {
	t.Helper()
	suite{open: open, options: o}.runLogs(t)
}

func (s suite) runLogs(t *testing.T) {
	t.Helper()
	s.run(t, []concern{
		{"Logs", s.logs()},
		{"LogContents", s.logContents()},
		{"LogOrder", s.logOrder()},
		{"LogRestoring", s.logRestoring()},
	})
}

// concern is a group of tests.
type concern struct {
	name  string
	tests map[string]func(*testing.T)
}

func (s suite) run(t *testing.T, concerns []concern) {
	t.Helper()
	refuseChild(t)
	for _, c := range concerns {
		t.Run(c.name, func(t *testing.T) {
			for name, test := range c.tests {
				t.Run(name, test)
			}
		})
	}
}

type suite struct {
	open    Opener
	options Options
}

// location returns the location of the store of one test.
func (s suite) location(t *testing.T) string {
	if s.options.Location == nil {
		return t.TempDir()
	}
	return s.options.Location(t)
}

// needsSeveralKeys skips a test whose commits have several keys.
func (s suite) needsSeveralKeys(t *testing.T) {
	t.Helper()
	if s.options.SingleKey {
		t.Skip("Options.SingleKey: the store commits one key at a time")
	}
}

// needsSharing skips a test that opens one location several times.
func (s suite) needsSharing(t *testing.T) {
	t.Helper()
	if s.options.Volatile {
		t.Skip("Options.Volatile: the store is opened in one process only")
	}
}
