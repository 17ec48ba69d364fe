package pawl

import (
	"context"
	"sync"
)

// Tx is a transaction over persisted scopes. Open scopes on it, or bring them in with Scope.In, and use the ordinary verbs:
//
//   - State, Snapshot and AtomicState read: what they saw, absence included, is tested by the commit.
//   - Data verbs (PatchState, IncState, ...) and Delete are kept as operations. A scope that only they touch is not read: when others
//     changed it, they are applied to what is there now, and the function does not run again. The Snapshot that such a verb
//     returns has no Version yet; looking at its state is reading.
//
// Once the transaction is committed, such a Snapshot shows the state that was.
//
// A Tx is not safe for concurrent use and must not outlive its function: later its verbs return ErrClosed.
type Tx struct {
	of    *transaction
	frame *frame // of the function's context

	mu     sync.Mutex // for those who do use it concurrently
	over   bool       // the function has returned
	landed bool       // and what it did was committed
	parts  map[Key]*part
	order  []*part  // in the order of first use
	leases []*Lease // that its verbs were called under; the commit is tested against them, and those around them
	after  []func()
	native []nativeCall // what is to run inside the commit
	ended  []*Lease     // that the commit gives back
}

// Transact runs fn and commits everything it wrote, or nothing; what it read is checked too. On a
// conflict fn runs again on newer state, so it must have no effects of its own. Fn should use its ctx: a verb with it on a scope that
// is not in tx is refused with ErrOutsideTx, and Detach lifts that. On a *Tx owner Transact joins that transaction: what fn
// wrote is undone when it fails, and opts are the outer one's. Of the options WithRetry and Via alone apply.
//
// With Via, reads and the commit are part of the caller's own database transaction. What is committed there is durable, and seen by others, once
// that commits; if it is rolled back nothing has happened. Nothing waits for another connection, and no queue of this process is waited for. Such a transaction
// cannot have after-commit callbacks (*ArgumentError), and its Snapshots tell nothing about what is durable.
//
// It returns fn's error unchanged, once what fn had read is known to be current; a panic of fn is raised again as *PanicError, likewise.
// In-memory scopes opened on tx return ErrNotPersisted. It also returns *ConcurrentModificationError when the budget is spent,
// *UnavailableError, *UnknownOutcomeError, *CanceledError, ErrReentrant from inside the mutator of a scope that it touches, ErrClosed,
// ErrNoStore, *LeaseLostError under a lease's context, *ArgumentError, and what the verbs could not tell before the commit.
func Transact(
	ctx context.Context, o Owner, fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) (err error) {
	switch {
	case ctx == nil:
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	case o == nil || o.owner().rt == nil:
		return &ArgumentError{Argument: "owner", Reason: "nil"}
	}
	if tx := o.owner().tx; tx != nil {
		return tx.join(ctx, fn)
	}
	t := newTransaction(ctx, o.owner().rt)
	defer func() { t.observeFailure(err) }()
	if fn == nil {
		return &ArgumentError{Argument: "Transact", Reason: "nil function"}
	}
	if err := t.begin(opts); err != nil {
		return err
	}
	defer t.end()
	return t.run(fn)
}

// AfterCommit lets fn run once the commit is durable, before Transact returns, and never when it failed. Fn should not block. If the
// caller of Transact has left by then (*CanceledError), it runs all the same; after a crash it does not.
func (tx *Tx) AfterCommit(fn func()) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if !tx.over && fn != nil {
		tx.after = append(tx.after, fn)
	}
}

func (tx *Tx) owner() owner {
	if tx == nil {
		return owner{}
	}
	return owner{rt: tx.of.rt, tx: tx}
}

// In returns the scope inside tx, as if it had been opened on it.
func (s Scope[T]) In(tx *Tx) Scope[T] {
	in := handle[T]{err: s.fault()}
	if s.handle != nil {
		in = *s.handle
	}
	switch {
	case tx == nil:
		in.err = &ArgumentError{Argument: "tx", Reason: "nil"}
	case in.err != nil:
	case in.stored == nil:
		in.err = wrapKey(ErrNotPersisted, in.key)
	case in.bound.rt != tx.of.rt:
		in.err = &ArgumentError{Argument: "tx", Reason: "of another runtime"}
	}
	in.tx = tx
	return Scope[T]{&in}
}

// join runs fn as a part of tx. What it wrote is undone when it fails; what it read stays read, because its error may tell of it.
func (tx *Tx) join(ctx context.Context, fn func(context.Context, *Tx) error) error {
	if fn == nil {
		return &ArgumentError{Argument: "Transact", Reason: "nil function"}
	}
	if err := tx.usable(ctx, Key{Kind: "transaction"}); err != nil {
		return err
	}
	tx.mu.Lock()
	_, err := tx.find(Key{Kind: "transaction"})
	tx.mu.Unlock()
	if err != nil {
		return err
	}
	if frameOf(ctx).outerTx() != tx {
		f := newFrame(ctx, tx.frame, innermost(ctx).held())
		f.tx = tx
		defer f.End()
		ctx = f
	}
	undo := tx.savepoint()
	done := false
	defer func() {
		if !done {
			undo()
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	done = true
	return nil
}

// usable tells why a verb with ctx cannot work in tx, as far as ctx decides.
func (tx *Tx) usable(ctx context.Context, key Key) error {
	if ctx.Err() != nil {
		return leftBy(ctx, key, PhaseQueued)
	}
	if other := frameOf(ctx).outerTx(); other != nil && other != tx {
		return wrapKey(ErrOutsideTx, key)
	}
	return nil
}
