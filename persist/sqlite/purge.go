package sqlite

import (
	"context"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// purgeStep is how many tombstones one transaction removes, so that writers get their turn.
const purgeStep = 500

// Purge removes tombstones as persist.Purger says, in transactions of moderate size, and raises
// the version floor in each. Its errors are those of Take.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	q.Deleted = true
	q.Labels = slices.Clone(q.Labels) // the caller may leave before it is read
	for {
		step := purgeStep
		if q.Limit > 0 {
			step = min(step, q.Limit-removed)
		}
		count := 0
		_, err := s.write(ctx, &request{work: func(b *batch) error {
			var err error
			count, err = b.purge(q, step)
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

// purge removes up to limit tombstones that match q, and returns how many.
func (b *batch) purge(q persist.Query, limit int) (int, error) {
	tombstones, err := b.query(q, limit)
	if err != nil {
		return 0, notApplied(err)
	}
	var highest uint64
	for _, r := range tombstones {
		highest = max(highest, r.Version)
	}
	if _, err := b.on.ExecContext(background, b.sql.raiseFloor, int64(highest)); err != nil {
		return 0, b.fail(err)
	}
	b.floored = false
	for _, r := range tombstones {
		if _, err := b.on.ExecContext(background, b.sql.remove, r.Kind, r.ID); err != nil {
			return 0, b.fail(err)
		}
		delete(b.records, r.Key)
	}
	return len(tombstones), nil
}
