package pawl

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/waitgraph"
)

// frame is the context of a running function, of a transaction's function, or of a lease. Calls
// made with it, or with a context derived from it, are recognised: a call on the function's own
// scope is refused, a call that would close a cycle is refused, a call outside the transaction is
// refused, and a commit under a lease is tested against the lease.
type frame struct {
	deadlineContext
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

// frameOf returns the innermost function or transaction that ctx was made for, nil if there is
// none. A transaction that is over is none: an after-commit callback may still use its context.
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

// callOut is called when a function mutates a scope through its context. It returns ErrOutsideTx or
// ErrReentrant; otherwise the queues of the persisted functions around the call move on without
// them.
func (f *frame) callOut(l *waitgraph.Lane, key Key) error {
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

// Detach returns ctx for a call that a function or a transaction makes and does not wait for. A
// call with it on the function's own scope waits its turn instead of failing with ErrReentrant, and
// never returns *DeadlockError. A call inside a transaction is not part of it, and never returns
// ErrOutsideTx. The leases of ctx still guard its commits.
//
// The result does not end with the function. If ctx was derived inside the function with a deadline
// or a cancel function, derive it from the result of Detach instead: otherwise it ends with the
// function.
func Detach(ctx context.Context) context.Context {
	if frameOf(ctx) == nil {
		return ctx
	}
	return newFrame(outlast(ctx), nil, innermost(ctx).held())
}

// WithoutLeases is Detach without the leases: they do not guard commits that are made with the
// result. It is for work that goes on after the leases were released, such as a call in the
// background that a handler under a lease leaves behind. The result still ends when the context of
// the lease does.
func WithoutLeases(ctx context.Context) context.Context {
	if innermost(ctx) == nil {
		return ctx
	}
	return newFrame(outlast(ctx), nil, nil)
}

// deadlineContext is a context that ends at a time, or when release is called. It costs no timer
// until Done is called.
type deadlineContext struct {
	context.Context           // the parent
	until           time.Time // zero: it ends with the parent

	// timed has the timer. Nil means that neither Done nor release was called.
	timed atomic.Pointer[timedContext]
}

type timedContext struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline returns the earlier of the parent's deadline and its own.
func (d *deadlineContext) Deadline() (time.Time, bool) {
	outer, ok := d.Context.Deadline()
	if d.until.IsZero() || ok && outer.Before(d.until) {
		return outer, ok
	}
	return d.until, true
}

func (d *deadlineContext) Done() <-chan struct{} {
	if d.until.IsZero() {
		return d.Context.Done()
	}
	return d.timer().Done()
}

// Err looks at the clock while there is no timer.
func (d *deadlineContext) Err() error {
	if t := d.timed.Load(); t != nil {
		return t.Err()
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	if d.until.IsZero() || time.Now().Before(d.until) {
		return nil
	}
	return context.DeadlineExceeded
}

// AfterFunc lets package context derive from d without a goroutine.
func (d *deadlineContext) AfterFunc(fn func()) (stop func() bool) {
	if d.until.IsZero() {
		return context.AfterFunc(d.Context, fn)
	}
	return context.AfterFunc(d.timer(), fn)
}

// timer returns the context with the timer, and makes it if there is none.
func (d *deadlineContext) timer() *timedContext {
	if t := d.timed.Load(); t != nil {
		return t
	}
	t := &timedContext{}
	t.Context, t.cancel = context.WithDeadline(d.Context, d.until)
	if !d.timed.CompareAndSwap(nil, t) {
		t.cancel()
	}
	return d.timed.Load()
}

// release ends d and stops its timer. A context without a deadline of its own stays as it is.
func (d *deadlineContext) release() {
	if !d.until.IsZero() && !d.timed.CompareAndSwap(nil, ended) {
		d.timed.Load().cancel()
	}
}

// ended is a canceled context.
var ended = func() *timedContext {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &timedContext{ctx, cancel}
}()

// outlast returns ctx without the deadlines of the functions it was made for. It can do so only
// while their contexts, and no context derived from them, decide when ctx ends.
func outlast(ctx context.Context) context.Context {
	end, found := ctx, false // found: contexts of some types cannot be compared
	for f := innermost(end); f != nil && f.Done() == end.Done(); f = innermost(end) {
		end, found = f.Context, true
	}
	if !found {
		return ctx
	}
	return lasting{end, ctx}
}

// lasting has the values of one context and ends with another, which the first was derived from.
type lasting struct {
	context.Context
	values context.Context
}

func (l lasting) Value(key any) any { return l.values.Value(key) }
