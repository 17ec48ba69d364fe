package persist

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that a Store returns.
var (
	// ErrNotFound is returned by Load for an absent key.
	ErrNotFound = errors.New("persist: not found")
	// ErrNotApplied is wrapped by an error after which certainly nothing was written. It is wrong for
	// a request that was sent and not answered; see [Store].
	ErrNotApplied = errors.New("persist: not applied")
	// ErrUnsupported is returned for a commit of several keys by a store that commits one key at
	// a time, for a commit with a log by a store that is not a Logger, and by Copy for a store that
	// is not a Restorer or LogRestorer.
	ErrUnsupported = errors.New("persist: unsupported")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("persist: store closed")
	// ErrUnavailable is wrapped by an error that passes without a change of the call: the database
	// is locked or down, or answers too late. From Commit it says nothing about the outcome unless
	// the error wraps ErrNotApplied too.
	ErrUnavailable = errors.New("persist: store unavailable")
	// ErrNewerSchema is returned when a database is opened that a newer release has migrated.
	ErrNewerSchema = errors.New("persist: database migrated by a newer release")
	// ErrOlderSchema is returned when a store that this release would migrate is opened with
	// Config.Existing.
	ErrOlderSchema = errors.New("persist: database not migrated by this release yet")
	// ErrMissingStore is returned when Config.Existing is set and there is no store.
	ErrMissingStore = errors.New("persist: no store here")
)

// Conflict is the error of a commit that expected another state of a record.
type Conflict struct {
	// Winners are the current records, one for each key whose write or guard failed. For an
	// absent key it is an absent record; see Record.Absent.
	Winners []Record
	// Expected are the states that the commit expected, in the order of Winners. It is empty if
	// the store does not report them.
	Expected []Expected

	// Held says that the store holds the winners for the caller, because the commit had Insist set.
	// Other commits cannot replace them until the caller's next commit with Insist, or for a few
	// milliseconds if that does not come.
	Held bool
}

// Expected is the state of a record that a write or a guard expects.
type Expected struct {
	// Version is the expected version. 0 means that the key is absent.
	Version uint64
	// Gone says that the record at Version is a tombstone or has expired.
	Gone bool
}

// Conflict returns the error of w when winner is the current record, for stores that test w
// without calling Apply.
func (w *Write) Conflict(winner Record) *Conflict {
	return &Conflict{Winners: []Record{winner}, Expected: []Expected{{w.Expected, w.Gone}}}
}

// namedWinners is the number of winners that the message of a conflict names.
const namedWinners = 3

// Error names the key, the expected and the current version of the first winners.
func (e *Conflict) Error() string {
	var b strings.Builder
	b.WriteString("persist: version conflict")
	for i, winner := range e.Winners {
		if i == namedWinners {
			fmt.Fprintf(&b, "; and %d more", len(e.Winners)-i)
			break
		}
		separator := ": "
		if i > 0 {
			separator = "; "
		}
		fmt.Fprintf(&b, "%s%q: ", separator, winner.Key)
		if i < len(e.Expected) {
			fmt.Fprintf(&b, "expected %s, ", e.Expected[i])
		}
		fmt.Fprintf(&b, "found %s", winner.state())
	}
	return b.String()
}

// String returns the expected state for messages.
func (e Expected) String() string {
	switch {
	case e.Version == 0:
		return "no record"
	case e.Gone:
		return fmt.Sprintf("version %d (gone)", e.Version)
	}
	return fmt.Sprintf("version %d", e.Version)
}

// state returns the state of r at r.Now for messages.
func (r Record) state() string {
	switch {
	case r.Absent() && r.Version > 0:
		return fmt.Sprintf("no record (version floor %d)", r.Version)
	case r.Absent():
		return "no record"
	case r.Deleted:
		return fmt.Sprintf("version %d (deleted)", r.Version)
	case r.Expired(r.Now):
		return fmt.Sprintf("version %d (expired)", r.Version)
	case r.Held(r.Now):
		return fmt.Sprintf("version %d (leased by %q)", r.Version, r.Lease.Holder)
	}
	return fmt.Sprintf("version %d", r.Version)
}

// Fenced is the error of a commit whose lease is no longer live.
type Fenced struct {
	// Current is the current record of the guard that failed.
	Current Record
	// Token is the token that the guard expected. 0 means that the store does not report it.
	Token uint64
}

// Error names the key, the expected and the current token.
func (e *Fenced) Error() string {
	expected := ""
	if e.Token != 0 {
		expected = fmt.Sprintf("expected token %d, ", e.Token)
	}
	return fmt.Sprintf("persist: lease lost: %q: %sfound %s", e.Current.Key, expected, e.Current.leaseState())
}

// leaseState returns the state of the lease of r at r.Now for messages.
func (r Record) leaseState() string {
	switch {
	case r.Absent():
		return "no record"
	case r.Lease.Token == 0:
		return fmt.Sprintf("no lease at version %d", r.Version)
	case !r.Held(r.Now):
		return fmt.Sprintf("token %d, which ran out at %s", r.Lease.Token, r.Lease.Until.Format(time.RFC3339Nano))
	}
	return fmt.Sprintf("token %d of %q", r.Lease.Token, r.Lease.Holder)
}
