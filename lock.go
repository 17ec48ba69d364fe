package pawl

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/internal/waitgraph"
)

// The in-memory path, from top to bottom:
//
//	apply ─► applyInPlace   a data verb on an idle queue: applied under the queue's lock
//	  │
//	  └────► applyInTurn ─► queue ─► work ─► runTurn ─► next ─► finish ─► publish and answer
//
// A data verb is bounded, so it may run on its caller's goroutine. A function is user code: it runs
// on the worker's goroutine, which its caller can leave at its deadline. The function then runs on,
// and if it returns, its result commits. The races of the queue are described in internal/queue;
// two more are decided here:
//   - a data verb in place against a turn: the verb runs under the queue's lock, and only while no
//     waiter waits or has its turn.
//   - a function that returns against Abandon: both take the queue's lock, and the one that finds
//     the turn still current decides what becomes of the result.

// Container holds one state and the queue of its writers. The zero value is empty and ready; it
// must not be copied. Scopes have their own containers. Other containers are for ApplyMutation,
// always with the same ContainerOptions.Persist and Observer.
type Container[T any] struct{ container }

// container is a Container without its type: like the rest of the engine, it is compiled once for
// all types.
type container struct {
	_ noCopy

	typ   *state.Type  // of a scope's container; nil for one of the caller's own
	place registration // where a scope's container is registered; zero for one of the caller's own
	queue queue.Queue[pending]
	awake sync.WaitGroup // counts the caller that was answered last, until it has its answer; used if no other waited
	lane  waitgraph.Lane // the queue as deadlock detection sees it
	image atomic.Pointer[image]
	group atomic.Pointer[notify.Group] // of watchers; nil: there never were any

	// Protected by the queue's lock.
	tail state.Tail // lets lists grow in place; not for functions: an abandoned one may still run

	first uint64 // the first version; written once, before the first image

	own    atomic.Pointer[env]    // of a container of the caller's own
	stored atomic.Pointer[stored] // the persisted path of a container of the caller's own
}

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// image is one committed version of an in-memory state. It never changes.
type image struct {
	state   any // *T
	version uint64
	life    life
	expires int64 // Unix nanoseconds; 0: never
}

// newImage implements stateType.
func (typed[T]) newImage(from any) *image {
	made := &struct { // one allocation for both
		image
		value T
	}{}
	if from != nil {
		made.value = *from.(*T)
	}
	made.state = &made.value
	return &made.image
}

// pending is a mutation in an in-memory queue.
type pending struct {
	ctx       context.Context
	call      call
	change    change
	submitted time.Time
	frame     *frame // the context of its function; nil: it is a data verb

	// Of its run, protected by the queue's lock.
	started   time.Time
	checked   bool        // checkStuck looked at it: a caller left at its deadline
	check     *time.Timer // calls reportStuck; nil: not set
	abandoned bool        // it was answered while its function ran

	// The answer: written by the worker before it answers, read by the caller after that.
	image *image
	err   error
	panic *PanicError // or goexit
}

// apply runs ch in its turn, and returns the version that is current then, nil if there is none.
func (c *container) apply(ctx context.Context, parent *frame, call *call, ch *change) (*image, error) {
	if parent != nil {
		if err := parent.callOut(&c.lane, call.key); err != nil {
			return nil, err
		}
	}
	if ch.bounded() {
		if img, ran, err := c.applyInPlace(ctx, call, ch); ran {
			return img, err
		}
	}
	if parent != nil {
		if err := parent.waitFor(&c.lane); err != nil {
			return nil, err
		}
		defer parent.Waited(&c.lane)
	}
	return c.applyInTurn(ctx, parent, call, ch)
}

// applyInPlace runs a data verb under the queue's lock, and reports false if it has to wait its
// turn.
func (c *container) applyInPlace(ctx context.Context, call *call, ch *change) (img *image, ran bool, err error) {
	cur, img, ran, err := c.tryInPlace(ctx, call, ch)
	if ran && err != ErrClosed && call.env.observer != nil {
		call.observe(ctx, Event{Type: EventStarted, Path: "lock", Verb: ch.verb})
		observeEnd(ctx, call, ch.verb, cur, img, err, 0, 0)
	}
	return img, ran, err
}

func (c *container) tryInPlace(ctx context.Context, call *call, ch *change) (cur, img *image, ran bool, err error) {
	c.queue.Lock()
	defer c.queue.Unlock()
	if c.queue.Closed() {
		return nil, nil, true, ErrClosed
	}
	if !c.queue.Idle() {
		return nil, nil, false, nil
	}
	cur = c.image.Load()
	if img, err = c.next(ctx, cur, call, ch); err == nil {
		c.publish(cur, img)
	}
	return cur, img, true, err
}

// applyInTurn queues ch and waits for its answer.
func (c *container) applyInTurn(ctx context.Context, parent *frame, call *call, ch *change) (*image, error) {
	w := call.env.waiters.Get().(*queue.Waiter[pending])
	p := &w.Value
	p.ctx, p.submitted = ctx, time.Now()
	p.call = *call // apart: an assignment of all at once goes through temporary copies
	p.change = *ch
	if call.timeout > 0 {
		w.Deadline = p.submitted.Add(call.timeout)
	}
	if !ch.bounded() {
		p.frame = newFrame(ctx, parent, call.lease)
		p.frame.Lane, p.frame.Name, p.frame.until = &c.lane, call.key, w.Deadline
	}
	if call.env.observer != nil {
		call.observe(ctx, Event{Type: EventQueued, Path: "lock", Verb: ch.verb, Queue: c.queue.Len()})
	}
	if err := c.queue.Push(w, call.env.maxQueue, turnWorker{c}); err != nil {
		return nil, refusedByQueue(err, call.key)
	}
	switch ending, reached := c.queue.Await(ctx, w); ending {
	case queue.Canceled:
		call.observe(ctx, Event{Type: EventWithdrawn, Path: "lock", Verb: ch.verb, Err: context.Cause(ctx)})
		return nil, leftBy(ctx, call.key, phaseOf(reached))
	case queue.TimedOut:
		err := &ScopeMutationTimeoutError{Scope: call.key, Budget: call.timeout, Waited: time.Since(p.submitted), Phase: phaseOf(reached)}
		call.observe(ctx, Event{Type: EventTimedOut, Path: "lock", Verb: ch.verb, Took: err.Waited, Err: err})
		c.checkStuck()
		return nil, err
	}
	img, err, panicked := p.image, p.err, p.panic
	if !p.checked && !p.abandoned { // else reportStuck or finish may still look at it
		w.Clear()
		call.env.waiters.Put(w)
	}
	raise(panicked)
	return img, err
}

// turnWorker makes container a queue.Worker without an exported method.
type turnWorker struct{ container *container }

func (w turnWorker) Work() { w.container.work() }

// work gives every waiter its turn.
func (c *container) work() {
	for {
		c.awake.Wait()
		c.queue.Lock()
		w := c.queue.Next()
		if w != nil {
			w.State = queue.Running
			if p := &w.Value; p.frame != nil {
				p.started = time.Now()
				c.lane.Hold(&p.frame.Node)
			}
		}
		c.queue.Unlock()
		if w == nil || c.runTurn(w) == queue.Passed {
			return
		}
	}
}

// result is what the turn of a waiter came to.
type result struct {
	cur, img *image
	err      error
	panic    *PanicError // or goexit
	waited   time.Duration
}

// runTurn computes the result of w and publishes it.
func (c *container) runTurn(w *queue.Waiter[pending]) queue.Ownership {
	p := &w.Value
	t := result{cur: c.image.Load()}
	if p.call.env.observer != nil {
		t.waited = time.Since(p.submitted)
		p.call.observe(p.ctx, Event{Type: EventStarted, Path: "lock", Verb: p.change.verb, Waited: t.waited})
	}
	ctx := p.ctx
	if p.frame != nil {
		ctx = p.frame
	}
	t.panic = guarded(func() { t.img, t.err = c.next(ctx, t.cur, &p.call, &p.change) }, func() {
		t.panic = goexit
		if c.finish(w, &t) == queue.Kept {
			go c.work() // this goroutine is ending
		}
	})
	return c.finish(w, &t)
}

// finish publishes the result of a turn and answers w, unless w was abandoned meanwhile.
func (c *container) finish(w *queue.Waiter[pending], t *result) queue.Ownership {
	p := &w.Value
	if p.frame != nil {
		p.frame.release()
	}
	if t.err == nil && t.img != t.cur && t.panic == nil {
		t.err = p.call.lease.lostAny() // before the lock: it may call the observer
	}
	ownership, present := queue.Passed, false
	c.queue.Lock()
	if c.queue.Current() == w {
		ownership = queue.Kept
		if p.frame != nil {
			c.endFunction(p)
		}
		if t.err == nil && t.img != t.cur && t.panic == nil {
			c.publish(t.cur, t.img)
		}
		p.image, p.err, p.panic = t.img, t.err, t.panic
		present = c.queue.Answer(w)
		c.queue.EndTurn() // from here on it cannot be abandoned
	}
	c.queue.Unlock()
	switch {
	case t.panic != nil:
		p.call.reportPanic(p.ctx, "lock", p.change.verb, t.panic, !present)
	case ownership == queue.Kept && p.call.env.observer != nil:
		observeEnd(p.ctx, &p.call, p.change.verb, t.cur, t.img, t.err, t.waited, time.Since(p.submitted))
	}
	switch {
	case present && ownership == queue.Kept && c.queue.Len() == 0:
		w.WakeFor(&c.awake)
	case present:
		w.Wake()
	}
	return ownership
}

// endFunction ends what concerns the function of p alone. The caller holds the queue's lock.
func (c *container) endFunction(p *pending) {
	p.frame.End()
	c.lane.Release()
	if p.check != nil {
		p.check.Stop() // else it keeps the container until it fires
	}
}

// next computes the version that ch makes of cur, which is nil at first. It returns cur itself when
// nothing changes.
func (c *container) next(ctx context.Context, cur *image, call *call, ch *change) (*image, error) {
	var (
		l       = absent
		version uint64
		from    any
		now     int64
	)
	if call.ttl > 0 || cur != nil && cur.expires != 0 {
		now = time.Now().UnixNano()
	}
	if cur != nil {
		if l, version = cur.lifeAt(now), cur.version; l == alive {
			from = cur.state
		}
	}
	if err := call.checkConditions(ch, l, version); err != nil {
		return nil, err
	}
	var expires int64
	if call.ttl > 0 {
		if expires = now + int64(call.ttl); expires < now {
			expires = math.MaxInt64
		}
	}
	var img *image
	if ch.deletes {
		if l != alive {
			return cur, nil
		}
		img = &image{life: deleted}
	} else {
		var changed bool
		var err error
		if ch.bounded() {
			img = ch.stateOf.newImage(from)
			changed, err = ch.data.Apply(from, img.state, &c.tail)
		} else {
			img = ch.stateOf.newImage(nil)
			changed, err = ch.apply(ctx, from, img.state)
		}
		img.life, img.expires = alive, expires
		if err != nil {
			return nil, refused(call.key, ch.verb, err)
		}
		if !changed && (l == alive || !ch.creates && !call.absent) {
			if l != alive || call.ttl == 0 {
				return cur, nil
			}
			renewed := *cur // only the expiry moves
			renewed.expires = expires
			return &renewed, nil
		}
		if !changed { // the scope is created with a zero state, which for a map is an empty one
			img.state = ch.typ.Zero()
		}
	}
	if cur == nil {
		version = c.place.Floor()
	}
	img.version = version + 1
	return img, nil
}

// publish makes img current. The caller holds the queue's lock and has the turn.
func (c *container) publish(cur, img *image) {
	if img == cur {
		return
	}
	if cur == nil {
		c.first = img.version
	}
	c.image.Store(img)
	c.group.Load().Notify()
	if img.life == deleted {
		c.tail = state.Tail{} // it refers to lists of the deleted state
	}
	if !c.place.Registered() {
		return
	}
	c.place.Pin()
	if img.life == deleted {
		c.place.AddTombstone()
	}
	if img.expires != 0 {
		c.place.Expires()
	}
}

// checkStuck is called when a caller leaves at its deadline. It makes sure that the function that
// has the turn is reported, once, when it has itself run longer than its budget.
func (c *container) checkStuck() {
	c.queue.Lock()
	w := c.queue.Current()
	if w == nil || w.Value.frame == nil || w.Value.checked || w.Value.call.timeout <= 0 {
		c.queue.Unlock()
		return
	}
	w.Value.checked = true
	left := time.Until(w.Value.started.Add(w.Value.call.timeout))
	if left > 0 {
		w.Value.check = time.AfterFunc(left, func() { c.reportStuck(w) })
	}
	c.queue.Unlock()
	if left <= 0 {
		c.reportStuck(w)
	}
}

// reportStuck reports w, unless its function has returned or was abandoned.
func (c *container) reportStuck(w *queue.Waiter[pending]) {
	c.queue.Lock()
	current := c.queue.Current() == w
	c.queue.Unlock()
	if !current {
		return
	}
	p := &w.Value
	took := time.Since(p.submitted)
	p.call.reportStuck(p.ctx, "lock", p.change.verb, took)
}

// abandon discards the result of the function that has the turn, and lets the queue move on. It
// reports false if no function that started at since has the turn; the zero time means any.
func (c *container) abandon(since time.Time) bool {
	c.queue.Lock()
	w := c.queue.Current()
	if w == nil || w.Value.frame == nil || !since.IsZero() && !w.Value.started.Equal(since) {
		c.queue.Unlock()
		return false
	}
	p := &w.Value
	c.endFunction(p)
	p.abandoned, p.err = true, wrapKey(ErrAbandoned, p.call.key)
	present := c.queue.Answer(w)
	c.queue.Release(turnWorker{c})
	c.queue.Unlock()
	p.call.observe(p.ctx, Event{Type: EventAbandoned, Path: "lock", Verb: p.change.verb})
	if present {
		w.Wake()
	}
	return true
}

// close makes container closable: it refuses new work and ends the watches.
func (c *container) close() <-chan struct{} {
	c.group.Load().Close()
	return c.queue.Close()
}

// busy describes the mutation that runs, for BusyError.
func (c *container) busy() []Running {
	c.queue.Lock()
	defer c.queue.Unlock()
	w := c.queue.Current()
	if w == nil {
		w = c.queue.First()
	}
	if w == nil {
		return nil
	}
	return []Running{{Scope: w.Value.call.key, Verb: w.Value.change.verb, Waiting: c.queue.Len()}}
}

// release unpins a container without state. A tombstone stays until it is forgotten.
func (c *container) release(forgotten bool) {
	c.queue.Lock()
	defer c.queue.Unlock()
	img := c.image.Load()
	if img == nil {
		return
	}
	if l := img.lifeAt(time.Now().UnixNano()); l == expired || l == deleted && forgotten {
		c.place.Unpin(img.version)
	}
}

// lifeAt judges expiry by the host's clock, in Unix nanoseconds.
func (img *image) lifeAt(now int64) life {
	if img.life == alive && img.expires != 0 && img.expires <= now {
		return expired
	}
	return img.life
}

// snapshot returns img, which may be nil, if it is alive.
func (img *image) snapshot(id string) snapshot {
	if img == nil || img.life != alive || img.expires != 0 && img.lifeAt(time.Now().UnixNano()) != alive {
		return snapshot{id: id}
	}
	return snapshot{id: id, version: img.version, state: img.state}
}

// goexit stands for a call of runtime.Goexit where the panic of a function is kept.
var goexit = &PanicError{}

// raise raises the panic or Goexit of a function again, on the goroutine of its caller.
func raise(p *PanicError) {
	switch p {
	case nil:
	case goexit:
		runtime.Goexit()
	default:
		panic(p)
	}
}

// guarded runs fn, which may be user code, and returns its panic, nil if there was none. If fn
// calls runtime.Goexit, guarded calls exit and does not return, even when a deferred function of fn
// panicked on the way out.
func guarded(fn func(), exit func()) (p *PanicError) {
	returned := false
	defer func() {
		if !returned {
			exit()
		}
	}()
	p = caught(fn)
	returned = true
	return p
}

// caught runs fn and returns its panic, nil if there was none.
func caught(fn func()) (p *PanicError) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	fn()
	returned = true
	return nil
}
