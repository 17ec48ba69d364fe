package memory

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// Purge removes tombstones as persist.Purger describes. It returns persist.ErrClosed after Close,
// and an error that wraps persist.ErrNotApplied when ctx has ended.
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
	matching, err := s.match(q, now(), q.Limit)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	for _, r := range matching {
		s.floor = max(s.floor, r.Version)
		s.byKey.remove(cursor.Of(persist.Query{}, r))
		delete(s.records, r.Key)
	}
	return len(matching), nil
}
