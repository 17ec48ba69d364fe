package postgres

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Commits go directly, each on a connection of its own, while few are under way: that is quickest
// for each of them. Beyond that they wait, and committers take what waits into one transaction,
// which is quickest for all. See BenchmarkCommit for where the one becomes better than the other.
const (
	maxDirect      = 8
	maxCommitters  = 2
	maxBatchKeys   = 256
	maxBatchAbsent = 64 // keys: each takes a place in the table of all locks of the server
	maxBatchBytes  = 4 << 20
)

// queue decides which way a commit goes, and knows what is under way. There is no goroutine behind
// it but those of the commits: a committer ends when nothing waits.
type queue struct {
	committer func() // commits what waits, until take returns nothing
	maxDirect int

	underWay sync.WaitGroup // every call that has begun, and what it left behind

	mu         sync.Mutex // protects what follows
	waiting    []*request // in order of arrival
	direct     int        // requests that go directly
	committers int
	taken      map[persist.Key]bool // the keys that committers are committing
	closed     bool
}

// begin lets a call in, which must call end, or returns persist.ErrClosed after close.
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

// enterDirectly lets r in if it can go directly, as enter does, and reports whether.
func (q *queue) enterDirectly(r *request) (direct bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.goDirectly(r)
}

func (q *queue) goDirectly(r *request) (direct bool, err error) {
	switch {
	case q.closed:
		return false, persist.ErrClosed
	case q.committers == 0 && q.direct < q.maxDirect, r.inTurn:
		q.direct++
		q.underWay.Add(1)
		return true, nil
	}
	return false, nil
}

// enter lets r in, or returns persist.ErrClosed after close. It reports whether r goes directly: then the caller has to commit it, and to call
// leave and end.
func (q *queue) enter(r *request) (direct bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if direct, err := q.goDirectly(r); direct || err != nil {
		return direct, err
	}
	q.waiting = append(q.waiting, r)
	if q.committers < maxCommitters {
		q.committers++
		q.underWay.Go(q.committer)
	}
	return false, nil
}

// leave makes room for the next request that goes directly.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.direct--
}

// proceed tells that a committer has finished with done, and reports whether it is to go on.
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

// gather lets those come who were answered by the last batch and are about to commit again: they share the next one.
func (q *queue) gather() {
	const yields = 8
	before := -1
	for range yields {
		q.mu.Lock()
		came := len(q.waiting)
		q.mu.Unlock()
		if came == before || came >= maxBatchKeys {
			return
		}
		before = came
		runtime.Gosched()
	}
}

// take removes a batch of requests from the queue, and marks them as sent. No key is in it twice, or
// in the batch of another committer: they would be in each other's way. Requests that have a key in
// common stay in order. It returns nothing when the committer is to end, and whatever waits then is
// left to the other committer.
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
			continue // its caller has left
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

// oldest returns when the first of those who wait arrived.
func (q *queue) oldest() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return time.Now()
	}
	return q.waiting[0].arrived
}

// remove removes those from the queue who arrived by then.
func (q *queue) remove(then time.Time) []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var removed, rest []*request
	for _, r := range q.waiting {
		if r.arrived.After(then) {
			rest = append(rest, r)
		} else {
			removed = append(removed, r)
		}
	}
	q.waiting = rest
	return removed
}

// close lets nobody in any more and waits until everybody is out.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.underWay.Wait()
}
