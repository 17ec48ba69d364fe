package pawl

import (
	"slices"
	"time"
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
		t.held = append(t.held, p.cell)
		if t.hour == nil {
			t.hour = time.AfterFunc(exclusiveFor, t.letGo)
		}
		t.mu.Unlock()
	}
	return nil
}

func (t *transaction) holdOne(p *part) (held bool, err error) {
	c := p.cell
	if t.parent != nil {
		if err := t.parent.waitFor(&c.queue); err != nil {
			return false, err
		}
		defer t.parent.waited(&c.queue)
	}
	w := newWaiter()
	w.ctx, w.parent, w.change = t.ctx, t.parent, &change{verb: "Transact"}
	w.call = call{terms: &terms{env: t.env, retry: t.retry}, key: p.key}
	w.submitted, w.deadline = time.Now(), t.deadline.Add(lastWord)
	w.cas.backend, w.cas.holds = p.bound, true
	return c.hold(w)
}

func (t *transaction) heldCells() []*cell {
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
	for _, c := range held {
		c.letGo()
	}
}

// hold waits until w, which belongs to a transaction, has the queue to itself; letGo ends that. A queue that is closed cannot be held: whoever is
// still at work finishes without. It returns the errors of await and push.
func (c *cell) hold(w *waiter) (held bool, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false, nil
	}
	if c.idle() && !c.working.Load() {
		c.working.Store(true)
		c.running = w
		w.answered(0)
		c.mu.Unlock()
		return true, nil
	}
	err = c.enter(w)
	c.mu.Unlock()
	if err == nil {
		w.arm(w.submitted)
		err = c.await(w)
		w.disarm()
	}
	return err == nil, err
}

// grant gives the queue to w, whose turn it is. From then on w's transaction drives it.
func (c *cell) grant(w *waiter) (driving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.left {
		c.running = nil
		return true
	}
	w.finish()
	return false
}

// letGo ends what hold began.
func (c *cell) letGo() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
	c.working.Store(false)
	if c.free != nil {
		close(c.free)
		c.free = nil
	}
	if c.first != nil {
		c.start(c)
		return
	}
	c.rest()
	c.signalDrained()
}

// giveWay waits while a transaction holds the queue: a function that left it is not to be faster than one that waited for it.
func (c *cell) giveWay() {
	c.mu.Lock()
	if c.running == nil || !c.running.cas.holds {
		c.mu.Unlock()
		return
	}
	if c.free == nil {
		c.free = make(chan struct{})
	}
	free := c.free
	c.mu.Unlock()
	limit := time.NewTimer(exclusiveFor)
	defer limit.Stop()
	select {
	case <-free:
	case <-limit.C:
	}
}
