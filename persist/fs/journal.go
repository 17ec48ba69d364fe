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
	"runtime"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// How a commit gets into the files, and who may see what.
//
// A commit of one record, under the exclusive lock of its stripe:
//
//	1 write tmp/x, which its owner may not write to, fsync it
//	2 exchange tmp/x and the record's file       the commit happens here; with the names lock, shared
//	3 fsync the record's folder
//	4 let its owner write to the file, acknowledge; tmp/x can be written to again, see spare.go
//
// If there is no file yet, or the two cannot be exchanged, tmp/x is renamed.
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
// has that lock exclusively knows them to be nobody's. After it, the journal stays, or the mode of the one file.
//
// The name of a journal lists its stripes. Its writer has all of them exclusively, so
// whoever has one of them, in either mode, and sees the journal, knows that its writer has gone.
// That is why everybody who takes stripes looks into journal/ before anything else (settle), and
// finishes what is there first: lets go, takes all stripes of the journal exclusively in ascending
// order, and the list lock, looks whether it is still there, completes it and removes it. Then the stripes are taken
// again from the start. Finishing can be interrupted like writing, and is begun anew by the next. It is the same with a file
// that its owner may not write to, a tentative one: whoever reads it with its stripe knows that its writer has gone.
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
// To finish a tentative file means to write it again, tentatively, with all steps of a commit (confirm).
// That matters to processes that outlive the writer only: without it they could answer on the
// strength of a record that is not durable yet. After a power failure what is there is durable, so
// the mode may be either. The mode and the bytes are read from one open file, and nobody writes to it meanwhile, so they belong together.
//
// Load takes no lock. It reads the file and then looks into journal/. If nothing there has the
// stripe of the key, then no commit is half visible: whoever reads one record of a commit in its new state
// does so after the journal was removed, when all records are. If the file is not tentative either, then what it read is durable.
// Otherwise it takes the lock, shared, and reads again.
//
// List must not see a commit happen between two of its files. It has the list lock, shared, while
// it reads, so that no journal appears; one that is there when it got the lock is nobody's, and is
// finished first. To do that List lets go of the list lock, because stripes come before it; whoever
// finishes a journal then has it exclusively. Tentative files do appear; for those that it has read List waits
// at the end, again without the list lock.
//
// Whoever reads the names of records has the names lock, exclusively, since some file systems (Btrfs
// and tmpfs are two) hide a name from those who are reading its folder when it is renamed over, or
// show it twice. A commit of several records needs no names lock against lists, which it is kept
// apart from; Take and Purge may overlook its records until they look the next time.

// journal is an entry of journal/.
type journal struct {
	path    string
	stripes stripeSet
}

// commitName is the name of a journal, with its stripes as a bitmap, and a number, all in hexadecimal digits.
const commitName = "commit-%016x%016x%016x%016x-%016x" + extension

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
	if sort != "commit" || len(stripes) != 16*len(j.stripes) {
		return journal{}, false
	}
	for i := range j.stripes {
		if j.stripes[i], ok = hexadecimal(stripes[16*i:16*i+16], 16); !ok {
			return journal{}, false
		}
	}
	return j, true
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

// pending returns the journals that have any of these stripes. It fails if there is no
// journal/, so that whoever finds no record has looked for it where there is a store.
func (s *Store) pending(set stripeSet) ([]journal, error) {
	began := time.Now()
	info, unseen := os.Stat(s.journals)
	if quiet := s.quiet.Load(); quiet != nil && unseen == nil && os.SameFile(*quiet, info) && info.ModTime().Equal((*quiet).ModTime()) {
		return nil, nil
	}
	names, err := readNames(s.journals)
	if err != nil {
		return nil, err
	}
	if unseen == nil && len(names) == 0 && toldByTime(info.ModTime(), began) {
		s.quiet.Store(&info)
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

// toldByTime reports whether a change of a folder that comes after now gives it a time other than changed, its last: then to see that this is
// still the time is to see that nothing has got a name there, and takes a fraction of what reading its names does. File systems count time in
// steps, most of them in those of the kernel, 10 ms at most, some in seconds.
func toldByTime(changed, now time.Time) bool {
	step := 10 * time.Millisecond
	if changed.Nanosecond()%int(step) == 0 {
		step = 2 * time.Second
	}
	return now.Sub(changed) > 4*step && runtime.GOOS != "windows" // where a folder's time may come later
}

// settle takes locks when no journal has their stripes, and returns what the files of keys, whose stripes are among
// them, hold: nothing tentative.
func (s *Store) settle(ctx context.Context, want wanted, keys ...persist.Key) (records []stored, release func(), err error) {
	for {
		release, err := s.locks.take(ctx, want)
		if err != nil {
			return nil, nil, err
		}
		found, err := s.pending(want.stripes())
		var doubtful []persist.Key
		if err == nil && len(found) == 0 {
			records, doubtful, err = s.readAll(keys)
			if err == nil && len(doubtful) == 0 {
				return records, release, nil
			}
		}
		release()
		if err == nil {
			err = s.finish(ctx, found)
		}
		for _, key := range doubtful {
			if err == nil {
				err = s.confirm(ctx, key)
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// readAll reads the records of keys, and returns which of them are tentative.
func (s *Store) readAll(keys []persist.Key) (records []stored, doubtful []persist.Key, err error) {
	records = make([]stored, len(keys))
	for i, key := range keys {
		if records[i], err = s.read(key); err != nil {
			return nil, nil, err
		}
		if records[i].tentative {
			doubtful = append(doubtful, key)
		}
	}
	return records, doubtful, nil
}

// confirm writes a tentative file again whose writer has gone, whichever it is.
func (s *Store) confirm(ctx context.Context, key persist.Key) error {
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
		return err // or somebody else has done it
	}
	ch := change{stripe: stripe, target: path, size: len(data)}
	if ch.temp, err = s.writeTemp(stripe, data, tentative); err != nil {
		return err
	}
	committed, err := s.replaceOne(ctx, ch)
	if !committed {
		_ = os.Remove(ch.temp)
	}
	if err != nil {
		return err
	}
	if _, mode, err = readFile(path); err == nil && isTentative(mode) {
		err = fmt.Errorf("fs: the mode of %s cannot be changed", path) // or it would be written again for ever
	}
	return err
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
	want.add(listLock, exclusive) // the journal is renamed over, which may hide it from a list's look into journal/
	release, err := s.locks.take(ctx, want)
	if err != nil {
		return err
	}
	defer release()
	data, _, err := readFile(j.path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil // somebody else has finished it
	}
	if err != nil {
		return err
	}
	if err := s.redo(j, data); err != nil {
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
