package persist

import "errors"

// Errors that a Store returns.
var (
	// ErrNotFound is returned by Load for an absent key.
	ErrNotFound = errors.New("persist: not found")
	// ErrNotApplied is wrapped around a failure after which certainly nothing was written.
	ErrNotApplied = errors.New("persist: not applied")
	// ErrUnsupported is returned for a commit of several keys by a store that can only do one.
	ErrUnsupported = errors.New("persist: unsupported")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("persist: store closed")
	// ErrUnavailable is wrapped around a failure that passes by itself: the database is locked
	// or down, or answers too late. From Commit it tells nothing about the outcome unless
	// ErrNotApplied is wrapped too.
	ErrUnavailable = errors.New("persist: store unavailable")
	// ErrNewerSchema is returned when a database is opened that a newer release has migrated.
	ErrNewerSchema = errors.New("persist: the database belongs to a newer release")
)

// Conflict says that a version was not the expected one, and carries the records that won:
// one for each write or guard that failed. Where the key is absent, the record is (Record.Absent).
type Conflict struct {
	Winners []Record

	// Held says that the commit insisted, and that for a moment nobody but the caller can replace what won, with a commit that insists, too. It
	// is over after that one, or a few milliseconds.
	Held bool
}

func (e *Conflict) Error() string { return "persist: version conflict" }

// Fenced says that a commit's lease token is no longer live; Current is the record as it is now.
type Fenced struct{ Current Record }

func (e *Fenced) Error() string { return "persist: lease lost" }
