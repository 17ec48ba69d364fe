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
	"strings"

	"github.com/pawl-go/pawl/persist"
)

// How a commit gets into the files, and who may see what.
//
// A commit of one record, under the exclusive lock of its stripe:
//
//	1 write tmp/x, fsync it
//	2 create a mark in journal/, not synced
//	3 rename tmp/x to the record's file          the commit happens here; with the names lock, shared
//	4 fsync the record's folder
//	5 remove the mark, acknowledge
//
// A commit of several records, under the exclusive locks of all their stripes:
//
//	1 write tmp/x, tmp/y, ..., fsync each, fsync tmp/
//	2 write tmp/j, the journal, fsync it
//	3 take the list lock exclusively
//	4 rename tmp/j into journal/, fsync journal/   the commit happens here
//	5 rename tmp/x, tmp/y, ... to the records' files
//	6 fsync the records' folders
//	7 remove the journal, give back the list lock, acknowledge
//
// A writer can die, or meet an error, between any two steps. Before the commit happens that leaves
// temporary files behind, which Open removes; they are named after their lock, so that whoever
// has that lock exclusively knows them to be nobody's. After it, the journal or mark stays.
//
// The name of a journal or mark lists its stripes. Its writer has all of them exclusively, so
// whoever has one of them, in either mode, and sees the journal, knows that its writer has gone.
// That is why everybody who takes stripes looks into journal/ before anything else (settle), and
// finishes what is there first: lets go, takes all stripes of the journal exclusively in ascending
// order, and the list lock for a journal of several records, looks whether it is still there, completes it and removes it. Then the stripes are taken
// again from the start. Finishing can be interrupted like writing, and is begun anew by the next.
//
// To finish a journal means:
//   - The journal is written again and synced: its writer may have died before step 4 was durable,
//     and renames must not reach the disk before the journal does.
//   - A record whose file is still the one that the commit replaced gets its temporary file.
//   - A record whose file is the one that the commit made was renamed already, perhaps not durably.
//     It is written again rather than its folder synced again, since a sync that failed proves
//     nothing when it is repeated.
//   - A record whose file is neither, and whose version is not lower than the commit's, was changed
//     by a later commit, and stays. That happens only when a power failure brings a removed journal
//     back (its removal is not synced). Which file it is, the checksum tells: a lease or an expiry
//     changes without its version. A record cannot be absent again, for Purge syncs journal/ before
//     it removes one.
//   - A record whose file is neither, and whose version is lower, gets its temporary file. It is a
//     tombstone that was purged before the commit and that a power failure has brought back, because
//     whoever purged it died before its removal was durable.
//
// To finish a mark means to write the record's file again, whichever it is, and to remove the mark.
// It matters to processes that outlive the writer only: without it they could answer on the
// strength of a record that is not durable yet. After a power failure what is there is durable, so
// a mark may be lost or torn.
//
// Load takes no lock. It reads the file and then looks into journal/. If nothing there has the
// stripe of the key, then what it read was durable by then, and no commit is half visible: whoever
// reads one record of a commit in its new state does so after the journal was removed, when
// all records are. Otherwise it takes the lock, shared, and reads again.
//
// List must not see a commit happen between two of its files. It has the list lock, shared, while
// it reads, so that no journal appears; one that is there when it got the lock is nobody's, and is
// finished first. To do that List lets go of the list lock, because stripes come before it; whoever
// finishes a journal then has it exclusively. Marks do appear; what List has read may be the record
// of one, so it waits for these stripes at the end, again without the list lock.
//
// Whoever reads the names of records has the names lock, exclusively, since some file systems (Btrfs
// and tmpfs are two) hide a name from those who are reading its folder when it is renamed over, or
// show it twice. A commit of several records needs no names lock against lists, which it is kept
// apart from; Take and Purge may overlook its records until they look the next time.

// journal is an entry of journal/.
type journal struct {
	path    string
	mark    bool // of a commit of one record; else of several
	stripes stripeSet
}

// Their names are mark-STRIPE-NUMBER.json and commit-STRIPES-NUMBER.json, with the stripes as a
// bitmap, all in hexadecimal digits.
const (
	markName   = "mark-%02x-%016x" + extension
	commitName = "commit-%016x%016x%016x%016x-%016x" + extension
)

// newMark returns the path of a mark.
func (s *Store) newMark(stripe int) string {
	return filepath.Join(s.journals, fmt.Sprintf(markName, stripe, rand.Uint64()))
}

// newJournal returns the path of a journal.
func (s *Store) newJournal(set stripeSet) string {
	return filepath.Join(s.journals, fmt.Sprintf(commitName, set[0], set[1], set[2], set[3], rand.Uint64()))
}

// parseJournal returns what the name of a file in journal/ says, and false for one that is none of
// ours.
func parseJournal(name string) (j journal, ok bool) {
	sort, rest, _ := strings.Cut(name, "-")
	stripes, rest, _ := strings.Cut(rest, "-")
	number, isJSON := strings.CutSuffix(rest, extension)
	if _, ok := hexadecimal(number, 16); !ok || !isJSON {
		return journal{}, false
	}
	switch {
	case sort == "mark":
		stripe, ok := hexadecimal(stripes, 2)
		j.mark = true
		j.stripes.add(int(stripe))
		return j, ok
	case sort == "commit" && len(stripes) == 16*len(j.stripes):
		for i := range j.stripes {
			if j.stripes[i], ok = hexadecimal(stripes[16*i:16*i+16], 16); !ok {
				return journal{}, false
			}
		}
		return j, true
	}
	return journal{}, false
}

// hexadecimal returns the number that text is, if it has so many digits, in lower case.
func hexadecimal(text string, digits int) (n uint64, ok bool) {
	if len(text) != digits {
		return 0, false
	}
	for _, c := range []byte(text) {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// pending returns the journals and marks that have any of these stripes. It fails if there is no
// journal/, so that whoever finds no record has looked for it where there is a store.
func (s *Store) pending(set stripeSet) ([]journal, error) {
	names, err := readNames(s.journals)
	if err != nil {
		return nil, err
	}
	var found []journal
	for _, name := range names {
		if j, ok := parseJournal(name); ok && j.stripes.meets(set) {
			j.path = filepath.Join(s.journals, name)
			found = append(found, j)
		}
	}
	return found, nil
}

// settle takes stripes when no journal has them.
func (s *Store) settle(ctx context.Context, want wanted) (release func(), err error) {
	for {
		release, err := s.locks.take(ctx, want)
		if err != nil {
			return nil, err
		}
		found, err := s.pending(want.stripes())
		if err == nil && len(found) == 0 {
			return release, nil
		}
		release()
		if err == nil {
			err = s.finish(ctx, found)
		}
		if err != nil {
			return nil, err
		}
	}
}

// finish completes and removes journals whose writers have gone.
func (s *Store) finish(ctx context.Context, journals []journal) error {
	for _, j := range journals {
		if err := s.finishOne(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) finishOne(ctx context.Context, j journal) error {
	want := make(wanted)
	for stripe := range stripes {
		if j.stripes.has(stripe) {
			want.add(stripe, exclusive)
		}
	}
	if j.mark {
		want.add(namesLock, shared)
	} else {
		want.add(listLock, exclusive) // the journal is renamed over, which may hide it from a list's look into journal/
	}
	release, err := s.locks.take(ctx, want)
	if err != nil {
		return err
	}
	defer release()
	data, err := os.ReadFile(j.path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil // somebody else has finished it
	}
	if err != nil {
		return err
	}
	if j.mark {
		err = s.redoMarked(data)
	} else {
		err = s.redo(j, data)
	}
	if err != nil {
		return err
	}
	return os.Remove(j.path)
}

// redoMarked makes the record that a mark names durable.
func (s *Store) redoMarked(mark []byte) error {
	var key persist.Key
	if json.Unmarshal(mark, &key) != nil {
		return nil // its writer did not come as far as renaming, or it was torn by a power failure
	}
	path := s.file(key)
	data, err := os.ReadFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.replace(stripeOf(key), path, data)
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

// redo completes the commit of a journal, which holds data.
func (s *Store) redo(j journal, data []byte) error {
	path := j.path
	var plan planned
	if _, err := unseal(path, data, &plan); err != nil {
		return err
	}
	if len(plan.Writes) == 0 {
		return &DamagedError{Path: path, Reason: "it lists nothing"}
	}
	for _, w := range plan.Writes {
		if !j.stripes.has(stripeOf(w.Key)) {
			return &DamagedError{Path: path, Reason: fmt.Sprintf("its name does not tell the lock of %q", w.Key)}
		}
	}
	if err := s.replace(stripeOf(plan.Writes[0].Key), path, data); err != nil {
		return err
	}
	var files []string
	for _, w := range plan.Writes {
		if err := s.redoWrite(path, w); err != nil {
			return err
		}
		files = append(files, s.file(w.Key))
	}
	return syncFolders(files)
}

// redoWrite completes one write of the journal at path.
func (s *Store) redoWrite(path string, w plannedWrite) error {
	target, temp := s.file(w.Key), filepath.Join(s.temps, filepath.Base(w.Temp))
	var content json.RawMessage
	data, current, err := readSealed(target, &content)
	if err != nil {
		return err
	}
	switch current {
	case w.Makes:
		return s.replace(stripeOf(w.Key), target, data)
	case w.Replaces:
	default:
		var r persist.Record
		if err := json.Unmarshal(content, &r); err != nil || r.Version >= w.Version {
			return nil // a later commit has changed it
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
	if err := makeFolder(filepath.Dir(target)); err != nil { // even if it is known: somebody may have removed it
		return err
	}
	return rename(temp, target)
}
