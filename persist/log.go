package persist

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// A record can have a log: numbered entries beside the document, which never change. Adding one costs
// the same however long the log is. The log belongs to the record: a commit changes both, under one
// version test.
//
// The caller chooses the numbers, because its document says which number comes next. A store tests
// only that no number is used twice.

// LogWrite changes the log of the record that a [Write] writes. Clear comes first, then Drop, then
// Entries.
type LogWrite struct {
	// Clear removes all entries, because the document ends or starts over. Numbers may then be used
	// again.
	Clear bool
	// Drop removes the entries with lower numbers. Only after a Clear may these be used again.
	Drop uint64
	// First is the number of the first of Entries, not below Drop. The others follow without gaps.
	First uint64
	// Entries are JSON values in UTF-8.
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
	// LastPosition returns the highest position that was ever given, also to an entry that is gone,
	// and 0 if there is none. A reader that goes on after it reads the commits that begin later. It
	// returns the errors of Load except ErrNotFound.
	LastPosition(ctx context.Context) (uint64, error)
}

// PageSize returns q.Limit, or DefaultLimit if that is not set.
func (q LogQuery) PageSize() int { return Query{Limit: q.Limit}.PageSize() }

// PageSize returns q.Limit, or DefaultLimit if that is not set.
func (q OrderQuery) PageSize() int { return Query{Limit: q.Limit}.PageSize() }

// LogCleaner is a [Logger] that removes entries some time after the commit that ends them. [Logs]
// returns one for a store that keeps no logs itself.
type LogCleaner interface {
	Logger
	// CleanLog removes everything that is left of the entries of key that were cleared or dropped.
	// Several processes may do that at a time. It returns the errors of Load and Commit.
	CleanLog(ctx context.Context, key Key) error
	// CleanLogs does that for all logs of a kind that were cleared. Afterwards tombstones of their
	// records can be purged. It returns the errors of List and CleanLog.
	CleanLogs(ctx context.Context, kind string) error
}

// LogRestorer is a [Logger] that can write entries exactly as another store has them. [Copy] needs
// it if the source has entries.
type LogRestorer interface {
	Logger
	// RestoreLog writes entries with all their fields, Position included. An entry replaces the one
	// that has the same key and number, and an entry without Data only removes it. Later commits
	// get positions above all restored ones and above last, which may have been removed. The caller
	// restores no position that another entry has. A nil error means that all of this is durable.
	//
	// It returns an error that wraps ErrNotApplied if entries are malformed; see
	// [ValidateRestoreLog]. After another error some entries may have been written. As for
	// [Restorer], no other process uses the store meanwhile.
	RestoreLog(ctx context.Context, entries []LogEntry, last uint64) error
}

func (l *LogWrite) validate(w *Write) error {
	switch {
	case l == nil:
		return nil
	case w.Deleted && (l.Drop > 0 || len(l.Entries) > 0):
		return malformed("delete of %q adds to its log", w.Key)
	case len(l.Entries) > 0 && l.First > maxLogNumber-uint64(len(l.Entries)):
		return malformed("log of %q is numbered beyond %d", w.Key, uint64(maxLogNumber))
	case len(l.Entries) > 0 && l.First < l.Drop:
		return malformed("log of %q is dropped up to %d and numbered from %d", w.Key, l.Drop, l.First)
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
		if !validEntry(e) {
			return malformed("entry %d of the log of %q is not JSON in UTF-8", l.First+uint64(i), w.Key)
		}
	}
	return nil
}

// validEntry reports whether every store can keep data with its spelling.
func validEntry(data json.RawMessage) bool { return json.Valid(data) && utf8.Valid(data) }

// ValidateRestoreLog returns an error that wraps [ErrNotApplied] if [LogRestorer.RestoreLog] cannot
// be called with entries and last. Malformed are: two entries of one key and number, a position that
// is 0 or used twice, a number or position above 1<<62 - 1, data that is not JSON in UTF-8, names
// that are not UTF-8 or contain U+0000, and a time that is missing, is not a whole number of
// microseconds, or has a year above 9999. Position and At of an entry without Data are not used.
func ValidateRestoreLog(entries []LogEntry, last uint64) error {
	type place struct {
		key    Key
		number uint64
	}
	places, positions := make(map[place]bool, len(entries)), make(map[uint64]bool, len(entries))
	for i := range entries {
		e := &entries[i]
		if err := e.validate(); err != nil {
			return err
		}
		at := place{e.Key, e.Number}
		switch {
		case places[at]:
			return malformed("two entries of the log of %q have number %d", e.Key, e.Number)
		case e.Data != nil && positions[e.Position]:
			return malformed("two log entries have position %d", e.Position)
		}
		places[at] = true
		positions[e.Position] = positions[e.Position] || e.Data != nil
	}
	if last > maxLogNumber {
		return malformed("last position %d is above %d", last, uint64(maxLogNumber))
	}
	return nil
}

func (e *LogEntry) validate() error {
	if err := e.Key.validate(); err != nil {
		return err
	}
	switch {
	case e.Number > maxLogNumber:
		return malformed("log of %q is numbered beyond %d", e.Key, uint64(maxLogNumber))
	case e.Data == nil:
		return nil
	case !validEntry(e.Data):
		return malformed("entry %d of the log of %q is not JSON in UTF-8", e.Number, e.Key)
	case e.Position == 0 || e.Position > maxLogNumber:
		return malformed("entry %d of the log of %q has position %d", e.Number, e.Key, e.Position)
	case e.At.IsZero() || !storable(e.At) || !e.At.Equal(storedTime(e.At)):
		return malformed("time %s of entry %d of the log of %q is not storable", e.At.Format(time.RFC3339Nano), e.Number, e.Key)
	}
	return nil
}

// maxLogNumber is the highest number that every store can keep.
const maxLogNumber = 1<<62 - 1
