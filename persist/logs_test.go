package persist_test

import (
	"testing"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// withoutLogs is a memory store that is no Logger.
type withoutLogs struct {
	plainStore
	persist.Reader
	persist.Purger
	persist.Restorer
}

func hideLogs(s *memory.Store) withoutLogs { return withoutLogs{plainStore{s}, s, s, s} }

// TestLogs: logs that are kept as documents pass the tests of logs, with and without the optional
// interfaces of the store.
//
// Proves STORE-1, STORE-2.
func TestLogs(t *testing.T) {
	for name, store := range map[string]func() persist.Store{
		"a plain store":         func() persist.Store { return plainStore{memory.New()} },
		"a store that restores": func() persist.Store { return hideLogs(memory.New()) },
	} {
		t.Run(name, func(t *testing.T) {
			open := func(string) (persist.Store, error) { return persist.Logs(store()), nil }
			persisttest.RunLogs(t, open, persisttest.Options{Volatile: true})
		})
	}
}
