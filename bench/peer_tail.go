package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// The promise tail, ported from JavaScript, where one serialises mutators by chaining each on the promise of the last one
//
//	tail = tail.then(() => Promise.race([mutate(), timeout(30_000)]))
//
// A promise becomes a goroutine and the channel that it closes. As there, every mutation has a timer of its own; unlike
// there, it runs from the moment the mutation is submitted, so that a caller's wait is bounded.
func tailSide[T any](sh shape[T]) side {
	return side{name: "promise tail", open: func(*bench, load) (*instance, error) {
		t := &promiseTail[T]{clone: sh.clone, last: make(chan struct{})}
		close(t.last)
		t.current.Store(sh.start())
		change := sh.change
		return &instance{
			do: func(_ context.Context, w, i int) error {
				return t.mutate(func(s *T) { change(s, w, i) }, 30*time.Second)
			},
			present: presentIn(&t.current, sh),
		}, nil
	}}
}

type promiseTail[T any] struct {
	clone   func(*T) *T
	current atomic.Pointer[T]

	mu   sync.Mutex
	last chan struct{} // closed when the last mutation is done
}

var errTooLate = errors.New("timed out")

func (t *promiseTail[T]) mutate(change func(*T), timeout time.Duration) error {
	done := make(chan struct{})
	t.mu.Lock()
	before := t.last
	t.last = done
	t.mu.Unlock()
	go func() {
		defer close(done)
		<-before
		next := t.clone(t.current.Load())
		change(next)
		t.current.Store(next)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return errTooLate // it will be made all the same
	}
}
