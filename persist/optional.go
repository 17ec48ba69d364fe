package persist

import (
	"context"
	"reflect"
	"time"
)

// What follows is optional. Pawl finds it by type assertion and does without it otherwise.

// Reader is a store that can read several records as they are at one moment. Without it they are
// read one by one, and a transaction that only reads is confirmed by a commit, which it can lose.
type Reader interface {
	// LoadAll returns the records of keys, in their order, as they are at one moment: no commit
	// is seen in part. A key that has none gets an absent record; see Record.Absent. It returns
	// the errors of Load but for ErrNotFound.
	LoadAll(ctx context.Context, keys []Key) ([]Record, error)
}

// Watcher is a store that can tell when records change, in any process.
type Watcher interface {
	// Watch calls wake when a record has a new version, or its lease was released, by whomever,
	// until ctx ends; it returns ctx's error then, and ErrClosed when the store closes. It starts
	// with the zero Hint, once it would notice every later change. Hints may be late, coalesced,
	// repeated or for nothing; those of a writer that died before it could send them may be
	// missing. Wake is quick, and is not called concurrently.
	Watch(ctx context.Context, wake func(Hint)) error
}

// Hint says that a record has changed. The zero Hint says that any record may have (after a
// reconnect, for example).
type Hint struct {
	Key
	Version uint64 // that it has at least; 0: not told
}

// Prober is a store that can tell versions without reading documents. Without it, records are read.
type Prober interface {
	// Versions returns the current version of each key, in their order, 0 where there is no
	// record. It need not be one moment for all. It returns the errors of Load but for ErrNotFound.
	Versions(ctx context.Context, keys []Key) ([]uint64, error)
}

// Leaser is a store that can list and acquire in one step. Without it, workers list and then
// acquire one by one.
type Leaser interface {
	// Take acquires up to q.Limit of the records that match q and have no live lease, skipping
	// those that others are taking at the same moment, and returns them as they are then:
	// version moved by one, Updated and Lease set. The order is that of List.
	//
	// It returns an error that wraps ErrNotApplied when nothing was taken, also for a query of
	// expired or deleted records. After any other error some records may be leased, until
	// their leases run out.
	Take(ctx context.Context, q Query, a Acquire) ([]Record, error)
}

// Native is a store that can run its user's code inside a commit's own database transaction.
type Native interface {
	// CommitWith is Commit with fn run inside the transaction, once everything else in c is
	// tested and written; tx is the driver's, and has NativeType. An error of fn rolls everything
	// back and is returned unchanged; so does a panic, which is passed on. Fn does not run when c
	// is refused, and not more than once for each call. A commit that is empty but for fn is
	// allowed. The transaction must not be ended by fn.
	CommitWith(ctx context.Context, c Commit, fn func(ctx context.Context, tx any) error) (time.Time, error)
	// NativeType is the type of tx, such as pgx.Tx or *sql.Tx.
	NativeType() reflect.Type
}

// Purger is a store that can remove old tombstones for good.
type Purger interface {
	// Purge removes the tombstones that match q, at most q.Limit of them (0: all), and returns
	// how many. It raises the version floor above them first, so that no version is ever used
	// twice. q.Deleted is taken for granted. After an error some may have been removed, and
	// removed says how many certainly were.
	//
	// Choose q.Age longer than any commit stays in doubt, by far: with a record go the commit
	// ids by which a lost answer is settled, and the outcome stays unknown then; and a key that was
	// tested for absence would be absent again.
	Purge(ctx context.Context, q Query) (removed int, err error)
}

// ValidateTake returns an error that wraps [ErrNotApplied] if [Leaser.Take] cannot mean anything
// with q and a: the records asked for are expired or deleted, or the lease has no length.
func (a Acquire) ValidateTake(q Query) error {
	if q.Expired || q.Deleted {
		return malformed("only records that are alive can be taken")
	}
	return a.validate()
}

// Take is the meaning of [Leaser.Take] for one record: r, which is alive and not held, as it is
// once a acquired it at the store's time now.
func (a Acquire) Take(r Record, now time.Time) Record {
	now = storedTime(now)
	r.Version++
	r.Updated, r.Now = now, now
	r.Lease = a.lease(r.Version, now)
	return r
}
