package postgres

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
)

// purgeStep is the number of tombstones that one transaction removes, which keeps it short.
const purgeStep = 500

// Purge removes tombstones as persist.Purger says, in transactions of at most 500, and raises the
// version floor in each. It skips locked ones. Its errors are those of Take.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	q.Deleted = true
	select { // one at a time: others would wait for the floor, each on a connection
	case s.purging <- struct{}{}:
		defer func() { <-s.purging }()
	case <-ctx.Done():
		return 0, withdrawn(ctx)
	}
	for {
		step := purgeStep
		if q.Limit > 0 {
			step = min(step, q.Limit-removed)
		}
		count, err := s.purge(ctx, q, step)
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
func (s *Store) purge(ctx context.Context, q persist.Query, limit int) (int, error) {
	selection, err := selected(q)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	records, statement := s.sql.records, selection.statement
	doomed := "SELECT r.kind, r.id, r.version FROM " + records + " r WHERE " + selection.conditions() + selection.limit(limit) + " FOR UPDATE SKIP LOCKED"
	// Other statements see the floor raised and the tombstones gone, or neither. A floor that need
	// not be raised is not written: joined transactions with an older snapshot would fail.
	statement.text = fmt.Sprintf(`WITH doomed AS MATERIALIZED (%s),
		raised AS (UPDATE %s SET value = (SELECT max(version) FROM doomed) WHERE name = 'floor' AND value < (SELECT max(version) FROM doomed)),
		gone AS (DELETE FROM %s r USING doomed d WHERE r.kind = d.kind AND r.id = d.id RETURNING 1)
		SELECT count(*) FROM gone`, doomed, s.names.of("meta"), records)
	// Concurrent purges wait for each other, so that each raises the floor that it sees.
	answers, err := s.change(ctx, query(s.sql.lockFloor), statement)
	if err != nil {
		return 0, err
	}
	return int(answers[1][0].int()), nil
}
