package pawl

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/internal/document"
)

// Scope is a handle on one piece of versioned state. Handles on the same key share one container;
// copy them freely, and compare their keys.
//
// Every verb returns the state it committed. Besides the errors in its comment, a verb can return:
//   - always: ErrClosed, *CanceledError when ctx ends, ErrReentrant, *DeadlockError, ErrAbandoned,
//     *OverloadedError, *DeletedError on a deleted scope, and the errors of the options IfVersion,
//     IfAbsent and IfExists
//   - in memory: *ScopeMutationTimeoutError
//   - persisted: *ConcurrentModificationError, *UnknownOutcomeError, *UnavailableError, *SchemaError,
//     ErrNoStore
//   - for arguments that no call accepts: *KindError, *LimitError, *ArgumentError
//
// IsRetryable and OutcomeUnknown sort them. A panic of a function is raised again in its caller, as
// *PanicError.
type Scope[T any] struct {
	handle
}

// handle is a Scope without its type, so that its code is compiled once and not for every type of
// state. It never changes.
type handle struct {
	key    Key
	bound  *binding
	local  *Local
	memory *container // in memory; nil: persisted
	stored *stored    // persisted; nil: in memory
	tx     *Tx        // that its verbs are part of; nil: each is a commit of its own
	err    error      // why no verb can work
}

// open returns the handle of k.Scope for states of type t.
func open(o Owner, k settings, t stateType, id string) handle {
	b, err := bind(o, k, t)
	if err != nil {
		return handle{key: Key{Kind: k.Name, ID: id}, err: err}
	}
	return b.open(o.owner(), id)
}

// open returns the handle on the scope of o with this id.
func (b *binding) open(o owner, id string) handle {
	s := handle{key: Key{Kind: b.kind.Name, ID: id}, bound: b}
	if s.err = checkName(s.key, "id", id, MaxID); s.err != nil {
		return s
	}
	rt := b.rt
	if s.tx = o.tx; s.tx != nil && b.kind.InMemory {
		s.err = wrapKey(ErrNotPersisted, s.key)
		return s
	}
	if !b.kind.InMemory {
		if rt.store == nil {
			s.err = wrapKey(ErrNoStore, s.key)
			return s
		}
		if found, open := rt.stored.Find(s.key, newStored); open {
			s.stored = found.(*stored)
			return s
		}
		if s.tx != nil {
			s.stored = &stored{} // the transaction was accepted before Close, and may finish
		} else {
			s.err = wrapKey(ErrClosed, s.key)
		}
		return s
	}
	memory := rt.memory
	if s.local = o.local; s.local != nil {
		memory = s.local.memory
	}
	memory.Sweep(s.key, func(c resident, forgotten bool) { c.(*container).release(forgotten) })
	found, open := memory.Find(s.key, func() (resident, *registration) {
		c := &container{typ: b.typ}
		return c, &c.place
	})
	if !open {
		s.err = wrapKey(ErrClosed, s.key)
		return s
	}
	if s.memory = found.(*container); s.memory.typ != b.typ {
		s.err = &KindError{Kind: b.kind.Name, Reason: "in-memory scope " + s.key.String() + " is open with another type"}
	}
	return s
}

// Snapshot is state at a version. It shares the committed state with other readers; State copies
// it.
type Snapshot[T any] struct {
	ID      string
	Version uint64    // 0: there is no state, or it is that of a data verb inside Transact
	Time    time.Time // when the store committed it; zero in memory
	state   *T
	verb    *operation // the data verb inside Transact that returned it; nil: none
}

// State returns a private copy of the state, the zero T when there is none.
func (s Snapshot[T]) State() T {
	var out T
	state := s.ReadOnly()
	if state == nil {
		return out
	}
	typ, err := typeFor[T]()
	if err == nil {
		out = *state
		err = typ.Detach(&out)
	}
	if err != nil {
		panic(err) // T's own MarshalJSON or UnmarshalJSON failed on what it took before
	}
	return out
}

// ReadOnly returns the committed state itself, nil when there is none. All readers share it, so it
// must not be modified.
func (s Snapshot[T]) ReadOnly() *T {
	if s.verb == nil {
		return s.state
	}
	state, _ := s.verb.look().(*T)
	return state
}

// Exists reports whether there is state.
func (s Snapshot[T]) Exists() bool { return s.ReadOnly() != nil }

// NewSnapshot makes a snapshot of a copy of state, for implementations of Persist. It panics if
// state holds a value that no store can keep, or if T cannot be the type of a state.
func NewSnapshot[T any](state T, version uint64, at time.Time) Snapshot[T] {
	s := Snapshot[T]{Version: version, Time: at, state: &state}
	typ, err := typeFor[T]()
	if err == nil {
		_, err = typ.Settle(nil, s.state)
	}
	if err != nil {
		panic(err)
	}
	return s
}

// snapshot is a Snapshot without its type.
type snapshot struct {
	id      string
	version uint64
	at      time.Time
	state   any // *T; nil: none
	verb    *operation
}

// snapshotOf returns s with its type.
func snapshotOf[T any](s snapshot) Snapshot[T] {
	state, _ := s.state.(*T)
	return Snapshot[T]{ID: s.id, Version: s.version, Time: s.at, state: state, verb: s.verb}
}

// Key returns the scope's kind and id.
func (s Scope[T]) Key() Key { return s.key }

// State returns a private copy of the current state, the zero T when there is none. It returns the
// errors of Snapshot.
func (s Scope[T]) State(ctx context.Context) (T, error) {
	snap, err := s.Snapshot(ctx)
	return snap.State(), err
}

// Snapshot returns the current state with its version. Deleted and expired scopes have no state. A
// persisted scope asks its store, and returns *UnavailableError or *SchemaError. An in-memory scope
// answers at once, also while a function runs.
func (s Scope[T]) Snapshot(ctx context.Context) (Snapshot[T], error) {
	snap, err := s.snapshot(ctx)
	return snapshotOf[T](snap), err
}

// snapshot is Scope.Snapshot.
func (s *handle) snapshot(ctx context.Context) (snapshot, error) {
	if err := s.fault(); err != nil {
		return snapshot{}, err
	}
	if ctx == nil {
		return snapshot{}, &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if s.tx != nil {
		return s.snapshotInTx(ctx)
	}
	if frameOf(ctx).outerTx() != nil {
		return snapshot{}, wrapKey(ErrOutsideTx, s.key)
	}
	if s.memory != nil {
		if s.isClosed() {
			return snapshot{}, wrapKey(ErrClosed, s.key)
		}
		if img := s.memory.image.Load(); img != nil {
			return img.snapshot(s.key.ID), nil
		}
		return snapshot{id: s.key.ID}, nil
	}
	if err := s.bound.ready(ctx); err != nil {
		return snapshot{}, err
	}
	r, err := s.bound.rt.env.load(ctx, s.bound.rt.store, s.key)
	if err != nil {
		return snapshot{}, storeError(ctx, s.key, err)
	}
	d := document.Of(r)
	s.stored.advance(d)
	return s.seen(d)
}

// fault tells why no verb of s can work.
func (s *handle) fault() error {
	if s.bound == nil && s.err == nil {
		return &ArgumentError{Argument: "scope", Reason: "zero; open one with Kind.Scope"}
	}
	return s.err
}

func (s *handle) isClosed() bool {
	return s.bound.rt.closed.Load() || s.local != nil && s.local.closed.Load()
}

// seen makes a snapshot of a persisted version.
func (s *handle) seen(d *document.Doc) (snapshot, error) {
	if d.Life != alive {
		return snapshot{id: s.key.ID}, nil
	}
	v, err := s.bound.view(d, s.key)
	if err != nil {
		return snapshot{id: s.key.ID}, err
	}
	return snapshot{id: s.key.ID, version: d.Version, at: d.At, state: v.State}, nil
}

// ready tells why a read cannot be tried.
func (b *binding) ready(ctx context.Context) error {
	switch {
	case ctx == nil:
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	case b.rt.closed.Load():
		return ErrClosed
	case b.rt.store == nil:
		return ErrNoStore
	}
	return nil
}

// storeError returns the error of a call of the store that failed: *CanceledError if its context has
// ended, otherwise *UnavailableError.
func storeError(ctx context.Context, key Key, err error) error {
	if ctx.Err() != nil {
		return leftBy(ctx, key, PhaseQueued)
	}
	return unavailable(key, err)
}

// LastSeen returns the version that this process last read or wrote, without I/O; another process
// may be ahead. It reports false when this process has not seen the scope, or cannot decode that
// version.
func (s Scope[T]) LastSeen() (Snapshot[T], bool) {
	snap, ok := s.lastSeen()
	return snapshotOf[T](snap), ok
}

// lastSeen is Scope.LastSeen.
func (s *handle) lastSeen() (snapshot, bool) {
	if s.fault() != nil {
		return snapshot{}, false
	}
	if s.memory != nil {
		if s.isClosed() {
			return snapshot{}, false
		}
		return s.memory.image.Load().snapshot(s.key.ID), true
	}
	d := s.stored.seen.Load()
	if d == nil {
		return snapshot{}, false
	}
	snap, err := s.seen(d)
	return snap, err == nil
}

// Abandon gives up a function that is stuck, and reports whether one was running. The queue moves
// on, the late result of the function is discarded, and its caller gets ErrAbandoned if it still
// waits.
func (s Scope[T]) Abandon() bool { return s.abandon() }

// abandon is Scope.Abandon.
func (s *handle) abandon() bool {
	switch {
	case s.fault() != nil:
		return false
	case s.memory != nil:
		return s.memory.abandon(time.Time{})
	}
	return s.stored.abandon(time.Time{})
}

// PatchState replaces the fields named in p and leaves the others. It returns *FieldError for a
// field that T does not have or a value that it cannot hold.
func (s Scope[T]) PatchState(ctx context.Context, p Patch, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, p, opts...)
}

// SetState replaces the whole state. It returns *FieldError for a value that some store cannot
// keep.
func (s Scope[T]) SetState(ctx context.Context, whole T, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, Set{State: whole}, opts...)
}

// PushState appends value to a list. It returns *FieldError when the field is not a list that takes
// it.
func (s Scope[T]) PushState(ctx context.Context, f Field, value any, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, Push{Field: f, Values: []any{value}}, opts...)
}

// IncState adds by, which may be negative, to a number. It returns *FieldError when the field is
// not a number or would overflow.
func (s Scope[T]) IncState(ctx context.Context, f Field, by int64, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, Inc{Field: f, By: by}, opts...)
}

// SetStateRecord sets one entry of a map. Key is taken literally, dots included. It returns
// *FieldError when the field is not a map that takes the value.
func (s Scope[T]) SetStateRecord(ctx context.Context, f Field, key string, value any, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, SetRecord{Field: f, Key: key, Value: value}, opts...)
}

// DeleteStateRecord removes one entry of a map; removing an absent one changes nothing.
// It returns *FieldError when the field is not a map.
func (s Scope[T]) DeleteStateRecord(ctx context.Context, f Field, key string, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, DeleteRecord{Field: f, Key: key}, opts...)
}

// AtomicState lets fn change a private copy of the state; if fn returns nil the copy is committed,
// otherwise its error is returned unchanged and nothing happened. On a persisted scope fn may run
// more than once: it must not have effects of its own, and should assign to captured variables
// rather than add to them.
//
// Use fn's ctx for calls inside fn: a verb on the same scope then returns ErrReentrant instead of
// waiting for itself, and a verb on another scope returns *DeadlockError instead of waiting in a
// cycle. That ctx ends when the budget of the call does (WithTimeout in memory, Retry.Within on a
// persisted scope), and when fn has returned; with NoTimeout it ends with the caller's ctx. Detach
// makes one for calls that go on.
func (s Scope[T]) AtomicState(ctx context.Context, fn func(ctx context.Context, state *T) error, opts ...CallOption) (Snapshot[T], error) {
	return s.Apply(ctx, Atomic(fn), opts...)
}

// Apply commits a mutation given as data, such as All{Patch{...}, Inc{...}}. The verbs above call
// it. It returns the errors of the verbs that m consists of.
func (s Scope[T]) Apply(ctx context.Context, m Mutation, opts ...CallOption) (Snapshot[T], error) {
	snap, err := s.apply(ctx, m, opts)
	return snapshotOf[T](snap), err
}

// apply is Scope.Apply.
func (s *handle) apply(ctx context.Context, m Mutation, opts []CallOption) (snapshot, error) {
	t, err := s.target()
	if err != nil {
		return snapshot{}, err
	}
	return t.apply(ctx, m, opts)
}

// target says where mutations of s go.
func (s *handle) target() (target, error) {
	if err := s.fault(); err != nil {
		return target{}, err
	}
	t := target{memory: s.memory, stored: s.stored, tx: s.tx, bound: s.bound, typ: s.bound.typ, stateOf: s.bound.stateOf, defaults: s.bound.defaults, key: s.key}
	var err error
	if s.stored != nil {
		t.backend = s.bound
	} else if s.local != nil {
		t.defaults, err = t.defaults.with(s.local.opts)
	}
	return t, err
}

// Delete removes the state and leaves a tombstone: from then on every other verb returns
// *DeletedError. A verb with IfAbsent creates the scope again, in the same sequence of versions.
// Deleting a scope that is absent or deleted changes nothing.
func (s Scope[T]) Delete(ctx context.Context, opts ...CallOption) error {
	_, err := s.apply(ctx, deletion{}, opts)
	return err
}
