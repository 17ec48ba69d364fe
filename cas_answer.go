package pawl

import (
	"errors"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
)

// reply is what the caller gets: the state its mutation left behind.
type reply struct {
	snapshot
	landed uint64 // the version after the whole commit
}

// How the members of a batch are answered: answer ends all with what they computed, failAll all with
// one error, fail and finish a single one. Each of them tells the observer, gives the outcome and wakes.

// answer gives every member its outcome, which is durable now.
func (s *stored) answer(b *batch, at time.Time) {
	size := 0
	for _, w := range b.members {
		if w.Value.out.changed {
			size++
		}
	}
	for _, w := range b.members {
		w.Value.landed = b.draft.Version
		observeOutcome(&w.Value, &w.Value.out, size)
	}
	var left []*storedWaiter
	present := make([]*storedWaiter, 0, len(b.members))
	s.queue.Lock()
	last := b.alone == nil && len(b.rest) == 0 // else s.alone leads to the member, or the turn goes on with b.rest
	for _, w := range b.members {
		w.Value.reusable = last
		if s.give(w, w.Value.out, at) {
			present = append(present, w)
		} else {
			left = append(left, w)
		}
	}
	if last { // Stats, Close and Abandon must not find waiters that may serve other calls
		b.members = nil
		s.queue.EndTurn()
	}
	s.queue.Unlock()
	queue.WakeInTurn(present, &b.awake)
	for _, w := range left { // afterwards: no caller waits for the logger
		s.tellLeft(w, &w.Value.out)
	}
}

// failAll gives every member the same error; nothing of the batch was committed, or that is
// unknown.
func (s *stored) failAll(b *batch, err error) {
	for _, w := range b.members {
		s.fail(w, err)
	}
}

// fail ends w with err, or with its own panic if it had one: its caller must hear of that, whatever
// became of the commit.
func (s *stored) fail(w *storedWaiter, err error) {
	out := outcome{ran: true, err: err}
	var unknown *UnknownOutcomeError
	if own := w.Value.out; own.panic != nil {
		out = own
	} else if own.ran && !own.changed && errors.As(err, &unknown) {
		// It wrote nothing in the commit. Only the state that it looked at is in doubt.
		out.err = &UnavailableError{Scope: w.Value.call.key, Cause: unknown.Cause}
	}
	s.finish(w, out)
}

// finish ends w with an outcome.
func (s *stored) finish(w *storedWaiter, out outcome) {
	observeOutcome(&w.Value, &out, 0)
	s.queue.Lock()
	present := s.give(w, out, time.Time{})
	s.queue.Unlock()
	if present {
		w.Wake()
	} else {
		s.tellLeft(w, &out)
	}
}

// give gives w its outcome, and reports false if its caller has left. The caller holds the queue's
// lock.
func (s *stored) give(w *storedWaiter, out outcome, at time.Time) (present bool) {
	if w.Value.abandoned || !s.queue.Answer(w) {
		return false
	}
	w.Value.out, w.Value.at = out, at
	return true
}

// reply returns what the caller of an answered mutation gets.
func (v *storedCall) reply() reply {
	r := reply{snapshot: snapshot{id: v.call.key.ID}, landed: v.landed}
	if v.out.view != nil {
		r.version, r.at, r.state = v.out.version, v.at, v.out.view.State
	}
	return r
}

// tellLeft ends w, whose caller has left: a panic is logged, and a lease given back.
func (s *stored) tellLeft(w *storedWaiter, out *outcome) {
	v := &w.Value
	switch b, ok := v.backend.(*binding); {
	case out.panic != nil:
		v.call.logPanic(v.ctx, v.change.verb, out.panic)
	case ok && v.change.takes != nil && out.changed:
		go b.rt.disown(s, v.call.key, v.change.takes, v.landed)
	}
}

func observeOutcome(v *storedCall, out *outcome, size int) {
	if !out.ran || v.call.env.observer == nil {
		return
	}
	e := Event{Type: EventCommitted, Path: "cas", Verb: v.change.verb, Version: out.version, Attempts: v.attempts + 1, Batch: size, Waited: v.waited, Took: time.Since(v.submitted)}
	switch {
	case out.panic != nil:
		v.call.reportPanic(v.ctx, "cas", v.change.verb, out.panic, false)
		return
	case out.err != nil:
		e.Type, e.Err, e.Version, e.Batch = EventFailed, out.err, 0, 0
	case !out.changed:
		e.Type, e.Batch = EventUnchanged, 0
	}
	v.call.observe(v.ctx, e)
}
