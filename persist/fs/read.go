package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; *DamagedError if its file is damaged; persist.ErrClosed
// after Close; and ctx's error. It returns an error that wraps persist.ErrUnavailable when a commit
// of the key takes longer than Config.LockTimeout, or when the commit of a dead writer cannot be
// completed for now.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return persist.Record{}, err
	}
	defer end()
	r, err := s.load(ctx, key)
	if err != nil {
		return persist.Record{}, explain(err)
	}
	if r.Absent() {
		return r, persist.ErrNotFound
	}
	return r, nil
}

// LoadAll returns the records of keys as they are at one moment: it locks them against commits. It
// returns *DamagedError if one of their files is damaged, persist.ErrClosed after Close, ctx's
// error, and an error that wraps persist.ErrUnavailable as Load does.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	want := make(wanted)
	for _, key := range keys {
		want.add(stripeOf(key), shared)
	}
	found, release, err := s.lockAndRead(ctx, want, keys...)
	if err != nil {
		return nil, explain(err)
	}
	defer release()
	records := make([]persist.Record, len(keys))
	for i := range found {
		records[i] = found[i].Record
	}
	return records, nil
}

// Versions returns the current versions of keys, 0 where there is no record. It reads the files of
// the records. Its errors are those of Load, without persist.ErrNotFound.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		r, err := s.load(ctx, key)
		if err != nil {
			return nil, explain(err)
		}
		if !r.Absent() {
			versions[i] = r.Version
		}
	}
	return versions, nil
}

// load reads a record, without a lock if no commit is under way there and the file is sound. It
// reads the file before it looks for journals; journal.go says why.
func (s *Store) load(ctx context.Context, key persist.Key) (persist.Record, error) {
	var set stripeSet
	set.add(stripeOf(key))
	r, readErr := s.read(key)
	found, err := s.pending(set)
	if err != nil {
		return persist.Record{}, err
	}
	if len(found) == 0 && !r.tentative && !isDamaged(readErr) {
		return r.Record, readErr
	}
	return s.loadLocked(ctx, key)
}

// loadLocked reads a record with its stripe, shared, when it is durable.
func (s *Store) loadLocked(ctx context.Context, key persist.Key) (persist.Record, error) {
	found, release, err := s.lockAndRead(ctx, wanted{stripeOf(key): shared}, key)
	if err != nil {
		return persist.Record{}, err
	}
	release()
	return found[0].Record, nil
}

// readAgain reads the records of keys with their stripes, and so waits until the records that were
// read before, or later ones, are durable. It returns *DamagedError.
func (s *Store) readAgain(ctx context.Context, keys []persist.Key) error {
	for _, key := range keys {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := s.loadLocked(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// stored is the content of a record's file.
type stored struct {
	persist.Record
	checksum  string // empty: there is no file
	size      int    // of the file
	tentative bool   // the file may not be durable
}

// read returns the content of the file of key, or the absent record if there is no file. It returns
// *DamagedError.
func (s *Store) read(key persist.Key) (stored, error) {
	now := hostTime() // before the read: the record may be renewed after it
	path := s.file(key)
	data, mode, err := readFile(path)
	var floor uint64
	if errors.Is(err, iofs.ErrNotExist) {
		if floor, err = s.floor(); err != nil { // Purge raised it before it removed the file
			return stored{}, err
		}
		data, mode, err = readFile(path) // again: it may have been created before the floor rose
	}
	if errors.Is(err, iofs.ErrNotExist) {
		return stored{Record: persist.Record{Key: key, Version: floor, Now: now}}, nil
	}
	if err != nil {
		return stored{}, err
	}
	r := stored{size: len(data), tentative: isTentative(mode)}
	if r.checksum, err = unseal(path, data, &r.Record); err != nil {
		return stored{}, err
	}
	if reason := implausible(r.Record, key); reason != "" {
		return stored{}, &DamagedError{Path: path, Reason: reason}
	}
	// A file written by hand may have what no store writes.
	if r.Born == 0 {
		r.Born = r.Version
	}
	for _, t := range []*time.Time{&r.Due, &r.Expires, &r.Updated, &r.Lease.Until} {
		*t = t.UTC().Truncate(time.Microsecond)
	}
	r.Now = readAt(now, r.Updated)
	return r, nil
}

// readAt returns Record.Now of a record that was read after now: the time of its update, if it was
// written after now. If it was written while the clock was ahead, the clock counts, as for commits.
func readAt(now, updated time.Time) time.Time {
	if updated.After(now) && !updated.After(hostTime()) {
		return updated
	}
	return now
}

// implausible says why r, which is well-formed, cannot be the record of key, or returns "".
func implausible(r persist.Record, key persist.Key) string {
	switch {
	case r.Key != key:
		return "record of another key"
	case r.Version == 0:
		return "no version"
	case r.Updated.IsZero():
		return "no time of update"
	case r.Deleted != (r.Doc == nil):
		return "neither a document nor a tombstone, or both"
	}
	return ""
}
