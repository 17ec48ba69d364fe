package pawl

import (
	"slices"
	"time"
	"weak"
)

// Slow functions on the persisted path. A round waits for a function only so long; then, or at once when the function mutates
// another scope, it goes on without it. The function competes against the store by itself (a solo round), and after
// half its attempts it gets the queue to itself for one bounded run.

// alarm is a timer that is left set: setting it again for a later time costs nothing. Its zero value is ready. It is protected by
// queue.mu of its cell.
type alarm struct {
	timer *time.Timer
	at    time.Time // when it rings; zero: it does not
}

// set makes sure that ring is called at the given time, or earlier. The timer does not keep c: whoever could miss the ringing does.
func (a *alarm) set(at time.Time, c *cell, ring func(*cell)) {
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	if a.timer != nil {
		a.timer.Reset(time.Until(at))
		return
	}
	target := weak.Make(c)
	a.timer = time.AfterFunc(time.Until(at), func() {
		if c := target.Value(); c != nil {
			ring(c)
		}
	})
}

// startWatch begins to time the function of w. The caller holds queue.mu.
func (c *cell) startWatch(r *round, w *waiter) {
	r.current, r.started = w, now()
	if len(r.members) > 1 || c.first != nil {
		c.watchOver(r)
	} // else it holds up nobody, until somebody comes
}

// watchOver sees to it that the function that runs in r does not hold up others for longer than it may. The caller holds queue.mu.
func (c *cell) watchOver(r *round) { c.watch.set(r.started.Add(r.patience), c, (*cell).checkSlow) }

// checkSlow runs when the watch rings: a function that has used up its patience goes solo.
func (c *cell) checkSlow() {
	c.mu.Lock()
	c.watch.at = time.Time{}
	r := c.round
	if r == nil || r.current == nil {
		c.mu.Unlock()
		return
	}
	w := r.current
	if until := r.started.Add(r.patience); now().Before(until) {
		c.watchOver(r)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.detach(r, w)
}

// keyOf returns the key of w's call, for longer than w has it: the context of a function may outlive the call.
func (c *cell) keyOf(w *waiter) *Key {
	if c.site != nil {
		return c.site.Key()
	}
	own := w.call.key
	return &own
}

// rest is called when the queue has become empty. The caller holds queue.mu.
func (c *cell) rest() {
	if d := c.seen.Load(); d != nil && c.site != nil {
		c.site.Keep(len(d.Raw))
	}
}

// detach lets r go on without w, whose function runs on.
func (c *cell) detach(r *round, w *waiter) {
	c.mu.Lock()
	if r.current != w {
		c.mu.Unlock()
		return
	}
	r.current, r.open = nil, false // what it makes of the same state is not to lose to those who come later
	c.away = append(c.away, w)
	r.next--
	r.members = slices.Delete(slices.Clone(r.members), r.next, r.next+1)
	call, ctx, verb := w.call, w.ctx, w.change.verb
	c.mu.Unlock()
	call.observe(ctx, Event{Type: Detached, Path: "cas", Verb: verb})
	go func() {
		if c.drive(r) {
			c.work(c)
		}
	}()
}

// comeBack ends the time of w outside the queue. The caller holds queue.mu.
func (c *cell) comeBack(w *waiter) {
	if i := slices.Index(c.away, w); i >= 0 {
		c.away = slices.Delete(c.away, i, i+1)
	}
	if c.idle() && !c.working.Load() {
		c.rest()
	}
	c.signalDrained()
}

// requeue gives a function that keeps losing outside the queue one bounded run with the queue to itself.
func (c *cell) requeue(w *waiter) bool {
	if w.cas.exclusive || w.cas.attempts < w.call.retry.Attempts/2 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.left || w.abandoned || c.enter(w) != nil {
		return false
	}
	w.cas.exclusive = true
	c.comeBack(w)
	return true
}

// goSolo ends the time that w, which lost again, had the queue to itself: r, which is w's alone, goes on outside.
func (c *cell) goSolo(r *round, w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.solo = w
	c.round, c.running = nil, nil
	c.away = append(c.away, w)
	go c.drive(r)
}

// abandon gives up the functions that run, in the queue and outside: their results are discarded.
func (c *cell) abandon() bool {
	c.mu.Lock()
	r := c.round
	var given []*waiter
	if r != nil && r.current != nil && !r.current.abandoned {
		given = append(given, r.current)
	}
	for _, w := range c.away {
		if w.phase == running && !w.abandoned {
			given = append(given, w)
		}
	}
	for _, w := range given {
		w.abandoned = true
		if !w.left {
			w.err = wrapKey(ErrAbandoned, w.call.key)
			w.finish()
		}
	}
	c.mu.Unlock()
	for _, w := range given {
		if r != nil {
			c.detach(r, w)
		}
		c.mu.Lock()
		c.comeBack(w) // nobody waits for it any more, Close included
		c.mu.Unlock()
		w.call.observe(w.ctx, Event{Type: Abandoned, Path: "cas", Verb: w.change.verb})
	}
	return len(given) > 0
}
