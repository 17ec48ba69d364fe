package persist

import (
	"context"
	"encoding/json"
	"time"
)

// A record can have a log: entries beside the document that are numbered without gaps and never
// change. Adding one costs the same however long the log is. The log belongs to the record: a commit
// changes both, under one version test.
//
// The caller chooses the numbers, because its document says which number comes next. A store tests
// only that no number is used twice.

// LogWrite changes the log of the record that a [Write] writes. Clear comes first, then Drop, then
// Entries.
type LogWrite struct {
	// Clear removes all entries, because the document ends or starts over. Numbers may then be used
	// again.
	Clear bool
	// Drop removes the entries with lower numbers.
	Drop uint64
	// First is the number of the first of Entries. The others follow without gaps.
	First uint64
	// Entries are JSON values.
	Entries []json.RawMessage
}

// LogEntry is one entry of the log of a record.
type LogEntry struct {
	Key
	// Number is the place in the log of the record.
	Number uint64
	// Position is the place among the entries of all records, above 0. It is 0 if the entry was
	// read by number.
	Position uint64
	// At is the store's time of the commit.
	At time.Time
	// Data is the entry, with its spelling unchanged.
	Data json.RawMessage
}

// LogQuery selects entries of the log of one record.
type LogQuery struct {
	Key
	// From is the lowest number, and Before is above the highest. 0 as Before means no bound.
	From, Before uint64
	// Reverse returns the entries from the last to the first.
	Reverse bool
	// Limit is the largest number of entries. 0 means DefaultLimit.
	Limit int
}

// OrderQuery selects entries of the logs of all records of some kinds, in the order of their
// positions.
type OrderQuery struct {
	// Kinds are the kinds of the records. None means all kinds.
	Kinds []string
	// After is the position of the last entry that was read. 0 means to start with the first.
	After uint64
	// Limit is the largest number of entries. 0 means DefaultLimit.
	Limit int
}

// Logger is a store that keeps logs. Its Commit, and its CommitWith if it is a [Native], accept
// Write.Log. Without it, Pawl keeps logs as documents; see [Logs].
//
// If a number in Write.Log is taken, Commit returns *Conflict with the current record of that key.
type Logger interface {
	Store
	// ReadLog returns the entries that match q, in the order of their numbers. Whether the record
	// is alive makes no difference. It returns the errors of Load except ErrNotFound.
	ReadLog(ctx context.Context, q LogQuery) ([]LogEntry, error)
	// ReadOrder returns the entries that match q, in the order of their positions. A position never
	// changes and is never used again. All commits that are made later get higher positions than
	// those that were ever returned; so a reader that goes on after the last position misses
	// nothing. If a commit was acknowledged before another one began, its entries have the lower
	// positions. The entries of one commit may have other entries between them, but within one
	// record positions follow the numbers. It returns the errors of Load except ErrNotFound.
	ReadOrder(ctx context.Context, q OrderQuery) ([]LogEntry, error)
}

// LogRestorer is a [Logger] that can write entries exactly as another store has them. [Copy] needs
// it if the source has entries.
type LogRestorer interface {
	Logger
	// RestoreLog writes entries with all their fields, Position included. It replaces an entry that
	// has the same key and number. Later commits get positions above all restored ones. A nil error
	// means that all of this is durable. After an error some entries may have been written. As for
	// [Restorer], no other process uses the store meanwhile.
	RestoreLog(ctx context.Context, entries []LogEntry) error
}

func (l *LogWrite) validate(w *Write) error {
	switch {
	case l == nil:
		return nil
	case w.Deleted && (l.Drop > 0 || len(l.Entries) > 0):
		return malformed("delete of %q adds to its log", w.Key)
	case len(l.Entries) > 0 && l.First > maxLogNumber-uint64(len(l.Entries)):
		return malformed("log of %q is numbered beyond %d", w.Key, uint64(maxLogNumber))
	case l.Drop > maxLogNumber:
		return malformed("log of %q is dropped beyond %d", w.Key, uint64(maxLogNumber))
	}
	return nil
}

// validateEntries is the part of [Commit.Validate] that reads the entries.
func (l *LogWrite) validateEntries(w *Write) error {
	if l == nil {
		return nil
	}
	for i, e := range l.Entries {
		if !json.Valid(e) {
			return malformed("entry %d of the log of %q is not JSON", l.First+uint64(i), w.Key)
		}
	}
	return nil
}

// maxLogNumber is the highest number that every store can keep.
const maxLogNumber = 1<<62 - 1
