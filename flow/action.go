package flow

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pawl-go/pawl"
)

// IDs name the request, session, user and organisation that an action is called for. An empty
// Request gets a new id. Session or User is required if the flow admits per session or per user.
type IDs struct{ Request, Session, User, Org string }

// Call is one call of an action. It is a pawl.Owner: an action opens its scopes on it, by the ids
// of the call.
//
//	turn := pawl.Request[Turn](c, c.Request)     // persisted, as Session, User and Org are
//	board := pawl.Sequencer[Board](c, "board")   // in memory, ends with the request, as Target does
//
// The action's context ends when the call is canceled, when the caller's context ends, or when the
// lease is lost. Commits made with it are fenced by the lease. After the end of the context the
// action may still clean up with context.WithoutCancel of it: the lease is kept until the action
// has returned, and fences those commits too.
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

// Define adds an action to f. It panics on a nil flow, a nil function, and an empty or repeated
// name, as http.ServeMux panics on a bad pattern.
func Define[In, Out any](f *Flow, name string, fn func(ctx context.Context, c *Call, in In) (Out, error)) *Action[In, Out] {
	switch {
	case f == nil:
		panic("flow: Define on a nil flow")
	case fn == nil:
		panic(fmt.Sprintf("flow: action %q has no function", name))
	case name == "":
		panic("flow: action without a name")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.actions[name] {
		panic(fmt.Sprintf("flow: action %q is defined twice", name))
	}
	f.actions[name] = true
	return &Action[In, Out]{flow: f, name: name, fn: fn}
}

// Do admits the call, runs the action, and returns its output, or its error unchanged. A panic of
// the action passes through. When Do returns or panics, the call has left its gate. A call made
// inside another action, with that action's context, passes at once at the same gate; with the same
// request id it is a part of the outer call.
//
// If the context ended during the action, an error of the action that reports this also matches the
// cause. Apart from errors of the action and of the verbs, Do returns
//   - ErrCanceled after Cancel,
//   - *BusyError when admission rejects the call, or its request id is in flight,
//   - *pawl.LeaseLostError when the lease was lost,
//   - pawl.ErrClosed after Stop,
//   - *pawl.OverloadedError when the queue is full,
//   - *pawl.ArgumentError or *pawl.LimitError for bad ids,
//   - pawl.ErrOutsideTx inside a transaction,
//   - the cause of a ctx that ended first.
func (a *Action[In, Out]) Do(ctx context.Context, ids IDs, in In) (out Out, err error) {
	c, err := a.flow.newCall(ctx, a.name, ids, false)
	if err != nil {
		return out, err
	}
	defer c.leave()
	return a.run(c, in)
}

// run waits for admission and runs the action.
func (a *Action[In, Out]) run(c *call, in In) (out Out, err error) {
	if err := c.awaitAdmission(); err != nil {
		return out, err
	}
	if lost, ok := errors.AsType[*pawl.LeaseLostError](context.Cause(c.lease.Context())); ok {
		return out, lost
	}
	// Only the action sees the deadline. Everything before it ends with callerCtx, which has the cause.
	if at, ok := c.callerCtx.Deadline(); ok && c.ownsLease {
		c.ctx, c.cleanup = context.WithDeadline(c.ctx, at)
	}
	out, err = a.fn(c.ctx, &Call{Local: c.local, IDs: c.IDs, Action: a.name}, in)
	return out, c.actionError(err)
}

// Go is Do in the background. It returns once the call is admitted or has its place in the queue;
// from then on the end of ctx does not end the call. The action reports through its scopes; its
// error or panic is logged.
//
// Inside another action, Go starts a separate call that waits for admission like any other. The
// leases that fence ctx, such as that of an idempotency key, do not fence it: they are released
// while it runs. Go returns the errors that Do returns before the action runs.
func (a *Action[In, Out]) Go(ctx context.Context, ids IDs, in In) error {
	c, err := a.flow.newCall(ctx, a.name, ids, true)
	if err != nil {
		return err
	}
	go func() {
		defer c.leave()
		defer func() {
			if v := recover(); v != nil {
				c.flow.log.Error("flow: action panicked", "flow", c.flow.config.Kind, "action", a.name,
					"request", c.Request, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}()
		if _, err := a.run(c, in); err != nil && !errors.Is(err, ErrCanceled) {
			c.flow.log.Warn("flow: action failed", "flow", c.flow.config.Kind, "action", a.name,
				"request", c.Request, "err", err)
		}
	}()
	return nil
}
