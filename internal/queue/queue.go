// Package queue is a FIFO of waiters that one worker serves.
//
// A caller pushes a waiter, makes sure that a worker runs, and awaits the answer. The worker takes
// waiters from the front, does their work and answers them. The package knows neither state nor
// stores: a container keeps what it protects beside its queue, under the queue's lock.
//
// The life of a waiter:
//
//	         Push             the worker                 Answer
//	(caller) ────► Waiting ──────────────► Running ─┬──────────────► Answered
//	                 ▲ │                      │     └► Committing ─►
//	                 │ │ deadline, or         │ deadline, or
//	                 │ │ context ends         │ context ends
//	                 │ ▼                      ▼
//	                 │ withdrawn              left: the caller is gone, the work goes on
//	                 └─ a commit that lost a conflict puts its waiters back to Waiting
//
// Every arrow but Push is taken under the queue's lock. Push has a lock of its own, so that many
// callers that arrive do not keep the worker from its next turn: it appends to a second list, the
// arrivals. The worker moves the arrivals to the first list when it has taken all of that, and others
// do before they look at a waiter. In-memory callers push without the queue's lock.
//
// A caller that finds the queue idle can drive it itself: Claim makes its waiter the current one, which
// is in no list, until Release or PutBack.
//
// A worker that has answered callers waits until they have their answers (WakeFor, WakeInTurn) before it
// looks for more work. Callers that submit again at once then share the next turn, and find the worker
// still there. The wait is short and needs no timer, because a caller that was woken runs, and first wakes
// the next one.
//
// A queue has one alarm for all deadlines. Push sets it if the waiter's deadline comes before all
// others. When it rings, every waiter whose deadline has passed is left by its caller, and the alarm
// is set to the earliest deadline of the rest. A queue that becomes idle stops it.
//
// The races, and what decides each:
//   - an answer against a deadline or a canceled context: the lock. The alarm and Await find the
//     waiter answered and leave it alone, or mark it as left and Answer finds the caller gone.
//   - a turn against a withdrawal: the lock. A withdrawn waiter is unlinked, or, when the worker has
//     taken it already, marked as left before its work starts.
//   - Push against a worker that stops: the lock of the arrivals. The worker stops only if it finds
//     none, and Push starts a worker only if none drives the queue.
//   - Push against Close: the lock of the arrivals. Push fails on a closed queue; Close waits for
//     waiters pushed before it.
//   - Push against an alarm that rings: both locks. The alarm looks at every waiter pushed before it,
//     and a waiter pushed later finds it set anew, or not at all.
package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is returned by Push after Close.
var ErrClosed = errors.New("queue: closed")

// FullError is returned by Push when as many waiters as allowed are waiting.
type FullError struct{ Waiting int }

func (e *FullError) Error() string { return fmt.Sprintf("queue full: %d waiting", e.Waiting) }

// State says how far the work of a waiter has come.
type State uint8

// The states of a waiter; see the drawing in the package comment.
const (
	Waiting    State = iota // a caller that leaves withdraws it
	Running                 // its function runs
	Committing              // its result is part of a commit
	Answered                // its caller has, or will take, the answer
)

// Ownership says who drives a queue after a step.
type Ownership bool

// The values of Ownership.
const (
	Kept   Ownership = true  // the goroutine that took the step goes on
	Passed Ownership = false // another goroutine drives the queue, or none does
)

// Worker serves a queue.
type Worker interface {
	// Work runs on a goroutine of its own. It takes waiters until Next returns nil, or until it
	// passes the queue on.
	Work()
}

// Queue is a FIFO of waiters. The zero value is an empty, open queue.
type Queue[V any] struct {
	sync.Mutex               // protects the fields below, the states of the waiters, and what the owner keeps beside them
	list       list[V]       // waiters whose callers are there: first those that were taken
	front      *Waiter[V]    // the first of the list that was not taken; nil: none
	current    *Waiter[V]    // the waiter whose turn it is; nil: none, or it was abandoned
	detached   int           // functions that run outside the queue
	drained    chan struct{} // closed once the queue is closed and empty; nil: not asked for

	arrivals arrivals[V]
}

// arrivals are the waiters that were pushed since the worker last looked. Its lock is taken after
// the queue's, or alone.
type arrivals[V any] struct {
	sync.Mutex // protects the fields below
	list       list[V]
	driven     bool         // a worker, or a transaction that holds the queue, drives it
	closed     bool         // Push fails; set under both locks
	waiting    atomic.Int64 // in both lists, and not taken
	alarm      *time.Timer  // calls ring; nil: it was never set
	rings      time.Time    // when the alarm rings; zero: it is not set
}

// list is a doubly linked list of waiters.
type list[V any] struct{ first, last *Waiter[V] }

// Waiter is one entry of a queue. NewWaiter makes it.
type Waiter[V any] struct {
	Value V
	// Deadline is when the caller stops waiting; zero: never. It is set before Push.
	Deadline time.Time

	ready chan struct{}   // one slot; gets one value when the caller may go on
	awake *sync.WaitGroup // counts the caller until it has the answer; nil: no worker waits for that
	wakes *Waiter[V]      // the waiter whose caller this one's caller wakes; nil: none

	// State and the rest are protected by the queue's lock, the links of an arrival by that of the
	// arrivals.
	State      State
	left       bool  // the caller is gone, or was told to go
	reached    State // how far it had come then
	taken      bool  // the worker has it
	prev, next *Waiter[V]
}

// NewWaiter returns an empty waiter.
func NewWaiter[V any]() *Waiter[V] { return &Waiter[V]{ready: make(chan struct{}, 1)} }

// Clear makes w as good as new. Only a caller that got its answer may clear its waiter, and only if nothing
// else leads to it.
func (w *Waiter[V]) Clear() {
	ready := w.ready
	*w = Waiter[V]{}
	w.ready = ready
}

// Left reports whether the caller of w is gone. The caller of Left holds the lock.
func (w *Waiter[V]) Left() bool { return w.left }

// Push appends w and makes sure that a worker drives the queue. It returns ErrClosed, or *FullError
// when limit waiters wait already. The caller need not hold the queue's lock, unless w was taken and
// is pushed again.
func (q *Queue[V]) Push(w *Waiter[V], limit int, worker Worker) error {
	a := &q.arrivals
	a.Lock()
	defer a.Unlock()
	if a.closed {
		return ErrClosed
	}
	if n := int(a.waiting.Load()); n >= limit {
		return &FullError{Waiting: n}
	}
	if w.taken {
		q.unlink(w)
	}
	w.State, w.taken = Waiting, false
	a.list.append(w)
	a.waiting.Add(1)
	if !w.Deadline.IsZero() && (a.rings.IsZero() || w.Deadline.Before(a.rings)) {
		q.setAlarm(w.Deadline)
	}
	a.start(worker)
	return nil
}

// setAlarm sets the alarm. The caller holds the lock of the arrivals.
func (q *Queue[V]) setAlarm(at time.Time) {
	a := &q.arrivals
	if a.rings = at; a.alarm != nil {
		a.alarm.Reset(time.Until(at))
	} else {
		a.alarm = time.AfterFunc(time.Until(at), q.ring)
	}
}

// stopAlarm stops the alarm if no caller waits: a queue that is let go must not be kept by its timer.
// The caller holds both locks.
func (q *Queue[V]) stopAlarm() {
	if a := &q.arrivals; q.list.first == nil && a.list.first == nil && !a.rings.IsZero() {
		a.rings = time.Time{}
		a.alarm.Stop()
	}
}

// ring tells the callers whose deadline has passed to go, and sets the alarm to the earliest other
// deadline.
func (q *Queue[V]) ring() {
	var (
		now     = time.Now()
		next    time.Time
		expired []*Waiter[V]
	)
	q.Lock()
	a := &q.arrivals
	a.Lock()
	q.gatherLocked()
	for w := q.list.first; w != nil; w = w.next {
		switch d := w.Deadline; {
		case d.IsZero():
		case !d.After(now):
			expired = append(expired, w)
		case next.IsZero() || d.Before(next):
			next = d
		}
	}
	for _, w := range expired {
		q.dismiss(w)
	}
	if a.rings = next; !next.IsZero() {
		q.setAlarm(next)
	}
	a.Unlock()
	q.Unlock()
	for _, w := range expired {
		w.ready <- struct{}{}
	}
}

// start makes sure that a worker drives the queue. The caller holds the lock of the arrivals.
func (a *arrivals[V]) start(w Worker) {
	if !a.driven {
		a.driven = true
		go w.Work()
	}
}

// First returns the waiter at the front, nil if none waits. The caller holds the lock.
func (q *Queue[V]) First() *Waiter[V] {
	q.gather()
	return q.front
}

// gather moves the arrivals to the end of the list. The caller holds the lock.
func (q *Queue[V]) gather() {
	a := &q.arrivals
	a.Lock()
	defer a.Unlock()
	q.gatherLocked()
}

func (q *Queue[V]) gatherLocked() {
	from, to := &q.arrivals.list, &q.list
	if from.first == nil {
		return
	}
	if q.front == nil {
		q.front = from.first
	}
	if from.first.prev = to.last; to.last != nil {
		to.last.next = from.first
	} else {
		to.first = from.first
	}
	to.last = from.last
	*from = list[V]{}
}

// Len returns how many wait.
func (q *Queue[V]) Len() int { return int(q.arrivals.waiting.Load()) }

// Next ends the current turn and gives the turn to the first waiter, which stays Waiting until the
// worker changes that. It returns nil when none waits: the worker no longer drives the queue then,
// and must return. The caller holds the lock and drives the queue.
func (q *Queue[V]) Next() *Waiter[V] {
	q.current = nil
	if q.front == nil && !q.moreArrived() {
		q.signalDrained()
		return nil
	}
	q.current = q.Take()
	return q.current
}

// moreArrived gathers the arrivals. If there are none, the queue has no driver any more.
func (q *Queue[V]) moreArrived() bool {
	a := &q.arrivals
	a.Lock()
	defer a.Unlock()
	q.gatherLocked()
	a.driven = q.front != nil
	if !a.driven {
		q.stopAlarm()
	}
	return a.driven
}

// Take takes the waiter at the front and returns it, nil if none waits. Unlike Next it changes no
// turn: the taken waiter shares the current one. The caller holds the lock.
func (q *Queue[V]) Take() *Waiter[V] {
	w := q.front
	if w != nil {
		w.taken, q.front = true, w.next
		q.arrivals.waiting.Add(-1)
	}
	return w
}

// EndTurn ends the current turn; the caller goes on driving the queue. The caller holds the lock.
func (q *Queue[V]) EndTurn() { q.current = nil }

// Current returns the waiter whose turn it is, nil if there is none. The caller holds the lock.
func (q *Queue[V]) Current() *Waiter[V] { return q.current }

// Claim makes the caller the driver of an idle queue, with w as its current waiter, and reports
// whether the queue was idle and open. Release or PutBack ends that. The caller holds the lock.
func (q *Queue[V]) Claim(w *Waiter[V]) bool {
	a := &q.arrivals
	a.Lock()
	defer a.Unlock()
	if a.closed || a.driven || !q.Idle() {
		return false
	}
	a.driven, q.current = true, w
	w.State = Answered // no caller awaits it
	return true
}

// PutBack ends what Claim began: w, which has no deadline, waits before all others, and a worker drives
// the queue. The caller holds the lock.
func (q *Queue[V]) PutBack(w *Waiter[V], worker Worker) {
	q.gather()
	w.State = Waiting
	q.list.insert(w, q.front)
	q.front = w
	q.arrivals.waiting.Add(1)
	q.Release(worker)
}

// Release ends the current turn and stops driving the queue; if any wait, a new worker starts. The
// caller holds the lock, and either drives the queue or takes it from a driver that is stuck.
func (q *Queue[V]) Release(w Worker) {
	a := &q.arrivals
	a.Lock()
	q.current, a.driven = nil, false
	if !q.Idle() {
		a.start(w)
	}
	q.stopAlarm()
	a.Unlock()
	q.signalDrained()
}

// Detach counts one more function that runs outside the queue, Attach one less. Close waits for
// them. The caller holds the lock.
func (q *Queue[V]) Detach() { q.detached++ }

// Attach ends what Detach began.
func (q *Queue[V]) Attach() {
	q.detached--
	q.signalDrained()
}

// Idle reports whether no waiter waits or has its turn. The caller holds the lock.
func (q *Queue[V]) Idle() bool { return q.current == nil && q.Len() == 0 }

// Driven reports whether the queue has a driver.
func (q *Queue[V]) Driven() bool {
	q.arrivals.Lock()
	defer q.arrivals.Unlock()
	return q.arrivals.driven
}

// Closed reports whether Close was called. The caller holds the lock.
func (q *Queue[V]) Closed() bool { return q.arrivals.closed }

// Answer marks w, which was taken, as answered, and reports whether its caller is there to read the
// answer: then Wake, WakeFor or WakeInTurn must follow. What the caller reads is written before that. The
// caller of Answer holds the lock.
func (q *Queue[V]) Answer(w *Waiter[V]) (present bool) {
	if w.left || w.State == Answered {
		return false
	}
	w.State = Answered
	q.unlink(w)
	return true
}

// Wake lets the caller of an answered waiter return. From then on w is its caller's.
func (w *Waiter[V]) Wake() { w.ready <- struct{}{} }

// WakeFor is Wake. Awake counts the caller until it has the answer.
func (w *Waiter[V]) WakeFor(awake *sync.WaitGroup) {
	awake.Add(1)
	w.awake = awake
	w.ready <- struct{}{}
}

// WakeInTurn is WakeFor for many waiters, all of them answered: the worker wakes the first caller, and
// Await wakes the next one for each caller. A caller often runs for a microsecond only. To wake all at once
// moves some of them to other processors, which costs more time than it saves.
func WakeInTurn[V any](all []*Waiter[V], awake *sync.WaitGroup) {
	if len(all) == 0 {
		return
	}
	awake.Add(len(all))
	for i, w := range all {
		w.awake = awake
		if i > 0 {
			all[i-1].wakes = w
		}
	}
	all[0].Wake()
}

// Ending says why Await returned.
type Ending uint8

// The endings of Await.
const (
	GotAnswer Ending = iota // the answer can be read
	Canceled                // the context ended first
	TimedOut                // the deadline passed first
)

// Await waits until w is answered, its deadline passes or ctx ends. A caller that got its answer wakes the
// next one of WakeInTurn. When the caller left without an answer, state says how far w had come: a waiter
// in Waiting is withdrawn and will never run.
func (q *Queue[V]) Await(ctx context.Context, w *Waiter[V]) (ending Ending, state State) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		if q.leave(w) {
			return Canceled, w.reached
		}
		<-w.ready
	}
	if w.left {
		return TimedOut, w.reached
	}
	if w.wakes != nil {
		w.wakes.Wake()
	}
	if w.awake != nil {
		w.awake.Done()
	}
	return GotAnswer, Answered
}

// leave takes the caller of w away, and reports false if w was answered or its deadline has passed.
func (q *Queue[V]) leave(w *Waiter[V]) bool {
	q.Lock()
	defer q.Unlock()
	if w.left || w.State == Answered {
		return false
	}
	q.gather() // from here on w is linked in the queue's own list
	q.dismiss(w)
	return true
}

// dismiss marks w as left. A waiter that was not taken is withdrawn. The caller holds the lock,
// and w is linked in the queue's own list.
func (q *Queue[V]) dismiss(w *Waiter[V]) {
	w.left, w.reached = true, w.State
	q.unlink(w)
}

// Close makes Push fail. It returns a channel that is closed once the queue is empty and without a
// driver, nil if it is so now. Calling it again is safe.
func (q *Queue[V]) Close() <-chan struct{} {
	q.Lock()
	defer q.Unlock()
	q.arrivals.Lock()
	q.arrivals.closed = true
	q.arrivals.Unlock()
	if q.empty() {
		return nil
	}
	if q.drained == nil {
		q.drained = make(chan struct{})
	}
	return q.drained
}

func (q *Queue[V]) empty() bool { return q.Idle() && q.detached == 0 && !q.Driven() }

func (q *Queue[V]) signalDrained() {
	if q.drained != nil && q.empty() {
		close(q.drained)
		q.drained = nil
	}
}

// unlink removes w from the queue's own list.
func (q *Queue[V]) unlink(w *Waiter[V]) {
	if !w.taken {
		q.arrivals.waiting.Add(-1)
	}
	if q.front == w {
		q.front = w.next
	}
	q.list.remove(w)
}

func (l *list[V]) append(w *Waiter[V]) { l.insert(w, nil) }

// insert adds w before another waiter, or at the end if that is nil.
func (l *list[V]) insert(w, before *Waiter[V]) {
	w.prev, w.next = l.last, before
	if before != nil {
		w.prev, before.prev = before.prev, w
	} else {
		l.last = w
	}
	if w.prev != nil {
		w.prev.next = w
	} else {
		l.first = w
	}
}

func (l *list[V]) remove(w *Waiter[V]) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next = nil, nil
}
