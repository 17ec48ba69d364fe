package pawl

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// The queue of a container, and the life of a waiter in it:
//
//	            push            work                 release
//	(caller) ─────────► queued ─────────► running ─────────► answered
//	                      │                  │  ▲ persisted: back to queued
//	          deadline or │      deadline or │  │ when its commit lost
//	          ctx ends    ▼      ctx ends    ▼
//	                  withdrawn            left: the caller is gone, the run is not
//	                                         │ Abandon
//	                                         ▼
//	                                       discarded
//
// Persisted, every arrow is taken under queue.mu. In memory, who drives the queue takes all that wait at once, under queue.mu, and then gives them
// their turns without it. The races of this page, and what decides them:
//   - done against deadline or cancel: leave finds the waiter answered and the caller takes the answer;
//   - a turn against a withdrawal: leave unlinks what is linked; what was taken, in memory, is running or left, whichever it becomes first;
//   - a late return against Abandon: persisted, release looks whether the run is still the queue's own; in memory, whoever sets frame.over first wins;
//   - push against Close: push looks at closed, Close waits for what was pushed before it;
//   - a data verb in place against a turn: the verb runs under queue.mu when nothing is linked and nothing taken, and nothing is taken without it.

// queue orders the mutations of one container. Its zero value is ready.
type queue struct {
	// In memory, writers come without the lock, and whoever drives the queue takes all that wait at once. Here is all that they touch, because what others
	// write beside it would have to be fetched with it.
	inbox   atomic.Pointer[waiter] // those who came, the last first; shut after Close. Whoever has the lock may link them
	came    atomic.Int32           // how many wait, or are about to: these, those that are linked, all that were last taken together, and who is served
	working atomic.Bool            // a goroutine drives the queue; set under mu
	spread  atomic.Bool            // who yields does so to all processors, not only to its own: see adapt
	_       [cacheLine]byte

	mu          sync.Mutex    // protects what follows, and phase, left and abandoned of its waiters
	first, last *waiter       // those that wait, in order of submission
	waiting     int           // how many
	running     *waiter       // who leads the commit, or in memory taken; nil: nobody
	away        []*waiter     // persisted: functions that run outside the queue
	closed      bool          // refuse new work
	lone        bool          // persisted: nobody else waited in the last round, so that no batch forms
	drained     chan struct{} // closed once closed and empty; nil until somebody waits for that
	left        int           // in memory: how many are linked, or were taken, and have left
	enough      int           // in memory: how many are worth a look for them
	stuck       *stint        // the last function that was reported to be so

	rest   *waiter               // taken, and still to have their turns; this and the next six belong to whoever drives the queue
	behind atomic.Int32          // how many; who has the lock may look
	batch  int                   // how many were last taken together
	served int                   // how many have had their turns and are still counted in came; changed under mu only
	polls  int                   // how long it may still wait for more, and
	crowd  float64               // how many came together lately, at most: see poll
	small  int                   // how often, one after the other, few came together: see adapt
	holder atomic.Pointer[stint] // the function that keeps this queue from moving on. It may be over; see frame.over
}

// cacheLine is what processors pass to one another, on most machines.
const cacheLine = 64

// runner is what drives a queue: a container's lock path or its commit loop.
type runner interface {
	// take lets w, the first that waits, have its turn. It is called under the lock.
	take(w *waiter)
	// run handles w, which it took, and reports whether this goroutine still drives the queue.
	run(w *waiter) bool
	// rest is called, under the lock, when the queue has become empty.
	rest()
}

// phase is where a waiter is; see the drawing above.
type phase uint8

const (
	queued phase = iota
	running
	committing
)

// push appends w. The caller holds q.mu.
func (q *queue) push(w *waiter, limit int) error {
	if q.closed {
		return ErrClosed
	}
	if waiting := q.depth(); waiting >= limit {
		return &OverloadedError{Scope: w.call.key, Queue: waiting}
	}
	w.phase = queued
	w.prev, w.next = q.last, nil
	if q.last != nil {
		q.last.next = w
	} else {
		q.first = w
	}
	q.last = w
	q.waiting++
	return nil
}

// unlink removes w, which is queued. The caller holds q.mu.
func (q *queue) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next = nil, nil
	q.waiting--
}

// idle reports whether a data verb may run at once, in place. The caller holds q.mu.
func (q *queue) idle() bool {
	if head := q.inbox.Load(); head != nil && head != &shut {
		return false
	}
	return q.running == nil && q.first == nil
}

// start makes sure that somebody drives the queue. The caller holds q.mu.
func (q *queue) start(r runner) {
	if !q.working.Load() {
		q.working.Store(true)
		go q.work(r)
	}
}

// lingerYields is how often a worker without work yields before it goes: writers in a loop find it still there, and
// writers that come together form a batch.
const lingerYields = 8

// linger returns how often a worker yields; to let one writer come again who was just answered, once is enough. The caller holds q.mu.
func (q *queue) linger() int {
	if q.lone {
		return 1
	}
	return lingerYields
}

// work drives the queue until it is empty or r hands it over.
func (q *queue) work(r runner) {
	idle := 0
	for {
		q.mu.Lock()
		q.running = nil
		q.gather()
		w := q.first
		if w == nil {
			if idle < q.linger() && !q.closed {
				q.mu.Unlock()
				if q.polls <= pollsWorthwhile || runtime.GOMAXPROCS(0) == 1 {
					idle++
					giveWay(q.spread.Load())
				} else if !q.poll() {
					idle = lingerYields // behind all who wait to run
				}
				continue
			}
			q.working.Store(false)
			if head := q.inbox.Load(); head != nil && head != &shut { // it came before it could see that nobody drives the queue
				q.working.Store(true)
				q.mu.Unlock()
				continue
			}
			if q.holder.Load() != nil { // it is over, and keeps what its function was given
				q.holder.Store(nil)
				q.stuck = nil
			}
			q.retire()
			q.uncount()
			r.rest()
			q.signalDrained()
			q.mu.Unlock()
			return
		}
		idle = 0
		r.take(w)
		q.mu.Unlock()
		if !r.run(w) {
			return
		}
	}
}

// deepen makes the stack as large as a commit needs it, while there is little on it to be moved: a goroutine begins with a small one, which would
// grow several times on the way to the store.
//
//go:noinline
func deepen(i int) byte {
	var room [9 << 10]byte
	return room[i]
}

// give lets w, which is queued, and stays so for the time being, have its turn. The caller holds q.mu.
func (q *queue) give(w *waiter) {
	q.unlink(w)
	q.running = w
}

// signalDrained tells Close that a closed queue has nothing left. The caller holds q.mu.
func (q *queue) signalDrained() {
	if q.drained != nil && q.empty() {
		close(q.drained)
		q.drained = nil
	}
}

func (q *queue) empty() bool { return q.idle() && !q.working.Load() && len(q.away) == 0 }

// close refuses new work and returns a channel that is closed once the queue is empty, nil if it is empty now.
func (q *queue) close() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.linkCome(q.inbox.Swap(&shut))
	if q.empty() {
		return nil
	}
	if q.drained == nil {
		q.drained = make(chan struct{})
	}
	return q.drained
}

// busy describes what runs, for BusyError.
func (q *queue) busy() (out []Running) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gather()
	if h := q.current(); h != nil {
		out = append(out, Running{Scope: *h.key, Verb: h.verb, Waiting: q.depth()})
	} else if w := q.running; w != nil && w.cas.backend != nil {
		out = append(out, Running{Scope: w.call.key, Verb: w.change.verb, Waiting: q.waiting})
	} else if w := q.first; w != nil {
		out = append(out, Running{Scope: w.call.key, Verb: w.verb(), Waiting: q.waiting})
	}
	for _, w := range q.away {
		out = append(out, Running{Scope: w.call.key, Verb: w.change.verb, Waiting: q.waiting})
	}
	return out
}

// await waits for the answer of w, which was pushed, until its deadline or the end of its context. It returns nil when
// w is answered, otherwise why the caller left; then w is not the caller's any more.
func (q *queue) await(w *waiter) error {
	if w.yield(q.spread.Load()) {
		return nil
	}
	return q.sleep(w)
}

// awaitYields is how often a caller yields before it sleeps: its answer often comes sooner, and saves waking it.
const awaitYields = 3

// yield lets others run, see giveWay, and reports whether w is answered by then.
func (w *waiter) yield(spread bool) bool {
	for range awaitYields {
		giveWay(spread)
		if w.done() {
			return true
		}
	}
	return false
}

// sleep is the rest of await.
func (q *queue) sleep(w *waiter) error {
	if _, ok := w.become(isAsleep, isDone); !ok {
		return nil
	}
	ended := w.ctx.Done()
	for {
		if ended == nil {
			<-w.wake
		} else {
			select {
			case <-w.wake:
			case <-ended:
			}
		}
		if w.done() {
			return nil
		}
		if over, err := q.look(w, &ended); over {
			return err
		}
	}
}

// look is the rest of await, for a caller that woke up without an answer. It is apart because the stacks of those who sleep are to be
// small. It reports false when there is nothing to do but wait on.
func (q *queue) look(w *waiter, ended *<-chan struct{}) (over bool, err error) {
	if w.ctx.Err() != nil {
		if phase, left := q.leave(w); left {
			w.call.observe(w.ctx, Event{Type: Withdrawn, Path: w.path(), Verb: w.verb(), Err: context.Cause(w.ctx)})
			return true, leftBy(w.ctx, w.call.key, phase)
		}
		if w.done() {
			return true, nil
		}
		*ended = nil
	}
	now := time.Now()
	if w.cas.backend != nil {
		err := q.spend(w, now)
		return err != nil, err
	}
	if w.deadline.IsZero() {
		return false, nil
	}
	if now.Before(w.deadline) {
		w.arm(now) // a stray wake-up, or the alarm of an earlier use
		return false, nil
	}
	if phase, left := q.leave(w); left {
		err := &ScopeMutationTimeoutError{Scope: w.call.key, Budget: w.call.timeout, Waited: now.Sub(w.submitted), Phase: phase}
		w.call.observe(w.ctx, Event{Type: TimedOut, Path: w.path(), Verb: w.verb(), Took: err.Waited, Err: err})
		q.reportStuck(now, w.call.env)
		return true, err
	}
	return w.done(), nil // if not, its answer is on its way
}

// leave takes the caller of w away: a queued mutation is withdrawn and never runs, one that runs does so without its
// caller. It reports how far w had come, or false if w is answered, or takes a lease in a commit that is under way: somebody has to be there
// to give that back.
func (q *queue) leave(w *waiter) (Phase, bool) {
	if w.cas.backend == nil && w.place == nil {
		return q.leaveTurn(w)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.done() || w.phase == committing && w.change.takes != nil {
		return 0, false
	}
	return q.leaveLocked(w), true
}

func (q *queue) leaveLocked(w *waiter) Phase {
	w.left = true
	if w.phase == committing {
		return PhaseCommitting
	}
	if w.phase == queued && (w.prev != nil || q.first == w) {
		q.unlink(w)
	}
	return PhaseQueued // a run that outlives its caller is discarded
}

// spend takes the caller of a persisted mutation away when its budget is spent, also while its function runs: the result is discarded
// then. It returns nil while there is budget left.
func (q *queue) spend(w *waiter, now time.Time) error {
	q.mu.Lock()
	if now.Before(w.deadline) {
		w.arm(now) // a stray wake-up, the alarm of an earlier use, or there is more than there was
		q.mu.Unlock()
		return nil
	}
	if w.done() {
		q.mu.Unlock()
		return nil
	}
	committing := w.phase == committing
	q.leaveLocked(w)
	q.mu.Unlock()
	cause := fmt.Errorf("no answer within the budget of %v", w.call.retry.Within)
	var err error = &UnavailableError{Scope: w.call.key, Cause: cause}
	if committing {
		err = &UnknownOutcomeError{Scope: w.call.key, Cause: cause}
	}
	w.call.observe(w.ctx, Event{Type: TimedOut, Path: w.path(), Verb: w.verb(), Took: now.Sub(w.submitted), Err: err})
	return err
}

// guarded runs fn, which may be somebody's code, and reports how it ended. After runtime.Goexit it does not return, but
// calls exit, the last chance to leave everything in order; also when a deferred function has panicked on the way out, which does not stop that.
func guarded(fn func(), exit func()) (p *PanicError) {
	returned := false
	defer func() {
		if !returned {
			exit()
		}
	}()
	p = caught(fn)
	returned = true
	return p
}

// caught runs fn and returns its panic, nil if there was none.
func caught(fn func()) (p *PanicError) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	fn()
	returned = true
	return nil
}
