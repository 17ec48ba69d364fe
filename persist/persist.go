// Package persist is the contract between Pawl and a store: versioned documents, committed
// several at a time, all or nothing. It imports the standard library only.
//
// An adapter that can lock or compare-and-swap what it read needs little more than [Apply] and
// [Query.Match], which hold the meaning of the contract; one that speaks SQL says the same in
// SQL and proves it with persisttest.
package persist

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"
)

// Store keeps records. All methods are safe for concurrent use, by several processes too.
//
// Outcomes: an error from Commit that is a *Conflict or a *Fenced, or that wraps
// ErrNotApplied, ErrClosed or ErrUnsupported, promises that nothing was written. Any other
// error leaves the outcome unknown, and the caller looks for its commit id in Record.Commits.
type Store interface {
	// Load returns the current record of key, tombstones and expired records included.
	// It returns ErrNotFound for a key that was never written or whose tombstone was purged;
	// Record.Version is then the store's version floor, and the first version of a new record
	// must be above it.
	Load(ctx context.Context, key Key) (Record, error)

	// Commit applies c entirely or not at all and returns the store's time of the commit,
	// which is the Updated of every written record. It returns *Conflict when an expected
	// version is not the current one, *Fenced when a lease is no longer the holder's.
	// The tests are part of the write. Nil means durable.
	Commit(ctx context.Context, c Commit) (time.Time, error)

	// List returns one page of the records that match q, judged by the store's clock. A page
	// shows no commit in part. The order
	// is the store's own but the same on every page; a store with an index answers q.Due with
	// the longest due first.
	List(ctx context.Context, q Query) (Page, error)

	// Close releases the store; later calls return ErrClosed.
	Close() error
}

// Key names a document.
type Key struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// String returns "kind/id", for people.
func (k Key) String() string { return k.Kind + "/" + k.ID }

// Compare orders keys by kind and id, byte by byte.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Kind, other.Kind), strings.Compare(k.ID, other.ID))
}

// Record is a stored document with what the store knows about it.
//
// An absent key is a Record whose Updated is zero; its Version is then the store's version
// floor, which is 0 until tombstones were purged.
type Record struct {
	Key
	Version uint64          `json:"version"`           // grows by one per mutation; never reused
	Born    uint64          `json:"born"`              // the version that it was created with, where there was no record; purging ends that
	Doc     json.RawMessage `json:"doc,omitempty"`     // nil when Deleted
	Schema  int             `json:"schema,omitzero"`   // schema version Doc was written under
	Label   string          `json:"label,omitempty"`   // indexed
	Due     time.Time       `json:"due,omitzero"`      // indexed; zero: never
	Expires time.Time       `json:"expires,omitzero"`  // zero: never; on a tombstone: it was swept, having expired then, and not deleted
	Updated time.Time       `json:"updated,omitzero"`  // the store's clock; zero: absent
	Deleted bool            `json:"deleted,omitempty"` // a tombstone: the version stays, the document is gone
	Lease   Lease           `json:"lease,omitzero"`    // zero: not held
	Commits []string        `json:"commits,omitempty"` // recent commit ids, oldest first; see Commit.ID

	// Now is the store's clock at the moment the record was read, so that expiry and leases
	// can be judged by it. It is not stored.
	Now time.Time `json:"-"`
}

// Clone returns a copy of r that shares no bytes with it.
func (r Record) Clone() Record {
	r.Doc, r.Commits = bytes.Clone(r.Doc), slices.Clone(r.Commits)
	return r
}

// Absent reports whether r stands for a key that has no record.
func (r Record) Absent() bool { return r.Updated.IsZero() }

// Held reports whether somebody holds the lease of r at the store's time now.
func (r Record) Held(now time.Time) bool { return r.Lease.Token != 0 && r.Lease.Until.After(now) }

// Gone reports whether r, which is not absent, reads as absent at the store's time now: it is a
// tombstone, or it has expired and nobody holds its lease.
func (r Record) Gone(now time.Time) bool { return r.Deleted || r.Expired(now) }

// Expired reports whether r has outlived its expiry at the store's time now and nobody holds its lease.
func (r Record) Expired(now time.Time) bool {
	return !r.Deleted && !r.Expires.IsZero() && !r.Expires.After(now) && !r.Held(now)
}

// Lease says who holds a record, and until when by the store's clock.
type Lease struct {
	Holder string    `json:"holder"`
	Token  uint64    `json:"token"` // the version that acquiring produced; 0: no lease
	Until  time.Time `json:"until"`
}

// Commit is a set of writes and guards that take effect together. A key may have one write and one guard.
type Commit struct {
	// ID is unique and recorded in Record.Commits of every written record, so that a commit
	// whose answer was lost can be found again. It is "writer.number": the part before the
	// last dot names the writer. A record keeps the last 4 ids of each of its last 16 writers.
	ID     string
	Writes []Write
	Guards []Guard

	// Insist says that the caller has lost before, and will come back at once if it loses again. A store may then keep what won as it is for
	// that long, see Conflict.Held; it need not.
	Insist bool
}

// Clone returns a copy of c that shares nothing with it that can be changed, for a store that goes on after its caller has left.
func (c Commit) Clone() Commit {
	c.Writes, c.Guards = slices.Clone(c.Writes), slices.Clone(c.Guards)
	for i := range c.Writes {
		w := &c.Writes[i]
		w.Doc, w.Recent = bytes.Clone(w.Doc), slices.Clone(w.Recent)
		if w.Acquire != nil {
			lease := *w.Acquire
			w.Acquire = &lease
		}
	}
	return c
}

// Write replaces a document whose version is still Expected. The fields beside Doc are replaced
// too; an existing lease stays unless Acquire takes it, or Deleted or EndLease ends it.
type Write struct {
	Key
	Expected uint64 // 0: the key is absent
	Gone     bool   // the record at Expected is a tombstone or has expired, and starts over; without it, it must be alive
	Version  uint64 // the new version; above Expected by the number of mutations that share the write, and above the floor
	Doc      json.RawMessage
	Schema   int
	Label    string
	Due      time.Time
	DueIn    time.Duration // instead of Due: this long after the commit, by the store's clock
	TTL      time.Duration // expires this long after the commit; 0: never; KeepTTL: when it would have
	Deleted  bool          // leave a tombstone; Doc is nil
	Swept    bool          // with Deleted and Gone, of an expired record: the tombstone keeps Expires, see Record
	EndLease bool          // the document starts over: an existing lease ends, and Acquire may take it even so
	Acquire  *Acquire      // take the lease; *Conflict while another lease is live

	// Recent are the Record.Commits of the record at Expected, if the caller knows them: a store may believe that, and need not read them to
	// add the commit's id; see Remember. Nil: not known.
	Recent []string
}

// KeepTTL as Write.TTL leaves the expiry of a record that is alive as it is; others never expire then.
const KeepTTL time.Duration = math.MinInt64

// Acquire asks for the lease of the record being written; Write.Version becomes its token.
type Acquire struct {
	Holder string
	For    time.Duration
}

// Guard is a precondition on a record, tested inside the commit, that moves no version.
// A commit of guards alone with Extend set is how a lease is renewed, with Release how it is
// given back, and with TTL how an expiry is put off.
type Guard struct {
	Key
	Read    bool          // Version must be the current one (0: the key is absent): a transaction's read set
	Version uint64        // looked at only when Read is set
	Gone    bool          // with Read: the record at Version is a tombstone or has expired; without it, it must be alive
	Token   uint64        // 0: no test; else the live lease must carry this token
	Extend  time.Duration // with Token: the lease lasts this long from the commit on
	Release bool          // with Token: the lease ends
	TTL     time.Duration // with Read, on a live record: it expires this long after the commit
}

// Query selects records. The zero value of a field does not restrict, but for Expired and Deleted.
type Query struct {
	Kind    string        // empty: every kind
	Prefix  string        // of the id
	Labels  []string      // any of these
	Age     time.Duration // Updated at least this long ago
	Due     bool          // due time has come
	Unheld  bool          // no live lease
	Expired bool          // only expired records; without it they are left out
	Deleted bool          // only tombstones; without it they are left out
	After   string        // Page.Next of the page before
	Limit   int           // 0: 100
}

// Page is one answer of List; Next is empty on the last page.
type Page struct {
	Records []Record
	Next    string
}
