package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// goroutineSide runs each mutation in a goroutine, which waits for the mutation before it. This is
// the chain of promises of JavaScript,
//
//	tail = tail.then(() => Promise.race([mutate(), timeout(30_000)]))
//
// in Go: a promise becomes a goroutine and the channel that it closes. The timer of a mutation
// starts when the mutation is submitted, so that the caller's wait is bounded.
func goroutineSide[T any](sh shape[T]) side {
	return side{name: "goroutine per mutation", open: func(*bench, load) (*instance, error) {
		c := &chain[T]{clone: sh.clone, last: make(chan struct{})}
		close(c.last)
		c.current.Store(sh.start())
		change := sh.change
		return &instance{
			do: func(_ context.Context, w, i int) error {
				return c.mutate(func(s *T) { change(s, w, i) }, 30*time.Second)
			},
			present: presentIn(&c.current, sh),
		}, nil
	}}
}

// chain runs mutations in the order in which they are submitted.
type chain[T any] struct {
	clone   func(*T) *T
	current atomic.Pointer[T]

	mu   sync.Mutex    // protects last
	last chan struct{} // closed when the newest mutation is done
}

var errTooLate = errors.New("timed out")

// mutate makes a change and waits for it. It returns errTooLate after timeout; the change is still
// made.
func (c *chain[T]) mutate(change func(*T), timeout time.Duration) error {
	done := make(chan struct{})
	c.mu.Lock()
	before := c.last
	c.last = done
	c.mu.Unlock()
	go func() {
		defer close(done)
		<-before
		next := c.clone(c.current.Load())
		change(next)
		c.current.Store(next)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return errTooLate
	}
}
