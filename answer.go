package pawl

import (
	"errors"
	"time"
)

// How a round ends for those who wait for it.

// answer gives every member its outcome, which is durable now; took is how long that took.
func (c *cell) answer(r *round, at time.Time, took time.Duration) {
	batch := 0
	for _, w := range r.members {
		if w.cas.out.changed {
			batch++
		}
	}
	for _, w := range r.members {
		w.cas.landed = r.draft.Version
		if w.cas.out.ran && w.call.env.observer != nil {
			observeOutcome(w, w.cas.out, batch)
		}
	}
	c.mu.Lock()
	answered := r.members[:0]
	for _, w := range r.members {
		if r.solo == nil && !w.left && !w.abandoned { // whoever abandoned it has answered it, and its caller may be looking
			w.cas.reusable = true
		}
		if c.hand(w, &w.cas.out, at) {
			answered = append(answered, w)
		}
	}
	if r.solo == nil { // from here on nobody finds them by the queue
		r.members, c.round, c.running = nil, nil, nil
		c.crew, c.took = len(answered)+c.waiting, took
		c.lone = c.crew < 2
	}
	c.mu.Unlock()
	for _, w := range answered {
		w.poke()
	}
}

// answerAll gives every member the same error; nothing of the round was committed, or nobody knows.
func (c *cell) answerAll(r *round, err error) {
	for _, w := range r.members {
		c.fail(w, err)
	}
}

// fail ends w with err, or with its own panic if it had one: whatever became of the commit, its caller must hear of that.
func (c *cell) fail(w *waiter, err error) {
	out := outcome{ran: true, err: err}
	var unknown *UnknownOutcomeError
	if own := w.cas.out; own.panic != nil || own.exited {
		out = own
	} else if own.ran && !own.changed && errors.As(err, &unknown) {
		// It had nothing in the commit. Only what it looked at is in doubt.
		out.err = &UnavailableError{Scope: w.call.key, Cause: unknown.Cause}
	}
	c.finish(w, out, 0, time.Time{})
}

// finish hands w its outcome, unless nobody waits for it any more.
func (c *cell) finish(w *waiter, out outcome, batch int, at time.Time) {
	if out.ran && w.call.env.observer != nil {
		observeOutcome(w, out, batch)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hand(w, &out, at) {
		w.poke()
	}
}

// hand puts the outcome where the caller of w finds it, and reports whether the caller is there to be woken. The caller of hand holds queue.mu.
func (c *cell) hand(w *waiter, out *outcome, at time.Time) bool {
	if w.left || w.abandoned {
		if out.panic != nil || out.exited {
			w.call.logPanic(w.ctx, w.change.verb, out.panic)
		} else if b, ok := w.cas.backend.(*binding); ok && w.change.takes != nil && out.changed {
			go b.rt.disown(c, w.call.key, w.change.takes, w.cas.landed)
		}
		return false
	}
	w.err, w.panic, w.exited = out.err, out.panic, out.exited
	if d := &out.draft; out.err == nil && d.Life == alive && d.View != nil {
		w.cas.reply = reply{state: d.View.State, version: d.Version, landed: w.cas.landed, at: at}
	}
	w.cas.out = outcome{} // here it is at hand, its caller would have to fetch it
	w.answered(0)
	return true
}

func observeOutcome(w *waiter, out outcome, batch int) {
	e := Event{Type: Committed, Path: "cas", Verb: w.change.verb, Version: out.draft.Version, Attempts: w.cas.attempts + 1, Batch: batch, Took: time.Since(w.submitted)}
	switch {
	case out.panic != nil || out.exited:
		w.reportPanic(out.panic, false)
		return
	case out.err != nil:
		e.Type, e.Err, e.Version, e.Batch = Failed, out.err, 0, 0
	case !out.changed:
		e.Type, e.Batch = Unchanged, 0
	}
	w.call.observe(w.ctx, e)
}
