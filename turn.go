package pawl

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/internal/state"
)

// The turns of an in-memory container's queue: what its worker does.

func (c *Container[T]) turn() phase { return running }

func (c *Container[T]) rest() {}

// turn is a waiter that has the queue. It holds copies of what is needed afterwards: the waiter itself is its caller's again once it is answered.
type turn[T any] struct {
	w         *waiter
	ctx       context.Context
	call      call
	verb      string
	submitted time.Time
	waited    time.Duration
	frame     *frame // nil: of a data verb
	cur, img  *image[T]
	err       error
}

// private is what one run of a function gets: its context, and its copy of the state. It can keep both for as long as it likes.
type private[T any] struct {
	frame
	draft T
}

// run makes Container a runner: it lets the functions of w and of those behind it do their work, one by one, and publishes their results.
func (c *Container[T]) run(w *waiter) (driving bool) {
	for w != nil {
		if w, driving = c.runOne(w); !driving {
			return false
		}
	}
	return true
}

// goOn is run for a goroutine that takes over.
func (c *Container[T]) goOn(next *waiter) {
	if c.run(next) {
		c.queue.work(c)
	}
}

func (c *Container[T]) runOne(w *waiter) (next *waiter, driving bool) {
	ch := w.change
	t := turn[T]{w: w, ctx: w.ctx, call: w.call, verb: ch.verb, cur: c.image.Load()}
	if t.call.env.observer != nil {
		t.submitted = w.submitted
		t.waited = time.Since(t.submitted)
		t.call.observe(t.ctx, Event{Type: Started, Path: "lock", Verb: t.verb, Waited: t.waited})
	}
	var (
		inside = t.ctx
		tail   *state.Tail
		draft  *T
	)
	if ch.bounded() {
		tail = &c.tail // bounded changes cannot be abandoned half-way, so nobody else uses it now
	} else {
		own := &private[T]{frame: frame{Context: t.ctx, queue: &c.queue, key: c.keyOf(&t.call), parent: w.parent, lease: t.call.lease}}
		t.frame, draft = &own.frame, &own.draft
		t.frame.begin()
		c.queue.holder.Store(t.frame)
		inside = t.frame
	}
	p := guarded(func() { t.img, t.err = c.next(inside, t.cur, &t.call, ch, tail, draft) }, func() {
		if next, driving := c.settle(&t, nil, true); driving {
			go c.goOn(next) // this goroutine is on its way out
		}
	})
	return c.settle(&t, p, false)
}

// keyOf returns the key that calls on c have, for longer than one of them lasts.
func (c *Container[T]) keyOf(call *call) *Key {
	if c.home != nil {
		return &c.home.key
	}
	own := call.key
	return &own
}

// settle ends a turn: it publishes the result and answers, unless the run was abandoned. It reports whether this goroutine still has the queue,
// and whose turn is next; nil: nobody waits.
func (c *Container[T]) settle(t *turn[T], p *PanicError, exited bool) (next *waiter, driving bool) {
	q, w := &c.queue, t.w
	if t.frame != nil {
		t.frame.end()
		q.holder.CompareAndSwap(t.frame, nil)
	}
	if p == nil && !exited && t.err == nil && t.img != t.cur && t.call.lease != nil {
		t.err = t.call.lease.lostAny()
	}
	q.mu.Lock()
	wanted, left := q.release(w), w.left
	if wanted {
		if p == nil && !exited && t.err == nil {
			c.publish(t.cur, t.img)
		}
		w.answer, w.err, w.panic, w.exited = t.img, t.err, p, exited
		w.done.Store(true) // from here on its caller cannot leave without the answer
		// Who waits can withdraw while an observer or a log is told.
		if q.first != nil && t.call.env.observer == nil && p == nil && !exited {
			next = q.first
			q.give(next, running)
		}
	}
	q.mu.Unlock()
	if p != nil || exited {
		t.call.reportPanic(t.ctx, "lock", t.verb, p, left || !wanted)
	} else if wanted && t.call.env.observer != nil {
		c.observeEnd(t.ctx, &t.call, t.verb, t.cur, t.img, t.err, t.waited, time.Since(t.submitted))
	}
	if wanted && w.asleep.Load() {
		w.poke()
	}
	return next, wanted
}
