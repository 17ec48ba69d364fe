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
	mu          sync.Mutex    // protects what follows, and phase, left, abandoned and reported of its waiters
	first, last *waiter       // those that wait, in order of submission
	waiting     int           // how many
	running     *waiter       // who leads the commit, or in memory the first of those that were taken; nil: nobody
	working     atomic.Bool   // a goroutine drives the queue; set under mu
	away        []*waiter     // persisted: functions that run outside the queue
	closed      bool          // refuse new work
	drained     chan struct{} // closed once closed and empty; nil until somebody waits for that

	// In memory, writers come without the lock, and whoever drives the queue takes all that wait at once.
	inbox   atomic.Pointer[waiter] // those who came, the last first; shut after Close. Whoever has the lock may link them
	came    atomic.Int32           // how many they are, or are about to be
	counted atomic.Int32           // how many wait besides, more or less
	left    int                    // how many are linked, or were taken, and have left; this and the next are protected by mu
	enough  int                    // how many are worth a look for them

	_ [cacheLine]byte // what comes next is written in every turn, what came before by every writer

	rest   *waiter               // taken, and still to have their turns; this and the next belong to whoever drives the queue
	behind int                   // how many
	holder atomic.Pointer[stint] // the function that keeps this queue from moving on. It may be over; see frame.over
}

// shut is in the inbox of a queue that is closed.
var shut waiter

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

// What a waiter is, as far as its caller and whoever answers it have to agree on it. The bits above these count the uses of a pooled waiter, so
// that nothing need be done to begin another.
const (
	isAsleep  uint32 = 1 << iota // its caller waits for the bell
	isRunning                    // in memory: its function has its turn
	isLeft                       // in memory: its caller is gone
	isClosing                    // in memory: its caller cannot leave any more, but has no answer yet
	isDone                       // answered
	isOdd                        // in memory, with isDone: not just with an answer
	oneUse
)

// waiter is one mutation on its way through a queue. Its caller and the goroutine that runs its function are on different processors as a rule, and
// every cache line that both touch costs as much as the queue itself: what the lock path needs is in the first two.
type waiter struct {
	ctx    context.Context
	next   *waiter
	is     atomic.Uint32 // see isAsleep and so on; of another use, it is nothing yet
	use    uint32        // which use this is
	answer any           // *image[T] or *reply. What the caller gets is written before it is done, and read after
	call   call
	parent *frame // of the mutator that the call was made in; nil: none
	own    change // in memory

	err    error
	panic  *PanicError
	exited bool // the function called runtime.Goexit

	phase     phase // persisted; this and the next three are protected by queue.mu
	left      bool  // the caller is gone
	abandoned bool  // the result is not wanted any more
	prev      *waiter

	change    *change      // persisted
	since     atomic.Int64 // in memory: when its caller fell asleep, after epoch; 0: it did not
	submitted time.Time
	deadline  time.Time // zero: none
	*bell
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

// come is push in memory, without the lock as long as there is plenty of room. It makes sure that r drives the queue.
func (q *queue) come(w *waiter, limit int, r runner) error {
	if int(q.came.Add(1)+q.counted.Load()) > limit {
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
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gather()
	err := q.push(w, limit)
	if err == nil {
		w.prev = nil
		q.counted.Add(1)
		q.start(r)
	}
	return err
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
	q.came.Add(int32(-n))
	q.counted.Add(int32(n))
}

// depth returns how many wait. The caller holds q.mu.
func (q *queue) depth() int {
	waiting := q.waiting - q.left
	if h := q.current(); h != nil {
		waiting += h.behind
	}
	return max(0, waiting)
}

// current returns the function that has the queue to itself, nil if there is none.
func (q *queue) current() *stint {
	if h := q.holder.Load(); h != nil && !h.over.Load() {
		return h
	}
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

// work drives the queue until it is empty or r hands it over.
func (q *queue) work(r runner) {
	idle := 0
	for {
		q.mu.Lock()
		q.running = nil
		if q.holder.Load() != nil {
			q.holder.Store(nil)
		}
		q.gather()
		w := q.first
		if w == nil {
			if idle < lingerYields && !q.closed {
				q.mu.Unlock()
				idle++
				runtime.Gosched()
				continue
			}
			q.working.Store(false)
			if head := q.inbox.Load(); head != nil && head != &shut { // it came before it could see that nobody drives the queue
				q.working.Store(true)
				q.mu.Unlock()
				continue
			}
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

// state tells what w is in this use.
func (w *waiter) state() uint32 { return w.thisUse(w.is.Load()) }

func (w *waiter) thisUse(v uint32) uint32 {
	if v&^(oneUse-1) != w.use {
		return 0
	}
	return v & (oneUse - 1)
}

// become adds to what w is, unless it is something else already. It returns what it was.
func (w *waiter) become(now, unless uint32) (was uint32, ok bool) {
	for {
		v := w.is.Load()
		if was = w.thisUse(v); was&unless != 0 {
			return was, false
		}
		if w.is.CompareAndSwap(v, w.use|was|now) {
			return was, true
		}
	}
}

func (w *waiter) done() bool { return w.is.Load()|isOdd == w.use|isDone|isOdd }

// answered tells the caller, if it looks, that what it gets is there. It reports whether the caller has to be woken to look. The waiter must not
// be touched afterwards, its bell excepted: its caller may reuse it.
func (w *waiter) answered(how uint32) (asleep bool) {
	return w.is.Swap(w.use|isDone|how)&isAsleep != 0 // of an earlier use, perhaps: a stray wake-up is harmless
}

// finish hands the caller its answer.
func (w *waiter) finish() {
	b := w.bell
	w.answered(isOdd)
	b.poke()
}

// await waits for the answer of w, which was pushed, until its deadline or the end of its context. It returns nil when
// w is answered, otherwise why the caller left; then w is not the caller's any more.
func (q *queue) await(w *waiter) error {
	if w.yield() {
		return nil
	}
	return q.sleep(w)
}

// awaitYields is how often a caller yields before it sleeps: its answer often comes sooner, and saves waking it.
const awaitYields = 3

// yield lets others run, and reports whether w is answered by then.
func (w *waiter) yield() bool {
	for range awaitYields {
		runtime.Gosched()
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
	q.gather()
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
			q.left--
			q.waiting--
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

// spend takes the caller of a persisted mutation away when its budget is spent. It returns nil when there is more, or while the caller's
// own function runs: that takes as long as it takes.
func (q *queue) spend(w *waiter, now time.Time) error {
	q.mu.Lock()
	if now.Before(w.deadline) || w.done() || w.phase == running {
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

func (w *waiter) verb() string {
	if w.own.fn != nil {
		return "Atomic"
	}
	if w.change != nil {
		return w.change.verb
	}
	return w.own.verb
}

// path names the way that w goes, for observers.
func (w *waiter) path() string {
	if w.cas.backend != nil {
		return "cas"
	}
	return "lock"
}

// reportStuck tells, once for each run, that a function has outlived somebody's budget.
func (q *queue) reportStuck(now time.Time, e *env) {
	h := q.current()
	if h == nil || !h.reported.CompareAndSwap(false, true) {
		return
	}
	var took time.Duration
	if since := h.waiter.since.Load(); since != 0 {
		took = now.Sub(epoch) - time.Duration(since)
	}
	(&call{terms: &terms{env: e}, key: *h.key}).observe(h.Context, Event{Type: Stuck, Path: "lock", Verb: h.verb, Took: took})
	e.logger().WarnContext(h.Context, "pawl: mutator is stuck", "scope", h.key.String(), "verb", h.verb, "since", took)
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
	h := q.holder.Load()
	if h == nil || !h.over.CompareAndSwap(false, true) {
		q.mu.Unlock()
		return false
	}
	w := h.waiter // whose run nobody else ends now
	q.running = nil
	q.working.Store(false)
	q.holder.Store(nil)
	q.giveBack()
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

// takeAll lets all that wait, w first, have their turns, one by one. The caller holds q.mu.
func (q *queue) takeAll(w *waiter) {
	q.running, q.rest, q.behind, q.enough = w, w, q.waiting, leastEnough
	q.first, q.last, q.waiting = nil, nil, 0
	q.counted.Store(int32(q.behind))
}

// pass takes note that somebody who was taken had left. The caller drives the queue.
func (q *queue) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left--
}

// giveBack lets those that were taken and had no turn wait in front of the others. The caller holds q.mu, and drives the queue.
func (q *queue) giveBack() {
	w, later, last := q.rest, q.first, q.last
	q.first, q.last, q.rest, q.behind = nil, nil, nil, 0
	for w != nil {
		next := w.next
		q.append(w)
		q.waiting++
		w = next
	}
	if later != nil {
		second := later.next
		q.append(later)
		later.next, q.last = second, last
	}
}
