package pawl

import (
	"slices"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
)

// How a transaction keeps the queues of its scopes. See transaction for why it does, and for how long.

// hold waits for its turn in the queues of these parts, in the order of their keys, and keeps it until letGo, or for exclusiveFor at most.
func (t *transaction) hold(parts []*part) error {
	if t.joined() {
		return nil
	}
	for _, p := range slices.SortedFunc(slices.Values(parts), func(a, b *part) int { return a.key.Compare(b.key) }) {
		held, err := t.holdOne(p)
		if err != nil {
			t.letGo()
			return err
		}
		if !held {
			continue
		}
		t.mu.Lock()
		t.held = append(t.held, p.stored)
		if t.hour == nil {
			t.hour = time.AfterFunc(exclusiveFor, t.letGo)
		}
		t.mu.Unlock()
	}
	return nil
}

func (t *transaction) holdOne(p *part) (held bool, err error) {
	s := p.stored
	if t.parent != nil {
		if err := t.parent.waitFor(&s.lane); err != nil {
			return false, err
		}
		defer t.parent.Waited(&s.lane)
	}
	w := &storedWaiter{Bell: queue.NewBell(), Deadline: t.deadline.Add(lastWord)}
	w.Value = storedCall{ctx: t.ctx, parent: t.parent, change: &change{verb: "Transact"}, backend: p.bound, holds: true, submitted: time.Now()}
	w.Value.call = call{terms: &terms{env: t.env, retry: t.retry}, key: p.key}
	return s.hold(w)
}

func (t *transaction) heldQueues() []*stored {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// letGo gives the held queues back. It is safe to call twice, and from a timer.
func (t *transaction) letGo() {
	t.mu.Lock()
	held := t.held
	t.held = nil
	if t.hour != nil {
		t.hour.Stop()
		t.hour = nil
	}
	t.mu.Unlock()
	for _, s := range held {
		s.letGo()
	}
}

// hold waits until w, which belongs to a transaction, has the queue to itself; letGo ends that. A
// closed queue cannot be held: work accepted before Close finishes without. It returns the errors of
// enter and await.
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
	err = s.enter(w)
	s.queue.Unlock()
	if err == nil {
		err = s.await(w)
	}
	return err == nil, err
}

// grant gives the queue to w, whose turn it is. From then on w's transaction drives it. The caller
// holds the queue's lock.
func (s *stored) grant(w *storedWaiter) queue.Ownership {
	if !s.queue.Answer(w) {
		return queue.Kept
	}
	w.Wake()
	return queue.Passed
}

// letGo ends what hold began.
func (s *stored) letGo() {
	s.queue.Lock()
	defer s.queue.Unlock()
	if s.free != nil {
		close(s.free)
		s.free = nil
	}
	if s.queue.First() == nil {
		s.rest()
	}
	s.queue.Release(s)
}

// giveWay waits while a transaction holds the queue: a function that left the queue must not be
// faster than a transaction that waited for it.
func (s *stored) giveWay() {
	s.queue.Lock()
	if w := s.queue.Current(); w == nil || !w.Value.holds {
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
