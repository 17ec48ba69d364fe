package sqlite

import (
	"context"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires records as persist.Leaser says, in one transaction. Its errors are those of
// Commit, without *persist.Conflict and *persist.Fenced.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire) ([]persist.Record, error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	q.Labels = slices.Clone(q.Labels) // the caller may leave before it is read
	var taken []persist.Record
	_, err := s.write(ctx, &request{work: func(b *batch) error {
		records, err := b.query(q, q.PageSize())
		if err != nil {
			return notApplied(err)
		}
		for i, r := range records {
			records[i] = a.Take(r, b.now)
			b.replace(r, records[i])
		}
		taken = records
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return taken, nil
}
