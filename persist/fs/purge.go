package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
)

// purgeStep is how many tombstones are removed at a time, so that writers get their turn.
const purgeStep = 64

// Purge removes tombstones as persist.Purger says, some at a time, and raises the version floor for
// each lot. It passes over files that are damaged. Its errors are those of Take, and *DamagedError
// if the version floor cannot be read; one that wraps persist.ErrNotApplied means that nothing was
// removed beyond what removed says.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	if ctx.Err() != nil {
		return 0, notApplied(context.Cause(ctx))
	}
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.calls.Done()
	q.Deleted = true
	var lot []persist.Key
	purge := func() error {
		count, err := s.purgeLot(ctx, lot, q)
		removed, lot = removed+count, nil
		return err
	}
	var doubtful []persist.Key // looked at again below
	for r, err := range s.matching(ctx, q, &doubtful) {
		if isDamaged(err) {
			continue
		}
		if err != nil {
			return removed, notApplied(err)
		}
		lot = append(lot, r.Key)
		if len(lot) == purgeStep || len(lot) == q.Limit-removed {
			if err := purge(); err != nil {
				return removed, err
			}
		}
		if q.Limit > 0 && removed >= q.Limit {
			return removed, nil
		}
	}
	err = purge()
	return removed, err
}

// purgeLot removes those of the keys that still are tombstones that match q, without those whose
// files or journals are damaged.
func (s *Store) purgeLot(ctx context.Context, lot []persist.Key, q persist.Query) (removed int, err error) {
	ctx = s.locks.patient(ctx)
	removed, err = s.purge(ctx, lot, q)
	if !s.passable(err) {
		return removed, err
	}
	for _, key := range lot { // one of them is damaged, and nothing was removed
		count, err := s.purge(ctx, []persist.Key{key}, q)
		removed += count
		if err != nil && !s.passable(err) {
			return removed, err
		}
	}
	return removed, nil
}

// passable reports whether err is about a damaged file without which Purge can go on.
func (s *Store) passable(err error) bool {
	var damaged *DamagedError
	return errors.As(err, &damaged) && damaged.Path != s.floorFile()
}

// purge removes those of the keys that still are tombstones that match q.
func (s *Store) purge(ctx context.Context, keys []persist.Key, q persist.Query) (removed int, err error) {
	want := make(wanted)
	for _, key := range keys {
		want.add(stripeOf(key), exclusive)
	}
	found, release, err := s.settle(ctx, want, keys...)
	if err != nil {
		return 0, notApplied(err)
	}
	defer release()
	var highest uint64
	var files []string
	now := hostTime()
	for i, key := range keys {
		if r := found[i].Record; q.Match(r, now) {
			highest = max(highest, r.Version)
			files = append(files, s.file(key))
		}
	}
	if len(files) == 0 {
		return 0, nil
	}
	if err := s.raiseFloor(ctx, highest); err != nil {
		return 0, notApplied(err)
	}
	// A journal that came back after a power failure would bring back what is about to be removed.
	if err := syncFolder(s.journals); err != nil {
		return 0, notApplied(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return removed, explain(err)
		}
		removed++
	}
	return removed, explain(syncFolders(files))
}

// versionFloor is the content of floor.json.
type versionFloor struct {
	Floor uint64 `json:"floor"`
}

func (s *Store) floorFile() string { return filepath.Join(s.dir, "floor.json") }

// floor returns the version floor.
func (s *Store) floor() (uint64, error) {
	var content versionFloor
	_, _, err := readSealed(s.floorFile(), &content)
	return content.Floor, err
}

// raiseFloor makes sure that the version floor is at least version, durably. A floor that is high
// enough already is written again: whoever wrote it may have died, or failed, before it was durable.
func (s *Store) raiseFloor(ctx context.Context, version uint64) error {
	release, err := s.locks.take(ctx, wanted{metaLock: exclusive})
	if err != nil {
		return err
	}
	defer release()
	floor, err := s.floor()
	if err != nil {
		return err
	}
	data, _, err := seal(versionFloor{Floor: max(floor, version)})
	if err != nil {
		return err
	}
	return s.replace(metaLock, s.floorFile(), data)
}
