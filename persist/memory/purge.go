package memory

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
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
