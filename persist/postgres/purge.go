package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// purgeStep is how many tombstones one transaction removes, so that nobody waits for it for long.
const purgeStep = 500

// Purge removes tombstones as persist.Purger says, in transactions of moderate size, and raises
// the version floor in each. It skips those that somebody has locked. Its errors are those of Take.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	q.Deleted = true
	select { // one at a time: the others would wait for the floor, each on a connection
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
	// One statement sees the floor raised and the tombstones gone, or neither. Where it need not be raised it is left
	// alone, for those who joined with a snapshot fail if it is newer than that.
	statement.text = fmt.Sprintf(`WITH doomed AS MATERIALIZED (%s),
		raised AS (UPDATE %s SET value = (SELECT max(version) FROM doomed) WHERE name = 'floor' AND value < (SELECT max(version) FROM doomed)),
		gone AS (DELETE FROM %s r USING doomed d WHERE r.kind = d.kind AND r.id = d.id RETURNING 1)
		SELECT count(*) FROM gone`, doomed, s.names.of("meta"), records)
	var removed int64
	err = s.detached(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		// Those who purge at the same time take turns, so that each raises what it sees. Who cannot have
		// its turn learns that in time for the outcome to be known.
		answers, err := roundTrip(ctx, conn, begin, s.bounds(s.config.CommitTimeout/2), query(s.sql.durable), query(s.sql.lockFloor), statement, commit)
		if err != nil {
			return outcome(err, len(answers), 5)
		}
		row := cells(answers[4][0])
		removed = row.int()
		return nil
	})
	if err != nil {
		return 0, err // removed may still be written to
	}
	return int(removed), nil
}
