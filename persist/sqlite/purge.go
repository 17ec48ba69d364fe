package sqlite

import (
	"context"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// purgeStep is the number of tombstones that one transaction removes at most, so that writers get
// their turn in between.
const purgeStep = 500

// Purge removes tombstones as persist.Purger says, in transactions of moderate size, and raises
// the version floor in each. It returns the errors of Take.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	q.Deleted = true
	q.Labels = slices.Clone(q.Labels) // the caller may leave before they are read
	for {
		step := purgeStep
		if q.Limit > 0 {
			step = min(step, q.Limit-removed)
		}
		count := 0
		_, err := s.write(ctx, &request{work: func(t *transaction) (err error) {
			count, err = t.purge(q, step)
			return err
		}})
		if err != nil {
			return removed, err
		}
		removed += count
		if count < step || removed == q.Limit {
			return removed, nil
		}
	}
}

// purge removes up to limit tombstones that match q and returns their number.
func (t *transaction) purge(q persist.Query, limit int) (int, error) {
	tombstones, err := t.query(q, limit)
	if err != nil {
		return 0, notApplied(err)
	}
	var highest uint64
	for _, r := range tombstones {
		highest = max(highest, r.Version)
	}
	if _, err := t.on.ExecContext(background, t.sql.raiseFloor, int64(highest)); err != nil {
		return 0, t.fail(err)
	}
	for _, r := range tombstones {
		if _, err := t.on.ExecContext(background, t.sql.remove, r.Kind, r.ID); err != nil {
			return 0, t.fail(err)
		}
	}
	return len(tombstones), nil
}
