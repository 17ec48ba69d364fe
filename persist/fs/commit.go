package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when c is malformed, when ctx ended before Commit held its locks, when a
// file is damaged (*DamagedError), when a lock was not free within Config.LockTimeout, or when the
// files could not be written. Any other error leaves the outcome unknown: the disk failed while the
// commit was made durable. Errors that can pass wrap persist.ErrUnavailable as well. A commit with
// Write.Log returns persist.ErrUnsupported: use persist.Logs.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	if slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Log != nil }) {
		return time.Time{}, fmt.Errorf("%w: fs: commit with a log; use persist.Logs", persist.ErrUnsupported)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return time.Time{}, notApplied(err)
	}
	defer end()
	keys := c.Keys()
	found, release, err := s.lockAndRead(ctx, locksOf(c), keys...)
	if err != nil {
		return time.Time{}, notApplied(err)
	}
	defer release()
	current := make(map[persist.Key]persist.Record, len(keys))
	files := make(map[persist.Key]stored, len(keys))
	for i, key := range keys {
		current[key], files[key] = found[i].Record, found[i]
	}
	at := hostTime() // read with the records locked, so that leases are judged inside the write
	next, err := persist.Apply(c, current, at)
	if err != nil {
		return time.Time{}, err
	}
	var refused error
	err = s.write(ctx, next, files, func() error {
		_, refused = persist.Apply(c, current, hostTime())
		return refused
	})
	if refused != nil {
		return time.Time{}, refused
	}
	s.hint(current, next, err)
	return at, err
}

// locksOf returns the locks that c needs: exclusive for records that it may change, shared for
// records that it only tests.
func locksOf(c persist.Commit) wanted {
	want := make(wanted)
	for _, w := range c.Writes {
		want.add(stripeOf(w.Key), exclusive)
	}
	for _, g := range c.Guards {
		m := shared
		if g.Extend > 0 || g.Release || g.TTL > 0 {
			m = exclusive
		}
		want.add(stripeOf(g.Key), m)
	}
	return want
}

// change is a record on its way into its file.
type change struct {
	record   persist.Record
	target   string // the path of the record's file
	temp     string // the path of the new file, which is synced
	replaces string // the checksum of the current file; empty: there is none
	makes    string // the checksum of the new file
	spare    bool   // the current file is kept as a spare
}

// write replaces the files of records, all or none; journal.go describes the steps. The caller
// holds their stripes exclusively. Files has the current ones. Write calls judge when it holds the
// last lock, and writes nothing if judge returns an error: a record or a lease may have run out while
// write waited. An error that does not wrap persist.ErrNotApplied leaves the outcome unknown.
func (s *Store) write(ctx context.Context, records []persist.Record, files map[persist.Key]stored, judge func() error) error {
	if len(records) == 0 {
		return nil
	}
	mode := private
	if len(records) == 1 {
		mode = tentative // no journal protects its readers
	}
	var changes []change
	var err error
	for _, r := range records {
		var ch change
		if ch, err = s.prepare(r, files[r.Key], mode); err != nil {
			err = notApplied(err)
			break
		}
		changes = append(changes, ch)
	}
	switch {
	case err != nil:
	case len(changes) == 1:
		err = s.replaceOne(ctx, changes[0], judge)
	default:
		err = s.replaceAll(ctx, changes, judge)
	}
	for _, ch := range changes {
		switch {
		case errors.Is(err, persist.ErrNotApplied):
			_ = os.Remove(ch.temp) // if this fails, Open removes it
		case err == nil && ch.record.Deleted:
			s.removeTemps(stripeOf(ch.record.Key))
		}
	}
	return err
}

// always is the judge of a write that does not depend on the time.
func always() error { return nil }

// prepare writes the new file of r and makes the folder that it will be in.
func (s *Store) prepare(r persist.Record, current stored, mode os.FileMode) (change, error) {
	data, makes, err := seal(r)
	if err != nil {
		return change{}, err
	}
	ch := change{record: r, target: s.file(r.Key), replaces: current.checksum, makes: makes}
	if err := s.ensureFolder(filepath.Dir(ch.target)); err != nil {
		return change{}, err
	}
	stripe := stripeOf(r.Key)
	if mode == tentative {
		ch.spare = current.checksum != "" && max(current.size, len(data)) <= maxSpare && !r.Deleted
		ch.temp = s.overwriteSpare(stripe, data)
	}
	if ch.temp == "" {
		ch.temp, err = s.writeTemp(stripe, data, mode)
	}
	return ch, err
}

// replaceOne commits one record, whose new file is tentative.
func (s *Store) replaceOne(ctx context.Context, ch change, judge func() error) error {
	exchanged, err := s.renameRecord(ctx, ch, judge)
	if err != nil {
		return notApplied(err)
	}
	if err := s.settleRecord(ch.target); err != nil {
		if exchanged {
			_ = os.Remove(ch.temp) // on the disk it may still be the record's file
		}
		return fmt.Errorf("fs: record written but its folder not synced: %w", explain(err))
	}
	if exchanged {
		s.spares[stripeOf(ch.record.Key)] = ch.temp
	}
	return nil
}

// renameRecord puts a tentative file in the place of a record's file while no process reads names,
// unless judge returns an error. It reports whether the record's file is in the place of the
// tentative one then. After an error nothing has changed.
func (s *Store) renameRecord(ctx context.Context, ch change, judge func() error) (exchanged bool, err error) {
	release, err := s.locks.take(ctx, wanted{namesLock: shared})
	if err != nil {
		return false, err
	}
	defer release()
	if err := judge(); err != nil {
		return false, err
	}
	if ch.spare && exchange(ch.temp, ch.target) == nil {
		return true, nil
	}
	if err := rename(ch.temp, ch.target); err != nil {
		s.folders.forget(filepath.Dir(ch.target)) // it may have been removed
		return false, err
	}
	return false, nil
}

// settleRecord makes the rename of a tentative file durable and then marks the file as durable. If
// it fails, the file stays tentative.
func (s *Store) settleRecord(target string) error {
	if err := syncFolder(filepath.Dir(target)); err != nil {
		return err
	}
	_ = markDurable(target) // if this fails, the next reader writes the file again
	return nil
}

// replaceAll commits several records by a journal.
func (s *Store) replaceAll(ctx context.Context, changes []change, judge func() error) error {
	temp, set, err := s.writeJournal(changes)
	if err != nil {
		return notApplied(err)
	}
	release, err := s.locks.take(ctx, wanted{listLock: exclusive})
	if err != nil {
		_ = os.Remove(temp)
		return notApplied(err)
	}
	defer release()
	journal := s.newJournal(set)
	if err = judge(); err == nil {
		err = rename(temp, journal)
	}
	if err != nil {
		_ = os.Remove(temp)
		return notApplied(err)
	}
	// From here on the commit is completed, by this process or by another.
	if err := s.applyJournal(changes); err != nil {
		return fmt.Errorf("fs: journal written but not applied; the next access completes it: %w", explain(err))
	}
	_ = os.Remove(journal) // if this fails, the next access replays it, which changes nothing
	return nil
}

// writeJournal makes the names of the new files durable and writes the journal as a temporary file.
func (s *Store) writeJournal(changes []change) (temp string, set stripeSet, err error) {
	var plan planned
	for _, ch := range changes {
		plan.Writes = append(plan.Writes, plannedWrite{
			Key: ch.record.Key, Version: ch.record.Version,
			Temp: filepath.Base(ch.temp), Replaces: ch.replaces, Makes: ch.makes,
		})
		set.add(stripeOf(ch.record.Key))
	}
	data, _, err := seal(plan)
	if err != nil {
		return "", set, err
	}
	if err := syncFolder(s.temps); err != nil {
		return "", set, err
	}
	temp, err = s.writeTemp(stripeOf(plan.Writes[0].Key), data, private)
	return temp, set, err
}

// applyJournal makes a journal that is in its place durable and renames its files.
func (s *Store) applyJournal(changes []change) error {
	if err := syncFolder(s.journals); err != nil {
		return err
	}
	var targets []string
	for _, ch := range changes {
		if err := rename(ch.temp, ch.target); err != nil {
			s.folders.forget(filepath.Dir(ch.target)) // it may have been removed
			return err
		}
		targets = append(targets, ch.target)
	}
	return syncFoldersOf(targets)
}
