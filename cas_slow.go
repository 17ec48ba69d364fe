package pawl

import (
	"slices"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
)

// Slow functions on the persisted path. A batch waits for a function for slowAfter at most. Then,
// or at once when the function mutates another scope, the batch goes on without it on a new
// goroutine. The function commits alone, like a writer of another process, and after half its
// attempts it gets the queue to itself for one run of at most exclusiveFor.

const (
	// slowAfter is how long a function may hold up the batch it is in.
	slowAfter = 10 * time.Millisecond
	// exclusiveFor is how long a function that kept losing may have the queue to itself.
	exclusiveFor = time.Second
)

// limitRunning makes sure that the running function of b does not hold up others for too long. The
// timer stays set when the function returns: it serves the next function, too. The caller holds the
// queue's lock.
func (s *stored) limitRunning(b *batch) {
	if b.limit == nil {
		b.limit = time.AfterFunc(time.Until(b.started.Add(b.allowed)), func() { s.checkSlow(b) })
	}
}

// checkSlow detaches the running function of b if it has used up its time.
func (s *stored) checkSlow(b *batch) {
	s.queue.Lock()
	b.limit = nil
	w := b.running
	if w != nil && time.Since(b.started) < b.allowed { // a later function than the timer was set for
		s.limitRunning(b)
		w = nil
	}
	s.queue.Unlock()
	if w != nil {
		s.detach(b, w)
	}
}

// detach lets b go on without w, whose function runs on and commits alone.
func (s *stored) detach(b *batch, w *storedWaiter) {
	s.queue.Lock()
	if b.running != w { // w may serve another call by now: its Value must not be read
		s.queue.Unlock()
		return
	}
	s.beginAlone(w)
	s.goOnWithout(b, w)
	call, ctx, verb := w.Value.call, w.Value.ctx, w.Value.change.verb
	s.queue.Unlock()
	call.observe(ctx, Event{Type: EventDetached, Path: "cas", Verb: verb})
}

// goOnWithout drives b on a new goroutine, without w, whose function runs. The caller holds the
// queue's lock.
func (s *stored) goOnWithout(b *batch, w *storedWaiter) {
	b.running, b.joined = nil, true // the function must not lose to writers that come later
	b.next--
	b.members = slices.Delete(slices.Clone(b.members), b.next, b.next+1)
	go func() {
		if s.drive(b) == queue.Kept {
			s.Work()
		}
	}()
}

// beginAlone notes that w runs outside the queue. The caller holds the queue's lock.
func (s *stored) beginAlone(w *storedWaiter) {
	s.alone = append(s.alone, w)
	s.queue.Detach()
}

// endAlone ends beginAlone. The caller holds the queue's lock.
func (s *stored) endAlone(w *storedWaiter) {
	i := slices.Index(s.alone, w)
	if i < 0 {
		return
	}
	s.alone = slices.Delete(s.alone, i, i+1)
	s.queue.Attach()
	if s.queue.Idle() && !s.queue.Driven() {
		s.keepCached()
	}
}

// requeue gives a function that keeps losing outside the queue one bounded run with the queue to
// itself. It reports false if that is not due, or was had.
func (s *stored) requeue(w *storedWaiter) bool {
	v := &w.Value
	if v.exclusive || v.attempts < v.call.retry.Attempts/2 {
		return false
	}
	s.queue.Lock()
	defer s.queue.Unlock()
	if w.Left() || v.abandoned || s.submit(w) != nil {
		return false
	}
	v.exclusive = true
	s.endAlone(w)
	return true
}

// leaveAgain takes w, which lost again, out of the queue that it had to itself. It goes on outside, in a
// batch of its own like b.
func (s *stored) leaveAgain(b *batch, w *storedWaiter) {
	s.queue.Lock()
	defer s.queue.Unlock()
	s.batch = nil
	s.beginAlone(w)
	go s.drive(&batch{members: []*storedWaiter{w}, draft: b.draft, fresh: b.fresh,
		retriedAtOnce: b.retriedAtOnce, joined: true, careful: b.careful, alone: w})
}

// checkStuck is called when the caller of w left at its deadline. It makes sure that the function of
// w is reported, once, when it has itself run longer than its budget.
func (s *stored) checkStuck(w *storedWaiter) {
	v := &w.Value
	s.queue.Lock()
	if v.checked || !v.running {
		s.queue.Unlock()
		return
	}
	v.checked = true
	left := time.Until(v.started.Add(v.call.retry.Within))
	if left > 0 {
		v.check = time.AfterFunc(left, func() { s.reportStuck(w) })
	}
	s.queue.Unlock()
	if left <= 0 {
		s.reportStuck(w)
	}
}

// reportStuck reports w, unless its function has returned or was abandoned.
func (s *stored) reportStuck(w *storedWaiter) {
	v := &w.Value
	s.queue.Lock()
	running := v.running && !v.abandoned
	s.queue.Unlock()
	if running {
		v.call.reportStuck(v.ctx, "cas", v.change.verb, time.Since(v.submitted))
	}
}

// endFunction notes that the function of v has returned. The caller holds the queue's lock.
func (v *storedCall) endFunction() {
	v.running = false
	if v.check != nil {
		v.check.Stop() // else it keeps the container until it fires
	}
}

// abandon discards the results of the functions that run, in the queue and outside, and that started
// at since; the zero time means all. It reports false if there is none.
func (s *stored) abandon(since time.Time) bool {
	s.queue.Lock()
	var given, present []*storedWaiter
	meant := func(w *storedWaiter) bool {
		return !w.Value.abandoned && (since.IsZero() || w.Value.started.Equal(since))
	}
	for _, w := range s.alone {
		if w.State == queue.Running && meant(w) {
			given = append(given, w)
		}
	}
	for _, w := range given {
		s.endAlone(w) // Close does not wait for it any more
	}
	if b := s.batch; b != nil && b.running != nil && meant(b.running) {
		given = append(given, b.running)
		s.goOnWithout(b, b.running)
	}
	for _, w := range given {
		w.Value.abandoned = true
		if s.queue.Answer(w) {
			present = append(present, w)
		}
	}
	s.queue.Unlock()
	for _, w := range given {
		w.Value.call.observe(w.Value.ctx, Event{Type: EventAbandoned, Path: "cas", Verb: w.Value.change.verb})
	}
	for _, w := range present {
		w.Wake()
	}
	return len(given) > 0
}
