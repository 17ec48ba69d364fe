package flow

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pawl-go/pawl"
)

// IDs say on whose behalf an action is called. An empty Request gets a new id; of the others, admission may need one.
type IDs struct{ Request, Session, User, Org string }

// Call is one call of an action. It is a pawl.Owner, so an action opens its scopes on it, by the ids it came with:
//
//	turn := pawl.Request[Turn](c, c.Request)     // persisted, as Session, User and Org are
//	board := pawl.Sequencer[Board](c, "board")   // in memory, ends with the request, as Target does
//
// The action's context ends when the call is canceled, its caller leaves, or its lease is lost. What is committed with it is fenced by the lease. After
// the end of the context the action may still tidy up with context.WithoutCancel of it: the lease is kept until the action has returned, and fences that too.
type Call struct {
	*pawl.Local
	IDs
	Action string
}

// Action is a named, typed function of a flow.
type Action[In, Out any] struct {
	flow *Flow
	name string
	fn   func(ctx context.Context, c *Call, in In) (Out, error)
}

// Define adds an action to f. Like a wrong pattern of an http.ServeMux, an empty or repeated name and a nil flow or function make it panic.
func Define[In, Out any](f *Flow, name string, fn func(ctx context.Context, c *Call, in In) (Out, error)) *Action[In, Out] {
	switch {
	case f == nil:
		panic("flow: Define on a nil flow")
	case fn == nil:
		panic(fmt.Sprintf("flow: action %q has no function", name))
	case name == "":
		panic("flow: an action without a name")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.actions[name] {
		panic(fmt.Sprintf("flow: action %q is defined twice", name))
	}
	f.actions[name] = true
	return &Action[In, Out]{flow: f, name: name, fn: fn}
}

// Do admits the call, runs the action, and returns its output, or its error unchanged. A panic of the action passes through; either way the call has left its place when Do
// is over. Inside another action, with its context, a call under the same key of admission passes at once; one of the same request is a part of that call.
//
// When the context ended in mid-action, an error of the action that tells of it matches the cause as well. Do returns ErrCanceled after Cancel, *BusyError when admission rejects the call or its request id is in flight,
// *pawl.LeaseLostError when the lease was lost, pawl.ErrClosed after Stop, *pawl.OverloadedError when too many wait, *pawl.ArgumentError or *pawl.LimitError for bad ids, pawl.ErrOutsideTx inside a transaction, the cause of
// a ctx that ended first, and the errors of the verbs.
func (a *Action[In, Out]) Do(ctx context.Context, ids IDs, in In) (out Out, err error) {
	c, err := a.flow.call(ctx, a.name, ids, false)
	if err != nil {
		return out, err
	}
	defer c.leave()
	return a.run(c, in)
}

// run waits for admission and runs the action.
func (a *Action[In, Out]) run(c *call, in In) (out Out, err error) {
	if err := c.await(); err != nil {
		return out, err
	}
	out, err = a.fn(c.ctx, &Call{Local: c.local, IDs: c.IDs, Action: a.name}, in)
	return out, c.verdict(err)
}

// Go is Do in the background, which the end of ctx does not end: it returns once the call is admitted or has its place in the queue. What the action has to say is in its scopes; its error, or a panic, goes
// to the log. Called inside an action, it is a call of its own, which waits its turn; leases that ctx is
// made under, such as that of an idempotency key, do not fence it, for they are given back while it runs. It returns the errors that Do returns before the action runs.
func (a *Action[In, Out]) Go(ctx context.Context, ids IDs, in In) error {
	c, err := a.flow.call(ctx, a.name, ids, true)
	if err != nil {
		return err
	}
	go func() {
		defer c.leave()
		defer func() {
			if v := recover(); v != nil {
				c.flow.log.Error("flow: action panicked", "flow", c.flow.config.Kind, "action", a.name, "request", c.Request, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}()
		if _, err := a.run(c, in); err != nil && !errors.Is(err, ErrCanceled) {
			c.flow.log.Warn("flow: action failed", "flow", c.flow.config.Kind, "action", a.name, "request", c.Request, "err", err)
		}
	}()
	return nil
}
