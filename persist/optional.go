package persist

import (
	"context"
	"reflect"
	"time"
)

// The interfaces in this file are optional. Pawl finds them by type assertion and works without
// them.

// Patient is a context whose caller waits until its deadline: nothing cancels it earlier. A store
// can test a context for it by type assertion, and then run the call on the caller's goroutine
// instead of waiting for another goroutine and for ctx.Done.
type Patient interface {
	context.Context
	// Patient does nothing. It marks the context.
	Patient()
}

// Reader is a store that can read several records at one moment. Without it, Pawl reads them one by
// one, and confirms a transaction that only reads by a commit, which can conflict.
type Reader interface {
	// LoadAll returns the records of keys in the same order, as they are at one moment: no commit
	// is seen in part. A key without a record gets an absent record; see Record.Absent. It returns
	// the errors of Load except ErrNotFound.
	LoadAll(ctx context.Context, keys []Key) ([]Record, error)
}

// Watcher is a store that can report changes of records, made by any process.
type Watcher interface {
	// Watch calls wake when a record has a new version or its lease was released. A release moves no
	// version, so its hint has none: a watcher that has the version must read the record all the
	// same. It returns ctx's error when ctx ends, and ErrClosed when the store closes. The first hint is the zero Hint; it
	// is sent as soon as Watch would notice every later change. Hints may be late, merged, repeated
	// or superfluous. The hints of a writer that died before it sent them may be missing. Calls of
	// wake are quick and never concurrent.
	Watch(ctx context.Context, wake func(Hint)) error
}

// Hint says that a record has changed. The zero Hint says that any record may have changed, for
// example after a reconnect.
type Hint struct {
	Key
	// Version is a version that the record has reached. 0 means that it is not known.
	Version uint64
}

// Prober is a store that can return versions without reading documents. Without it, Pawl reads the
// records.
type Prober interface {
	// Versions returns the current version of each key in the same order, 0 for a key without a
	// record. The versions may be read at different moments. It returns the errors of Load except
	// ErrNotFound.
	Versions(ctx context.Context, keys []Key) ([]uint64, error)
}

// Leaser is a store that can list and acquire in one step. Without it, Pawl lists records and
// acquires them one by one.
type Leaser interface {
	// Take acquires up to q.Limit records that match q and have no live lease. It skips records
	// that other calls are acquiring at the same moment. It returns the records as they are
	// afterwards, in the order of List: version moved by one, Updated and Lease set.
	//
	// If change is not nil, Take calls it for each record that it is about to acquire, inside its
	// transaction. Change returns the record with another Doc, Schema, Label, Due or Expires, which
	// Take stores in the same step; it ignores other fields. If change returns false, the record
	// stays as it is, and may count towards q.Limit. Record.Now is the store's time of the commit.
	// Change may be called again for a record, also after Take has returned an error. It must be
	// quick, leave the memory of its argument alone, and not call the store.
	//
	// A store in front of another one that is no Leaser returns ErrUnsupported; Pawl then works as
	// without Take. An error that wraps ErrNotApplied or ErrUnsupported means that no lease was
	// acquired, also for a query of expired or deleted records. Take may return records with any
	// other error: those are acquired, and others may be leased until their leases run out.
	Take(ctx context.Context, q Query, a Acquire, change Change) ([]Record, error)
}

// Change computes the content of a record that [Leaser.Take] acquires, and reports whether the
// record is to be acquired.
type Change func(r Record) (Record, bool)

// Native is a store that can run code of the application inside a commit's database transaction.
type Native interface {
	// CommitWith is Commit with fn run inside the transaction, after all tests and writes of c.
	// The value tx is the driver's transaction and has NativeType; fn must not end it.
	//
	// An error of fn rolls the transaction back and is returned unchanged. A panic of fn rolls it
	// back and is passed on. If c is refused, fn does not run. It runs at most once per call. A
	// commit without writes and guards is allowed.
	CommitWith(ctx context.Context, c Commit, fn func(ctx context.Context, tx any) error) (time.Time, error)
	// NativeType is the type of tx, such as pgx.Tx or *sql.Tx.
	NativeType() reflect.Type
}

// Purger is a store that can remove old tombstones for good.
type Purger interface {
	// Purge removes tombstones that match q, at most q.Limit of them (0: all), and returns their
	// number. It searches tombstones also without q.Deleted. It first raises the version floor
	// above their versions, so that no version is used twice. After an error some tombstones may
	// have been removed; removed counts the tombstones that certainly were.
	//
	// Choose q.Age much longer than any commit stays in doubt. A purged record loses its commit
	// ids, so a lost answer can no longer be settled and its outcome stays unknown. A key that a
	// transaction tested for absence would be absent again.
	Purge(ctx context.Context, q Query) (removed int, err error)
}

// Restorer is a store that can write records exactly as another store has them. [Copy] needs it.
type Restorer interface {
	// Restore writes records with all their fields except Now. It moves no version: Version, Born,
	// Updated, Commits, Lease, and Expires of a tombstone are stored as given. It replaces the
	// current record of a key unless that has a higher version. It raises the version floor to
	// floor if it is lower. A nil error means that all of this is durable.
	//
	// It returns *Conflict with the current record of a key that has a higher version, and an error
	// that wraps ErrNotApplied if records are malformed; see ValidateRestore. After *Conflict or
	// another error some records may have been written, each of them entirely.
	//
	// As for Commit, records are never changed after the call. No other process uses the store
	// meanwhile, so Restore need not send hints.
	Restore(ctx context.Context, records []Record, floor uint64) error
}

// Describer is a store that can describe itself to the people that operate it.
type Describer interface {
	// Describe returns facts about the store. It reads names and indices, and no documents. It
	// returns the errors of Load except ErrNotFound.
	Describe(ctx context.Context) (Description, error)
}

// Description holds facts about a store.
type Description struct {
	// Schema is the schema version of the tables or files.
	Schema int `json:"schema"`
	// Size is the number of bytes on disk, with logs and indices.
	Size int64 `json:"size"`
	// Settings are those that durability depends on.
	Settings []Setting `json:"settings,omitempty"`
	// Kinds are the kinds that have records, in the order of their names.
	Kinds []KindCount `json:"kinds"`
}

// Setting is a setting of a store.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Advice says what to do about the value. It is empty if the value is good.
	Advice string `json:"advice,omitempty"`
}

// KindCount counts the records of a kind.
type KindCount struct {
	Kind string `json:"kind"`
	// Records counts all records, with those that are expired and with tombstones.
	Records int `json:"records"`
	// Tombstones counts those of the records that are tombstones. It is -1 if the store would have
	// to read documents to tell.
	Tombstones int `json:"tombstones"`
}

// ValidateTake returns an error that wraps [ErrNotApplied] if [Leaser.Take] cannot be called with q
// and a: q asks for expired or deleted records, or the lease has no length.
func (a Acquire) ValidateTake(q Query) error {
	if q.Expired || q.Deleted {
		return malformed("only records that are alive can be taken")
	}
	return a.validate()
}

// Take returns r as [Leaser.Take] leaves it at the store's time now. It reports false if change
// declines r, or returns a record that is malformed. The record r is alive and has no live lease.
func (a Acquire) Take(r Record, now time.Time, change Change) (Record, bool) {
	now = storedTime(now)
	if r.Now = now; change != nil {
		next, ok := change(r)
		r.Doc, r.Schema, r.Label = next.Doc, next.Schema, next.Label
		r.Due, r.Expires = storedTime(next.Due), storedTime(next.Expires)
		if !ok || r.validate() != nil {
			return r, false
		}
	}
	r.Version++
	r.Updated = now
	r.Lease = a.lease(r.Version, now)
	return r, true
}
