package main

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// actorSide is an actor of protoactor-go that owns the state. Writers send it their change with
// RequestFuture, its request with a timeout, and wait for the answer. The system, the mailbox
// (unbounded) and the dispatcher are the defaults. The log is discarded.
func actorSide[T any](sh shape[T]) side {
	return side{name: "protoactor-go", open: func(*bench, load) (*instance, error) {
		system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(slog.NewTextHandler(io.Discard, nil))
		}))
		o := &ownerActor[T]{clone: sh.clone}
		o.current.Store(sh.start())
		change := sh.change
		pid := system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return o }))
		return &instance{
			do: func(_ context.Context, w, i int) error {
				request := changeBy[T](func(s *T) { change(s, w, i) })
				return system.Root.RequestFuture(pid, request, 30*time.Second).Wait()
			},
			present: presentIn(&o.current, sh),
			close: func() {
				_ = system.Root.StopFuture(pid).Wait()
				system.Shutdown()
			},
		}, nil
	}}
}

type changeBy[T any] func(*T)

type ownerActor[T any] struct {
	clone   func(*T) *T
	current atomic.Pointer[T]
}

func (o *ownerActor[T]) Receive(c actor.Context) {
	if change, ok := c.Message().(changeBy[T]); ok {
		next := o.clone(o.current.Load())
		change(next)
		o.current.Store(next)
		c.Respond(next)
	}
}
