package memory

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires leases as persist.Leaser describes. It returns persist.ErrClosed after Close, and
// an error that wraps persist.ErrNotApplied when q or a is not valid or ctx has ended.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
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
	var all []persist.Record
	for _, r := range matching {
		taken, ok := a.Take(r, at, change)
		if !ok {
			continue
		}
		s.put(r, taken)
		all = append(all, taken.Clone())
	}
	return all, nil
}
