package batch

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// Progress is a job in numbers.
type Progress struct {
	ID      string
	Account string
	Status  Status
	// CancelRequested is true once Cancel was called with effect.
	CancelRequested bool

	Items     int // of the job
	Done      int // made, whatever became of them
	Failed    int // refunded, because their calls failed
	Finalized int // accepted
	Canceled  int // by the teardown, charged or not

	Charged  int64 // points
	Refunded int64 // points

	// Reason says why a job has failed, or why the last attempt to work on it or to tear it down did
	// not succeed.
	Reason string
	// Final is true if the status and the points will not change again.
	Final      bool
	CreatedAt  time.Time // this and FinishedAt are by the clock of a process
	FinishedAt time.Time
}

// Cost returns the points that were charged and not refunded.
func (p Progress) Cost() int64 { return p.Charged - p.Refunded }

func progressOf(id string, r *record) Progress {
	reason := r.Reason
	if reason == "" {
		reason = r.Error
	}
	return Progress{
		ID: id, Account: r.Account, Status: r.status(), CancelRequested: r.Requested,
		Items: r.Items, Done: r.Done, Failed: r.Failed, Finalized: r.Finalized, Canceled: r.Canceled,
		Charged: r.Charged, Refunded: r.Refunded, Reason: reason, Final: r.status().Final(),
		CreatedAt: r.Created.Round(0).UTC(), FinishedAt: r.Ended.Round(0).UTC(), // as read from the store
	}
}

func notFound(id string) error { return fmt.Errorf("%w: batch job %.80q", pawl.ErrNotFound, id) }

// Progress returns where a job is. It returns pawl.ErrNotFound, and the errors of pawl's verbs.
func (q *Queue[I, A]) Progress(ctx context.Context, id string) (Progress, error) {
	snap, err := q.jobs.Scope(q.rt, id).Snapshot(ctx)
	if pawl.IsAbsent(err) || err == nil && !snap.Exists() {
		err = notFound(id)
	}
	if err != nil {
		return Progress{}, err
	}
	return progressOf(id, snap.ReadOnly()), nil
}

// Watch yields the progress of a job, and again after each change, by any process. A slow caller
// skips to the newest. It ends after a status that is finished, when ctx ends, or after it yields an
// error: pawl.ErrNotFound, or an error of pawl.Scope.Watch.
func (q *Queue[I, A]) Watch(ctx context.Context, id string) iter.Seq2[Progress, error] {
	return func(yield func(Progress, error) bool) {
		for change, err := range q.jobs.Scope(q.rt, id).Watch(ctx) {
			if err == nil && !change.Exists() {
				err = notFound(id)
			}
			if err != nil {
				yield(Progress{}, err)
				return
			}
			p := progressOf(id, change.ReadOnly())
			if !yield(p, nil) || p.Status.Finished() {
				return
			}
		}
	}
}

// List yields the jobs of the queue with one of the statuses, or all of them without any. A job that
// this release cannot read is yielded with its id and an error, and the sequence goes on; every
// other error of pawl.Kind.List ends it.
func (q *Queue[I, A]) List(ctx context.Context, statuses ...Status) iter.Seq2[Progress, error] {
	var labels []string
	for _, s := range statuses {
		labels = append(labels, string(s))
	}
	return func(yield func(Progress, error) bool) {
		for snap, err := range q.jobs.List(ctx, q.rt, pawl.Query{Labels: labels}) {
			p := Progress{ID: snap.ID}
			if err == nil {
				p = progressOf(snap.ID, snap.ReadOnly())
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// Item is an item as stored.
type Item[I, A any] struct {
	Index int
	Item  I
	// Key is what Make and Remove get.
	Key      string
	State    ItemState
	Price    int64
	Attempts int // calls that were begun
	// Artifact is what the call returned; nil: it has not.
	Artifact *A
	// Error is the error of the last call that failed.
	Error string
}

func (q *Queue[I, A]) itemOf(id string, it item[I, A]) Item[I, A] {
	return Item[I, A]{
		Index: it.Index, Item: it.Data, Key: q.key(id, it.Index), State: it.State, Price: it.Price,
		Attempts: it.Attempts, Artifact: it.Artifact, Error: it.Error,
	}
}

// Items yields the items of a job in order; only those with one of the states, if there are any. It
// yields nothing for a job that does not exist. Its errors are those of List.
func (q *Queue[I, A]) Items(ctx context.Context, id string, states ...ItemState) iter.Seq2[Item[I, A], error] {
	var labels []string
	for _, s := range states {
		labels = append(labels, string(s))
	}
	return func(yield func(Item[I, A], error) bool) {
		for snap, err := range q.items.List(ctx, q.rt, pawl.Query{Prefix: itemPrefix(id), Labels: labels}) {
			it := Item[I, A]{Index: -1}
			if err == nil {
				it = q.itemOf(id, snap.State())
			}
			if !yield(it, err) {
				return
			}
		}
	}
}

// Finalize accepts items that are made, in one commit, all or none. They are never refunded. It
// returns *ItemError for an item that is not made, or is finalized already; *StatusError once a
// cancel was requested; pawl.ErrNotFound if there is no such job; *pawl.LimitError for more items
// than a commit can hold; the errors of Config.Finalize and of pawl.Transact.
func (q *Queue[I, A]) Finalize(ctx context.Context, id string, items ...int) error {
	if len(items) > maxChunk {
		return &pawl.LimitError{Scope: pawl.Key{Kind: q.jobs.Name, ID: id}, What: "items", Limit: maxChunk, Got: len(items)}
	}
	items = slices.Compact(slices.Sorted(slices.Values(items)))
	err := q.change(ctx, id, func(ctx context.Context, tx *pawl.Tx, r *record) error {
		if r.Requested {
			return &StatusError{Job: id, Status: r.status(), Requested: true, Wanted: "finalize items of"}
		}
		for _, index := range items {
			scope := q.items.Scope(tx, itemID(id, index))
			it, err := scope.State(ctx)
			if err != nil {
				return err
			}
			if was := it.State; !it.become(Finalized) {
				return &ItemError{Job: id, Item: index, State: was}
			}
			if _, err := scope.SetState(ctx, it); err != nil {
				return err
			}
			if q.config.Finalize != nil {
				if err := q.config.Finalize(ctx, tx, q.itemOf(id, it)); err != nil {
					return err
				}
			}
		}
		r.Finalized += len(items)
		return nil
	})
	if err == nil {
		q.hook(atFinalized, id)
	}
	return err
}

// Retry queues a job that has failed again: it goes on with the items that were not charged. It
// returns *StatusError for another status, pawl.ErrNotFound, and the errors of pawl.Transact.
func (q *Queue[I, A]) Retry(ctx context.Context, id string) error {
	err := q.change(ctx, id, func(_ context.Context, _ *pawl.Tx, r *record) error {
		if r.status() != Failed {
			return &StatusError{Job: id, Status: r.status(), Requested: r.Requested, Wanted: "retry"}
		}
		r.Reason = ""
		return r.become(Queued, time.Now())
	}, pawl.WithDueIn(0))
	if err == nil {
		q.hook(atRetried, id)
	}
	return err
}

// change changes the record of a job in a transaction.
func (q *Queue[I, A]) change(
	ctx context.Context, id string, fn func(ctx context.Context, tx *pawl.Tx, r *record) error, opts ...pawl.CallOption,
) error {
	return pawl.Transact(ctx, q.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := q.jobs.Scope(tx, id)
		snap, err := scope.Snapshot(ctx)
		if pawl.IsAbsent(err) || err == nil && !snap.Exists() {
			return notFound(id)
		}
		if err != nil {
			return err
		}
		r := snap.State()
		if err := fn(ctx, tx, &r); err != nil {
			return err
		}
		_, err = scope.SetState(ctx, r, opts...)
		return err
	})
}

// Delete deletes a completed or canceled job with its items. The id can be used again; but the calls
// of the new job then have the keys of the old one. Deleting a job
// again does nothing, and an interrupted Delete can be repeated. It waits while another Delete has the
// job, or has died with it. It returns *StatusError for another status, and the errors of
// pawl.Scope.Hold.
func (q *Queue[I, A]) Delete(ctx context.Context, id string) error {
	final := func(_ context.Context, r *record) error {
		if !r.status().Final() {
			return &StatusError{Job: id, Status: r.status(), Requested: r.Requested, Wanted: "delete"}
		}
		return nil
	}
	scope := q.jobs.Scope(q.rt, id)
	snap, err := scope.Snapshot(ctx)
	if err == nil && snap.Exists() {
		err = final(ctx, snap.ReadOnly()) // without waiting for the worker of a running job
	}
	if err != nil && !pawl.IsAbsent(err) {
		return err
	}
	// The lease keeps the id from being used for a new job meanwhile, whose items would be deleted.
	err = scope.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
		// The items first: after a crash in between, the job is still there to be deleted.
		if _, err := q.items.DeletePrefix(ctx, q.rt, itemPrefix(id)); err != nil {
			return err
		}
		q.hook(atForgotten, id)
		return pawl.Transact(ctx, q.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if err := q.jobs.Scope(tx, id).Delete(ctx); err != nil {
				return err
			}
			return l.ReleaseIn(tx)
		})
	}, pawl.LeaseFor(q.config.Lease), pawl.WaitForLease(), pawl.WithMutation(pawl.Atomic(final), pawl.IfExists()))
	if pawl.IsAbsent(err) {
		return nil
	}
	return err
}
