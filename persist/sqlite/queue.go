package sqlite

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Limits of one transaction, so that no caller waits for an endless one.
const (
	maxBatchRequests = 256
	maxBatchBytes    = 4 << 20
)

// lingerYields is how often the writer's owner yields before it takes a batch that is smaller than
// the last one.
const lingerYields = 4

// queue gives the writer to one goroutine at a time, and lists the work that waits for it.
//
// A caller adds its request to the list, then waits for the writer or for its answer, whichever
// comes first. A caller that gets the writer does all listed work in one transaction and answers.
// Calls that need the writer for themselves, such as CommitWith, wait for the writer only.
type queue struct {
	writer chan struct{} // has room for one element; its sender owns the writer

	mu      sync.Mutex // protects the fields below
	waiting []*request // in order of arrival
	last    int        // size of the last batch
}

// request is the work of one caller.
type request struct {
	work    func(*transaction) error // an error leaves no trace in the transaction
	size    int                      // bytes to be written, about
	arrived time.Time
	done    chan struct{} // closed when the answer is there, unless the caller did the work itself
	at      time.Time     // the answer
	err     error
}

func newQueue() queue { return queue{writer: make(chan struct{}, 1)} }

// acquire waits for the writer. It returns an error that wraps persist.ErrNotApplied when ctx ends.
func (q *queue) acquire(ctx context.Context) error {
	select {
	case q.writer <- struct{}{}:
		return nil
	case <-ctx.Done():
		return notApplied(context.Cause(ctx))
	}
}

// release passes the writer on.
func (q *queue) release() { <-q.writer }

func (q *queue) add(r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, r)
}

// remove takes r off the list. It reports false if r is part of a transaction already.
func (q *queue) remove(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, r)
	if at < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	return true
}

// linger yields a few times while fewer requests wait than the last batch had: callers that were
// just answered can add their next request, and share the transaction.
func (q *queue) linger() {
	for range lingerYields {
		q.mu.Lock()
		enough := len(q.waiting) >= q.last
		q.mu.Unlock()
		if enough {
			return
		}
		runtime.Gosched()
	}
}

// take removes a batch from the list, with own first. Own is on the list.
func (q *queue) take(own *request) []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, own)
	q.waiting = slices.Delete(q.waiting, at, at+1)
	count, size := 0, own.size
	for count < min(len(q.waiting), maxBatchRequests-1) && size+q.waiting[count].size <= maxBatchBytes {
		size += q.waiting[count].size
		count++
	}
	batch := append([]*request{own}, q.waiting[:count]...)
	q.waiting, q.last = slices.Delete(q.waiting, 0, count), len(batch)
	return batch
}

// write does r's work in a transaction and returns its time.
func (s *Store) write(ctx context.Context, r *request) (time.Time, error) {
	if err := s.enter(ctx); err != nil {
		return time.Time{}, err
	}
	defer s.calls.leave()
	r.arrived, r.done = time.Now(), make(chan struct{})
	s.queue.add(r)
	select {
	case s.queue.writer <- struct{}{}: // a lone caller gets it at once
		return s.lead(ctx, r)
	default:
	}
	select {
	case <-r.done:
		return r.at, r.err
	case s.queue.writer <- struct{}{}:
		return s.lead(ctx, r)
	case <-ctx.Done():
		return s.abandon(ctx, r)
	}
}

// enter counts a call that needs the writer. It returns persist.ErrClosed after Close, and an error
// that wraps persist.ErrNotApplied when ctx has ended or is that of a function inside CommitWith.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return notApplied(context.Cause(ctx))
	}
	if ctx.Value(insideOf{s}) != nil {
		return notApplied(errInside)
	}
	return s.calls.enter()
}

// lead does the work of r and of the requests that wait with it. The caller owns the writer, which
// is passed on.
func (s *Store) lead(ctx context.Context, r *request) (time.Time, error) {
	defer s.queue.release()
	select {
	case <-r.done: // by the owner before
		return r.at, r.err
	default:
	}
	s.queue.linger()
	if err := s.writer.begin(ctx, r.arrived); err != nil {
		s.queue.remove(r)
		return time.Time{}, notApplied(err)
	}
	batch := s.queue.take(r)
	s.writer.run(batch)
	for _, other := range batch[1:] {
		close(other.done)
	}
	return r.at, r.err
}

// abandon answers the caller of r, whose context has ended. Work that is part of a transaction has
// its answer soon, and that is worth waiting for.
func (s *Store) abandon(ctx context.Context, r *request) (time.Time, error) {
	if s.queue.remove(r) {
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	timer := time.NewTimer(s.config.BusyTimeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.at, r.err
	case <-timer.C:
		return time.Time{}, errNoAnswer
	}
}
