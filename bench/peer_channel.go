package main

import (
	"context"
	"sync/atomic"
)

// channelSide is a goroutine that owns the state and receives requests from a channel ("share memory
// by communicating"). Each writer has one channel for all its answers, so that a request allocates
// little. There is no deadline.
func channelSide[T any](sh shape[T]) side {
	return side{name: "channel", open: func(_ *bench, l load) (*instance, error) {
		type request struct {
			change func(*T)
			answer chan<- *T
		}
		var (
			current  atomic.Pointer[T]
			requests = make(chan request)
			answers  = make([]chan *T, l.writers)
		)
		for w := range answers {
			answers[w] = make(chan *T, 1)
		}
		current.Store(sh.start())
		change := sh.change
		go func() {
			for r := range requests {
				next := sh.clone(current.Load())
				r.change(next)
				current.Store(next)
				r.answer <- next
			}
		}()
		return &instance{
			do: func(_ context.Context, w, i int) error {
				requests <- request{func(s *T) { change(s, w, i) }, answers[w]}
				<-answers[w]
				return nil
			},
			present: presentIn(&current, sh),
			close:   func() { close(requests) },
		}, nil
	}}
}
