package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/protect"
)

// A job from Submit to its end. Every arrow is one commit, and tests the status and the request to
// cancel (jobMoves):
//
//	 pending ──► queued ──────────► running ──────────► completed
//	    │       all │  ▲  take:        │  ▲ │  all items
//	    │    stored │  │  lease        │  │ └──────────► failed ──► queued (Retry)
//	    │           │  └── Stop ───────┘  │    no points    │
//	    │           │                 the worker died:      │
//	    │           │                 taken over            │
//	    └───────────┴──────┬───────────────┴────────────────┘
//	                       ▼ Cancel
//	                   canceling ──► refund, chunk by chunk ──► remove ──► canceled
//
// An item, each arrow together with the books of the job, and with the account where points move:
//
//	waiting ── charge ──► charged ── call ──► made ── Finalize ──► finalized
//	   │                  │  ▲ │              │
//	   │                  └──┘ └─ refund ──►  │ failed
//	   │        the call again                │
//	   └───────────────────┴──────────────────┴── teardown, refund ──► canceled
//
// Races, and what decides each:
//   - Two workers take one job, or a queue delivers it twice: taking is a version-checked write with
//     a lease. One of them gets it.
//   - A worker takes a job that Cancel has reached first: Cancel has moved it to canceling, so the
//     worker takes it for teardown, or gets nothing because Cancel holds the lease.
//   - Cancel comes while a worker holds the lease: it only sets the request, and answers ACCEPTED.
//     Each charge tests the request in its commit, so no further item is charged.
//   - Cancel comes after the last item: the commit that completes the job tests the request, and
//     begins the teardown instead.
//   - Cancel is called twice, or while a worker tears down: the lease decides which of them does it.
//   - A worker that was paused past its lease charges, stores a result or ends the job: its token is
//     tested inside the commit. It writes nothing.
//   - Finalize comes while the job is torn down: both change the item, and the first commit decides.
//     Finalize also tests the request, so it is refused from then on.
//   - Submit adds items while Cancel tears down: each chunk tests that the job is pending.
//   - A process dies: every state above is a correct start. A charged item is not charged again, and
//     its call is made again under the same key. A refunded item is canceled, so it is not refunded
//     again. Removals start over. The job is canceled by the last commit.

// Causes that end the work on the items of a job.
var (
	errCanceled = errors.New("batch: the job is to be canceled")
	errStopping = errors.New("batch: the queue is stopped")
)

// handle is the handler of the worker: it works on a job until the job has ended or is to be handed
// back.
func (q *Queue[I, A]) handle(ctx context.Context, j *job.Job[record]) error {
	q.hook(atClaimed, j.ID)
	j.OnCommit(func(_ context.Context, tx *pawl.Tx) error {
		tx.AfterCommit(func() { q.hook(atEnded, j.ID) })
		return nil
	})
	err := errCanceled
	if !j.State.Requested {
		err = q.work(ctx, j.ID)
	}
	switch {
	case err == nil:
		err = q.complete(ctx, j)
	case errors.Is(err, errCanceled):
		if err = q.tearDown(ctx, j.ID); err == nil {
			j.Update(func(r *record) error { return r.become(Canceled, j.Now()) })
		}
	case errors.Is(err, errStopping):
		q.hook(atLeaving, j.ID)
		j.Update(func(r *record) error { return r.handBack(j.Now()) })
		return nil
	case unpayable(err):
		q.hook(atFailing, j.ID)
		reason := protect.Text(err)
		j.Update(func(r *record) error {
			if !r.Requested {
				r.Reason = reason
			}
			return r.end(Failed, j.Now())
		})
		return nil
	}
	if pawl.IsNonRetryable(err) { // of Remove, for example. The job must not be given up.
		err = errors.New(err.Error())
	}
	return err
}

// unpayable reports whether an account cannot be charged.
func unpayable(err error) bool {
	short := (*InsufficientError)(nil)
	return errors.As(err, &short) || errors.Is(err, errNoAccount)
}

// errNoAccount marks the error of a ledger that does not have the account.
var errNoAccount = errors.New("batch: cannot be charged")

// complete removes what failed items have left, and makes the job completed.
func (q *Queue[I, A]) complete(ctx context.Context, j *job.Job[record]) error {
	if err := q.cleanUp(ctx, j.ID); err != nil {
		return err
	}
	q.hook(atCompleting, j.ID)
	j.Update(func(r *record) error {
		if !r.Requested && r.Done+r.Failed != r.Items {
			return fmt.Errorf("batch: %d of %d items are neither made nor failed", r.Items-r.Done-r.Failed, r.Items)
		}
		return r.end(Completed, j.Now())
	})
	return nil
}

// shift is the work of one worker on the items of one job.
type shift[I, A any] struct {
	*Queue[I, A]
	id string
	// fenced is for commits. It does not end, and the lease of the job guards them.
	fenced context.Context
	// calls is for calls, and leave says that no further one is to begin. The causes are errCanceled,
	// errStopping, and those of the worker.
	calls, leave context.Context
	// mu makes the commits follow each other, because all of them change the job.
	mu sync.Mutex
}

// work makes the calls of a job. It returns nil if none is left to be made, or errCanceled,
// errStopping, an error that is unpayable, or one that is not about a single item.
func (q *Queue[I, A]) work(ctx context.Context, id string) error {
	calls, endCalls := context.WithCancelCause(ctx)
	leave, endLeave := context.WithCancelCause(calls)
	defer endCalls(nil)
	defer endLeave(nil)
	var listening sync.WaitGroup
	listening.Go(func() {
		q.listen(calls, id, func(cause error) {
			if endLeave(cause); cause == errCanceled && q.config.Interrupt {
				endCalls(cause)
			}
		})
	})
	defer listening.Wait()
	defer endCalls(nil)

	select {
	case <-q.stopping: // the worker took the job before its loop was stopped
		return errStopping
	default:
	}
	s := &shift[I, A]{Queue: q, id: id, fenced: context.WithoutCancel(ctx), calls: calls, leave: leave}
	err := s.all(Charged) // they are paid for
	if err == nil {
		err = s.all(Waiting)
	}
	if unpayable(err) {
		if again := s.all(Charged); again != nil {
			return again
		}
	}
	return err
}

// listen calls end when the queue is stopped and when the job is to be canceled. It hears of a
// cancel by watching the job, and looks at it from time to time, too. Only promptness depends on it:
// every charge tests the request.
func (q *Queue[I, A]) listen(ctx context.Context, id string, end func(cause error)) {
	scope, stopping := q.jobs.Scope(q.rt, id), q.stopping
	changes := scope.Changes(ctx)
	poll := time.NewTicker(q.config.Poll)
	defer poll.Stop()
	for {
		var now pawl.Snapshot[record]
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			end(errStopping)
			stopping = nil
		case c, ok := <-changes:
			if now = c.Snapshot; !ok || c.Err != nil {
				changes = nil // the poll goes on
			}
		case <-poll.C:
			now, _ = scope.Snapshot(ctx)
		}
		if now.Exists() && now.ReadOnly().Requested {
			end(errCanceled)
			return
		}
	}
}

// all works on all items with a state. It begins no further item after the first error, and waits
// for those in progress.
func (s *shift[I, A]) all(state ItemState) error {
	next, stop := context.WithCancelCause(s.leave)
	defer stop(nil)
	var group errgroup.Group
	group.SetLimit(s.config.Items)
	for snap, err := range s.items.List(s.leave, s.rt, pawl.Query{Prefix: itemPrefix(s.id), Labels: []string{string(state)}}) {
		if err != nil {
			stop(err)
		}
		if next.Err() != nil {
			break
		}
		index := snap.ReadOnly().Index
		group.Go(func() error {
			if next.Err() != nil {
				return nil
			}
			// The ledger and the methods of I and A may panic, too.
			if err := protect.Call(s.config.Logger, func() error { return s.item(index) }); err != nil {
				stop(err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return context.Cause(next)
}

// item makes the call of an item until it succeeds or the item has failed.
func (s *shift[I, A]) item(index int) error {
	for {
		if s.leave.Err() != nil {
			return context.Cause(s.leave)
		}
		it, err := s.begin(index)
		if err != nil || it.State != Charged {
			return err
		}
		artifact, err := s.call(it)
		switch {
		case err == nil:
			if err = s.made(index, artifact); !unfit(err) {
				return err
			}
			err = pawl.NonRetryable(err)
		case s.calls.Err() != nil: // it stays charged
			if cause := context.Cause(s.calls); cause != job.ErrStopped {
				return cause
			}
			return errors.Join(job.ErrStopped, s.giveBack(index))
		}
		failures := it.Failures + 1
		if failures >= s.config.Retry.Attempts || pawl.IsNonRetryable(err) {
			return s.fail(index, err)
		}
		// At once: the process may end before the next call.
		if err := s.count(index, err); err != nil {
			return err
		}
		pause := time.NewTimer(s.config.Retry.Delay(failures))
		select {
		case <-pause.C:
		case <-s.leave.Done():
		}
		pause.Stop()
	}
}

// begin counts a call of an item before it is made, and charges the item before the first one, in
// one commit. It returns the item, which is Charged unless there is nothing to do.
func (s *shift[I, A]) begin(index int) (it item[I, A], err error) {
	charges := false
	err = s.change(index, func(ctx context.Context, tx *pawl.Tx, r *record, i *item[I, A]) error {
		if it, charges = *i, i.State == Waiting; r.Requested {
			return errCanceled
		}
		switch {
		case i.State == Charged && i.Attempts >= max(s.config.Retry.Attempts, leastCalls):
			i.Error = "attempts spent: the last one did not end"
			err := s.refund(ctx, tx, r, i)
			it = *i
			return err
		case i.become(Charged):
			r.Charged += i.Price
			if err := s.charge(ctx, tx, r.Account, i.Price); err != nil {
				return err
			}
		case i.State != Charged:
			return nil
		}
		i.Begun = true
		i.Attempts++
		it = *i
		return nil
	})
	if charges && errors.Is(err, pawl.ErrNotFound) { // of the ledger, perhaps at the commit
		err = fmt.Errorf("%w: %w", errNoAccount, err)
	}
	switch {
	case err != nil:
	case it.State == Charged:
		s.hook(atCharged, s.id)
	case it.State == ItemFailed:
		s.hook(atFailed, s.id)
	}
	return it, err
}

// count counts a call that failed and is to be repeated.
func (s *shift[I, A]) count(index int, cause error) error {
	return s.change(index, func(_ context.Context, _ *pawl.Tx, _ *record, i *item[I, A]) error {
		if i.State == Charged {
			i.Failures++
			i.Error = protect.Text(cause)
		}
		return nil
	})
}

// giveBack takes back that a call was counted, because Stop has interrupted it.
func (s *shift[I, A]) giveBack(index int) error {
	return s.change(index, func(_ context.Context, _ *pawl.Tx, _ *record, i *item[I, A]) error {
		if i.State == Charged {
			i.Attempts--
		}
		return nil
	})
}

// charge takes points from an account.
func (s *shift[I, A]) charge(ctx context.Context, tx *pawl.Tx, account string, points int64) error {
	if points == 0 {
		return nil
	}
	return s.config.Ledger.Add(ctx, tx, account, -points)
}

// call makes the call of an item. An artifact that cannot be stored is an error.
func (s *shift[I, A]) call(it item[I, A]) (artifact A, err error) {
	ctx := s.calls
	if s.config.Timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, s.config.Timeout)
		defer cancel()
		ctx = limited
	}
	err = protect.Call(s.config.Logger, func() (err error) {
		if artifact, err = s.config.Make(ctx, s.key(s.id, it.Index), it.Data); err != nil {
			return err
		}
		if _, err := json.Marshal(artifact); err != nil {
			return pawl.NonRetryable(err)
		}
		return nil
	})
	s.hook(atCalled, s.id)
	return artifact, err
}

// unfit reports whether a document cannot be stored because of its contents: it is too large, for
// example, or has a string with U+0000.
func unfit(err error) bool {
	limit, field := (*pawl.LimitError)(nil), (*pawl.FieldError)(nil)
	return errors.As(err, &limit) || errors.As(err, &field)
}

// made stores the result of a call.
func (s *shift[I, A]) made(index int, artifact A) error {
	err := s.change(index, func(_ context.Context, _ *pawl.Tx, r *record, i *item[I, A]) error {
		if i.become(Made) {
			i.Artifact, i.Error = &artifact, ""
			r.Done++
		}
		return s.fits(s.id, *i)
	})
	if err == nil {
		s.hook(atMade, s.id)
	}
	return err
}

// fail makes an item failed and refunds it, in one commit.
func (s *shift[I, A]) fail(index int, cause error) error {
	err := s.change(index, func(ctx context.Context, tx *pawl.Tx, r *record, i *item[I, A]) error {
		i.Error = protect.Text(cause)
		return s.refund(ctx, tx, r, i)
	})
	if err == nil {
		s.hook(atFailed, s.id)
	}
	return err
}

// refund makes a charged item failed and refunds it, as part of tx.
func (s *shift[I, A]) refund(ctx context.Context, tx *pawl.Tx, r *record, i *item[I, A]) error {
	if !i.become(ItemFailed) {
		return nil
	}
	r.Failed++
	r.Refunded += i.Price
	if i.Price == 0 {
		return nil
	}
	return s.config.Ledger.Add(ctx, tx, r.Account, i.Price)
}

// change changes an item and its job in one commit.
func (s *shift[I, A]) change(
	index int, fn func(ctx context.Context, tx *pawl.Tx, r *record, i *item[I, A]) error,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return pawl.Transact(s.fenced, s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		jobScope, itemScope := s.jobs.Scope(tx, s.id), s.Queue.items.Scope(tx, itemID(s.id, index))
		r, err := jobScope.State(ctx)
		if err != nil {
			return err
		}
		i, err := itemScope.State(ctx)
		if err != nil {
			return err
		}
		if err := fn(ctx, tx, &r, &i); err != nil {
			return err
		}
		if _, err := itemScope.SetState(ctx, i); err != nil {
			return err
		}
		_, err = jobScope.SetState(ctx, r)
		return err
	}, pawl.WithRetry(commitRetry))
}
