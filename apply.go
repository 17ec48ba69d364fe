package pawl

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/internal/state"
)

// Persist is the store of one container. Other writers can move its version.
type Persist[T any] interface {
	// Load returns the current state, the zero Snapshot when there is none.
	Load(ctx context.Context) (Snapshot[T], error)
	// Commit makes next the current state if the version is still expected, and returns it as
	// stored. Otherwise it returns the state that won and an error that wraps ErrConflict. The test
	// must be part of the write. Any other error leaves the outcome unknown (*UnknownOutcomeError),
	// unless it wraps persist.ErrNotApplied. A Snapshot without state (ReadOnly returns nil) asks
	// for a deletion.
	Commit(ctx context.Context, expected uint64, next Snapshot[T]) (Snapshot[T], error)
}

// ContainerOptions choose the path of ApplyMutation and its defaults.
type ContainerOptions[T any] struct {
	Name     string        // for errors and observers
	Persist  Persist[T]    // nil: the lock path; else the compare-and-swap path
	Timeout  time.Duration // 0: 30 s; NoTimeout turns it off
	Retry    Retry         // zero fields: DefaultRetry's
	Observer Observer      // nil costs nothing
}

// ApplyMutation applies m to a container of the caller's own, the way that verbs of scopes do.
// Without o.Persist the mutation waits its turn in c's queue: it returns *ScopeMutationTimeoutError
// at its deadline, and never a conflict. With o.Persist it is also committed with a version test:
// it returns *ConcurrentModificationError, *UnknownOutcomeError and *UnavailableError. Both return
// the errors of the verb itself, ErrReentrant, *DeadlockError, *OverloadedError and *CanceledError.
// Under a lease's context, what this process knows of the lease decides: a lost one gives
// *LeaseLostError.
func ApplyMutation[T any](ctx context.Context, c *Container[T], o ContainerOptions[T], m Mutation, opts ...CallOption) (Snapshot[T], error) {
	if c == nil {
		return Snapshot[T]{}, &ArgumentError{Argument: "container", Reason: "nil"}
	}
	typ, err := typeFor[T]()
	if err != nil {
		return Snapshot[T]{}, &KindError{Kind: o.Name, Reason: err.Error()}
	}
	if o.Timeout < 0 && o.Timeout != NoTimeout {
		return Snapshot[T]{}, &ArgumentError{Argument: "ContainerOptions.Timeout", Reason: "negative"}
	}
	if err := o.Retry.check(); err != nil {
		return Snapshot[T]{}, &ArgumentError{Argument: "ContainerOptions.Retry", Reason: err.Error()}
	}
	defaults := &terms{env: c.ownEnv(o.Observer), timeout: o.Timeout, retry: o.Retry.Or(DefaultRetry)}
	defaults.maxDoc = defaults.env.maxDoc
	if defaults.timeout == 0 {
		defaults.timeout = DefaultTimeout
	}
	t := target{memory: &c.container, typ: typ, stateOf: typed[T]{}, defaults: defaults, key: Key{Kind: o.Name}}
	if o.Persist != nil {
		t.stored, t.backend = c.ownStored(), custom[T]{o.Persist}
	}
	s, err := t.apply(ctx, m, opts)
	return snapshotOf[T](s), err
}

// Snapshot returns the state last committed or seen, without I/O. It never blocks.
func (c *Container[T]) Snapshot() Snapshot[T] { return snapshotOf[T](c.current()) }

// current returns the state last committed or seen.
func (c *container) current() snapshot {
	if img := c.image.Load(); img != nil {
		return img.snapshot("")
	}
	s := c.stored.Load()
	if s == nil {
		return snapshot{}
	}
	d := s.seen.Load()
	if d == nil {
		return snapshot{}
	}
	v := d.View()
	if v == nil {
		return snapshot{}
	}
	return snapshot{version: d.Version, at: d.At, state: v.State}
}

// ownEnv returns the env of a container of the caller's own, made at its first use.
func (c *container) ownEnv(o Observer) *env {
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

// ownStored returns the persisted path of a container of the caller's own, made at its first use.
func (c *container) ownStored() *stored {
	if s := c.stored.Load(); s != nil {
		return s
	}
	c.stored.CompareAndSwap(nil, &stored{})
	return c.stored.Load()
}

// target is the scope, or the container of the caller's own, that a mutation changes.
type target struct {
	memory   *container // the lock path; nil: persisted
	stored   *stored    // the compare-and-swap path; nil: in memory
	backend  backend    // of stored
	tx       *Tx        // that the call is part of; nil: none
	bound    *binding   // of a scope; nil: a container of the caller's own
	typ      *state.Type
	stateOf  stateType // of typ; of the lock path
	defaults *terms
	key      Key
}

// apply runs m on the path of t.
func (t *target) apply(ctx context.Context, m Mutation, opts []CallOption) (snapshot, error) {
	call, err := t.call(ctx, opts)
	if err != nil {
		return snapshot{}, err
	}
	ch := change{stateOf: t.stateOf}
	if err := ch.compile(call.key, t.typ, m); err != nil {
		return snapshot{}, err
	}
	around, err := t.admit(ctx, &call)
	if err != nil {
		return snapshot{}, err
	}
	switch {
	case t.tx != nil:
		kept := ch
		return t.applyInTx(ctx, call, &kept)
	case t.stored == nil:
		img, err := t.memory.apply(ctx, around.caller(), &call, &ch)
		if err != nil {
			return snapshot{}, err
		}
		return img.snapshot(call.key.ID), nil
	}
	r, err := t.stored.apply(ctx, around.caller(), &call, &ch, t.backend)
	if err != nil {
		return snapshot{}, err
	}
	return r.snapshot, nil
}

// call returns the call that opts ask for.
func (t *target) call(ctx context.Context, opts []CallOption) (call, error) {
	if ctx == nil {
		return call{}, &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	terms, err := t.defaults.with(opts)
	if err == nil && terms.joined {
		err = &ArgumentError{Argument: "CommitThrough", Reason: "is for Transact"}
	}
	if err == nil && terms.dueIn > 0 && (t.stored == nil || t.bound == nil) {
		err = wrapKey(ErrNotPersisted, t.key)
	}
	return call{terms: terms, key: t.key}, err
}

// admit returns an error if the call cannot be made with ctx, otherwise the frame that ctx was
// derived from.
func (t *target) admit(ctx context.Context, call *call) (around *frame, err error) {
	if ctx.Err() != nil {
		return nil, leftBy(ctx, call.key, PhaseQueued)
	}
	around = innermost(ctx)
	if call.lease = around.held(); call.lease != nil {
		err = call.lease.covers(t.bound)
	}
	return around, err
}

// refusedByQueue turns an error of Push into the error of the caller.
func refusedByQueue(err error, key Key) error {
	if full, ok := errors.AsType[*queue.FullError](err); ok {
		return &OverloadedError{Scope: key, Queue: full.Waiting}
	}
	return ErrClosed
}

// phaseOf turns the state of a waiter whose caller left into the phase in the caller's error.
func phaseOf(s queue.State) Phase {
	switch s {
	case queue.Running:
		return PhaseRunning
	case queue.Committing:
		return PhaseCommitting
	}
	return PhaseQueued
}

// observeEnd reports the end of an in-memory mutation.
func observeEnd(ctx context.Context, call *call, verb string, cur, img *image, err error, waited, took time.Duration) {
	e := Event{Type: EventCommitted, Path: "lock", Verb: verb, Waited: waited, Took: took, Batch: 1}
	switch {
	case err != nil:
		e.Type, e.Err, e.Batch = EventFailed, err, 0
	case img == nil:
		e.Type, e.Batch = EventUnchanged, 0
	case cur != nil && cur.version == img.version:
		e.Type, e.Version, e.Batch = EventUnchanged, img.version, 0
	default:
		e.Version = img.version
	}
	call.observe(ctx, e)
}

// reportPanic reports a panic, or goexit, to the observer. If there is none and the caller has left, it
// writes to the log.
func (c *call) reportPanic(ctx context.Context, path, verb string, p *PanicError, left bool) {
	e := Event{Type: EventPanicked, Path: path, Verb: verb}
	if p != goexit {
		e.Err, e.Stack = p, p.Stack
	}
	c.observe(ctx, e)
	if left {
		c.logPanic(ctx, verb, p)
	}
}

// logPanic logs a panic whose caller has left. An observer got EventPanicked for it instead.
func (c *call) logPanic(ctx context.Context, verb string, p *PanicError) {
	if c.env.observer != nil {
		return
	}
	attrs := []any{"scope", c.key.String(), "verb", verb}
	what := "called runtime.Goexit"
	if p != goexit {
		what = "panicked"
		attrs = append(attrs, "panic", p.Value, "stack", string(p.Stack))
	}
	c.env.logger().ErrorContext(ctx, "pawl: function "+what+" after its caller left", attrs...)
}

func typeFor[T any]() (*state.Type, error) { return state.Of(reflect.TypeFor[T]()) }
