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
	from      document.Draft // that it was run on
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
	r := &storedRun{container: s, batch: b, waiter: w, from: b.draft}
	careful := b.careful // b belongs to another goroutine once w is detached
	s.queue.Unlock()

	r.frame.init(v.ctx, v.parent, v.call.lease)
	r.stored, r.Lane, r.Name, r.Apart = r, &s.lane, v.call.key, true
	r.until = v.submitted.Add(v.call.retry.Within)
	r.Begin()
	var out outcome
	p := guarded(func() { out = evaluateFenced(&r.frame, v, &r.from, careful) }, func() {
		r.release()
		r.End()
		go func() { // this goroutine is ending
			if s.computed(b, w, &r.from, outcome{draft: r.from, panic: goexit}) == queue.Kept && s.drive(b) == queue.Kept {
				s.Work()
			}
		}()
	})
	r.release()
	r.End()
	if p != nil {
		out = outcome{draft: r.from, panic: p}
	}
	return s.computed(b, w, &r.from, out)
}

// evaluateFenced is evaluate, unless the lease of the call ended earlier in the batch.
func evaluateFenced(ctx context.Context, v *storedCall, from *document.Draft, careful bool) outcome {
	if err := v.call.lease.endedBy(from, v.call.key); err != nil {
		return outcome{draft: *from, err: err}
	}
	out := evaluate(ctx, &v.call, v.change, v.backend, from, careful)
	if err := v.knownLost(); err != nil && out.err == nil {
		return outcome{draft: *from, err: err}
	}
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
					w.Value.out.ran = true
					b.draft = w.Value.out.draft
				}
			}
		}, func() {
			b.members[b.next-1].Value.out = outcome{draft: b.draft, ran: true, panic: goexit}
			go func() { // this goroutine is ending
				if s.drive(b) == queue.Kept {
					s.Work()
				}
			}()
		})
		if p != nil {
			b.members[b.next-1].Value.out = outcome{draft: b.draft, ran: true, panic: p}
		}
	}
}

// computed takes the outcome of a function into its batch. If the batch has gone on without w, it
// takes w to its end alone.
func (s *stored) computed(b *batch, w *storedWaiter, from *document.Draft, out outcome) queue.Ownership {
	v := &w.Value
	out.ran = true
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
		v.out, b.draft = out, out.draft
		return queue.Kept
	}
	alone := &batch{members: []*storedWaiter{w}, alone: w, joined: true}
	if from.Changed == 0 { // it ran on a committed state, so its result may count
		v.out = out
		alone.next, alone.draft = 1, out.draft
	}
	s.drive(alone)
	return queue.Passed
}
