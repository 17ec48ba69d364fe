package pawl

import (
	"context"
	"math/rand/v2"
	"time"

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

// line is who waits for the lease of one scope in this process.
type line struct {
	queue
	rt      *Runtime
	key     Key
	patient int   // how many wait, protected by queue.mu; the others take it or leave it
	bell    *bell // rings when the lease may be free

	// What belongs to the head.
	unsub func() // ends the hints of the store; nil: it gets none now
	last  *Lease // that somebody of this line got
	turns int    // how often in a row this process had the lease
}

// place is what a waiter in a line asks for.
type place struct {
	once bool // it does not wait
	take func(ctx context.Context) (*Lease, error)
}

// inLine waits for its turn and takes the lease.
func (c *cell) inLine(ctx context.Context, rt *Runtime, key Key, asked leaseCall, take func(context.Context) (*Lease, error)) (*Lease, error) {
	l := c.line.Load()
	if l == nil {
		l = &line{rt: rt, key: key, bell: newBell()}
		if !c.line.CompareAndSwap(nil, l) {
			l = c.line.Load()
		}
	}
	w := newWaiter()
	w.ctx, w.call, w.change = ctx, call{terms: &terms{env: rt.env}, key: key}, &change{verb: "Acquire"}
	w.submitted = time.Now()
	w.place = &place{once: !asked.wait, take: take}
	l.mu.Lock()
	if w.place.once && l.patient > 0 {
		l.mu.Unlock()
		return nil, &HeldError{Scope: key, Holder: "those who wait for it in " + rt.holder}
	}
	err := l.push(w, rt.env.maxQueue)
	if err == nil {
		if asked.wait {
			l.patient++
			defer l.left()
		}
		l.start(l)
	}
	l.mu.Unlock()
	if err == nil {
		err = l.await(w)
	}
	if err != nil {
		l.bell.poke() // it may be the head who has left
		return nil, err
	}
	w.deliver()
	lease, _ := w.answer.(*Lease)
	return lease, w.err
}

// disown gives a lease back that the store gave when nobody waited for it any more.
func (rt *Runtime) disown(c *cell, key Key, a *persist.Acquire, token uint64) {
	l := rt.newLease(context.Background(), c, key, leaseCall{holder: a.Holder, length: a.For}, token, time.Now())
	_ = l.giveBack(context.Background()) // else it runs out
}

// left ends somebody's waiting.
func (l *line) left() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.patient--
}

// released is called when a lease of this process is over.
func (c *cell) released() {
	if l := c.line.Load(); l != nil {
		l.bell.poke()
	}
}

// take: the head of the line can leave whenever it has no commit under way.
func (l *line) take(w *waiter) { l.give(w) }

// rest ends the hints when nobody waits any more. The caller holds queue.mu.
func (l *line) rest() {
	l.rt.leases.quit(l)
	if l.unsub != nil {
		l.unsub()
		l.unsub = nil
	}
}

// run makes line a runner: it takes the lease for w, or waits until it can.
func (l *line) run(w *waiter) (driving bool) {
	p := w.place
	l.rt.leases.join(l)
	if !p.once && l.last != nil && l.last.live() {
		l.listen()
		l.wait(l.last.length) // nobody need be asked who has it
	}
	for {
		if l.turns >= ownTurns {
			l.turns = 0
			time.Sleep(pauseFor)
		}
		if l.rt.closed.Load() {
			return l.answer(w, nil, wrapKey(ErrClosed, l.key), nil, false)
		}
		l.mu.Lock()
		if w.left {
			l.running = nil
			l.mu.Unlock()
			return true
		}
		w.phase = committing
		l.mu.Unlock()
		var (
			lease *Lease
			err   error
		)
		// A commit that may have been sent goes on when the caller leaves; see queue.leave.
		panicked := guarded(func() { lease, err = p.take(w.ctx) }, func() {
			l.answer(w, nil, nil, nil, true)
			go l.work(l) // this goroutine is on its way out
		})
		if panicked != nil {
			if own, ok := panicked.Value.(*PanicError); ok {
				panicked = own // of the mutation, as the verbs raise it
			}
		}
		held, isHeld := err.(*HeldError)
		if panicked != nil || p.once || !isHeld {
			return l.answer(w, lease, err, panicked, false)
		}
		l.mu.Lock()
		w.phase = queued
		l.mu.Unlock()
		if l.last == nil || held.Token != l.last.token {
			l.turns = 0
		}
		if !l.listen() { // else it may have been released before that: ask again
			l.wait(held.Left)
		}
	}
}

// answer gives w what became of its wish. A lease that nobody waits for is given back.
func (l *line) answer(w *waiter, lease *Lease, err error, p *PanicError, exited bool) (driving bool) {
	if lease != nil {
		l.last = lease
		l.turns++
	}
	l.mu.Lock()
	l.running = nil
	left := w.left
	if !left {
		w.answer, w.err, w.panic, w.exited = lease, err, p, exited
		w.answered(0) // from here on its caller cannot leave without the answer
	}
	l.mu.Unlock()
	switch {
	case !left:
		w.poke()
	case lease != nil:
		l.last = nil
		_ = lease.giveBack(context.Background()) // else it runs out
	case p != nil || exited:
		w.reportPanic(p, true)
	}
	return true
}

// listen makes sure that hints ring the bell, and reports whether they did not before.
func (l *line) listen() bool {
	if l.unsub != nil {
		return false
	}
	l.unsub = l.rt.hub.Listen(l.key, l.bell.poke)
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
	case <-l.bell.wake:
	case <-t.C:
	}
}
