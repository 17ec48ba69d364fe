package fs

import (
	"context"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// restoreBatch is how many records are restored under one set of locks.
const restoreBatch = 64

// Restore writes records as persist.Restorer describes, in batches of 64, each entirely or not at
// all, and raises the version floor at the end. It returns *persist.Conflict, and otherwise the
// errors of Commit except *persist.Fenced. Earlier batches stay written after an error, also after
// an error that wraps persist.ErrNotApplied.
func (s *Store) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	if err := persist.ValidateRestore(records); err != nil {
		return err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return notApplied(err)
	}
	defer end()
	for batch := range slices.Chunk(records, restoreBatch) {
		if ctx.Err() != nil { // free locks are taken nevertheless
			return notApplied(context.Cause(ctx))
		}
		if err := s.restore(s.locks.withBudget(ctx), batch); err != nil {
			return err
		}
	}
	if floor == 0 {
		return nil
	}
	if err := s.raiseFloor(s.locks.withBudget(ctx), floor); err != nil {
		return notApplied(err)
	}
	return nil
}

// restore writes one batch of records.
func (s *Store) restore(ctx context.Context, records []persist.Record) error {
	want, keys := make(wanted), make([]persist.Key, len(records))
	for i, r := range records {
		want.add(stripeOf(r.Key), exclusive)
		keys[i] = r.Key
	}
	found, release, err := s.lockAndRead(ctx, want, keys...)
	if err != nil {
		return notApplied(err)
	}
	defer release()
	files := make(map[persist.Key]stored, len(keys))
	var winners []persist.Record
	for i, current := range found {
		files[keys[i]] = current
		if !current.Absent() && current.Version > records[i].Version {
			winners = append(winners, current.Record)
		}
	}
	if len(winners) > 0 {
		return &persist.Conflict{Winners: winners}
	}
	// Restore can write a file that an earlier journal replaced. A power failure must not bring
	// that journal back: its replay would replace the file again.
	if err := syncFolder(s.journals); err != nil {
		return notApplied(err)
	}
	return s.write(ctx, records, files, always)
}
