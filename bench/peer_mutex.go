package main

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/internal/state"
)

// The least that one would write: a sync.Mutex around the change. So that readers get a consistent state without waiting, as Pawl's do,
// the change is made to a copy, which is published through an atomic.Pointer. There is no deadline, no way out for who waits, and a function that
// hangs or calls back holds everybody up.
func mutexSide[T any](sh shape[T]) side {
	return side{name: "sync.Mutex", open: func(*bench, load) (*instance, error) {
		var (
			mu      sync.Mutex
			current atomic.Pointer[T]
		)
		current.Store(sh.start())
		return &instance{
			do: func(_ context.Context, w, i int) error {
				mu.Lock()
				defer mu.Unlock()
				next := sh.clone(current.Load())
				sh.change(next, w, i)
				current.Store(next)
				return nil
			},
			present: presentIn(&current, sh),
		}, nil
	}}
}

// inPlaceSide changes the state itself under the mutex, without a copy: the least there is, and no reader can look without the lock.
func inPlaceSide[T any](sh shape[T]) side {
	s := mutexSide(sh.inPlace())
	s.name = "sync.Mutex, in place"
	return s
}

// mergeSide is Pawl's own merge function, from a field name and a value to a new state, under a sync.Mutex: what the data verbs would cost
// without the library around it. Lists grow in place, as ours do.
func mergeSide[T any](sh shape[T]) side {
	return side{name: "merge under sync.Mutex", open: func(*bench, load) (*instance, error) {
		typ, err := state.Of(reflect.TypeFor[T]())
		if err != nil {
			return nil, err
		}
		var (
			mu      sync.Mutex
			tail    state.Tail
			current atomic.Pointer[T]
		)
		current.Store(sh.start())
		return &instance{
			do: func(_ context.Context, w, i int) error {
				var room [2]state.Op
				change, err := typ.Prepare(sh.ops(room[:0], w, i))
				if err != nil {
					return err
				}
				next := new(T)
				mu.Lock()
				defer mu.Unlock()
				changed, err := change.Apply(current.Load(), next, &tail)
				if err == nil && changed {
					current.Store(next)
				}
				return err
			},
			present: presentIn(&current, sh),
		}, nil
	}}
}

func presentIn[T any](current *atomic.Pointer[T], sh shape[T]) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) { return sh.count(current.Load()), nil }
}

// pointerSide reads a state through an atomic.Pointer: the cheapest consistent read there is.
func pointerSide(reads int) side {
	return side{name: "atomic.Pointer", open: func(*bench, load) (*instance, error) {
		var current atomic.Pointer[counter]
		current.Store(newCounter())
		return &instance{do: func(context.Context, int, int) error {
			n := int64(0)
			for range reads {
				n += current.Load().Last
			}
			sink.Store(n)
			return nil
		}}, nil
	}}
}

// sink takes what was read, so that reading is not optimised away.
var sink atomic.Int64
