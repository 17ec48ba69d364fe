// Package persisttest is the conformance suite for stores, ours and yours.
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

	"github.com/pawl-go/pawl/persist"
)

// Opener opens the store at location. Two calls with one location reach the same data, from two
// processes too.
type Opener = func(location string) (persist.Store, error)

// Options says where stores are and what they cannot do, so that the suite skips it by name
// instead of failing. The zero value is a store that can do everything.
type Options struct {
	// Location returns a place where there is no store yet, and removes what is there when t
	// ends. Nil: a new temporary folder.
	Location func(t *testing.T) string

	SingleKey bool // Commit of several keys returns persist.ErrUnsupported
	Volatile  bool // state dies with the store: it is opened once per location, in one process
}

// Run runs every conformance test against stores that open returns. What is optional (persist.Reader,
// persist.Leaser, persist.Purger, persist.Watcher, persist.Prober, persist.Native) is tested where the
// store has it; where it has not, those tests are skipped by name.
func Run(t *testing.T, open Opener, o Options) {
	t.Helper()
	refuseChild(t)
	s := suite{open: open, options: o}
	for _, concern := range []struct {
		name  string
		tests map[string]func(*testing.T)
	}{
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
		{"Lifecycle", s.lifecycle()},
		{"Races", s.races()},
		{"Processes", s.processes()},
		{"Watching", s.watching()},
		{"Probing", s.probing()},
		{"Native", s.native()},
		{"Model", s.model()},
	} {
		t.Run(concern.name, func(t *testing.T) {
			for name, test := range concern.tests {
				t.Run(name, test)
			}
		})
	}
}

type suite struct {
	open    Opener
	options Options
}

// location returns a place for the store of one test.
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
		t.Skip("Options.Volatile: the store belongs to one process")
	}
}
