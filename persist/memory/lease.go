package memory

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires leases as persist.Leaser describes. It returns persist.ErrClosed after Close, and
// an error that wraps persist.ErrNotApplied when q or a is not valid or ctx has ended.
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
	matching, err := s.match(q, at, q.PageSize())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	for i, r := range matching {
		taken := a.Take(r, at)
		s.put(r, taken)
		matching[i] = taken.Clone()
	}
	return matching, nil
}
