package memory

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
)

// Restore writes all records or none, as persist.Restorer describes. It returns *persist.Conflict,
// persist.ErrClosed after Close, and an error that wraps persist.ErrNotApplied when a record is
// malformed or ctx has ended.
func (s *Store) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	if err := persist.ValidateRestore(records); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	var winners []persist.Record
	for _, r := range records {
		if current, ok := s.records[r.Key]; ok && current.Version > r.Version {
			current.Now = now()
			winners = append(winners, current.Clone())
		}
	}
	if len(winners) > 0 {
		return &persist.Conflict{Winners: winners}
	}
	for _, r := range records {
		s.put(s.get(r.Key), r)
	}
	s.floor = max(s.floor, floor)
	return nil
}
