package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when c is malformed, when ctx ended before the locks were had, when a file
// is damaged (*DamagedError), when others kept a lock for longer than Config.LockTimeout, or when
// the files could not be written; where waiting may help, that error wraps persist.ErrUnavailable
// too. Any other error leaves the outcome unknown: the disk failed in the middle of making the
// commit durable; it wraps persist.ErrUnavailable where the cause may pass.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if ctx.Err() != nil {
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	if err := s.enter(); err != nil {
		return time.Time{}, err
	}
	defer s.calls.Done()
	ctx = s.locks.patient(ctx)
	keys := c.Keys()
	found, release, err := s.settle(ctx, locksOf(c), keys...)
	if err != nil {
		return time.Time{}, notApplied(err)
	}
	defer release()
	current := make(map[persist.Key]persist.Record, len(keys))
	checksums := make(map[persist.Key]string, len(keys))
	for i, key := range keys {
		current[key], checksums[key] = found[i].Record, found[i].checksum
	}
	at := hostTime() // read with the locks held, so that leases are judged inside the write
	next, err := persist.Apply(c, current, at)
	if err != nil {
		return time.Time{}, err
	}
	err = s.write(ctx, next, checksums)
	s.hint(current, next, err)
	return at, err
}

// write replaces the files of records, all or none. The caller has their stripes exclusively;
// checksums are those of the files as they are.
func (s *Store) write(ctx context.Context, records []persist.Record, checksums map[persist.Key]string) error {
	mode := private
	if len(records) == 1 {
		mode = tentative // there will be no journal
	}
	var changes []change
	var err error
	for _, r := range records {
		var ch change
		if ch, err = s.prepare(r, checksums[r.Key], mode); err != nil {
			break
		}
		changes = append(changes, ch)
	}
	committed := false
	switch {
	case err != nil || len(changes) == 0:
	case len(changes) == 1:
		committed, err = s.replaceOne(ctx, changes[0])
	default:
		committed, err = s.replaceAll(ctx, changes)
	}
	if committed {
		s.forget(records, err == nil)
		return err
	}
	for _, ch := range changes {
		_ = os.Remove(ch.temp) // Open removes what is left
	}
	if err == nil {
		return nil
	}
	return notApplied(err)
}

// change is a record on its way into its file.
type change struct {
	record   persist.Record
	stripe   int
	target   string // the path of its file
	temp     string // the path of the new file, which is durable but for its name
	size     int    // of the new file
	replaces string // the checksum of the file as it is; empty: there is none
	makes    string // the checksum of the new file
}

// prepare writes the new file of r.
func (s *Store) prepare(r persist.Record, replaces string, mode os.FileMode) (change, error) {
	ch := change{record: r, stripe: stripeOf(r.Key), target: s.file(r.Key), replaces: replaces}
	data, makes, err := seal(r)
	if err != nil {
		return change{}, err
	}
	if err := s.folder(filepath.Dir(ch.target)); err != nil {
		return change{}, err
	}
	ch.makes, ch.size = makes, len(data)
	if ch.temp, err = s.writeTemp(ch.stripe, data, mode); err != nil {
		return change{}, err
	}
	s.memo.keep(ch.target, data, asRead(r), makes) // whether or not it gets there
	return ch, nil
}

// forget removes what is left of documents that were deleted: the spares of their stripes, which the caller has exclusively. If the commit is done, so that no
// journal names any, it removes those of other processes, too.
func (s *Store) forget(records []persist.Record, done bool) {
	var deleted stripeSet
	for _, r := range records {
		if r.Deleted {
			deleted.add(stripeOf(r.Key))
			s.keepSpare(stripeOf(r.Key), "")
		}
	}
	if !done || deleted == (stripeSet{}) {
		return
	}
	names, _ := readNames(s.temps) // or Open removes them
	for _, name := range names {
		if lock, ok := tempLock(name); ok && lock < stripes && deleted.has(lock) {
			_ = os.Remove(filepath.Join(s.temps, name))
		}
	}
}

// replaceOne is a commit of one record; see journal.go. It reports false when nothing has happened.
func (s *Store) replaceOne(ctx context.Context, ch change) (committed bool, err error) {
	swapped, err := s.putInPlace(ctx, ch)
	if err != nil {
		s.folders.Delete(filepath.Dir(ch.target)) // somebody may have removed it
		return false, err
	}
	if err := syncFolder(filepath.Dir(ch.target)); err != nil {
		if swapped {
			_ = os.Remove(ch.temp)
		}
		return true, fmt.Errorf("fs: written, but perhaps not durably: %w", explain(err)) // it stays tentative
	}
	_ = certify(ch.target) // or whoever comes next writes it again
	if swapped {
		s.keepSpare(ch.stripe, ch.temp) // not before: on the disk it may have been the record's file
	}
	return true, nil
}

// putInPlace makes the new file that of the record while nobody reads names. It reports whether the old one is now where the new one was.
func (s *Store) putInPlace(ctx context.Context, ch change) (swapped bool, err error) {
	release, err := s.locks.take(ctx, wanted{namesLock: shared})
	if err != nil {
		return false, err
	}
	defer release()
	if ch.size <= largestSpare {
		if err := exchange(ch.temp, ch.target); !errors.Is(err, errors.ErrUnsupported) {
			return err == nil, err
		}
	}
	return false, rename(ch.temp, ch.target) // it is the first, or they cannot be exchanged
}

// replaceAll is a commit of several records; see journal.go. It reports false when nothing has
// happened.
func (s *Store) replaceAll(ctx context.Context, changes []change) (committed bool, err error) {
	temp, set, err := s.writeJournal(changes)
	if err != nil {
		return false, err
	}
	release, err := s.locks.take(ctx, wanted{listLock: exclusive})
	if err != nil {
		_ = os.Remove(temp)
		return false, err
	}
	defer release()
	journal := s.newJournal(set)
	if err := rename(temp, journal); err != nil {
		_ = os.Remove(temp)
		return false, err
	}
	// From here on the commit can only go forward, by this hand or by another.
	if err := s.rollForward(changes); err != nil {
		return true, fmt.Errorf("fs: begun, and to be finished by whoever comes next: %w", explain(err))
	}
	_ = os.Remove(journal) // what it asks for can be done again
	return true, nil
}

// writeJournal writes the journal of changes as a temporary file, and makes their own durable.
func (s *Store) writeJournal(changes []change) (journal string, set stripeSet, err error) {
	var plan planned
	for _, ch := range changes {
		plan.Writes = append(plan.Writes, plannedWrite{
			Key: ch.record.Key, Version: ch.record.Version,
			Temp: filepath.Base(ch.temp), Replaces: ch.replaces, Makes: ch.makes,
		})
		set.add(ch.stripe)
	}
	data, _, err := seal(plan)
	if err != nil {
		return "", set, err
	}
	if err := syncFolder(s.temps); err != nil {
		return "", set, err
	}
	journal, err = s.writeTemp(stripeOf(plan.Writes[0].Key), data, private)
	return journal, set, err
}

// rollForward does what a journal that is in its place says.
func (s *Store) rollForward(changes []change) error {
	if err := syncFolder(s.journals); err != nil {
		return err
	}
	var targets []string
	for _, ch := range changes {
		if err := rename(ch.temp, ch.target); err != nil {
			s.folders.Delete(filepath.Dir(ch.target)) // somebody may have removed it
			return err
		}
		targets = append(targets, ch.target)
	}
	return syncFolders(targets)
}
