package pawl

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Calls from inside a mutator. Its context is a frame: it tells who is calling, so that a call on the mutator's own scope is refused, a
// persisted scope's queue does not wait for a mutator that waits elsewhere, and a circle of mutators is seen when it would close.
// The context of a lease is a frame, too: it tells which leases a commit has to be tested against.

// frame is the context of a running mutator. It carries what re-entrancy and deadlock detection need. One with neither queue nor tx is
// the context of a lease.
type frame struct {
	context.Context
	*inside

	over atomic.Bool // the function has returned, or was abandoned
}

// inside is what most frames of a scope have in common, by which they are smaller: there is one for every function that runs.
type inside struct {
	queue  *queue     // of a mutator
	key    *Key       // of a mutator
	verb   string     // in memory
	parent *frame     // the mutator or transaction around it
	lease  *Lease     // the innermost that calls with this context are made under; nil: none
	tx     *Tx        // of the function of a transaction, which has neither queue nor key; nil: of a mutator
	stored *storedRun // persisted: its queue can move on without this mutator; nil: its queue waits for it
}

// calls are what the mutator of a frame waits for. They are protected by graph.
type calls struct {
	waits []*queue // where
	below []*frame // mutators of persisted scopes that run for these calls: no queue is held by them
}

// calls returns those made with f that are not over, nil if there are none. The caller holds graph.
func (f *frame) calls() *calls { return graph.calls[f] }

// waits returns where calls made with f wait. The caller holds graph.
func (f *frame) waits() []*queue {
	if c := f.calls(); c != nil {
		return c.waits
	}
	return nil
}

// calling returns the calls of f to add to. The caller holds graph.
func (f *frame) calling() *calls {
	c := f.calls()
	if c == nil {
		c = &calls{}
		graph.calls[f] = c
	}
	return c
}

// called forgets the calls of f when all are over. The caller holds graph.
func (f *frame) called() {
	if c := f.calls(); c != nil && len(c.waits) == 0 && len(c.below) == 0 {
		delete(graph.calls, f)
	}
}

type frameKey struct{}

// Value returns f for its own key, so that one allocation is both the context and what it carries.
func (f *frame) Value(key any) any {
	if key == (frameKey{}) {
		return f
	}
	return f.Context.Value(key)
}

// frameOf returns the innermost mutator or transaction that ctx was made for, nil if there is none. A transaction that is over, whose context
// an after-commit callback may still use, is not one any more.
func frameOf(ctx context.Context) *frame { return innermost(ctx).caller() }

// innermost returns the frame that ctx was derived from, of whatever sort.
func innermost(ctx context.Context) *frame {
	f, _ := ctx.Value(frameKey{}).(*frame)
	return f
}

func (f *frame) caller() *frame {
	for f != nil && f.queue == nil && (f.tx == nil || f.over.Load()) {
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

// Detach returns ctx without what the context of a mutator or a transaction carries, for a call inside one that it does not
// wait for. A call with it on the mutator's own scope waits its turn like any other instead of failing with
// ErrReentrant, and never gives *DeadlockError; one inside a transaction is no part of it, and never gives ErrOutsideTx. What it
// commits is still tested against the leases of ctx.
func Detach(ctx context.Context) context.Context {
	if frameOf(ctx) == nil {
		return ctx
	}
	return &frame{Context: ctx, inside: &inside{lease: innermost(ctx).held()}}
}

// Unfenced is Detach without the leases too: what is committed with it is not tested against those that ctx is made under. It is for work that goes on after
// their holder has given them back, such as a call in the background that a handler under a lease leaves behind. Whether ctx has ended is not changed by it.
func Unfenced(ctx context.Context) context.Context {
	if innermost(ctx) == nil {
		return ctx
	}
	return &frame{Context: ctx, inside: &inside{}}
}

// mutating is called when a mutator, or one around it, mutates another scope through its context.
func (f *frame) mutating(q *queue, key Key) error {
	if f.outerTx() != nil {
		return wrapKey(ErrOutsideTx, key)
	}
	for a := f; a != nil; a = a.parent {
		if a.queue == q && !a.over.Load() {
			return wrapKey(ErrReentrant, key)
		}
	}
	for a := f; a != nil; a = a.parent {
		if s := a.stored; s != nil && !a.over.Load() {
			s.cell.detach(s.round, s.waiter)
		}
	}
	return nil
}

// graph has the edges "this mutator waits for that queue". It is taken only by calls from inside a mutator.
var graph = struct {
	sync.Mutex
	calls map[*frame]*calls
}{calls: map[*frame]*calls{}}

// waitFor records that f's mutator waits for q, or returns *DeadlockError if q cannot move before f's mutator, or one
// around it, has returned. Every new edge is tested, so no cycle comes into being unseen.
func (f *frame) waitFor(q *queue) error {
	graph.Lock()
	defer graph.Unlock()
	if path := f.blocks(q, nil); path != nil {
		return &DeadlockError{Cycle: append([]Key{f.name()}, path...)}
	}
	c := f.calling()
	c.waits = append(c.waits, q)
	return nil
}

// blocks returns the mutators from the holder of q to one that f runs inside of, nil if there is no such way. The caller holds graph.
func (f *frame) blocks(q *queue, seen []*queue) []Key {
	h := q.current()
	if h == nil || slices.Contains(seen, q) {
		return nil
	}
	return f.blockedBehind(&h.frame, append(seen, q))
}

// blockedBehind returns the mutators from h to one that f runs inside of, following what each waits for. The caller holds graph.
func (f *frame) blockedBehind(h *frame, seen []*queue) []Key {
	for a := f; a != nil; a = a.parent {
		if a == h {
			return []Key{h.name()}
		}
		if a.parent != nil && !slices.Contains(a.parent.waits(), a.queue) {
			break // whoever is around it has stopped waiting for it
		}
	}
	for _, q := range h.waits() {
		if path := f.blocks(q, seen); path != nil {
			return append([]Key{h.name()}, path...)
		}
	}
	c := h.calls()
	if c == nil {
		return nil
	}
	for _, b := range c.below {
		if !slices.Contains(c.waits, b.queue) {
			continue // h has stopped waiting for it
		}
		if path := f.blockedBehind(b, seen); path != nil {
			return append([]Key{h.name()}, path...)
		}
	}
	return nil
}

// name is the key of the scope that f's mutator works on.
func (f *frame) name() Key {
	if f.key == nil {
		return Key{}
	}
	return *f.key
}

// begin makes f the frame of a running mutator, and end of one that has returned.
func (f *frame) begin() {
	if f.parent == nil || f.stored == nil {
		return
	}
	graph.Lock()
	defer graph.Unlock()
	c := f.parent.calling()
	c.below = append(c.below, f)
}

func (f *frame) end() {
	f.over.Store(true)
	if f.parent == nil || f.stored == nil {
		return
	}
	graph.Lock()
	defer graph.Unlock()
	c := f.parent.calling()
	c.below = slices.DeleteFunc(c.below, func(b *frame) bool { return b == f })
	f.parent.called()
}

// waited removes the edge that waitFor recorded.
func (f *frame) waited(q *queue) {
	graph.Lock()
	defer graph.Unlock()
	if i := slices.Index(f.waits(), q); i >= 0 {
		c := f.calls()
		c.waits = slices.Delete(c.waits, i, i+1)
		f.called()
	}
}
