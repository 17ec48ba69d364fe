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
// Every arrow is taken under queue.mu, so the races of this page are decided by who gets it first:
//   - done against deadline or cancel: leave finds the waiter answered and the caller takes the answer;
//   - a turn against a withdrawal: leave unlinks, work only sees what is linked;
//   - a late return against Abandon: release looks whether the run is still the queue's own;
//   - push against Close: push looks at closed, Close waits for what was pushed before it.

// queue orders the mutations of one container. Its zero value is ready.
type queue struct {
	mu          sync.Mutex    // protects what follows, and phase, left, abandoned and reported of its waiters
	first, last *waiter       // those that wait, in order of submission
	waiting     int           // how many
	running     *waiter       // whose function runs now, or who leads the commit; nil: nobody
	working     bool          // a goroutine drives the queue
	away        []*waiter     // persisted: functions that run outside the queue
	closed      bool          // refuse new work
	drained     chan struct{} // closed once closed and empty; nil until somebody waits for that

	// holder is the frame of the function that keeps this queue from moving on, for deadlock detection.
	holder atomic.Pointer[frame]
}

// runner is what drives a queue: a container's lock path or its commit loop.
type runner interface {
	// run handles w, whose turn it is, and reports whether this goroutine still drives the queue.
	run(w *waiter) bool
	// turn is the phase of a waiter whose turn it is.
	turn() phase
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

// waiter is one mutation on its way through a queue. What its caller writes, what both write and what is rarely used are apart, because
// they are on different processors as a rule.
type waiter struct {
	ctx       context.Context
	parent    *frame // of the mutator that the call was made in; nil: none
	change    *change
	call      call
	submitted time.Time
	deadline  time.Time // zero: none

	prev, next *waiter
	phase      phase // this and the next three are protected by queue.mu
	left       bool  // the caller is gone
	abandoned  bool  // the result is not wanted any more
	reported   bool  // as stuck

	// What the caller gets. Written before done is set, read after.
	exited bool // the function called runtime.Goexit
	panic  *PanicError
	answer any // *image[T] or *reply
	err    error

	done   atomic.Bool
	asleep atomic.Bool // the caller waits for its bell
	*bell
	own change // what change points to, on the lock path

	timer *time.Timer // left armed when the waiter is reused; it only wakes
	rings time.Time   // when timer fires
	cas   casState    // persisted path only
	place *place      // in the line for a lease only
}

// bell is what a waiter's timer holds of it, and nothing else: the Go runtime may keep a stopped timer until it would have rung.
type bell struct {
	wake  chan struct{} // one slot: "look again"; a stray wake-up is harmless
	armed atomic.Bool   // the timer has not fired since it was last set
}

// epoch is a moment to count from.
var epoch = time.Now()

// now is time.Now for what is only compared with other moments: it reads one clock instead of two.
func now() time.Time { return epoch.Add(time.Since(epoch)) }

func newBell() *bell { return &bell{wake: make(chan struct{}, 1)} }

func newWaiter() *waiter { return &waiter{bell: newBell()} }

// disarm lets go of a waiter that is not used again: its alarm would hold it, and all that it was given, until it rings.
func (w *waiter) disarm() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

func (b *bell) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// arm makes sure that a wake-up comes at the deadline. A pooled waiter's timer is usually armed for an earlier deadline
// already, and setting it again costs more than letting it ring once for nothing.
func (w *waiter) arm(now time.Time) {
	switch {
	case w.deadline.IsZero():
	case w.timer == nil:
		w.armed.Store(true)
		w.rings = w.deadline
		b := w.bell
		w.timer = time.AfterFunc(w.deadline.Sub(now), func() { b.armed.Store(false); b.poke() })
	case !w.armed.Load() || w.deadline.Before(w.rings):
		w.armed.Store(true)
		w.rings = w.deadline
		w.timer.Reset(w.deadline.Sub(now))
	}
}

// push appends w. The caller holds q.mu.
func (q *queue) push(w *waiter, limit int) error {
	if q.closed {
		return ErrClosed
	}
	if q.waiting >= limit {
		return &OverloadedError{Scope: w.call.key, Queue: q.waiting}
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
func (q *queue) idle() bool { return q.running == nil && q.first == nil }

// start makes sure that somebody drives the queue. The caller holds q.mu.
func (q *queue) start(r runner) {
	if !q.working {
		q.working = true
		go q.work(r)
	}
}

// lingerYields is how often a worker without work yields before it goes: writers in a loop find it still there, and
// writers that come together form a batch.
const lingerYields = 8

// work drives the queue until it is empty or r hands it over.
func (q *queue) work(r runner) {
	idle := 0
	for {
		q.mu.Lock()
		w := q.first
		if w == nil {
			if idle < lingerYields && !q.closed {
				q.mu.Unlock()
				idle++
				runtime.Gosched()
				continue
			}
			q.working = false
			r.rest()
			q.signalDrained()
			q.mu.Unlock()
			return
		}
		idle = 0
		q.give(w, r.turn())
		q.mu.Unlock()
		if !r.run(w) {
			return
		}
	}
}

// give lets w, which is queued, have its turn. The caller holds q.mu.
func (q *queue) give(w *waiter, p phase) {
	q.unlink(w)
	w.phase = p
	q.running = w
}

// release gives up the turn of w, if it still has it; otherwise the result of w is not wanted. The caller holds q.mu.
func (q *queue) release(w *waiter) bool {
	if q.running != w {
		return false
	}
	q.running = nil
	return true
}

// signalDrained tells Close that a closed queue has nothing left. The caller holds q.mu.
func (q *queue) signalDrained() {
	if q.drained != nil && q.empty() {
		close(q.drained)
		q.drained = nil
	}
}

func (q *queue) empty() bool { return q.idle() && !q.working && len(q.away) == 0 }

// close refuses new work and returns a channel that is closed once the queue is empty, nil if it is empty now.
func (q *queue) close() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
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
	if w := q.running; w != nil {
		out = append(out, Running{Scope: w.call.key, Verb: w.change.verb, Waiting: q.waiting})
	} else if w := q.first; w != nil {
		out = append(out, Running{Scope: w.call.key, Verb: w.change.verb, Waiting: q.waiting})
	}
	for _, w := range q.away {
		out = append(out, Running{Scope: w.call.key, Verb: w.change.verb, Waiting: q.waiting})
	}
	return out
}

// finish hands the caller its answer. The waiter must not be touched afterwards: its caller may reuse it.
func (w *waiter) finish() {
	w.done.Store(true)
	w.poke()
}

// await waits for the answer of w, which was pushed, until its deadline or the end of its context. It returns nil when
// w is answered, otherwise why the caller left; then w is not the caller's any more.
func (q *queue) await(w *waiter) error {
	runtime.Gosched() // an answer often comes before its caller would be asleep, and saves waking it
	if w.done.Load() {
		return nil
	}
	w.asleep.Store(true)
	if w.done.Load() {
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
		if w.done.Load() {
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
			w.call.observe(w.ctx, Event{Type: Withdrawn, Path: w.path(), Verb: w.change.verb, Err: context.Cause(w.ctx)})
			return true, leftBy(w.ctx, w.call.key, phase)
		}
		if w.done.Load() {
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
		w.call.observe(w.ctx, Event{Type: TimedOut, Path: w.path(), Verb: w.change.verb, Took: err.Waited, Err: err})
		q.reportStuck(now)
		return true, err
	}
	return true, nil
}

// leave takes the caller of w away: a queued mutation is withdrawn and never runs, one that runs does so without its
// caller. It reports how far w had come, or false if w is answered, or takes a lease in a commit that is under way: somebody has to be there
// to give that back.
func (q *queue) leave(w *waiter) (Phase, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.done.Load() || w.phase == committing && w.change.takes != nil {
		return 0, false
	}
	return q.leaveLocked(w), true
}

func (q *queue) leaveLocked(w *waiter) Phase {
	w.left = true
	switch w.phase {
	case queued:
		if w.prev != nil || q.first == w {
			q.unlink(w)
		}
		return PhaseQueued
	case committing:
		return PhaseCommitting
	}
	if w.cas.backend != nil {
		return PhaseQueued // a run that outlives its caller is discarded
	}
	return PhaseRunning
}

// spend takes the caller of a persisted mutation away when its budget is spent. It returns nil when there is more, or while the caller's
// own function runs: that takes as long as it takes.
func (q *queue) spend(w *waiter, now time.Time) error {
	q.mu.Lock()
	if now.Before(w.deadline) || w.done.Load() || w.phase == running {
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
	w.call.observe(w.ctx, Event{Type: TimedOut, Path: w.path(), Verb: w.change.verb, Took: now.Sub(w.submitted), Err: err})
	return err
}

// path names the way that w goes, for observers.
func (w *waiter) path() string {
	if w.cas.backend != nil {
		return "cas"
	}
	return "lock"
}

// reportStuck tells, once for each run, that a function has outlived somebody's budget.
func (q *queue) reportStuck(now time.Time) {
	q.mu.Lock()
	w := q.running
	if w == nil || w.reported {
		q.mu.Unlock()
		return
	}
	w.reported = true
	e, call, ctx := Event{Type: Stuck, Path: w.path(), Verb: w.change.verb, Took: now.Sub(w.submitted)}, w.call, w.ctx
	q.mu.Unlock()
	call.observe(ctx, e)
	call.env.logger().WarnContext(ctx, "pawl: mutator is stuck", "scope", call.key.String(), "verb", e.Verb, "since", e.Took)
}

// guarded runs fn, which may be somebody's code, and reports how it ended. After runtime.Goexit it does not return, but
// calls exit, the last chance to leave everything in order.
func guarded(fn func(), exit func()) (p *PanicError) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: debug.Stack()}
			return
		}
		exit()
	}()
	fn()
	returned = true
	return nil
}

// deliver ends the caller's side of w: a panic or Goexit of its mutator is raised again here.
func (w *waiter) deliver() {
	if w.panic != nil {
		panic(w.panic)
	}
	if w.exited {
		runtime.Goexit()
	}
}

// abandon gives up the mutator that runs: the queue moves on and its late result is discarded.
func (q *queue) abandon(r runner) bool {
	q.mu.Lock()
	w := q.running
	if w == nil || w.change.bounded() || q.holder.Load() == nil { // nil: it has its turn, but does not run yet
		q.mu.Unlock()
		return false
	}
	q.running = nil
	q.holder.Store(nil)
	w.abandoned = true
	left := w.left
	q.working = false
	if q.first != nil {
		q.start(r)
	}
	q.signalDrained()
	q.mu.Unlock()
	w.call.observe(w.ctx, Event{Type: Abandoned, Path: "lock", Verb: w.change.verb})
	if !left {
		w.err = wrapKey(ErrAbandoned, w.call.key)
		w.finish()
	}
	return true
}
