package pawl

import (
	"slices"
	"time"
)

// Slow functions on the persisted path. A round waits for a function only so long; then, or at once when the function mutates
// another scope, it goes on without it. The function competes against the store by itself (a solo round), and after
// half its attempts it gets the queue to itself for one bounded run.

// startWatch begins to time the function of w. The caller holds queue.mu.
func (c *cell) startWatch(r *round, w *waiter) {
	r.current, r.started = w, time.Now()
	if c.armed {
		return
	}
	c.armed = true
	if c.watch == nil {
		c.watch = time.AfterFunc(r.patience, c.checkSlow)
		return
	}
	c.watch.Reset(r.patience)
}

// checkSlow runs when the watch rings: a function that has used up its patience goes solo.
func (c *cell) checkSlow() {
	c.mu.Lock()
	c.armed = false
	r := c.round
	if r == nil || r.current == nil {
		c.mu.Unlock()
		return
	}
	w := r.current
	if left := r.patience - time.Since(r.started); left > 0 {
		c.armed = true
		c.watch.Reset(left)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.detach(r, w)
}

// detach lets r go on without w, whose function runs on.
func (c *cell) detach(r *round, w *waiter) {
	c.mu.Lock()
	if r.current != w {
		c.mu.Unlock()
		return
	}
	r.current = nil
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
	c.signalDrained()
}

// requeue gives a function that keeps losing outside the queue one bounded run with the queue to itself.
func (c *cell) requeue(w *waiter) bool {
	if w.cas.exclusive || w.cas.attempts < w.call.retry.Attempts/2 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.left || w.abandoned || c.push(w, w.call.env.maxQueue) != nil {
		return false
	}
	w.cas.exclusive = true
	c.comeBack(w)
	c.start(c)
	return true
}

// abandon gives up the functions that run, in the queue and outside: their results are discarded.
func (c *cell) abandon() bool {
	c.mu.Lock()
	r := c.round
	var given []*waiter
	if r != nil && r.current != nil {
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
		w.call.observe(w.ctx, Event{Type: Abandoned, Path: "cas", Verb: w.change.verb})
	}
	return len(given) > 0
}
