package pawl

import (
	"context"

	"github.com/pawl-go/pawl/internal/waitgraph"
)

// frame is the context of a running function, of a transaction's function, or of a lease. Calls
// made with it, or with a context derived from it, are recognised: a call on the function's own
// scope is refused, a call that would close a cycle is refused, a call outside the transaction is
// refused, and a commit under a lease is tested against the lease.
type frame struct {
	context.Context
	waitgraph.Node

	parent *frame     // the function or transaction around it; nil: none
	lease  *Lease     // the innermost lease that calls with this context are made under; nil: none
	tx     *Tx        // the transaction whose function this is; nil: none
	stored *storedRun // the run of a function on a persisted scope; nil: none
}

// newFrame returns a frame inside parent, which may be nil.
func newFrame(ctx context.Context, parent *frame, lease *Lease) *frame {
	f := &frame{}
	f.init(ctx, parent, lease)
	return f
}

func (f *frame) init(ctx context.Context, parent *frame, lease *Lease) {
	f.Context, f.parent, f.lease = ctx, parent, lease
	if parent != nil {
		f.Node.Parent = &parent.Node
	}
}

type frameKey struct{}

// Value returns f for its own key, so that one allocation is both the context and the frame.
func (f *frame) Value(key any) any {
	if key == (frameKey{}) {
		return f
	}
	return f.Context.Value(key)
}

// innermost returns the frame that ctx was derived from, nil if there is none.
func innermost(ctx context.Context) *frame {
	f, _ := ctx.Value(frameKey{}).(*frame)
	return f
}

// frameOf returns the innermost function or transaction that ctx was made for, nil if there is none.
// A transaction that is over is none: an after-commit callback may still use its context.
func frameOf(ctx context.Context) *frame { return innermost(ctx).caller() }

// caller skips the frames of leases, and of transactions that are over.
func (f *frame) caller() *frame {
	for f != nil && f.Lane == nil && (f.tx == nil || f.Over()) {
		f = f.parent
	}
	return f
}

// held returns the innermost lease that calls with the frame are made under, nil if there is none.
func (f *frame) held() *Lease {
	if f == nil {
		return nil
	}
	return f.lease
}

// outerTx returns the transaction whose function f runs in, nil if there is none.
func (f *frame) outerTx() *Tx {
	for a := f; a != nil; a = a.parent {
		if a.tx != nil && !a.Over() {
			return a.tx
		}
	}
	return nil
}

// enter is called when a function mutates a scope through its context. It returns ErrOutsideTx or
// ErrReentrant; otherwise the queues of the persisted functions around the call move on without them.
func (f *frame) enter(l *waitgraph.Lane, key Key) error {
	if f.outerTx() != nil {
		return wrapKey(ErrOutsideTx, key)
	}
	if f.Inside(l) {
		return wrapKey(ErrReentrant, key)
	}
	for a := f; a != nil; a = a.parent {
		if r := a.stored; r != nil && !a.Over() {
			r.container.detach(r.batch, r.waiter)
		}
	}
	return nil
}

// waitFor records that the function of f waits for l, or returns *DeadlockError if l cannot move
// before that function has returned. Waited removes the record.
func (f *frame) waitFor(l *waitgraph.Lane) error {
	if cycle := f.Wait(l); cycle != nil {
		return &DeadlockError{Cycle: cycle}
	}
	return nil
}

// Detach returns ctx without what the context of a mutator or a transaction carries, for a call inside one that it does not
// wait for. A call with it on the mutator's own scope waits its turn like any other instead of failing with
// ErrReentrant, and never gives *DeadlockError; one inside a transaction is no part of it, and never gives ErrOutsideTx. What it
// commits is still tested against the leases of ctx.
func Detach(ctx context.Context) context.Context {
	if frameOf(ctx) == nil {
		return ctx
	}
	return newFrame(ctx, nil, innermost(ctx).held())
}

// Unfenced is Detach without the leases too: what is committed with it is not tested against those that ctx is made under. It is for work that goes on after
// their holder has given them back, such as a call in the background that a handler under a lease leaves behind. Whether ctx has ended is not changed by it.
func Unfenced(ctx context.Context) context.Context {
	if innermost(ctx) == nil {
		return ctx
	}
	return newFrame(ctx, nil, nil)
}
