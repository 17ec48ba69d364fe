package sqlite

import (
	"context"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires records as persist.Leaser says, in one transaction. It returns the errors of
// Commit but for *persist.Conflict and *persist.Fenced.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	q.Labels = slices.Clone(q.Labels) // the caller may leave before they are read
	var taken []persist.Record
	_, err := s.write(ctx, &request{work: func(t *transaction) error {
		records, err := t.query(q, q.PageSize())
		if err != nil {
			return notApplied(err)
		}
		taken = nil
		for _, r := range records {
			next, ok := a.Take(r, t.now, change)
			if !ok {
				continue
			}
			written, err := t.store(r, next)
			if err != nil {
				return notApplied(err)
			}
			if written { // else a trigger of the application's ignores it
				taken = append(taken, next)
			}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// query returns the first limit records that match q.
func (t *transaction) query(q persist.Query, limit int) ([]persist.Record, error) {
	text, args, err := t.sql.list(q, t.now, limit)
	if err != nil {
		return nil, err
	}
	records, err := queryRecords(background, t.on, t.now, text, args...)
	if err != nil {
		return nil, t.fail(err)
	}
	return records, nil
}
