package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/protect"
)

// Answer is what Cancel did.
type Answer string

// The answers of Cancel.
const (
	Accepted         Answer = "ACCEPTED"          // a worker tears it down at the next item, or another Cancel does now
	NowCanceled      Answer = "CANCELED"          // this call has torn it down
	AlreadyCanceled  Answer = "ALREADY_CANCELED"  // it was torn down before
	AlreadyCompleted Answer = "ALREADY_COMPLETED" // nothing is refunded
)

// Cancellation is the result of Cancel. The totals of Progress are final if Progress.Final is true.
type Cancellation struct {
	Answer   Answer
	Progress Progress
}

// Cancel cancels a job: every item that is charged and not finalized is refunded, what the calls
// made is removed, and the job is canceled. If no worker has the job, Cancel does that itself before
// it returns. Otherwise it answers Accepted; Watch tells when the job is canceled.
//
// Cancel can be repeated at any time, also after an error, and by another process: it goes on where
// the teardown has stopped. It returns *RemoveError if a removal fails, pawl.ErrNotFound, the errors
// of the ledger, and those of pawl.Transact and pawl.Scope.Acquire. After an error the request
// stands, if it was stored: workers go on with the teardown.
func (q *Queue[I, A]) Cancel(ctx context.Context, id string) (Cancellation, error) {
	scope := q.jobs.Scope(q.rt, id)
	request := func(held bool) func(context.Context, *record) error {
		return func(_ context.Context, r *record) error {
			switch working := r.status() == Running || r.status() == Canceling; {
			case r.status().Final():
				return &finalError{progressOf(id, r)}
			case held && !working:
				return errReleased
			}
			return r.request(held, time.Now())
		}
	}
	for {
		lease, err := scope.Acquire(ctx, pawl.LeaseFor(q.config.Lease),
			pawl.WithMutation(pawl.Atomic(request(false)), pawl.IfExists(), pawl.WithDueIn(0)))
		if err == nil {
			return q.cancelNow(lease, id)
		}
		if errors.Is(err, pawl.ErrHeld) {
			var snap pawl.Snapshot[record]
			if snap, err = scope.AtomicState(ctx, request(true), pawl.IfExists()); err == nil {
				q.hook(atRequested, id)
				return Cancellation{Accepted, progressOf(id, snap.ReadOnly())}, nil
			}
		}
		final := (*finalError)(nil)
		switch {
		case errors.Is(err, errReleased): // between the two: try the lease again
		case errors.As(err, &final):
			return final.answer(), nil
		case pawl.IsAbsent(err):
			return Cancellation{}, notFound(id)
		default:
			return Cancellation{}, err
		}
	}
}

// errReleased says that no worker has the job any more.
var errReleased = errors.New("batch: the job was released")

// finalError says that a job is completed or canceled.
type finalError struct{ Progress }

func (e *finalError) Error() string { return fmt.Sprintf("batch: job %.80q is %s", e.ID, e.Status) }

func (e *finalError) answer() Cancellation {
	if e.Status == Canceled {
		return Cancellation{AlreadyCanceled, e.Progress}
	}
	return Cancellation{AlreadyCompleted, e.Progress}
}

// cancelNow tears a job down under a lease that Cancel holds. If that fails, workers try again after
// a while.
func (q *Queue[I, A]) cancelNow(lease *pawl.Lease, id string) (c Cancellation, err error) {
	var after pawl.Snapshot[record]
	err = lease.Run(func(ctx context.Context, l *pawl.Lease) error {
		failed := q.tearDown(ctx, id)
		if ctx.Err() != nil {
			return errors.Join(failed, context.Cause(ctx)) // the lease runs out, or is released
		}
		err := pawl.Transact(ctx, q.rt, func(ctx context.Context, tx *pawl.Tx) (err error) {
			var opts []pawl.CallOption
			if failed != nil {
				opts = append(opts, pawl.WithDueIn(jobRetry.First))
			}
			after, err = q.jobs.Scope(tx, id).AtomicState(ctx, func(_ context.Context, r *record) error {
				if failed != nil {
					r.Error = protect.Text(failed)
					return nil
				}
				r.Error = ""
				return r.become(Canceled, time.Now())
			}, opts...)
			if err != nil {
				return err
			}
			return l.ReleaseIn(tx)
		}, pawl.WithRetry(commitRetry))
		if err == nil && failed == nil {
			q.hook(atEnded, id)
		}
		return errors.Join(failed, err)
	})
	if err != nil {
		return c, err
	}
	return Cancellation{NowCanceled, progressOf(id, after.ReadOnly())}, nil
}

// tearDown does all of a cancel but the last transition. ctx is that of the lease of the job. It can
// be repeated after it was interrupted at any point.
func (q *Queue[I, A]) tearDown(ctx context.Context, id string) error {
	_, err := q.jobs.Scope(q.rt, id).AtomicState(ctx, func(_ context.Context, r *record) error {
		if r.status() == Canceling {
			return nil
		}
		return r.become(Canceling, time.Now())
	}, pawl.WithDueIn(0))
	if err != nil {
		return err
	}
	q.hook(atCanceling, id)
	if err := q.refundAll(ctx, id); err != nil {
		return err
	}
	if err := q.cleanUp(ctx, id); err != nil {
		return err
	}
	q.hook(atCleaned, id)
	return nil
}

// refundAll cancels and refunds all undecided items, chunk by chunk. The chunks become smaller if the
// store refuses one as too large.
func (q *Queue[I, A]) refundAll(ctx context.Context, id string) error {
	var items []int
	size := q.config.Chunk
	refund := func() error {
		for len(items) > 0 {
			chunk := items[:min(size, len(items))]
			err := q.refundChunk(ctx, id, chunk)
			switch {
			case err == nil:
				items = items[len(chunk):]
			case len(chunk) > 1 && tooLarge(err):
				size = len(chunk) / 2
			default:
				return err
			}
		}
		return nil
	}
	undecided := []string{string(Waiting), string(Charged), string(Made)}
	for snap, err := range q.items.List(ctx, q.rt, pawl.Query{Prefix: itemPrefix(id), Labels: undecided}) {
		if err != nil {
			return err
		}
		if items = append(items, snap.ReadOnly().Index); len(items) == q.config.Chunk {
			if err := refund(); err != nil {
				return err
			}
		}
	}
	return refund()
}

// tooLarge reports whether a commit was refused because it has too many scopes or bytes. A limit of a
// single document is another error, which a smaller commit does not change.
func tooLarge(err error) bool {
	limit := (*pawl.LimitError)(nil)
	return errors.As(err, &limit) && (limit.What == "scopes" || limit.What == "commit")
}

// refundChunk cancels those of the given items that are undecided, and refunds those that were
// charged, in one commit.
func (q *Queue[I, A]) refundChunk(ctx context.Context, id string, chunk []int) error {
	err := pawl.Transact(ctx, q.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := q.jobs.Scope(tx, id)
		r, err := scope.State(ctx)
		if err != nil {
			return err
		}
		count, sum := 0, int64(0)
		for _, index := range chunk {
			scope := q.items.Scope(tx, itemID(id, index))
			it, err := scope.State(ctx)
			if err != nil {
				return err
			}
			charged := it.State != Waiting
			if !it.become(ItemCanceled) {
				continue // decided since it was listed
			}
			if count++; charged {
				sum += it.Price
			}
			if _, err := scope.SetState(ctx, it); err != nil {
				return err
			}
		}
		if r.status() != Canceling {
			return &StatusError{Job: id, Status: r.status(), Requested: r.Requested, Wanted: "refund"}
		}
		if count == 0 {
			return nil
		}
		r.Canceled += count
		r.Refunded += sum
		if _, err := scope.SetState(ctx, r); err != nil || sum == 0 {
			return err
		}
		return q.config.Ledger.Add(ctx, tx, r.Account, sum)
	}, pawl.WithRetry(commitRetry))
	if err == nil {
		q.hook(atRefunded, id)
	}
	return err
}

// cleanUp removes what the calls of refunded items made. It selects all of them, each time: an
// earlier removal may have been interrupted.
func (q *Queue[I, A]) cleanUp(ctx context.Context, id string) error {
	group, removing := errgroup.WithContext(ctx)
	group.SetLimit(q.config.Items)
	refunded := []string{string(ItemCanceled), string(ItemFailed)}
	for snap, err := range q.items.List(removing, q.rt, pawl.Query{Prefix: itemPrefix(id), Labels: refunded}) {
		if removing.Err() != nil {
			break
		}
		if err != nil {
			group.Go(func() error { return err })
			break
		}
		it := snap.State()
		if !it.Begun {
			continue
		}
		group.Go(func() error {
			err := protect.Call(q.config.Logger, func() error {
				return q.config.Remove(removing, q.key(id, it.Index), it.Artifact)
			})
			if err != nil {
				return &RemoveError{Job: id, Item: it.Index, Err: err}
			}
			q.hook(atRemoved, id)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
