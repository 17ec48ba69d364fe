package main

import (
	"context"
	"sync/atomic"
)

// A goroutine that owns the state and takes its writers' requests from a channel, as "share memory by communicating" has it. Each writer has a
// channel for its answers, which it uses again, so that a request allocates no more than it must. There is no deadline here.
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
