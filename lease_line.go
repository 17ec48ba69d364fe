package pawl

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/persist"
)

// How callers wait for a lease. The waiters of one process form a line, which is a queue like that
// of mutations: it keeps their order, and a caller that leaves is withdrawn. Only the head of the
// line asks the store. It asks again when
//   - it has just subscribed to hints: a release before that may have gone unheard,
//   - the lease is released, in this process (released) or in another (a hint of the store),
//   - the time has passed that the store said was left of the lease,
//   - it has heard nothing for a while: hints can be lost.
//
// A caller that finds the line empty asks on its own goroutine. If it then has to wait, it becomes the
// head of the line, which a worker drives.
//
// Processes race for a free lease, and the process that held it is always the first to know that it
// is free. A process that has had the lease for a while, from one caller to the next, pauses once, so
// that the others get it.

const (
	// ownTime is how long the callers of a process pass a lease on among themselves before other
	// processes go first.
	ownTime = 500 * time.Millisecond
	// pauseFor is how long the process then does not ask: longer than a hint takes on every store.
	pauseFor = 50 * time.Millisecond
	// pauseUnhinted is the same for a store that gives no hints: the others ask in this time.
	pauseUnhinted = askAgainUnhinted + 2*askJitter
	// askAgain is the longest time after which the head of a line asks again without a hint.
	askAgain = 5 * time.Second
	// askAgainUnhinted is the same for a store that gives no hints.
	askAgainUnhinted = 250 * time.Millisecond
	// askJitter is the most that is added to these times by chance.
	askJitter = 10 * time.Millisecond
)

// line is the queue for the lease of one scope in this process.
type line struct {
	queue queue.Queue[leaseWaiter]
	rt    *Runtime
	key   Key
	free  notify.Signal // set when the lease may be free
	freed atomic.Int64  // when this process last released the lease, as nanoseconds of Unix time

	waiting int // callers that gave WaitForLease; protected by the queue's lock

	// Owned by the worker.
	unsub func()    // ends the subscription to hints; nil: there is none
	last  *Lease    // the last lease that a caller of this line got
	since time.Time // since when this process has had the lease, but for short gaps; zero: it has not
}

// leaseWaiter is a caller in a line.
type leaseWaiter struct {
	ctx  context.Context
	once bool // it asks once and does not wait
	take func(ctx context.Context) (*Lease, error)
	held *HeldError // the last answer of the store; nil: it was not asked

	// The answer: written before the waiter is answered, read by the caller after that.
	lease *Lease
	err   error
	panic *PanicError // or goexit
}

// inLine waits for the caller's turn and takes the lease. It returns *HeldError at once for a
// caller that does not wait while others do, *OverloadedError for a full line, and the errors of
// take.
func (s *stored) inLine(ctx context.Context, rt *Runtime, key Key, asked leaseCall, take func(context.Context) (*Lease, error)) (*Lease, error) {
	l := s.line.Load()
	if l == nil {
		l = &line{rt: rt, key: key, free: notify.NewSignal()}
		if !s.line.CompareAndSwap(nil, l) {
			l = s.line.Load()
		}
	}
	w := queue.NewWaiter[leaseWaiter]()
	p := &w.Value
	*p = leaseWaiter{ctx: ctx, once: !asked.wait, take: take}
	l.queue.Lock()
	if p.once && l.waiting > 0 {
		l.queue.Unlock()
		return nil, &HeldError{Scope: key, Holder: "earlier waiters in " + rt.holder}
	}
	var err error
	alone := l.queue.Claim(w)
	if !alone {
		err = l.queue.Push(w, rt.env.maxQueue, l)
	}
	if err == nil && asked.wait {
		l.waiting++
		defer l.left()
	}
	l.queue.Unlock()
	if err != nil {
		return nil, refusedByQueue(err, key)
	}
	if alone {
		if lease, waits, err := l.askAlone(w); !waits {
			return lease, err
		}
	}
	if ending, reached := l.queue.Await(ctx, w); ending != queue.GotAnswer {
		l.free.Set() // the head may have left
		rt.env.observe(ctx, Event{Type: EventWithdrawn, Path: "cas", Key: key, Verb: "Acquire", Err: context.Cause(ctx)})
		return nil, leftBy(ctx, key, phaseOf(reached))
	}
	raise(p.panic)
	return p.lease, p.err
}

// askAlone takes the lease for w, which has claimed the line, on the goroutine of its caller. It
// reports whether w has to wait: it is then in the line, which a worker drives.
func (l *line) askAlone(w *queue.Waiter[leaseWaiter]) (lease *Lease, waits bool, err error) {
	p := &w.Value
	defer func() { // also if the mutation of the caller panics
		l.queue.Lock()
		defer l.queue.Unlock()
		if waits {
			l.queue.PutBack(w, l)
		} else {
			l.queue.Release(l)
		}
	}()
	if !p.once && l.holds() || l.pauseDue() > 0 {
		return nil, true, nil
	}
	if l.rt.closed.Load() {
		return nil, false, wrapKey(ErrClosed, l.key)
	}
	lease, err = p.take(p.ctx)
	l.took(lease)
	if held, ok := err.(*HeldError); ok && !p.once {
		p.held = held
		return nil, true, nil
	}
	return lease, false, err
}

// disown gives back a lease that the store gave after its caller had left.
func (rt *Runtime) disown(s *stored, key Key, a *persist.Acquire, token uint64) {
	l := rt.newLease(context.Background(), s, key, leaseCall{holder: a.Holder, length: a.For}, token, time.Now())
	_ = l.giveBack(context.Background()) // else it runs out
}

// left counts a caller with WaitForLease out of the line.
func (l *line) left() {
	l.queue.Lock()
	defer l.queue.Unlock()
	l.waiting--
}

// released wakes the head of the line when a lease of this process has ended.
func (s *stored) released() {
	if l := s.line.Load(); l != nil {
		l.freed.Store(time.Now().UnixNano())
		l.free.Set()
	}
}

// Work makes line a queue.Worker: it takes the lease for each caller in turn.
func (l *line) Work() {
	for {
		l.queue.Lock()
		w := l.queue.Next()
		if w == nil {
			l.rest()
		}
		l.queue.Unlock()
		if w == nil {
			return
		}
		l.serve(w)
	}
}

// rest ends the subscription to hints when the line is empty. The caller holds the queue's lock.
func (l *line) rest() {
	if l.unsub != nil {
		l.unsub()
		l.unsub = nil
	}
}

// serve takes the lease for w. Unless w asks only once, it waits until the lease is free.
func (l *line) serve(w *queue.Waiter[leaseWaiter]) {
	p := &w.Value
	if p.held == nil && !p.once && l.holds() {
		l.listen()
		l.wait(l.last.length) // no need to ask the store
	}
	for {
		if p.held != nil {
			if l.last == nil || p.held.Token != l.last.token {
				l.since = time.Time{}
			}
			if subscribed := l.listen(); !subscribed {
				l.wait(p.held.Left)
			}
		}
		if pause := l.pauseDue(); pause > 0 {
			time.Sleep(pause)
			l.since = time.Time{}
		}
		if l.rt.closed.Load() {
			l.answer(w, nil, wrapKey(ErrClosed, l.key), nil)
			return
		}
		l.queue.Lock()
		left := w.Left()
		if !left {
			w.State = queue.Committing
		}
		l.queue.Unlock()
		if left {
			return
		}
		var (
			lease *Lease
			err   error
		)
		panicked := guarded(func() { lease, err = p.take(p.ctx) }, func() {
			l.answer(w, nil, nil, goexit)
			go l.Work() // this goroutine is ending
		})
		if panicked != nil {
			if own, ok := panicked.Value.(*PanicError); ok {
				panicked = own // of the mutation, as the verbs raise it
			}
		}
		held, isHeld := err.(*HeldError)
		if panicked != nil || p.once || !isHeld {
			l.took(lease)
			l.answer(w, lease, err, panicked)
			return
		}
		p.held = held
		l.queue.Lock()
		w.State = queue.Waiting
		l.queue.Unlock()
	}
}

// holds reports whether this process has the lease.
func (l *line) holds() bool { return l.last != nil && l.last.live() }

// took notes that a caller of this line got a lease; nil means that it got none.
func (l *line) took(lease *Lease) {
	if lease == nil {
		return
	}
	l.last = lease
	if l.since.IsZero() {
		l.since = time.Now()
	}
}

// pauseDue returns how long to let other processes go first, now that the lease has ended. It is 0 until
// this process has had the lease for ownTime. A lease that was free for as long as a pause needs none:
// the others had their chance, and since starts anew.
func (l *line) pauseDue() time.Duration {
	if l.holds() {
		return 0
	}
	pause := pauseFor
	if _, hints := l.rt.store.(persist.Watcher); !hints {
		pause = pauseUnhinted
	}
	if time.Since(time.Unix(0, l.freed.Load())) >= pause {
		l.since = time.Time{}
	}
	if l.since.IsZero() || time.Since(l.since) < ownTime {
		return 0
	}
	return pause
}

// answer gives w its lease or its error. A lease whose caller has left is given back.
func (l *line) answer(w *queue.Waiter[leaseWaiter], lease *Lease, err error, panicked *PanicError) {
	p := &w.Value
	l.queue.Lock()
	present := l.queue.Answer(w)
	if present {
		p.lease, p.err, p.panic = lease, err, panicked
	}
	l.queue.Unlock()
	switch {
	case present:
		w.Wake()
	case lease != nil:
		l.last = nil
		_ = lease.giveBack(context.Background()) // else it runs out
	case panicked != nil:
		(&call{terms: &terms{env: l.rt.env}, key: l.key}).reportPanic(p.ctx, "cas", "Acquire", panicked, true)
	}
}

// listen subscribes to hints, and reports whether it had not before.
func (l *line) listen() bool {
	if l.unsub != nil {
		return false
	}
	l.unsub = l.rt.hub.Listen(l.key, l.free.Set)
	return true
}

// wait returns when the lease may be free, or the head may have left.
func (l *line) wait(left time.Duration) {
	atMost := askAgainUnhinted
	if l.rt.hub.Hears() {
		atMost = askAgain
	}
	// A little later than the lease runs out, so that it is over when the store is asked, and not
	// at the same moment in all processes.
	t := time.NewTimer(min(left, atMost) + rand.N(askJitter))
	defer t.Stop()
	select {
	case <-l.free:
	case <-t.C:
	}
}
