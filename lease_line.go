package pawl

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/persist"
)

// Who waits for a lease. Those of one process stand in a line, which is a queue like that of mutations: in order, and whoever leaves is
// withdrawn. Its head alone asks the store, and asks again when
//   - the lease is released, here (released) or elsewhere (a hint of the store's),
//   - or runs out, by what the store said was left of it,
//   - or for a while nothing was heard: hints can be lost.
//
// Processes race for a free lease, and one that hands it on to its own is always the first to know. So that it does not keep the others
// from it, it pauses after every few.

const (
	// ownTurns is how often in a row a process hands a lease on to its own before it lets others go first.
	ownTurns = 8
	// pauseFor is how long it then leaves the lease alone: longer than a hint takes, on every store.
	pauseFor = 50 * time.Millisecond
	// askAgain is how often the head of a line asks when it hears nothing, in the worst case.
	askAgain = 5 * time.Second
	// askAgainDeaf is the same where the store gives no hints.
	askAgainDeaf = 250 * time.Millisecond
)

// line is the queue for the lease of one scope in this process.
type line struct {
	queue queue.Queue[place]
	rt    *Runtime
	key   Key
	free  notify.Signal // set when the lease may be free

	waiting int // callers that wait for the lease, and do not just try; protected by the queue's lock

	// Of the worker.
	unsub func() // ends the hints of the store; nil: it gets none now
	last  *Lease // the last lease that a caller of this line got
	turns int    // how often in a row this process had the lease
}

// place is a caller in a line.
type place struct {
	ctx  context.Context
	once bool // it tries, and does not wait
	take func(ctx context.Context) (*Lease, error)

	// The answer: written before the waiter is answered, read by the caller after that.
	lease  *Lease
	err    error
	panic  *PanicError
	exited bool
}

// inLine waits for its turn and takes the lease.
func (s *stored) inLine(ctx context.Context, rt *Runtime, key Key, asked leaseCall, take func(context.Context) (*Lease, error)) (*Lease, error) {
	l := s.line.Load()
	if l == nil {
		l = &line{rt: rt, key: key, free: notify.NewSignal()}
		if !s.line.CompareAndSwap(nil, l) {
			l = s.line.Load()
		}
	}
	w := &queue.Waiter[place]{Bell: queue.NewBell(), Value: place{ctx: ctx, once: !asked.wait, take: take}}
	p := &w.Value
	l.queue.Lock()
	if p.once && l.waiting > 0 {
		l.queue.Unlock()
		return nil, &HeldError{Scope: key, Holder: "those who wait for it in " + rt.holder}
	}
	err := l.queue.Push(w, rt.env.maxQueue, l)
	if err == nil && asked.wait {
		l.waiting++
		defer l.left()
	}
	l.queue.Unlock()
	if err != nil {
		return nil, refusedByQueue(err, key)
	}
	if ending, reached := l.queue.Await(ctx, w); ending != queue.GotAnswer {
		l.free.Set() // the head may have left
		(&call{terms: &terms{env: rt.env}, key: key}).observe(ctx, Event{Type: Withdrawn, Path: "lock", Verb: "Acquire", Err: context.Cause(ctx)})
		return nil, leftBy(ctx, key, phaseOf(reached))
	}
	raise(p.panic, p.exited)
	return p.lease, p.err
}

// disown gives a lease back that the store gave when nobody waited for it any more.
func (rt *Runtime) disown(s *stored, key Key, a *persist.Acquire, token uint64) {
	l := rt.newLease(context.Background(), s, key, leaseCall{holder: a.Holder, length: a.For}, token, time.Now())
	_ = l.giveBack(context.Background()) // else it runs out
}

// left ends a caller's waiting.
func (l *line) left() {
	l.queue.Lock()
	defer l.queue.Unlock()
	l.waiting--
}

// released is called when a lease of this process is over.
func (s *stored) released() {
	if l := s.line.Load(); l != nil {
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

// rest ends the hints when no caller waits any more. The caller holds the queue's lock.
func (l *line) rest() {
	l.rt.leases.quit(l)
	if l.unsub != nil {
		l.unsub()
		l.unsub = nil
	}
}

// serve takes the lease for w, or waits until it can.
func (l *line) serve(w *queue.Waiter[place]) {
	p := &w.Value
	l.rt.leases.join(l)
	if !p.once && l.last != nil && l.last.live() {
		l.listen()
		l.wait(l.last.length) // this process holds it: the store need not be asked
	}
	for {
		if l.turns >= ownTurns {
			l.turns = 0
			time.Sleep(pauseFor)
		}
		if l.rt.closed.Load() {
			l.answer(w, nil, wrapKey(ErrClosed, l.key), nil, false)
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
			l.answer(w, nil, nil, nil, true)
			go l.Work() // this goroutine is ending
		})
		if panicked != nil {
			if own, ok := panicked.Value.(*PanicError); ok {
				panicked = own // of the mutation, as the verbs raise it
			}
		}
		held, isHeld := err.(*HeldError)
		if panicked != nil || p.once || !isHeld {
			l.answer(w, lease, err, panicked, false)
			return
		}
		l.queue.Lock()
		w.State = queue.Waiting
		l.queue.Unlock()
		if l.last == nil || held.Token != l.last.token {
			l.turns = 0
		}
		if !l.listen() { // else it may have been released before that: ask again
			l.wait(held.Left)
		}
	}
}

// answer gives w its lease or its error. A lease whose caller has left is given back.
func (l *line) answer(w *queue.Waiter[place], lease *Lease, err error, panicked *PanicError, exited bool) {
	p := &w.Value
	if lease != nil {
		l.last = lease
		l.turns++
	}
	l.queue.Lock()
	present := l.queue.Answer(w)
	if present {
		p.lease, p.err, p.panic, p.exited = lease, err, panicked, exited
	}
	l.queue.Unlock()
	switch {
	case present:
		w.Wake()
	case lease != nil:
		l.last = nil
		_ = lease.giveBack(context.Background()) // else it runs out
	case panicked != nil || exited:
		(&call{terms: &terms{env: l.rt.env}, key: l.key}).reportPanic(p.ctx, "lock", "Acquire", panicked, true)
	}
}

// listen makes sure that hints ring the bell, and reports whether they did not before.
func (l *line) listen() bool {
	if l.unsub != nil {
		return false
	}
	l.unsub = l.rt.hub.Listen(l.key, l.free.Set)
	return true
}

// wait returns when the lease may be free, or the head may have left.
func (l *line) wait(left time.Duration) {
	atMost := askAgainDeaf
	if l.rt.hub.Hears() {
		atMost = askAgain
	}
	// A little later than it runs out, so that it has when the store is asked; and not all processes at once.
	t := time.NewTimer(min(left, atMost) + rand.N(10*time.Millisecond))
	defer t.Stop()
	select {
	case <-l.free:
	case <-t.C:
	}
}
