package pawl

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/queue"
)

// How the members of a batch are computed, one after the other, on its draft.

// compute runs the members of b that were not, in order.
func (s *stored) compute(b *batch) queue.Ownership {
	for b.next < len(b.members) {
		if w := b.members[b.next]; w.Value.change.bounded() {
			s.computeData(b)
		} else if s.computeFunction(b, w) == queue.Passed {
			return queue.Passed
		}
	}
	return queue.Kept
}

// storedRun is the run of a function on a persisted scope: its context, and its place in a batch.
type storedRun struct {
	frame
	container *stored
	batch     *batch
	waiter    *storedWaiter
}

// computeFunction runs the function of w. If the batch goes on without it meanwhile, it takes w to
// its end alone and says that the batch was passed on.
func (s *stored) computeFunction(b *batch, w *storedWaiter) queue.Ownership {
	v := &w.Value
	b.next++
	s.queue.Lock()
	v.out = outcome{}
	if w.Left() || v.abandoned {
		s.queue.Unlock()
		return queue.Kept
	}
	w.State = queue.Running
	v.running, v.started = true, time.Now()
	if b.alone == nil {
		b.running, b.started = w, v.started
		if len(b.members) > 1 || s.queue.First() != nil {
			s.limitRunning(b)
		}
	}
	r := &storedRun{container: s, batch: b, waiter: w}
	from, careful := b.draft, b.careful // b belongs to another goroutine once w is detached
	s.queue.Unlock()

	r.frame.init(v.ctx, v.parent, v.call.lease)
	r.stored, r.Lane, r.Name, r.Apart = r, &s.lane, v.call.key, true
	r.until = v.submitted.Add(v.call.retry.Within)
	r.Begin()
	var out outcome
	after := from
	p := guarded(func() { out = evaluateFenced(&r.frame, v, &after, careful) }, func() {
		r.release()
		r.End()
		go s.goOnAfterGoexit(b, w, from)
	})
	r.release()
	r.End()
	if p != nil {
		out = outcome{ran: true, panic: p}
	}
	return s.computed(b, w, &from, &after, out)
}

// goOnAfterGoexit takes the place of a goroutine that the function of w has ended. The function was run
// on from.
func (s *stored) goOnAfterGoexit(b *batch, w *storedWaiter, from document.Draft) {
	out := outcome{ran: true, panic: goexit}
	if s.computed(b, w, &from, &from, out) == queue.Kept && s.drive(b) == queue.Kept {
		s.Work()
	}
}

// evaluateFenced is evaluate, unless the lease of the call ended earlier in the batch.
func evaluateFenced(ctx context.Context, v *storedCall, d *document.Draft, careful bool) outcome {
	if err := v.call.lease.endedBy(d, v.call.key); err != nil {
		return outcome{ran: true, err: err}
	}
	next := *d
	out := evaluate(ctx, &v.call, &v.change, v.backend, &next, careful)
	if err := v.knownLost(); err != nil && out.err == nil {
		return outcome{ran: true, err: err}
	}
	*d = next
	return out
}

// computeData runs the data verbs that come next. They are bounded and need no context of their
// own; but decoding a document may run user code.
func (s *stored) computeData(b *batch) {
	s.queue.Lock()
	end := b.next
	for ; end < len(b.members) && b.members[end].Value.change.bounded(); end++ {
		w := b.members[end]
		w.Value.out = outcome{}
		if !w.Left() && !w.Value.abandoned {
			w.State = queue.Committing
		}
	}
	s.queue.Unlock()
	for b.next < end {
		p := guarded(func() {
			for b.next < end {
				w := b.members[b.next]
				b.next++
				if w.State == queue.Committing { // only the driver changes that
					w.Value.out = evaluateFenced(w.Value.ctx, &w.Value, &b.draft, b.careful)
				}
			}
		}, func() {
			b.members[b.next-1].Value.out = outcome{ran: true, panic: goexit}
			go func() { // this goroutine is ending
				if s.drive(b) == queue.Kept {
					s.Work()
				}
			}()
		})
		if p != nil {
			b.members[b.next-1].Value.out = outcome{ran: true, panic: p}
		}
	}
}

// computed takes the outcome of a function into its batch. The function made after of from. If the
// batch has gone on without w, it takes w to its end alone.
func (s *stored) computed(b *batch, w *storedWaiter, from, after *document.Draft, out outcome) queue.Ownership {
	v := &w.Value
	s.queue.Lock()
	v.endFunction()
	attached := b.alone != nil || b.running == w
	unwanted := w.Left() || v.abandoned
	if b.running == w {
		b.running = nil
	}
	switch {
	case unwanted:
		if !attached {
			s.endAlone(w)
		}
	case !attached && from.Changed > 0:
		w.State = queue.Waiting // it ran on a state that may never be committed, and runs again
	default:
		w.State = queue.Committing
		if attached && b.alone == nil && time.Since(b.started) > b.allowed {
			b.slow = true
		}
	}
	s.queue.Unlock()
	if unwanted {
		if out.panic != nil {
			v.call.reportPanic(v.ctx, "cas", v.change.verb, out.panic, true)
		}
		return queue.Ownership(attached)
	}
	if attached {
		v.out, b.draft = out, *after
		return queue.Kept
	}
	alone := &batch{members: []*storedWaiter{w}, alone: w, joined: true}
	if from.Changed == 0 { // it ran on a committed state, so its result may count
		v.out = out
		alone.next, alone.draft = 1, *after
	}
	s.drive(alone)
	return queue.Passed
}
