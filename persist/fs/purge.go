package fs

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
)

// purgeBatch is how many tombstones are removed at a time, so that Purge does not hold up writers.
const purgeBatch = 64

// Purge removes tombstones as persist.Purger says, in batches, and raises the version floor for
// each batch. It skips damaged files. Its errors are those of Take, and *DamagedError if the
// version floor cannot be read. An error that wraps persist.ErrNotApplied means that Purge removed
// exactly as many tombstones as removed says.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, notApplied(err)
	}
	defer end()
	q.Deleted = true
	var batch []persist.Key
	purge := func() error {
		count, err := s.purgeAll(s.locks.withBudget(ctx), batch, q)
		removed, batch = removed+count, nil
		return err
	}
	var tentative []persist.Key // not needed: lockAndRead completes these
	for r, err := range s.matching(ctx, q, &tentative) {
		if isDamaged(err) {
			continue
		}
		if err != nil {
			return removed, notApplied(err)
		}
		batch = append(batch, r.Key)
		if len(batch) == purgeBatch || len(batch) == q.Limit-removed {
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

// purgeAll removes the tombstones of these keys that still match q. It skips records whose files
// or journals are damaged.
func (s *Store) purgeAll(ctx context.Context, keys []persist.Key, q persist.Query) (removed int, err error) {
	removed, err = s.purge(ctx, keys, q)
	if !s.canSkip(err) {
		return removed, err
	}
	for _, key := range keys { // one of them is damaged, and nothing was removed
		count, err := s.purge(ctx, []persist.Key{key}, q)
		removed += count
		if err != nil && !s.canSkip(err) {
			return removed, err
		}
	}
	return removed, nil
}

// canSkip reports whether err is about a damaged file that Purge does not need.
func (s *Store) canSkip(err error) bool {
	var damaged *DamagedError
	return errors.As(err, &damaged) && damaged.Path != s.floorFile()
}

// purge removes the tombstones of these keys that still match q.
func (s *Store) purge(ctx context.Context, keys []persist.Key, q persist.Query) (removed int, err error) {
	want := make(wanted)
	for _, key := range keys {
		want.add(stripeOf(key), exclusive)
	}
	found, release, err := s.lockAndRead(ctx, want, keys...)
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
	// A journal that a power failure brings back must not restore what is removed now.
	if err := syncFolder(s.journals); err != nil {
		return 0, notApplied(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return removed, explain(err)
		}
		removed++
	}
	return removed, explain(syncFoldersOf(files))
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

// raiseFloor makes sure that the version floor is at least version, durably. It writes a floor that
// is high enough again, because its writer may have died or failed before the floor was durable.
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
	return s.replaceFile(metaLock, s.floorFile(), data)
}
