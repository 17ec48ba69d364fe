package pawl

import (
	"context"

	"github.com/pawl-go/pawl/internal/document"
)

// What a round makes of its draft, one mutation after the other.

// compute runs the members that have not been, in order. It reports false when this goroutine went off with a slow function and
// somebody else drives the round.
func (c *cell) compute(r *round) bool {
	for r.next < len(r.members) {
		w := r.members[r.next]
		if w.change.bounded() {
			c.computeData(r)
			continue
		}
		r.next++
		c.mu.Lock()
		w.cas.out = outcome{}
		if w.left || w.abandoned {
			c.mu.Unlock()
			continue
		}
		w.phase = running
		if r.solo == nil {
			c.startWatch(r, w)
		}
		from, careful := r.draft, r.careful // r is somebody else's as soon as w is detached
		c.mu.Unlock()
		own := &storedRun{cell: c, round: r, waiter: w}
		own.around = inside{queue: &c.queue, key: c.keyOf(w), parent: w.parent, lease: w.call.lease, stored: own}
		f := &own.frame
		f.Context, f.inside = w.ctx, &own.around
		f.begin()
		var out outcome
		p := guarded(func() { out = run(f, w, &from, careful) }, func() {
			f.end()
			from := from // so that others need not be on the heap
			go func() {  // this goroutine is on its way out
				if c.computed(r, w, &from, &outcome{draft: from, exited: true}) && c.drive(r) {
					c.work(c)
				}
			}()
		})
		f.end()
		if p != nil {
			out = outcome{draft: from, panic: p}
		}
		if !c.computed(r, w, &from, &out) {
			return false
		}
	}
	return true
}

// storedRun is the run of a function on a persisted scope: its context, and what is needed to let its queue move on.
type storedRun struct {
	frame
	around inside
	cell   *cell
	round  *round
	waiter *waiter
}

// run is evaluate, unless the lease of w ended earlier in the round.
func run(ctx context.Context, w *waiter, from *document.Draft, careful bool) outcome {
	if err := w.call.lease.endedBy(from, w.call.key); err != nil {
		return outcome{draft: *from, err: err}
	}
	return evaluate(ctx, w, from, careful)
}

// computeData runs the data verbs that come next. They take no time, and need no frame; but to decode a document may run code of the user's.
func (c *cell) computeData(r *round) {
	c.mu.Lock()
	end := r.next
	for ; end < len(r.members) && r.members[end].change.bounded(); end++ {
		w := r.members[end]
		w.cas.out = outcome{}
		if !w.left && !w.abandoned {
			w.phase = committing
		}
	}
	c.mu.Unlock()
	for r.next < end {
		p := guarded(func() {
			for r.next < end {
				w := r.members[r.next]
				r.next++
				if w.phase == committing { // which nobody changes any more
					w.cas.out = run(w.ctx, w, &r.draft, r.careful)
					w.cas.out.ran = true
					r.draft = w.cas.out.draft
				}
			}
		}, func() {
			r.members[r.next-1].cas.out = outcome{draft: r.draft, ran: true, exited: true}
			go func() { // this goroutine is on its way out
				if c.drive(r) {
					c.work(c)
				}
			}()
		})
		if p != nil {
			r.members[r.next-1].cas.out = outcome{draft: r.draft, ran: true, panic: p}
		}
	}
}

// computed takes the outcome of w, a function, into its round. If the round has gone on without w, it takes w to its end alone and reports false.
func (c *cell) computed(r *round, w *waiter, from *document.Draft, out *outcome) bool {
	out.ran = true
	c.mu.Lock()
	attached := r.solo != nil || r.current == w
	unwanted := w.left || w.abandoned // a run that outlives its caller is discarded
	if attached && r.current == w {
		r.current = nil
	}
	switch {
	case unwanted && !attached:
		c.comeBack(w)
	case unwanted:
	case attached && r.solo == nil:
		w.phase = committing
		if now().Sub(r.started) > r.patience { // and nobody was there to mind
			r.slow = true
		}
	default:
		w.phase = committing
		if !attached && from.Changed > 0 {
			w.phase = queued // it ran on what may never be committed, and runs again
		}
	}
	c.mu.Unlock()
	if unwanted && (out.panic != nil || out.exited) {
		w.reportPanic(out.panic, true)
	}
	switch {
	case attached && unwanted:
		return true
	case attached:
		w.cas.out, r.draft = *out, out.draft
		return true
	case unwanted:
		return false
	}
	alone := &round{members: []*waiter{w}, solo: w}
	if from.Changed == 0 { // it ran on a committed state, so its result may count
		w.cas.out = *out
		alone.next, alone.draft = 1, out.draft
	}
	c.drive(alone)
	return false
}
