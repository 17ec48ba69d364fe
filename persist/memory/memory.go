// Package memory keeps records in this process: for tests, and for state that may die with it.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// Store is a persist.Store, and a persist.Reader, persist.Leaser, persist.Purger, persist.Watcher and
// persist.Prober, in memory. Nothing that it returns or was given shares bytes with what it keeps.
type Store struct {
	hints hints.Hub

	mu      sync.RWMutex // protects what follows
	closed  bool
	floor   uint64 // the version floor
	records map[persist.Key]persist.Record
}

var (
	_ persist.Store   = (*Store)(nil)
	_ persist.Reader  = (*Store)(nil)
	_ persist.Leaser  = (*Store)(nil)
	_ persist.Purger  = (*Store)(nil)
	_ persist.Watcher = (*Store)(nil)
	_ persist.Prober  = (*Store)(nil)
)

// New returns an empty store.
func New() *Store { return &Store{records: make(map[persist.Key]persist.Record)} }

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; persist.ErrClosed after Close; and ctx's error.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return persist.Record{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return persist.Record{}, persist.ErrClosed
	}
	r := s.get(key)
	r.Now = now()
	if r.Absent() {
		return r, persist.ErrNotFound
	}
	return r.Clone(), nil
}

// LoadAll returns the records of keys as they are at one moment. It returns persist.ErrClosed after
// Close, and ctx's error.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	records, at := make([]persist.Record, len(keys)), now()
	for i, key := range keys {
		records[i] = s.get(key).Clone()
		records[i].Now = at
	}
	return records, nil
}

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when c is malformed or ctx has ended. The outcome is always known.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	c.Writes = slices.Clone(c.Writes)
	for i := range c.Writes {
		c.Writes[i].Doc = bytes.Clone(c.Writes[i].Doc)
	}
	keys := c.Keys()
	current := make(map[persist.Key]persist.Record, len(keys))

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return time.Time{}, persist.ErrClosed
	}
	for _, key := range keys {
		current[key] = s.get(key)
	}
	at := now() // read with the lock held, so that leases are judged inside the write
	next, err := persist.Apply(c, current, at)
	if err != nil {
		return time.Time{}, err
	}
	for _, r := range next {
		s.records[r.Key] = r
		s.hint(current[r.Key], r)
	}
	return at, nil
}

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first. It returns persist.ErrClosed after Close, ctx's error, and an error for an unknown q.After.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if err := ctx.Err(); err != nil {
		return persist.Page{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return persist.Page{}, persist.ErrClosed
	}
	matching, err := s.match(q, now())
	if err != nil {
		return persist.Page{}, err
	}
	var page persist.Page
	if size := q.PageSize(); len(matching) > size {
		matching = matching[:size]
		page.Next = cursor.Of(q, matching[size-1]).String()
	}
	for _, r := range matching {
		page.Records = append(page.Records, r.Clone())
	}
	return page, nil
}

// Take acquires records as persist.Leaser says. It returns persist.ErrClosed after Close, and an
// error that wraps persist.ErrNotApplied when q and a cannot be taken or ctx has ended.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire) ([]persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	at := now()
	matching, err := s.match(q, at)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	matching = matching[:min(len(matching), q.PageSize())]
	for i, r := range matching {
		taken := a.Take(r, at)
		s.records[r.Key] = taken
		s.hint(r, taken)
		matching[i] = taken.Clone()
	}
	return matching, nil
}

// Purge removes tombstones as persist.Purger says. It returns persist.ErrClosed after Close, and
// an error that wraps persist.ErrNotApplied when ctx has ended.
func (s *Store) Purge(ctx context.Context, q persist.Query) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	q.Deleted = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, persist.ErrClosed
	}
	matching, err := s.match(q, now())
	if err != nil {
		return 0, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	if q.Limit > 0 {
		matching = matching[:min(len(matching), q.Limit)]
	}
	for _, r := range matching {
		s.floor = max(s.floor, r.Version)
		delete(s.records, r.Key)
	}
	return len(matching), nil
}

// Versions returns the current versions of keys, 0 where there is no record, all of one moment. It
// returns persist.ErrClosed after Close, and ctx's error.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		versions[i] = s.records[key].Version
	}
	return versions, nil
}

// Watch calls wake for each change as persist.Watcher says. A wake that takes long holds up nobody:
// up to 1024 keys are kept for it, and the zero hint instead of more. It returns ctx's error, and
// persist.ErrClosed after Close.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.hints.Watch(ctx, wake)
}

// hint tells those who watch what became of a record. The caller holds mu, so that whoever looks for
// the change waits until it can be seen.
func (s *Store) hint(before, after persist.Record) {
	if hint, ok := hints.Of(before, after); ok {
		s.hints.Send(hint)
	}
}

// Close drops every record; later calls return persist.ErrClosed. It returns nil, also when called
// twice. It does not wait for those who watch.
func (s *Store) Close() error {
	s.hints.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.records = true, nil
	return nil
}

// get returns the record of key, or the absent one. The caller holds mu.
func (s *Store) get(key persist.Key) persist.Record {
	r, ok := s.records[key]
	if !ok {
		return persist.Record{Key: key, Version: s.floor}
	}
	return r
}

// match returns the stored records after q.After that match q, in order. The caller holds mu.
func (s *Store) match(q persist.Query, at time.Time) ([]persist.Record, error) {
	var after cursor.Position
	if q.After != "" {
		var err error
		if after, err = cursor.Parse(q.After); err != nil {
			return nil, err
		}
	}
	var matching []persist.Record
	for _, r := range s.records {
		if !q.Match(r, at) || q.After != "" && cursor.Of(q, r).Compare(after) <= 0 {
			continue
		}
		r.Now = at
		matching = append(matching, r)
	}
	slices.SortFunc(matching, func(a, b persist.Record) int {
		return cursor.Of(q, a).Compare(cursor.Of(q, b))
	})
	return matching, nil
}

// now is the host's clock as records keep it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
