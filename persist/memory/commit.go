package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

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
	if err := s.takenNumbers(c, current, at); err != nil {
		return time.Time{}, err
	}
	for i := range c.Writes {
		if w := &c.Writes[i]; w.Log != nil {
			s.logs.write(w.Key, w.Log, at)
		}
	}
	for _, r := range next {
		s.put(current[r.Key], r)
	}
	return at, nil
}

// put replaces the record before by after and hints the change. The caller holds mu, so that a
// watcher that reads the record waits until the change can be seen.
func (s *Store) put(before, after persist.Record) {
	s.keep(after)
	s.hint(before, after)
}

// keep stores r, and keeps the indexes. The caller holds mu.
func (s *Store) keep(r persist.Record) {
	due := persist.Query{Due: true}
	was, had := s.records[r.Key]
	if had && !was.Due.IsZero() && !was.Due.Equal(r.Due) {
		s.byDue.remove(cursor.Of(due, was))
	}
	if !r.Due.IsZero() {
		s.byDue.add(cursor.Of(due, r))
	}
	if !had {
		s.byKey.add(cursor.Of(persist.Query{}, r))
	}
	s.records[r.Key] = r
}
