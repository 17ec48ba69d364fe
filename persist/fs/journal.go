package fs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
)

// How a commit reaches the files, and what readers may see of it.
//
// A commit of one record holds the record's stripe exclusively:
//
//	1 write tmp/x with the tentative mode (its owner may not write to it), fsync it
//	2 take the names lock, shared; judge the commit again
//	3 rename tmp/x to the record's file, or exchange the two (spare.go)
//	  the commit happens here; release the names lock
//	4 fsync the record's folder
//	5 give the file its ordinary mode, acknowledge
//
// A commit of several records holds all their stripes exclusively:
//
//	1 write tmp/x, tmp/y, ..., fsync each, fsync tmp/
//	2 write tmp/j, the journal, fsync it
//	3 take the list lock exclusively; judge the commit again
//	4 rename tmp/j into journal/, fsync journal/    the commit happens here
//	5 rename tmp/x, tmp/y, ... to the records' files
//	6 fsync the records' folders
//	7 remove the journal, release the list lock, acknowledge
//
// A commit is judged by the clock before its first step. Its record, a record that it relies on or a
// lease may run out while it waits for the last lock. So it is judged again when it holds that lock.
//
// A writer can die or fail between any two steps. That leaves one of these states:
//
//	temporary files only       the commit has not happened. Open removes them: the lock in the name
//	                           of a temporary file is free, so its writer is gone.
//	a tentative file           the commit has happened, but a power failure may undo it.
//	a journal                  the commit has happened, but some records may be old, and the journal
//	                           may not be durable.
//
// The writer holds the stripes in both of the last states. So a process that holds one of these
// stripes, in either mode, and sees the file or the journal, knows that its writer is gone. It
// completes the commit before it reads or writes anything else there (lockAndRead). To do that it
// releases its locks, takes the exclusive locks of the whole commit, looks again, completes the
// commit, and starts over. The completing process can die as well; then the next one completes it.
//
// Completing a tentative file means to write it again with all steps of a commit. That matters only
// to processes that outlive the writer: otherwise they could act on a record that a power failure
// takes back. After a power failure everything on the disk is durable, whatever its mode.
//
// Completing a journal means to replay it:
//
//   - The journal is written again and synced first. Its writer may have died before the journal
//     was durable, and a record must not reach the disk before the journal does.
//   - A record whose file is the one that the commit replaced gets its temporary file.
//   - A record whose file is the one that the commit made is written again. Its rename may not be
//     durable, and after a failed sync a second sync of the folder proves nothing.
//   - A record whose file is neither, with a version that is not lower than the commit's, stays: a
//     later commit changed it. A power failure can bring a removed journal back, because the
//     removal is not synced. Files are compared by checksum, because a lease or an expiry changes
//     without the version. Purge syncs journal/ before it removes a record, so no record is absent
//     again.
//   - A record whose file is neither, with a lower version, gets its temporary file. Its file is a
//     tombstone that was purged before the commit, and that a power failure brought back.
//
// The races, and what decides each:
//
//   - Load and a commit of one record: Load takes no lock. It gets mode and bytes from one open
//     file. If the file is tentative, Load waits for the stripe and reads the file again.
//   - Load and a commit of several: Load reads the file first and looks into journal/ afterwards.
//     If no journal has the stripe, Load read the record before the commit, or after the journal
//     was removed, when all records are new. Otherwise it waits for the stripe and reads again.
//   - List and a commit of several: List holds the list lock, shared, while it reads, so no journal
//     appears meanwhile. It completes the journals that it finds at the start, without the list
//     lock, because stripes come before it.
//   - List and a commit of one record: List may read tentative files. At the end it waits, without
//     the list lock, until these are durable.
//   - Reading names and renames: some file systems (Btrfs, tmpfs) hide a name that is renamed over
//     from a process that reads the folder, or show it twice. So names are read with the names lock
//     held exclusively. Lists and commits of several records are kept apart by the list lock. Take
//     and Purge may miss a record of such a commit until their next call.
//   - Replay and List: a replay renames over the journal, which may hide it from a list that looks
//     for journals. So it holds the list lock.
//   - A reader and a commit that overwrites a spare: see spare.go. If the reader looks up the path
//     before the file becomes a spare and opens it after it is another record's, it reads that
//     record. So a file that looks damaged is read again with its stripe.

// journal is an entry of journal/.
type journal struct {
	path    string
	stripes stripeSet
}

// journalName is the name of a journal: its stripes as a bitmap, and a random number.
const journalName = "commit-%016x%016x%016x%016x-%016x" + extension

// newJournal returns the path of a new journal.
func (s *Store) newJournal(set stripeSet) string {
	return filepath.Join(s.journals, fmt.Sprintf(journalName, set[0], set[1], set[2], set[3], rand.Uint64()))
}

// stripesOf returns the stripes of the journal with this name. It reports false for a name that is
// not a journal's.
func stripesOf(name string) (set stripeSet, ok bool) {
	var number uint64
	_, err := fmt.Sscanf(name, journalName, &set[0], &set[1], &set[2], &set[3], &number)
	return set, err == nil && name == fmt.Sprintf(journalName, set[0], set[1], set[2], set[3], number)
}

// pending returns the journals that have any of these stripes. It fails if journal/ is missing, so
// that a missing directory is not taken for a store without records.
func (s *Store) pending(set stripeSet) ([]journal, error) {
	names, err := readNames(s.journals)
	if err != nil {
		return nil, err
	}
	var found []journal
	for _, name := range names {
		if stripes, ok := stripesOf(name); ok && stripes.meets(set) {
			found = append(found, journal{filepath.Join(s.journals, name), stripes})
		}
	}
	return found, nil
}

// lockAndRead takes the wanted locks and returns the records of keys, whose stripes are among them.
// The wanted locks are stripes, or the list lock, which stands for all stripes. It completes the
// commits of dead writers first, so that all records are durable and no commit of several records is
// visible in part.
func (s *Store) lockAndRead(ctx context.Context, want wanted, keys ...persist.Key) (records []stored, release func(), err error) {
	for {
		release, err := s.locks.take(ctx, want)
		if err != nil {
			return nil, nil, err
		}
		found, err := s.pending(want.stripes())
		var tentative []persist.Key
		if err == nil && len(found) == 0 {
			records, tentative, err = s.readAll(keys)
			if err == nil && len(tentative) == 0 {
				return records, release, nil
			}
		}
		release()
		if err == nil {
			err = s.complete(ctx, found, tentative)
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// readAll reads the records of keys, as of one time, and returns which of them are tentative.
func (s *Store) readAll(keys []persist.Key) (records []stored, tentative []persist.Key, err error) {
	records = make([]stored, len(keys))
	for i, key := range keys {
		if records[i], err = s.read(key); err != nil {
			return nil, nil, err
		}
		records[i].Now = records[0].Now
		if records[i].tentative {
			tentative = append(tentative, key)
		}
	}
	return records, tentative, nil
}

// complete completes commits whose writers are gone. The caller holds no stripe.
func (s *Store) complete(ctx context.Context, journals []journal, tentative []persist.Key) error {
	for _, j := range journals {
		if err := s.completeJournal(ctx, j); err != nil {
			return err
		}
	}
	for _, key := range tentative {
		if err := s.completeTentative(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// completeTentative writes the file of key again if it is still tentative.
func (s *Store) completeTentative(ctx context.Context, key persist.Key) error {
	stripe, path := stripeOf(key), s.file(key)
	release, err := s.locks.take(ctx, wanted{stripe: exclusive})
	if err != nil {
		return err
	}
	defer release()
	data, mode, err := readFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil || !isTentative(mode) {
		return err
	}
	temp, err := s.writeTemp(stripe, data, tentative)
	if err != nil {
		return err
	}
	if _, err := s.renameRecord(ctx, change{temp: temp, target: path}, always); err != nil {
		_ = os.Remove(temp)
		return err
	}
	if err := s.settleRecord(path); err != nil {
		return err
	}
	if _, mode, err = readFile(path); err == nil && isTentative(mode) { // or lockAndRead would never end
		err = fmt.Errorf("fs: the mode of %s cannot be changed", path)
	}
	return err
}

// completeJournal replays and removes a journal if it is still there.
func (s *Store) completeJournal(ctx context.Context, j journal) error {
	want := wanted{listLock: exclusive}
	for stripe := range stripes {
		if j.stripes.has(stripe) {
			want.add(stripe, exclusive)
		}
	}
	release, err := s.locks.take(ctx, want)
	if err != nil {
		return err
	}
	defer release()
	data, _, err := readFile(j.path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.replay(j, data); err != nil {
		return err
	}
	return os.Remove(j.path)
}

// planned is the content of a journal.
type planned struct {
	Writes []plannedWrite `json:"writes"`
}

type plannedWrite struct {
	persist.Key
	Version  uint64 `json:"version"`
	Temp     string `json:"temp"`               // the name in tmp/
	Replaces string `json:"replaces,omitempty"` // the checksum of the file before; empty: there was none
	Makes    string `json:"makes"`              // the checksum of the temporary file
}

// replay completes the commit of a journal, whose bytes are data.
func (s *Store) replay(j journal, data []byte) error {
	var plan planned
	if _, err := unseal(j.path, data, &plan); err != nil {
		return err
	}
	if len(plan.Writes) == 0 {
		return &DamagedError{Path: j.path, Reason: "no writes"}
	}
	for _, w := range plan.Writes {
		if !j.stripes.has(stripeOf(w.Key)) {
			return &DamagedError{Path: j.path, Reason: fmt.Sprintf("its name does not contain the lock of %q", w.Key)}
		}
	}
	if err := s.replaceFile(stripeOf(plan.Writes[0].Key), j.path, data); err != nil {
		return err
	}
	var files []string
	for _, w := range plan.Writes {
		if err := s.replayWrite(j.path, w); err != nil {
			return err
		}
		files = append(files, s.file(w.Key))
	}
	return syncFoldersOf(files)
}

// replayWrite completes one write of the journal at path.
func (s *Store) replayWrite(path string, w plannedWrite) error {
	target, temp := s.file(w.Key), filepath.Join(s.temps, filepath.Base(w.Temp))
	var content json.RawMessage
	data, current, err := readSealed(target, &content)
	if err != nil {
		return err
	}
	switch current {
	case w.Makes:
		return s.replaceFile(stripeOf(w.Key), target, data)
	case w.Replaces:
	default:
		var r persist.Record
		if err := json.Unmarshal(content, &r); err != nil || r.Version >= w.Version {
			return nil // a later commit changed it
		}
	}
	_, made, err := readSealed(temp, &content)
	if err != nil {
		return err
	}
	if made != w.Makes {
		reason := fmt.Sprintf("version %d of %q is not in %s", w.Version, w.Key, temp)
		return &DamagedError{Path: path, Reason: reason}
	}
	if err := makeFolder(filepath.Dir(target)); err != nil { // even if it is known: it may have been removed
		return err
	}
	return rename(temp, target)
}
