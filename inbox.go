package pawl

import (
	"runtime"
	"time"

	"github.com/pawl-go/pawl/internal/yield"
)

// The queue of an in-memory container: writers come without the lock, and whoever drives the queue takes all that wait at once.
//
//	come ─► inbox ─► gather ─► linked ─► takeAll ─► rest ─► turns (turn.go)
//	                             ▲                    │ Abandon
//	                             └──── giveBack ──────┘

// shut is in the inbox of a queue that is closed.
var shut waiter

// come is push in memory, without the lock as long as there is plenty of room. It makes sure that r drives the queue.
func (q *queue) come(w *waiter, limit int, r runner) error {
	if int(q.came.Add(1)) > limit {
		q.came.Add(-1)
		return q.squeeze(w, limit, r)
	}
	for {
		head := q.inbox.Load()
		if head == &shut {
			q.came.Add(-1)
			return ErrClosed
		}
		w.next = head
		if q.inbox.CompareAndSwap(head, w) {
			break
		}
	}
	if !q.working.Load() { // who stops driving looks into the inbox afterwards
		q.mu.Lock()
		q.start(r)
		q.mu.Unlock()
	}
	return nil
}

// squeeze is come where there may be no room.
func (q *queue) squeeze(w *waiter, limit int, r runner) error {
	for {
		if err, sure := q.trySqueeze(w, limit, r); sure {
			return err
		}
		runtime.Gosched() // until those who are about to come have, or have seen that there is no room
	}
}

func (q *queue) trySqueeze(w *waiter, limit int, r runner) (err error, sure bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gather()
	q.uncount()
	came, depth := q.came.Load(), q.depth()
	coming := int(came) - q.waiting - q.batch
	switch {
	case q.closed:
		return ErrClosed, true
	case depth >= limit:
		return &OverloadedError{Scope: w.call.key, Queue: depth}, true
	case depth+coming >= limit || !q.came.CompareAndSwap(came, came+1):
		return nil, false
	}
	q.append(w)
	q.waiting++
	q.start(r)
	return nil, true
}

// gather links those who came, in memory. The caller holds q.mu.
func (q *queue) gather() {
	if head := q.inbox.Load(); head == nil || head == &shut {
		return
	}
	q.linkCome(q.inbox.Swap(nil))
}

// linkCome links what was in the inbox. The caller holds q.mu.
func (q *queue) linkCome(head *waiter) {
	if head == nil || head == &shut {
		return
	}
	last, n := head, 0
	var first *waiter
	for w := head; w != nil; n++ {
		next := w.next
		w.next, first, w = first, w, next
	}
	if q.last != nil {
		q.last.next = first
	} else {
		q.first = first
	}
	q.last = last
	q.waiting += n
}

// depth returns how many wait. The caller holds q.mu.
func (q *queue) depth() int {
	return max(0, q.waiting-q.left+int(q.behind.Load()))
}

// current returns the function that has the queue to itself, nil if there is none.
func (q *queue) current() *stint {
	if h := q.holder.Load(); h != nil && !h.over.Load() {
		return h
	}
	return nil
}

// leaveTurn is leave in memory.
func (q *queue) leaveTurn(w *waiter) (Phase, bool) {
	was, ok := w.become(isLeft, isClosing|isDone)
	if !ok {
		return 0, false
	}
	if was&isRunning != 0 {
		return PhaseRunning, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.answer, w.own = nil, change{verb: w.own.name()} // it may stay linked for a while, and must not hold what it was given
	q.gather()
	if w.left { // it was passed by, or unlinked, before it got here
		return PhaseQueued, true
	}
	w.left = true
	if q.left++; q.left >= q.enough {
		q.unlinkLeft()
	}
	return PhaseQueued, true
}

// leastEnough is how many callers leave an in-memory queue before it is looked through for them: one by one, thousands would cost too much.
const leastEnough = 32

// unlinkLeft removes those who have left, except what was taken: whoever took it passes it by. The caller holds q.mu.
func (q *queue) unlinkLeft() {
	w := q.first
	q.first, q.last = nil, nil
	for w != nil {
		next := w.next
		if w.state()&isLeft != 0 {
			q.gone(w)
			q.waiting--
			q.came.Add(-1)
		} else {
			q.append(w)
		}
		w = next
	}
	q.enough = q.left + max(leastEnough, q.waiting/2)
}

func (q *queue) append(w *waiter) {
	w.next = nil
	if q.last != nil {
		q.last.next = w
	} else {
		q.first = w
	}
	q.last = w
}

// reportStuck tells, once for each run, that a function has outlived somebody's budget.
func (q *queue) reportStuck(now time.Time, e *env) {
	q.mu.Lock()
	h := q.current()
	again := h == q.stuck
	q.stuck = h
	q.mu.Unlock()
	if again || h == nil {
		return
	}
	var took time.Duration
	if since := h.waiter.since.Load(); since != 0 {
		took = now.Sub(epoch) - time.Duration(since)
	}
	(&call{terms: &terms{env: e}, key: *h.key}).observe(h.Context, Event{Type: Stuck, Path: "lock", Verb: h.verb, Took: took})
	e.logger().WarnContext(h.Context, "pawl: mutator is stuck", "scope", h.key.String(), "verb", h.verb, "since", took)
}

// abandon gives up the mutator that runs: the queue moves on and its late result is discarded.
func (q *queue) abandon(r runner) bool {
	q.mu.Lock()
	h := q.holder.Load()
	if h == nil || !h.over.CompareAndSwap(false, true) {
		q.mu.Unlock()
		return false
	}
	w := h.waiter // whose run nobody else ends now
	q.running = nil
	q.working.Store(false)
	q.holder.Store(nil)
	q.stuck = nil
	q.giveBack()
	q.gather() // those who came while somebody drove the queue rely on that
	if q.first != nil {
		q.start(r)
	}
	q.signalDrained()
	q.mu.Unlock()
	w.call.observe(w.ctx, Event{Type: Abandoned, Path: "lock", Verb: h.verb})
	if _, ok := w.become(isClosing, isLeft); ok {
		w.abandoned = true
		w.err = wrapKey(ErrAbandoned, w.call.key)
		w.finish()
	}
	return true
}

// taken is what runs in a queue of which all were taken: each of them is its caller's again once it is answered, and may serve another queue.
var taken waiter

// takeAll lets all that wait, w first, have their turns, one by one. That of w begins here. The caller holds q.mu.
func (q *queue) takeAll(w *waiter) {
	n := q.waiting
	q.running, q.rest, q.enough = &taken, w, leastEnough
	q.first, q.last, q.waiting = nil, nil, 0
	q.retire()
	q.batch = n
	q.adapt()
	q.polls = min(q.polls+max(0, n-2)*pollsEarned, mostPolls)
	q.crowd = max(q.crowd, float64(n))
	if _, ok := w.become(isRunning, isLeft); ok {
		q.rest = w.next
		n--
	}
	if n > 0 {
		q.behind.Store(int32(n))
	}
	if q.stuck != nil && q.stuck.over.Load() {
		q.stuck = nil
	}
}

// mostServed is how many may have had their turns and still be counted in came: to take each off at once would cost a lone writer more than it is worth.
const mostServed = 64

// retire counts those as served who were taken together and have had their turns. The caller holds q.mu, and drives the queue.
func (q *queue) retire() {
	q.served += q.batch
	q.batch = 0
	if q.served > mostServed {
		q.uncount()
	}
}

// uncount takes those off came who were served. The caller holds q.mu.
func (q *queue) uncount() {
	if q.served != 0 {
		q.came.Add(int32(-q.served))
		q.served = 0
	}
}

// nextTurn begins the turn of whoever is next of those that were taken; nil if nobody is left. The caller drives the queue.
func (q *queue) nextTurn() *waiter {
	for w := q.rest; w != nil; w = q.rest {
		q.rest = w.next
		if _, ok := w.become(isRunning, isLeft); ok {
			q.behind.Store(q.behind.Load() - 1)
			return w
		}
		q.pass(w)
	}
	return nil
}

// Who waits for one another is best off on one processor, where who yields need not tell the others: a writer and its worker, as well as many, who keep
// every processor busy. With more than two writers in memory, and fewer than many, those would stand in line behind a worker that polls for them, and nobody
// would wake the processor that could run them.
const (
	fewWriters   = 2
	manyWriters  = 32
	settledAfter = 64 // batches of few
)

// adapt decides, in memory, who is yielded to. The caller holds q.mu, and has taken all that wait.
func (q *queue) adapt() {
	spread := false
	if q.batch > fewWriters {
		q.small = 0
		spread = q.crowd < manyWriters
	} else if q.small < settledAfter {
		q.small++
		spread = q.spread.Load()
	}
	if spread != q.spread.Load() {
		q.spread.Store(spread)
	}
}

// giveWay lets others run: whoever has waited longest, or those on this processor.
func giveWay(spread bool) {
	if spread {
		runtime.Gosched()
	} else {
		yield.Local()
	}
}

// A worker that has nothing left to do polls before it gives way. To yield among many writers is to wait behind all of them, in turns that another
// processor takes as well: then each writer's stack and waiter are fetched by whichever runs it next, and many of them look for an answer that is not
// there yet. While the worker stays where it is, they stay on the other. It may poll for as long as those who came together have earned it, so that one or
// two writers, who are better off on one processor, never make it poll, and what it wastes when they all stop at once is little. All of this is counted
// in polls, one of which takes about half a nanosecond; a clock would stand still in a test that fakes it.
const (
	pollsEarned     = 2_000   // by each who came beyond the second
	mostPolls       = 100_000 // to be saved
	pollsWorthwhile = 5_000
	pausePerWriter  = 300    // polls between two looks at the inbox: to look takes it away from those who come
	longestPause    = 16_000 // of these
	crowdFades      = 1_000  // pauses, until nothing is left of a crowd, more or less
)

// poll waits for somebody to come, and reports whether somebody did. The caller drives the queue.
func (q *queue) poll() bool {
	pause := min(max(1, int(q.crowd))*pausePerWriter, longestPause)
	q.crowd -= q.crowd / crowdFades
	for q.polls > 0 {
		for range pause {
			q.holder.Load()
		}
		q.polls -= pause
		if q.inbox.Load() != nil {
			return true
		}
	}
	return false
}

// pass takes note that somebody who was taken had left. The caller drives the queue.
func (q *queue) pass(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gone(w)
	q.behind.Add(-1)
}

// gone counts w, who has left, no more; not at all, if it was on its way to be counted. The caller holds q.mu.
func (q *queue) gone(w *waiter) {
	if w.left {
		q.left--
	}
	w.left = true
}

// giveBack lets those that were taken and had no turn wait in front of the others. The caller holds q.mu, and drives the queue.
func (q *queue) giveBack() {
	w, later, last := q.rest, q.first, q.last
	q.first, q.last, q.rest = nil, nil, nil
	q.behind.Store(0)
	for w != nil {
		next := w.next
		q.append(w)
		q.waiting++
		q.batch--
		w = next
	}
	if later != nil {
		second := later.next
		q.append(later)
		later.next, q.last = second, last
	}
}
