package pawl

import (
	"time"

	"github.com/pawl-go/pawl/internal/state"
)

// The turns of an in-memory container's queue: what its worker does.

func (c *Container[T]) take(w *waiter) { c.queue.takeAll(w) }

func (c *Container[T]) rest() { c.alone = nil }

// stint is the run of a function that has the queue to itself. Whoever sets frame.over, the worker or Abandon, has the say about its result.
type stint struct {
	frame
	waiter *waiter // its caller's again once it is answered: whoever has not set over may look at its atomic fields only
}

// private is what one run of a function gets: its context, and its copy of the state. It can keep both for as long as it likes.
type private[T any] struct {
	stint
	draft T
}

// turn is what came of a turn.
type turn[T any] struct {
	stint    *stint // nil: of a data verb
	cur, img *image[T]
	err      error
	waited   time.Duration
}

// run makes Container a runner: it gives all who were taken their turns, one by one. The turn of first has begun, unless it has left.
func (c *Container[T]) run(first *waiter) (driving bool) {
	q := &c.queue
	w := first
	if w == q.rest {
		w = q.nextTurn()
	}
	for ; w != nil; w = q.nextTurn() {
		if !c.runOne(w) {
			return false
		}
	}
	return true
}

// goOn is run for a goroutine that takes over.
func (c *Container[T]) goOn() {
	if c.run(c.queue.rest) {
		c.queue.work(c)
	}
}

// runOne lets w do its work, and publishes the result. It reports whether this goroutine still has the queue.
func (c *Container[T]) runOne(w *waiter) (driving bool) {
	t := turn[T]{cur: c.image.Load()}
	if w.call.env.observer != nil {
		t.waited = time.Since(w.submitted)
		w.call.observe(w.ctx, Event{Type: Started, Path: "lock", Verb: w.verb(), Waited: t.waited})
	}
	var (
		ctx   = w.ctx
		tail  *state.Tail
		draft *T
		ch    = &w.own
		fn    function
	)
	if lone, ok := w.answer.(atomicMutation[T]); ok {
		fn, ch = lone, w.call.lone
	} else {
		fn = ch.fn
	}
	if fn == nil && ch.bounded() {
		tail = &c.tail // bounded changes cannot be abandoned half-way, so nobody else uses it now
	} else {
		own := &private[T]{}
		f := &own.stint
		f.Context, f.inside, f.waiter = w.ctx, c.insideOf(w, fn), w
		f.begin()
		c.queue.holder.Store(f)
		t.stint, draft, ctx = f, &own.draft, f
	}
	p := guarded(func() { t.img, t.err = c.next(ctx, t.cur, &w.call, ch, fn, tail, draft) }, func() {
		if c.settle(w, &t, nil, true) {
			go c.goOn() // this goroutine is on its way out
		}
	})
	return c.settle(w, &t, p, false)
}

// insideOf returns what the frame of w needs to know. Functions that are called outside of any other share it.
func (c *Container[T]) insideOf(w *waiter, fn function) *inside {
	if !c.home.Registered() {
		key := w.call.key // for longer than the call lasts
		return &inside{queue: &c.queue, key: &key, verb: w.verb(), parent: w.parent, lease: w.call.lease}
	}
	if w.parent != nil || w.call.lease != nil || fn == nil {
		return &inside{queue: &c.queue, key: c.home.Key(), verb: w.verb(), parent: w.parent, lease: w.call.lease}
	}
	if c.alone == nil {
		c.alone = &inside{queue: &c.queue, key: c.home.Key(), verb: "Atomic"}
	}
	return c.alone
}

// settle ends a turn: it publishes the result and answers, unless the run was abandoned. It reports whether this goroutine still has the queue.
func (c *Container[T]) settle(w *waiter, t *turn[T], p *PanicError, exited bool) (driving bool) {
	abandoned := t.stint != nil && !t.stint.over.CompareAndSwap(false, true)
	if p != nil || exited {
		// Its caller gets it, unless that has left. An abandoned waiter is not used again, so this may still look at it.
		left := abandoned
		if !abandoned {
			_, stays := w.become(isClosing, isLeft)
			left = !stays
			w.panic, w.exited = p, exited
		}
		if !left {
			w.answered(isOdd)
		}
		w.call.reportPanic(w.ctx, "lock", w.verb(), p, left) // a waiter with a panic is not used again, either
		if !left {
			w.poke()
		}
		return !abandoned
	}
	if abandoned {
		return false
	}
	if t.err == nil && t.img != t.cur {
		if w.call.lease != nil {
			t.err = w.call.lease.lostAny()
		}
		if t.err == nil {
			c.publishTurn(t.cur, t.img)
		}
	}
	how := uint32(0)
	if t.err != nil {
		w.err, how = t.err, isOdd
	} else {
		w.answer = t.img
		if t.img != nil && t.img.life == alive && t.img.expires == 0 {
			w.version = t.img.version
		}
	}
	if w.call.env.observer != nil {
		c.answerObserved(w, t, how)
	} else {
		bell := w.bell
		if w.answered(how) { // from here on the waiter is its caller's, who may use it again
			bell.poke()
		}
	}
	return true
}

// answerObserved answers w and tells the observer. The caller cannot leave without its answer meanwhile.
func (c *Container[T]) answerObserved(w *waiter, t *turn[T], how uint32) {
	bell, ctx, call, verb, took := w.bell, w.ctx, w.call, w.verb(), time.Since(w.submitted)
	asleep := w.answered(how)
	c.observeEnd(ctx, &call, verb, t.cur, t.img, t.err, t.waited, took)
	if asleep {
		bell.poke()
	}
}

// publishTurn is publish by whoever has the queue and does not hold its lock. That is needed only where a container may be pinned or unpinned.
func (c *Container[T]) publishTurn(cur, img *image[T]) {
	if cur != nil && cur.life == alive && cur.expires == 0 && img.life == alive && img.expires == 0 {
		c.image.Store(img)
		c.announce()
		return
	}
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	c.publish(cur, img)
}
