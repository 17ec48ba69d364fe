package main

import (
	"context"
	"sync"
	"sync/atomic"
)

// A sync.Mutex around a change, written by hand. The change is made to a copy, which an
// atomic.Pointer publishes, so that readers get a consistent state without waiting, as with Pawl.
// There is no deadline, and no caller can leave: a function that hangs or calls back stops every
// writer.

// guarded is a state that writers replace and readers load.
type guarded[T any] struct {
	mu      sync.Mutex // held from loading current to storing its successor
	current atomic.Pointer[T]
}

// update publishes a changed shallow copy. A change may append to a slice: the array is shared with
// older states, which end before the new element, and only the newest state is ever appended to. It
// must not write to an element or to a map.
func (g *guarded[T]) update(change func(next *T, writer, i int), writer, i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := *g.current.Load()
	change(&next, writer, i)
	g.current.Store(&next)
}

// copySide knows which part its change replaces and copies no more than that. It is for structs and
// for lists that grow.
func copySide[T any](sh shape[T]) side {
	return side{name: "copy-on-write under sync.Mutex", open: func(*bench, load) (*instance, error) {
		g, change := new(guarded[T]), sh.change
		g.current.Store(sh.start())
		return &instance{
			do:      func(_ context.Context, w, i int) error { g.update(change, w, i); return nil },
			present: presentIn(&g.current, sh),
		}, nil
	}}
}

// doublingByHand is doubling with copy-on-write: it appends to lists of n, one after the other,
// until each has 2n.
func doublingByHand(n int) side {
	return side{name: "copy-on-write under sync.Mutex", open: func(_ *bench, l load) (*instance, error) {
		threads, change := make([]guarded[thread], l.each/n), messages.change
		start := longThread(n)
		for i := range threads {
			own := *start
			own.Messages = append([]message(nil), start.Messages...)
			threads[i].current.Store(&own)
		}
		return &instance{
			do: func(_ context.Context, w, i int) error { threads[i/n].update(change, w, i); return nil },
			present: func(context.Context) (appended int64, err error) {
				for i := range threads {
					appended += messages.count(threads[i].current.Load()) - int64(n)
				}
				return appended, nil
			},
		}, nil
	}}
}

// mutexSide gives its function a private copy of everything, which the function may change as it
// likes.
func mutexSide[T any](sh shape[T]) side {
	return side{name: "sync.Mutex", open: func(*bench, load) (*instance, error) {
		g := new(guarded[T])
		g.current.Store(sh.start())
		return &instance{
			do: func(_ context.Context, w, i int) error {
				g.mu.Lock()
				defer g.mu.Unlock()
				next := sh.clone(g.current.Load())
				sh.change(next, w, i)
				g.current.Store(next)
				return nil
			},
			present: presentIn(&g.current, sh),
		}, nil
	}}
}

func presentIn[T any](current *atomic.Pointer[T], sh shape[T]) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) { return sh.count(current.Load()), nil }
}
