// Package memory keeps records in the memory of one process, for tests and for state that may end
// with the process.
package memory

import (
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Store is a persist.Store in memory. It implements all optional interfaces of package
// persist except Native, Describer, Limiter and LogCleaner. The records that it returns are copies.
type Store struct {
	hints hints.Hub

	mu      sync.RWMutex // protects the fields below
	closed  bool
	floor   uint64                         // the version floor
	records map[persist.Key]persist.Record // never changed in place, except by replacing an entry
	byKey   index                          // of all records
	byDue   index                          // of the records that have a due time
	logs    logs
}

var (
	_ persist.Store       = (*Store)(nil)
	_ persist.Reader      = (*Store)(nil)
	_ persist.Leaser      = (*Store)(nil)
	_ persist.Purger      = (*Store)(nil)
	_ persist.Watcher     = (*Store)(nil)
	_ persist.Prober      = (*Store)(nil)
	_ persist.Restorer    = (*Store)(nil)
	_ persist.LogRestorer = (*Store)(nil)
)

// New returns an empty store.
func New() *Store {
	return &Store{records: make(map[persist.Key]persist.Record), logs: newLogs()}
}

// Close drops every record and its log. Later calls return persist.ErrClosed. It returns nil, also
// when called twice. It does not wait for watchers.
func (s *Store) Close() error {
	s.hints.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.records, s.byKey, s.byDue, s.logs = true, nil, index{}, index{}, logs{}
	return nil
}

// now returns the host's time as records keep it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
