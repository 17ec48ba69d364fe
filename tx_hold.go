package pawl

import (
	"slices"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
)

// Holding queues: see transaction for why and for how long a transaction holds them.

// hold waits for its turn in the queues of parts, in the order of their keys. It holds them until
// releaseQueues, or for exclusiveFor at most. If it returns an error it holds none. Another
// transaction may give it the turn in a group, with the queues of all the scopes that it touched;
// t.group says so.
func (t *transaction) hold(parts, touched []*part) error {
	if t.joined() {
		return nil
	}
	t.wants = nil
	if !t.alone && t.lease == nil {
		for _, p := range touched {
			t.wants = append(t.wants, p.stored)
		}
	}
	for _, p := range slices.SortedFunc(slices.Values(parts), func(a, b *part) int { return a.key.Compare(b.key) }) {
		held, err := t.holdOne(p)
		if err != nil {
			t.releaseQueues()
			return err
		}
		if t.group != nil {
			return nil
		}
		if !held {
			continue
		}
		t.mu.Lock()
		t.held = append(t.held, p.stored)
		if t.holdTimer == nil {
			t.holdTimer = time.AfterFunc(exclusiveFor, t.releaseQueues)
		}
		t.mu.Unlock()
	}
	return nil
}

// holdOne waits for its turn in the queue of p. A closed queue is not held.
func (t *transaction) holdOne(p *part) (held bool, err error) {
	s := p.stored
	if t.parent != nil {
		if err := t.parent.waitFor(&s.lane); err != nil {
			return false, err
		}
		defer t.parent.Waited(&s.lane)
	}
	w := queue.NewWaiter[storedCall]()
	w.Deadline = t.deadline.Add(answerGrace)
	w.Value = storedCall{
		ctx: t.ctx, parent: t.parent, change: change{verb: "Transact"}, backend: p.bound,
		holder: t, submitted: time.Now(),
	}
	w.Value.call = call{terms: &terms{env: t.env, retry: t.retry}, key: p.key}
	return s.hold(w)
}

// holdsAll reports whether the transaction holds the queues of all these parts, by itself or in its
// turn in a group.
func (t *transaction) holdsAll(parts []*part) bool {
	held := t.heldQueues()
	return t.group != nil || !slices.ContainsFunc(parts, func(p *part) bool { return !slices.Contains(held, p.stored) })
}

// heldQueues returns the containers whose queues the transaction holds.
func (t *transaction) heldQueues() []*stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// releaseQueues releases the queues that the transaction got by itself. It is safe to call twice, and
// from a timer.
func (t *transaction) releaseQueues() {
	for _, s := range t.takeQueues(nil) {
		s.endHold()
	}
}

// takeQueues returns the held queues, which the caller has to release or pass on. They belong to a turn in
// the group g, or to none if g is nil. It returns nil if t does not hold them any more.
func (t *transaction) takeQueues(g *group) []*stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn != g {
		return nil
	}
	held := t.held
	t.held, t.turn = nil, nil
	if t.holdTimer != nil {
		t.holdTimer.Stop()
		t.holdTimer = nil
	}
	return held
}

// hold waits until w, which belongs to a transaction, has the queue to itself. EndHold ends that. A
// closed queue cannot be held: work accepted before Close finishes without it. It returns the
// errors of submit and await.
func (s *stored) hold(w *storedWaiter) (held bool, err error) {
	s.queue.Lock()
	if s.queue.Closed() {
		s.queue.Unlock()
		return false, nil
	}
	if s.queue.Claim(w) {
		s.queue.Unlock()
		return true, nil
	}
	err = s.submit(w)
	s.queue.Unlock()
	if err == nil {
		err = s.await(w)
	}
	return err == nil, err
}

// endHold releases the queue after hold.
func (s *stored) endHold() {
	s.queue.Lock()
	defer s.queue.Unlock()
	if s.free != nil {
		close(s.free)
		s.free = nil
	}
	if s.queue.First() == nil {
		s.keepCached()
	}
	s.queue.Release(s)
}

// giveWay waits while a transaction holds the queue, for exclusiveFor at most. A function that left
// the queue must not commit before a transaction that waited for it.
func (s *stored) giveWay() {
	s.queue.Lock()
	if w := s.queue.Current(); w == nil || w.Value.holder == nil {
		s.queue.Unlock()
		return
	}
	if s.free == nil {
		s.free = make(chan struct{})
	}
	free := s.free
	s.queue.Unlock()
	limit := time.NewTimer(exclusiveFor)
	defer limit.Stop()
	select {
	case <-free:
	case <-limit.C:
	}
}
