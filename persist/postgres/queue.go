package postgres

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// While few commits are in progress, each goes directly, on a connection of its own: that is the
// fastest for each of them. Further commits wait, and committers put what waits into batches: that
// is the fastest for all. BenchmarkCommit shows where one becomes better than the other.
const (
	maxDirect      = 8
	maxCommitters  = 2
	maxBatchKeys   = 256
	maxBatchAbsent = 64 // each absent key takes a place in the server's lock table
	maxBatchBytes  = 4 << 20
)

// queue decides how a commit goes, and counts what is in progress. It has no goroutine of its own:
// a committer ends when nothing waits.
type queue struct {
	committer func() // commits what waits until take returns nothing
	maxDirect int

	underWay sync.WaitGroup // every call in progress and what it left behind

	mu         sync.Mutex // protects the fields below
	waiting    []*request // in order of arrival
	direct     int        // requests that go directly
	committers int
	taken      map[persist.Key]bool // keys that committers are committing
	closed     bool
}

// begin counts a call until it calls end. It returns persist.ErrClosed after close.
func (q *queue) begin() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return persist.ErrClosed
	}
	q.underWay.Add(1)
	return nil
}

func (q *queue) end() { q.underWay.Done() }

// enter accepts r, or returns persist.ErrClosed after close. It reports whether r goes directly:
// then the caller commits it and calls leave and end. Otherwise a committer commits it.
func (q *queue) enter(r *request) (direct bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return false, persist.ErrClosed
	case q.committers == 0 && q.direct < q.maxDirect, r.inTurn:
		q.direct++
		q.underWay.Add(1)
		return true, nil
	}
	q.waiting = append(q.waiting, r)
	if q.committers < maxCommitters {
		q.committers++
		q.underWay.Go(q.committer)
	}
	return false, nil
}

// leave frees the place of a request that went directly.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.direct--
}

// proceed frees the keys of the committer's last batch. It reports false if the committer has to
// end because nothing waits.
func (q *queue) proceed(done []*request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range done {
		for _, key := range r.keys {
			delete(q.taken, key)
		}
	}
	if len(q.waiting) == 0 {
		q.committers--
		return false
	}
	return true
}

// gather yields while requests keep arriving: callers that the last batch answered commit again and
// share the next one.
func (q *queue) gather() {
	const yields = 8
	before := -1
	for range yields {
		q.mu.Lock()
		arrived := len(q.waiting)
		q.mu.Unlock()
		if arrived == before || arrived >= maxBatchKeys {
			return
		}
		before = arrived
		runtime.Gosched()
	}
}

// take removes a batch from the queue and marks its requests as sent. No key occurs twice in it, or
// in the batch of the other committer. Requests with a common key stay in order. It returns nothing
// if the committer has to end; the other committer then takes what waits.
func (q *queue) take() []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch, rest []*request
	passed := make(map[persist.Key]bool) // the keys of rest
	keys, absent, size := 0, 0, 0
	for i, r := range q.waiting {
		if len(batch) > 0 && (keys+len(r.keys) > maxBatchKeys || absent+r.absent > maxBatchAbsent || size+r.size > maxBatchBytes) {
			rest = append(rest, q.waiting[i:]...)
			break
		}
		if slices.ContainsFunc(r.keys, func(key persist.Key) bool { return q.taken[key] || passed[key] }) {
			rest = append(rest, r)
			addAll(passed, r.keys)
			continue
		}
		if !r.send() {
			continue // the caller has withdrawn it
		}
		keys, absent, size = keys+len(r.keys), absent+r.absent, size+r.size
		batch = append(batch, r)
		addAll(q.taken, r.keys)
	}
	q.waiting = rest
	if len(batch) == 0 {
		q.committers--
	}
	return batch
}

func addAll(set map[persist.Key]bool, keys []persist.Key) {
	for _, key := range keys {
		set[key] = true
	}
}

// oldest returns the arrival of the first request that waits.
func (q *queue) oldest() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return time.Now()
	}
	return q.waiting[0].arrived
}

// remove removes the requests that arrived no later than a time.
func (q *queue) remove(latest time.Time) []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var removed, rest []*request
	for _, r := range q.waiting {
		if r.arrived.After(latest) {
			rest = append(rest, r)
		} else {
			removed = append(removed, r)
		}
	}
	q.waiting = rest
	return removed
}

// close refuses further calls and waits until all calls in progress have ended.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.underWay.Wait()
}
