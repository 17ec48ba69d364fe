package persist

import (
	"context"
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
	// Watch calls wake for each changed key until ctx ends, and returns ctx's error then.
	// Hints may be coalesced; the zero Key means that any record may have changed (after a
	// reconnect, for example). It returns ErrClosed when the store closes.
	Watch(ctx context.Context, wake func(Key)) error
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
	// CommitWith is Commit with fn run inside the transaction; tx is the driver's (pgx.Tx,
	// *sql.Tx). An error of fn rolls everything back and is returned unchanged.
	CommitWith(ctx context.Context, c Commit, fn func(ctx context.Context, tx any) error) (time.Time, error)
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
