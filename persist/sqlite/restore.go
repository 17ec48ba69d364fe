package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/pawl-go/pawl/persist"
)

// Restore writes all records or none, in one transaction, as persist.Restorer describes. It returns
// *persist.Conflict, and otherwise the errors of Commit except *persist.Fenced. A version or floor
// that is too large for SQLite is an error that wraps persist.ErrNotApplied.
func (s *Store) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	if err := persist.ValidateRestore(records); err != nil {
		return err
	}
	highest, size := floor, 0
	for i := range records {
		highest = max(highest, records[i].Version)
		size += len(records[i].Doc)
	}
	if highest > math.MaxInt64 {
		return notApplied(fmt.Errorf("sqlite: version %d is too large for SQLite", highest))
	}
	_, err := s.write(ctx, &request{size: size, work: func(t *transaction) error {
		return t.restore(records, floor)
	}})
	var conflict *persist.Conflict
	if errors.As(err, &conflict) {
		return conflict
	}
	return err
}

// restore writes records and raises the floor. A record that is not newer is replaced. A conflict
// makes the transaction fail, which rolls back the other records.
func (t *transaction) restore(records []persist.Record, floor uint64) error {
	text := t.sql.store + " WHERE version <= excluded.version"
	var winners []persist.Record
	for _, r := range records {
		result, err := t.on.ExecContext(background, text, values(r)...)
		if err != nil {
			return t.fail(err)
		}
		written, err := result.RowsAffected()
		if err != nil {
			return t.fail(err)
		}
		if written == 0 {
			winner, err := t.load(r.Key)
			if err != nil {
				return err
			}
			winners = append(winners, winner)
		}
	}
	if len(winners) > 0 {
		return t.fail(&persist.Conflict{Winners: winners})
	}
	if _, err := t.on.ExecContext(background, t.sql.raiseFloor, int64(floor)); err != nil {
		return t.fail(err)
	}
	return nil
}
