package pawl

import (
	"context"
	"sync"
)

// Tx is a transaction over persisted scopes. Open scopes on it, or bring them in with Scope.In, and
// use the ordinary verbs:
//
//   - State, Snapshot and AtomicState read. The commit tests what they read, absence included. Their
//     Snapshot has the version that was read, plus one for each change in the transaction so far.
//   - Data verbs (PatchState, IncState, ...) and Delete are kept as operations. A scope that only
//     they touch is not read. If its version moved, they are applied to the newer version, and the
//     function does not run again. The Snapshot that such a verb returns has no Version yet.
//     Looking at its state is a read.
//
// After the commit, such a Snapshot shows the state that was committed.
//
// A Tx is not safe for concurrent use. Its verbs return ErrClosed once its function has returned.
type Tx struct {
	of    *transaction
	frame *frame // of the function's context

	// mu protects the fields below, although a Tx is not meant for concurrent use.
	mu sync.Mutex
	// over is set when the function has returned.
	over bool
	// committed is set when what the function did was committed.
	committed bool
	// parts has one part for each scope that was touched.
	parts map[Key]*part
	// order lists parts in the order of first use.
	order []*part
	// leases are those that verbs were called under. The commit tests them and the leases that they
	// are nested in.
	leases []*Lease
	// after are the after-commit callbacks.
	after []func()
	// native are the calls that run inside the commit.
	native []nativeCall
	// ended are the leases that the commit releases.
	ended []*Lease
	// readsLog is set when the function has read a log.
	readsLog bool
}

// Transact runs fn and commits all that it wrote, or nothing. The commit also tests what fn read.
// On a conflict fn runs again on newer state, so it must have no effects of its own. Fn should use
// its ctx: a verb with that ctx on a scope outside tx returns ErrOutsideTx. Detach lifts that.
//
// On a *Tx owner, Transact joins that transaction. If fn fails, only its writes are undone. Opts
// are then ignored. Of the options, only WithRetry and CommitThrough apply.
//
// With CommitThrough, reads and the commit are part of the caller's own database transaction. The
// commit is durable and visible once that transaction commits. If it is rolled back, nothing has
// happened. Transact then waits for no other connection and for no queue of this process. It
// refuses after-commit callbacks (*ArgumentError), and its Snapshots say nothing about what is
// durable.
//
// Transact returns the error of fn unchanged, once the state that fn read is known to be current.
// In the same way it raises a panic of fn again as *PanicError. An observer gets one EventFailed or
// EventPanicked for that, otherwise EventTransacted; a Transact that joined another one has no event.
//
// In-memory scopes opened on tx return ErrNotPersisted. Transact also returns
// *ConcurrentModificationError when its budget is spent, *UnavailableError, *UnknownOutcomeError,
// *CanceledError, ErrReentrant inside the function of a scope that it touches, ErrClosed,
// ErrNoStore, *LeaseLostError under a lease's context, *ArgumentError, and errors of its verbs that
// are only known at the commit. A verb on one more scope than MaxScopes returns *LimitError.
//
// A transaction that only reads succeeds by its second run at the latest, if that run touches no
// other scopes: it gets them as they were at one instant.
func Transact(
	ctx context.Context, o Owner, fn func(ctx context.Context, tx *Tx) error, opts ...CallOption,
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
	defer func() { t.observeEnd(err) }()
	if fn == nil {
		return &ArgumentError{Argument: "Transact", Reason: "nil function"}
	}
	if err := t.begin(opts); err != nil {
		return err
	}
	defer t.end()
	return t.run(fn)
}

// AfterCommit registers fn to run once the commit is durable, before Transact returns. It does not
// run if the commit failed, or after a crash. It does run if the caller of Transact left during the
// commit (*CanceledError). Fn should not block.
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
func (s Scope[T]) In(tx *Tx) Scope[T] { return Scope[T]{s.handle.in(tx)} }

// in returns the handle of Scope.In.
func (s handle) in(tx *Tx) handle {
	in := s
	switch in.err = s.fault(); {
	case tx == nil:
		in.err = &ArgumentError{Argument: "tx", Reason: "nil"}
	case in.err != nil:
	case in.stored == nil:
		in.err = wrapKey(ErrNotPersisted, in.key)
	case in.bound.rt != tx.of.rt:
		in.err = &ArgumentError{Argument: "tx", Reason: "of another runtime"}
	}
	in.tx = tx
	return in
}

// join runs fn as a part of tx. If fn fails, its writes are undone. Its reads still count, because
// its error may depend on them.
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

// usable returns the error of a verb in tx whose ctx does not allow it: *CanceledError or
// ErrOutsideTx.
func (tx *Tx) usable(ctx context.Context, key Key) error {
	if ctx.Err() != nil {
		return leftBy(ctx, key, PhaseQueued)
	}
	if other := frameOf(ctx).outerTx(); other != nil && other != tx {
		return wrapKey(ErrOutsideTx, key)
	}
	return nil
}
