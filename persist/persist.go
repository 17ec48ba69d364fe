// Package persist is the contract between Pawl and a store. A store keeps versioned documents and
// commits several of them at a time, all or none. The package imports the standard library only.
//
// [Apply] and [Query.Match] define the meaning of the contract. An adapter that can lock or
// compare-and-swap the records it has read needs little more than these two. An SQL adapter
// expresses the same rules in SQL. Package persisttest tests either kind.
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

// Store keeps records. All methods are safe for concurrent use, also by several processes.
//
// Outcomes: nothing was written if Commit returns a *Conflict, a *Fenced, or an error that wraps
// ErrNotApplied, ErrClosed or ErrUnsupported. Any other error leaves the outcome unknown; the
// caller then looks for its commit id in Record.Commits. A time-out, a lost connection and a request
// that was sent twice are such errors: the commit may have been applied, or still be.
//
// Clock: one clock judges leases, expiry, due times and ages for all processes, and stamps commits.
// An embedded store takes that of the host, a database that of the server. A store in front of
// several servers has to agree on one. It must not depend on the clock of a caller's host, which may
// be wrong. No record is read with a Now before its Updated. The clock may move in steps of up to
// 200 ms, so leases and expiries are exact to about that. Times are kept in microseconds: a duration
// is at least that long, and the rest of a microsecond is cut off.
//
// Limits: a store that cannot commit any number of keys and bytes is a [Limiter].
type Store interface {
	// Load returns the current record of key, also a tombstone and an expired record.
	// It returns ErrNotFound for a key that was never written or whose tombstone was purged.
	// Record.Version is then the store's version floor: the first version of a new record must be
	// above it.
	Load(ctx context.Context, key Key) (Record, error)

	// Commit applies c entirely or not at all. It returns the store's time of the commit, which
	// is the Updated of every written record. It returns *Conflict when an expected version is
	// not the current one, and *Fenced when a guard's lease is no longer live. The tests are part
	// of the write. A nil error means that the commit is durable.
	//
	// Everything that c refers to (Writes, Guards, Doc, Recent, Acquire, Log) is never changed after
	// the call, not even when Commit returned an error. So a store does not copy it.
	Commit(ctx context.Context, c Commit) (time.Time, error)

	// List returns one page of the records that match q, judged by the store's clock. A page
	// shows no commit in part. Records of one kind come in the order of their ids, byte by byte;
	// with q.Due in the order of their due times; with q.Expired or without q.Kind in an order of
	// the store's own, which is the same on every page. q.Reverse turns the order around.
	List(ctx context.Context, q Query) (Page, error)

	// Close waits for the calls under way, except Watch, which ends. Each of them has its usual
	// result or ErrClosed, and an acknowledged commit stays. Later calls return ErrClosed.
	Close() error
}

// Key names a document.
type Key struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// String returns "kind/id" for messages. Two different keys can have the same String.
func (k Key) String() string { return k.Kind + "/" + k.ID }

// Compare orders keys by kind and id, byte by byte.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Kind, other.Kind), strings.Compare(k.ID, other.ID))
}

// Record is a stored document with its metadata.
//
// A key without a record is represented by a Record whose Updated is zero, see [Record.Absent].
// Its Version is the store's version floor, which is 0 until tombstones are purged.
type Record struct {
	Key
	// Version grows by one per mutation and is never used twice for one key.
	Version uint64 `json:"version"`
	// Born is the version of the write that created the record while the key was absent. A
	// document that is deleted and created again keeps it; a purge ends it.
	Born uint64 `json:"born"`
	// Doc is the document, nil when Deleted.
	Doc json.RawMessage `json:"doc,omitempty"`
	// Schema is the schema version that Doc was written under.
	Schema int `json:"schema,omitzero"`
	// Label is indexed.
	Label string `json:"label,omitempty"`
	// Due is indexed. Zero means never.
	Due time.Time `json:"due,omitzero"`
	// Expires is the end of the document. Zero means never. A tombstone that has it was swept:
	// the document expired then. A tombstone without it was deleted.
	Expires time.Time `json:"expires,omitzero"`
	// Updated is the store's time of the last write. Zero means that the key is absent.
	Updated time.Time `json:"updated,omitzero"`
	// Deleted marks a tombstone: it keeps the version of a document that no longer exists.
	Deleted bool `json:"deleted,omitempty"`
	// Lease is the last lease that was acquired and not released. It may have run out.
	Lease Lease `json:"lease,omitzero"`
	// Commits are the recent commit ids, oldest first; see Commit.ID.
	Commits []string `json:"commits,omitempty"`

	// Now is the store's time at which the record was read; in the error of a refused commit, the time
	// by which the commit was judged. Expiry and leases are judged by it. It is not stored.
	Now time.Time `json:"-"`
}

// Clone returns a copy of r that shares no memory with it.
func (r Record) Clone() Record {
	r.Doc, r.Commits = bytes.Clone(r.Doc), slices.Clone(r.Commits)
	return r
}

// Absent reports whether r represents a key without a record.
func (r Record) Absent() bool { return r.Updated.IsZero() }

// Held reports whether the lease of r is live at the store's time now.
func (r Record) Held(now time.Time) bool { return r.Lease.Token != 0 && r.Lease.Until.After(now) }

// Gone reports whether r, which is not absent, has no document at the store's time now: it is a
// tombstone, or it has expired and has no live lease.
func (r Record) Gone(now time.Time) bool { return r.Deleted || r.Expired(now) }

// Expired reports whether r is past its expiry at the store's time now and has no live lease. A
// tombstone never expires.
func (r Record) Expired(now time.Time) bool {
	return !r.Deleted && !r.Expires.IsZero() && !r.Expires.After(now) && !r.Held(now)
}

// Lease is the exclusive right of a holder to a record until a time of the store's clock.
type Lease struct {
	Holder string `json:"holder"`
	// Token is the version that acquiring the lease produced. 0 means no lease.
	Token uint64    `json:"token"`
	Until time.Time `json:"until"`
}

// Commit is a set of writes and guards that take effect together. A key may have one write and one
// guard.
type Commit struct {
	// ID is unique. The store adds it to Record.Commits of every written record, so that a commit
	// whose answer was lost can be found again. It has the form "writer.number": the part before
	// the last dot names the writer. A record keeps the last 4 ids of each of its last 16 writers.
	ID     string
	Writes []Write
	Guards []Guard

	// Insist says that the caller lost an earlier commit and will retry at once if it loses this
	// one. The store may then hold the winners for the caller's retry; see Conflict.Held.
	//
	// A store may ignore it: a caller that loses retries after a random pause all the same. Without
	// it, a process that is quicker to see its own commits than those of others can win most races
	// for a busy record, so that the others take long or run out of attempts.
	Insist bool
}

// Write replaces a document whose version is still Expected. It replaces the metadata too. An
// existing lease stays unless Acquire takes it, or Deleted or EndLease ends it.
type Write struct {
	Key
	// Expected is the current version. 0 means that the key is absent.
	Expected uint64
	// Gone says that the record at Expected is a tombstone or has expired, and the document is
	// created again. Without Gone the record must be alive.
	Gone bool
	// Version is the new version: Expected plus the number of mutations that share the write.
	// For an absent key it is above the version floor.
	Version uint64
	Doc     json.RawMessage
	Schema  int
	Label   string
	Due     time.Time
	// DueIn sets Due to the time of the commit plus DueIn. Only one of Due and DueIn is set.
	DueIn time.Duration
	// TTL sets Expires to the time of the commit plus TTL. 0 means never, KeepTTL keeps Expires.
	TTL time.Duration
	// Deleted leaves a tombstone. Doc is nil then.
	Deleted bool
	// Swept is set with Deleted and Gone for an expired record: the tombstone keeps Expires.
	Swept bool
	// EndLease ends an existing lease, because the document starts over. Acquire may then take
	// the lease although it is live.
	EndLease bool
	// Acquire takes the lease. The commit returns *Conflict while another lease is live.
	Acquire *Acquire
	// Log changes the log of the record in the same commit; see [Logger]. Nil leaves it alone.
	Log *LogWrite

	// Recent is Record.Commits of the record at Expected, nil if the caller does not know it. A
	// store may trust it instead of reading Commits before it adds the commit's id; see
	// [Remember].
	Recent []string
}

// KeepTTL as Write.TTL keeps the expiry of a record that is alive. A record that is not alive has
// no expiry to keep, so the new document never expires.
const KeepTTL time.Duration = math.MinInt64

// Acquire takes the lease of the record that is written. Write.Version becomes its token.
type Acquire struct {
	Holder string
	For    time.Duration
}

// Guard is a precondition on a record that is tested inside the commit and moves no version. A
// commit of guards alone renews a lease with Extend, gives it back with Release, and puts off an
// expiry with TTL.
type Guard struct {
	Key
	// Read tests that Version is the current version, 0 for an absent key. The guards of a
	// transaction are its read set.
	Read    bool
	Version uint64
	// Gone is used with Read: the record at Version is a tombstone or has expired. Without Gone
	// the record must be alive.
	Gone bool
	// Token tests that the live lease has this token. 0 means no test.
	Token uint64
	// Extend is used with Token: the lease lasts this long from the commit on.
	Extend time.Duration
	// Release is used with Token: the lease ends.
	Release bool
	// TTL is used with Read on a record that is alive: it expires this long after the commit.
	TTL time.Duration
}

// Query selects records. The zero value of a field does not restrict the selection, except that
// Expired and Deleted records are selected only on request.
type Query struct {
	// Kind selects one kind, all kinds if it is empty.
	Kind string
	// Prefix is the start of the id.
	Prefix string
	// From is the lowest id, and Before is above the highest. Both are valid UTF-8 without U+0000.
	From, Before string
	// Reverse lists the records from the last to the first.
	Reverse bool
	// Labels selects records with one of these labels.
	Labels []string
	// Age selects records whose Updated is at least this long ago.
	Age time.Duration
	// Due selects records whose due time has come.
	Due bool
	// DueIn selects, with Due, the records whose due time comes within this time instead, without
	// those whose due time has come.
	DueIn time.Duration
	// Unheld selects records without a live lease.
	Unheld bool
	// Expired selects expired records only. Without it they are left out.
	Expired bool
	// Deleted selects tombstones only. Without it they are left out.
	Deleted bool
	// After is Page.Next of the previous page, empty for the first page.
	After string
	// Limit is the size of a page. 0 means DefaultLimit.
	Limit int
}

// Page is one answer of List. Next is empty on the last page.
type Page struct {
	Records []Record
	Next    string
}
