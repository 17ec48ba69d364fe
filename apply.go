package pawl

import (
	"context"
	"math"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/state"
)

// Container holds one state and the queue of its writers. The zero value is empty and ready; it must not be copied. Scopes have
// their own; a container of yours is for ApplyMutation, always with the same path.
type Container[T any] struct {
	_ noCopy

	home registration // zero for a container of the caller's own. It fills a cache line, and does not keep the runtime

	cell                           // the queue of both paths, and what the persisted one has seen
	image atomic.Pointer[image[T]] // the state, on the lock path
	tail  state.Tail               // lets lists grow in place; protected by queue.mu
	first uint64                   // the first version; set before image is
	alone *inside                  // see insideOf; nil: none yet. It belongs to whoever drives the queue
	own   atomic.Pointer[env]      // of a container of the caller's own
}

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// image is one committed version of an in-memory state. It never changes.
type image[T any] struct {
	state   T
	version uint64
	life    life
	expires int64 // Unix nanoseconds; 0: never
}

// Persist is the outside authority of one container: something else can move its version.
type Persist[T any] interface {
	// Load returns the current state, the zero Snapshot when there is none.
	Load(ctx context.Context) (Snapshot[T], error)
	// Commit makes next the current state if the version is still expected, and returns it as stored.
	// Otherwise it returns the state that won and an error that wraps ErrConflict. The test must be
	// part of the write. Any other error leaves the outcome unknown (*UnknownOutcomeError), unless it wraps
	// persist.ErrNotApplied. A Snapshot without state (ReadOnly returns nil) asks for a deletion.
	Commit(ctx context.Context, expected uint64, next Snapshot[T]) (Snapshot[T], error)
}

// Options choose the path of ApplyMutation and its defaults.
type Options[T any] struct {
	Name     string        // for errors and observers
	Persist  Persist[T]    // nil: the lock path; else the compare-and-swap path
	Timeout  time.Duration // 0: 30 s; NoTimeout turns it off
	Retry    Retry         // zero fields: DefaultRetry's
	Observer Observer      // nil costs nothing
}

// ApplyMutation is the one door that every verb goes through. Without o.Persist the mutation waits its turn in c's
// queue; it returns *ScopeMutationTimeoutError at its deadline, *DeadlockError, and never a conflict. With
// o.Persist it also compares and swaps: *ConcurrentModificationError, *UnknownOutcomeError, *UnavailableError. Both return
// the errors of the verb itself, ErrReentrant, *OverloadedError and *CanceledError.
func ApplyMutation[T any](ctx context.Context, c *Container[T], o Options[T], m Mutation, opts ...Option) (Snapshot[T], error) {
	if c == nil {
		return Snapshot[T]{}, &ArgumentError{Argument: "container", Reason: "nil"}
	}
	typ, err := typeFor[T]()
	if err != nil {
		return Snapshot[T]{}, &KindError{Kind: o.Name, Reason: err.Error()}
	}
	if o.Timeout < 0 && o.Timeout != NoTimeout {
		return Snapshot[T]{}, &ArgumentError{Argument: "Options.Timeout", Reason: "negative"}
	}
	if err := o.Retry.check(); err != nil {
		return Snapshot[T]{}, &ArgumentError{Argument: "Options.Retry", Reason: err.Error()}
	}
	defaults := &terms{env: c.ownEnv(o.Observer), timeout: o.Timeout, retry: o.Retry.Or(DefaultRetry)}
	if defaults.timeout == 0 {
		defaults.timeout = DefaultTimeout
	}
	d := dispatch[T]{container: c, typ: typ, defaults: defaults, key: Key{Kind: o.Name}}
	if o.Persist != nil {
		d.backend = custom[T]{o.Persist}
	}
	return d.apply(ctx, m, opts)
}

// Snapshot returns the state last committed or seen, without I/O. It never blocks.
func (c *Container[T]) Snapshot() Snapshot[T] {
	if img := c.image.Load(); img != nil {
		return img.snapshot("")
	}
	d := c.seen.Load()
	if d == nil {
		return Snapshot[T]{}
	}
	v := d.View()
	if v == nil {
		return Snapshot[T]{}
	}
	return snapshotOf[T]("", d.Version, d.At, v.State)
}

func (c *Container[T]) ownEnv(o Observer) *env {
	e := c.own.Load()
	if e == nil {
		e = newEnv()
		e.observer = o
		if !c.own.CompareAndSwap(nil, e) {
			e = c.own.Load()
		}
	}
	return e
}

// dispatch is a call on its way to one of the two paths.
type dispatch[T any] struct {
	container *Container[T] // lock path; persisted: only the caller's own
	cell      *cell         // persisted
	backend   backend       // nil: the lock path
	tx        *Tx           // that the call is part of; nil: none
	bound     *binding      // of a scope
	typ       *state.Type
	defaults  *terms
	key       Key
}

// apply takes m through the door: the lock path without a backend, else the compare-and-swap path.
func (d *dispatch[T]) apply(ctx context.Context, m Mutation, opts []Option) (Snapshot[T], error) {
	var call call
	if err := d.ask(ctx, opts, &call); err != nil {
		return Snapshot[T]{}, err
	}
	if f, ok := m.(atomicMutation[T]); ok && f.fn != nil && d.backend == nil && d.tx == nil {
		img, err := d.inMemory(ctx, &call, nil, f)
		if err != nil {
			return Snapshot[T]{}, err
		}
		return img.snapshot(call.key.ID), nil
	}
	return d.applyOther(ctx, m, &call)
}

// applyOther is apply for all but functions in memory, whose callers wait in great numbers, each with its stack.
func (d *dispatch[T]) applyOther(ctx context.Context, m Mutation, call *call) (Snapshot[T], error) {
	var ch change
	if err := ch.compile(call.key, d.typ, reflect.TypeFor[T](), m); err != nil {
		return Snapshot[T]{}, err
	}
	return d.enter(ctx, call, &ch)
}

// enter takes ch, which is ready to go, to its path.
func (d *dispatch[T]) enter(ctx context.Context, call *call, ch *change) (Snapshot[T], error) {
	if d.backend == nil && d.tx == nil {
		img, err := d.inMemory(ctx, call, ch, nil)
		if err != nil {
			return Snapshot[T]{}, err
		}
		return img.snapshot(call.key.ID), nil
	}
	around, err := d.admit(ctx, call)
	if err != nil {
		return Snapshot[T]{}, err
	}
	if d.tx != nil {
		kept := *ch
		return d.applyInTx(ctx, *call, &kept)
	}
	if d.cell == nil {
		d.cell = &d.container.cell
	}
	r, err := d.cell.apply(ctx, around.caller(), call, ch, d.backend)
	if err != nil {
		return Snapshot[T]{}, err
	}
	return snapshotOf[T](call.key.ID, r.version, r.at, r.state), nil
}

// inMemory takes ch, or else fn, to the lock path, and returns the version that is current then, nil if there is none.
func (d *dispatch[T]) inMemory(ctx context.Context, call *call, ch *change, fn function) (*image[T], error) {
	around, err := d.admit(ctx, call)
	if err != nil {
		return nil, err
	}
	c, parent := d.container, around.caller()
	if parent != nil {
		if err := parent.mutating(&c.queue, call.key); err != nil {
			return nil, err
		}
	}
	if ch != nil && ch.bounded() {
		if img, err, ran := c.runInPlace(ctx, call, ch); ran {
			return img, err
		}
	}
	if parent != nil {
		if err := parent.waitFor(&c.queue); err != nil {
			return nil, err
		}
		defer parent.waited(&c.queue)
	}
	return c.runInTurn(ctx, parent, call, d.typ, ch, fn)
}

// ask makes call what opts say.
func (d *dispatch[T]) ask(ctx context.Context, opts []Option, call *call) (err error) {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	call.key, call.terms = d.key, d.defaults
	if call.terms, err = d.defaults.with(opts); err == nil && call.joined {
		err = &ArgumentError{Argument: "Via", Reason: "is for Transact"}
	}
	return err
}

// admit tells why a call that is ready cannot go on. Around is what ctx was derived from.
func (d *dispatch[T]) admit(ctx context.Context, call *call) (around *frame, err error) {
	if ctx.Err() != nil {
		return nil, leftBy(ctx, call.key, PhaseQueued)
	}
	around = innermost(ctx)
	if call.lease = around.held(); call.lease != nil {
		err = call.lease.covers(d.bound)
	}
	return around, err
}

// runInPlace runs a data verb here and now if nobody is before it. The queue's lock is held meanwhile, which costs
// others no more than waiting for their turn would: the verb is bounded.
func (c *Container[T]) runInPlace(ctx context.Context, call *call, ch *change) (img *image[T], err error, ran bool) {
	cur, img, err, ran := c.tryInPlace(ctx, call, ch)
	if call.env.observer != nil && ran && err != ErrClosed {
		call.observe(ctx, Event{Type: Started, Path: "lock", Verb: ch.verb})
		c.observeEnd(ctx, call, ch.verb, cur, img, err, 0, 0)
	}
	return img, err, ran
}

func (c *Container[T]) tryInPlace(ctx context.Context, call *call, ch *change) (cur, img *image[T], err error, ran bool) {
	q := &c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, nil, ErrClosed, true
	}
	if !q.idle() {
		return nil, nil, nil, false
	}
	cur = c.image.Load()
	if img, err = c.next(ctx, cur, call, ch, nil, &c.tail, nil); err == nil {
		c.publish(cur, img)
	}
	return cur, img, err, true
}

// runInTurn queues ch, or else fn, and waits for its answer.
func (c *Container[T]) runInTurn(ctx context.Context, parent *frame, call *call, typ *state.Type, ch *change, fn function) (*image[T], error) {
	w := call.env.waiters.Get().(*waiter)
	w.ctx, w.parent, w.call = ctx, parent, *call
	if ch != nil {
		w.own = *ch // its caller has it on the stack
	} else {
		w.own.typ, w.own.fn = typ, fn
	}
	img, _, err := c.takeTurn(w, false)
	return img, err
}

// runAtomic is runInTurn for a function with no more than the terms of its scope, which is called outside of any other. Its callers wait in great
// numbers, each with a stack that the next processor to run it has to fetch: it takes the shortest way. The function goes where the answer will be, and
// what a pooled waiter knows of its last use, which was on the same scope as a rule, is left there.
func (c *Container[T]) runAtomic(ctx context.Context, b *binding, key *Key, fn atomicMutation[T]) (img *image[T], version uint64, err error) {
	w := b.defaults.env.waiters.Get().(*waiter)
	w.ctx, w.answer = ctx, fn
	if w.call.terms != b.defaults || w.call.key != *key {
		w.call.terms, w.call.key = b.defaults, *key
		w.own.verb = "Atomic"
	}
	return c.takeTurn(w, true)
}

// takeTurn queues w and waits for its answer, and for the version of that unless it has to be looked at. What w knows is kept for its next use, or not.
func (c *Container[T]) takeTurn(w *waiter, keep bool) (img *image[T], version uint64, err error) {
	q, e := &c.queue, w.call.env
	timed := e.observer != nil
	if timed {
		w.submitted = now()
		w.observeQueued()
	}
	err = q.come(w, e.maxQueue, c)
	if err == nil && !w.yield(q.spread.Load()) {
		timed = true
		err = q.sleepInTurn(w)
	}
	if err != nil {
		w.letGo()
		return nil, 0, err // w stays with whoever still holds it
	}
	if w.is.Load()&isOdd != 0 {
		if err = w.odd(); w.abandoned {
			w.disarm()
			return nil, 0, err
		}
	}
	img, _ = w.answer.(*image[T])
	version = w.version
	if !keep {
		w.forget()
	}
	if timed {
		w.silence()
		w.forgetTime()
	}
	w.reset()
	e.waiters.Put(w)
	return img, version, err
}

// letGo is for a waiter whose caller has left.
func (w *waiter) letGo() {
	w.disarm()
	if w.state()&isRunning == 0 {
		w.ctx, w.parent = nil, nil
	}
}

// odd returns the error of an answer that is not just one, or raises the panic that it is again.
func (w *waiter) odd() error {
	if w.panic != nil || w.exited {
		w.disarm()
		w.deliver()
	}
	err := w.err
	if !w.abandoned {
		w.err = nil
	}
	return err
}

// setAlarm makes ready for a sleep that ends when the budget is spent. The clock is not read before: most waiters are answered sooner.
func (w *waiter) setAlarm() {
	now := now()
	if w.submitted.IsZero() {
		w.submitted = now
	}
	w.since.Store(int64(w.submitted.Sub(epoch)))
	if w.call.timeout > 0 {
		w.deadline = w.submitted.Add(w.call.timeout)
		w.arm(now)
	}
}

func (q *queue) sleepInTurn(w *waiter) error {
	w.setAlarm()
	return q.sleep(w)
}

func (w *waiter) observeQueued() {
	w.call.observe(w.ctx, Event{Type: Queued, Path: w.path(), Verb: w.verb()})
}

// forget lets go of what w was given, except by runAtomic in memory.
func (w *waiter) forget() {
	if w.own.fn != nil && w.own.takes == nil {
		w.own.fn = nil // there is nothing else
	} else {
		w.own = change{}
	}
	w.parent, w.call = nil, call{}
}

// reset ends a use of w, so that it can be pooled; its channel and timer stay.
func (w *waiter) reset() {
	w.ctx, w.next, w.answer, w.version = nil, nil, nil, 0
	w.use += oneUse
}

// forgetTime is for a waiter whose caller has looked at the clock.
func (w *waiter) forgetTime() {
	w.submitted, w.deadline = time.Time{}, time.Time{}
	w.since.Store(0)
}

// next computes the version that ch makes of cur, which is nil at first. It returns cur itself when nothing changes. A single
// function, fn, works on *draft, a zero T of its own.
func (c *Container[T]) next(ctx context.Context, cur *image[T], call *call, ch *change, fn function, tail *state.Tail, draft *T) (*image[T], error) {
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
			from = &cur.state
		}
	}
	if err := call.admit(ch, l, version); err != nil {
		return nil, err
	}
	img := &image[T]{life: alive}
	if call.ttl > 0 {
		if img.expires = now + int64(call.ttl); img.expires < now {
			img.expires = math.MaxInt64
		}
	}
	if ch.deletes {
		if l != alive {
			return cur, nil
		}
		img.life, img.expires = deleted, 0
	} else {
		var changed bool
		var err error
		if fn != nil {
			changed, err = fn.run(ctx, ch.typ, from, draft, &img.state)
		} else if ch.bounded() {
			if from != nil {
				img.state = cur.state // an assignment is faster than reflection
			}
			changed, err = ch.data.ApplyCopy(from, &img.state, tail)
		} else {
			changed, err = ch.apply(ctx, from, &img.state, nil)
		}
		if err != nil {
			return nil, refused(call.key, ch.name(), err)
		}
		if !changed && (l == alive || !ch.creates && !call.absent) {
			if l != alive || call.ttl == 0 {
				return cur, nil
			}
			renewed := *cur // nothing but the expiry moves
			renewed.expires = img.expires
			return &renewed, nil
		}
		if !changed { // it comes into being with a zero state, which for a map is an empty one
			img.state = *ch.typ.Zero().(*T)
		}
	}
	if cur == nil {
		version = c.home.Floor()
	}
	img.version = version + 1
	return img, nil
}

// publish makes img current. The caller holds queue.mu, and has the queue.
func (c *Container[T]) publish(cur, img *image[T]) {
	if img == cur {
		return
	}
	if cur == nil {
		c.first = img.version
	}
	c.image.Store(img)
	c.announce()
	if img.life == deleted {
		c.tail = state.Tail{} // it holds lists of the state that was
	}
	if !c.home.Registered() {
		return
	}
	c.home.Pin()
	if img.life == deleted {
		c.home.AddTombstone()
	}
	if img.expires != 0 {
		c.home.Expires()
	}
}

// release makes Container a resident: it unpins a container without state. A tombstone stays until it is forgotten.
func (c *Container[T]) release(forgotten bool) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	img := c.image.Load()
	if img == nil {
		return
	}
	if l := img.lifeAt(time.Now().UnixNano()); l == expired || l == deleted && forgotten {
		c.home.Unpin(img.version)
	}
}

func (c *Container[T]) observeEnd(ctx context.Context, call *call, verb string, cur, img *image[T], err error, waited, took time.Duration) {
	e := Event{Type: Committed, Path: "lock", Verb: verb, Waited: waited, Took: took, Batch: 1}
	switch {
	case err != nil:
		e.Type, e.Err, e.Batch = Failed, err, 0
	case img == nil:
		e.Type, e.Batch = Unchanged, 0
	case cur != nil && cur.version == img.version:
		e.Type, e.Version, e.Batch = Unchanged, img.version, 0
	default:
		e.Version = img.version
	}
	call.observe(ctx, e)
}

// reportPanic tells the observer of a panic, or (p is nil) of a runtime.Goexit, and the log when no caller is left to raise it to.
func (c *call) reportPanic(ctx context.Context, path, verb string, p *PanicError, left bool) {
	e := Event{Type: Panicked, Path: path, Verb: verb}
	if p != nil {
		e.Err, e.Stack = p, p.Stack
	}
	c.observe(ctx, e)
	if left {
		c.logPanic(ctx, verb, p)
	}
}

func (w *waiter) reportPanic(p *PanicError, left bool) {
	w.call.reportPanic(w.ctx, w.path(), w.verb(), p, left)
}

func (c *call) logPanic(ctx context.Context, verb string, p *PanicError) {
	attrs := []any{"scope", c.key.String(), "verb", verb}
	what := "called runtime.Goexit"
	if p != nil {
		what = "panicked"
		attrs = append(attrs, "panic", p.Value, "stack", string(p.Stack))
	}
	c.env.logger().ErrorContext(ctx, "pawl: mutator "+what+" after its caller left", attrs...)
}

// lifeAt judges expiry by the host's clock, in Unix nanoseconds.
func (img *image[T]) lifeAt(now int64) life {
	if img.life == alive && img.expires != 0 && img.expires <= now {
		return expired
	}
	return img.life
}

// snapshot returns img, which may be nil, as far as it is alive.
func (img *image[T]) snapshot(id string) Snapshot[T] {
	version, state := img.shown()
	return Snapshot[T]{ID: id, Version: version, state: state}
}

// shown returns what a snapshot shows of img, zero where there is no state.
func (img *image[T]) shown() (version uint64, state *T) {
	if img == nil || img.life != alive || img.expires != 0 && img.over() {
		return 0, nil
	}
	return img.version, &img.state
}

func (img *image[T]) over() bool { return img.lifeAt(time.Now().UnixNano()) != alive }

func typeFor[T any]() (*state.Type, error) { return state.Of(reflect.TypeFor[T]()) }
