package flow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
)

// A call from its start to its end:
//
//	call: hold the record ─► draw a ticket ─► await: the lowest is mine ─► the action ─► leave: ticket and record go in one commit
//
// docs/flows.md lists the races, and what decides each.

// leaveWithin bounds the commit that ends a call.
const leaveWithin = 5 * time.Second

// record is the document of a call in flight.
type record struct {
	Action   string `json:"action"`
	Canceled bool   `json:"canceled,omitempty"`
}

// call is a call in flight.
type call struct {
	IDs
	flow   *Flow
	action string
	outer  *call           // that it was made inside of; nil: none
	base   context.Context // that the outermost call was made with

	wish   context.Context // ends when the caller leaves, and with cancel
	cancel context.CancelCauseFunc
	ctx    context.Context // of the action; ends with wish, and with the lease
	local  *pawl.Local
	record pawl.Scope[record]
	lease  *pawl.Lease // of the record

	over  atomic.Bool // the action has returned, or will not run
	holds bool        // the lease is its own, not that of an outer call of the same request
	keeps bool        // likewise, local
	free  func()      // what the deadline of ctx takes, or keep

	gate     pawl.Scope[gate]
	ticket   string // its name; empty: it needs none, or has none yet
	admitted bool   // by the commit that drew the ticket
}

type callKey struct{}

// outers yields c and the calls around it, from the inside.
func (c *call) outers(yield func(*call) bool) {
	for ; c != nil && yield(c); c = c.outer {
	}
}

// inside reports whether c was made inside a call of f that is in flight. The caller holds f.mu.
func (c *call) inside(f *Flow) bool {
	for o := range c.outer.outers {
		if _, ok := f.live[o]; ok {
			return true
		}
	}
	return false
}

// call starts a call: when it returns, the call is admitted or has its place in the queue. A background call is none inside another, and outlives ctx.
func (f *Flow) call(ctx context.Context, action string, ids IDs, background bool) (*call, error) {
	unit, err := f.check(ctx, &ids)
	if err != nil {
		return nil, err
	}
	c := &call{IDs: ids, flow: f, action: action, base: ctx, record: f.calls.Scope(f.rt, ids.Request)}
	if f.config.Admit != Allow {
		c.gate = f.gates.Scope(f.rt, unit)
	}
	if outer, _ := ctx.Value(callKey{}).(*call); outer != nil {
		c.base = outer.base
		if !background {
			c.outer = outer
		}
	}
	for o := range c.outer.outers {
		if o.over.Load() { // nothing of it could be committed
			return nil, &pawl.LeaseLostError{Scope: o.record.Key(), Token: o.lease.Token(), Released: true}
		}
	}
	arrived := func() bool { return true }
	if background { // once it has its place, the end of ctx means nothing to it
		c.wish, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		arrived = context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	} else {
		c.wish, c.cancel = context.WithCancelCause(ctx)
	}
	if err := f.add(c); err != nil {
		c.cancel(nil)
		arrived()
		return nil, err
	}
	ready := false
	defer func() { // also when the store panics
		if !ready {
			c.leave()
		}
	}()
	if err = c.hold(background); err == nil && f.config.Admit != Allow {
		err = c.draw()
	}
	if !arrived() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	ready = true
	return c, nil
}

// ended returns why the context of the action has ended, or is about to; nil if it has not.
func (c *call) ended() error {
	if c.ctx.Err() == context.DeadlineExceeded { // it is that of the wish, whose end has a cause of its own
		select {
		case <-c.wish.Done():
		case <-time.After(lookAgain):
		}
	}
	if err := context.Cause(c.wish); err != nil {
		return err
	}
	return context.Cause(c.ctx)
}

// check tells what is wrong with a call before anything is written, and returns the id of its gate.
func (f *Flow) check(ctx context.Context, ids *IDs) (unit string, err error) {
	if ctx == nil {
		return "", &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if ids.Request == "" {
		ids.Request = rand.Text()
	}
	for _, id := range []struct{ what, id string }{{"request", ids.Request}, {"session", ids.Session}, {"user", ids.User}, {"org", ids.Org}} {
		if id.id != "" {
			err = errors.Join(err, f.usable(ctx, id.what, id.id))
		}
	}
	switch f.config.Per {
	case PerSession:
		unit = ids.Session
	case PerUser:
		unit = ids.User
	case PerFlow:
		unit = "flow"
	}
	if unit == "" && f.config.Admit != Allow {
		err = errors.Join(err, &pawl.ArgumentError{Argument: "IDs", Reason: fmt.Sprintf("flow %s admits per %s, whose id is empty", f.config.Kind, unitNames[f.config.Per])})
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return unit, err
}

// hold gets the record of the request, its lease, and the context of the action.
func (c *call) hold(background bool) error {
	for o := range c.outer.outers {
		if o.Request != c.Request {
			continue
		}
		if c.local == nil {
			c.local = o.local
		}
		if o.flow.rt == c.flow.rt && o.record.Key() == c.record.Key() { // it is a part of that call, also if that is of another value of the flow
			c.lease = o.lease
			c.ctx = context.WithValue(c.wish, callKey{}, c)
			return c.ended()
		}
	}
	if c.local == nil {
		c.local, c.keeps = pawl.NewLocal(c.flow.rt, c.flow.config.Options...), true
	}
	// The lease outlives the wish: it is kept until the action has returned. Only taking it ends with the wish.
	from := c.wish
	if background {
		from = pawl.Unfenced(c.base) // it goes on after whoever called it has given back what he holds
	}
	over, stop := context.WithCancelCause(context.WithoutCancel(from))
	taking := context.AfterFunc(c.wish, func() { stop(context.Cause(c.wish)) })
	lease, err := c.take(over)
	if err != nil {
		stop(nil)
		if pawl.OutcomeUnknown(err) { // the lease is given back if it lands, but there is a record then
			c.flow.rest.Go(func() { c.flow.tidy(ticket{Request: c.Request}) })
		}
		return err
	}
	c.lease, c.holds = lease, true
	inner, end := context.WithCancelCause(lease.Context())
	c.ctx = context.WithValue(inner, callKey{}, c)
	if !taking() {
		end(nil)
		return context.Cause(c.wish)
	}
	context.AfterFunc(c.wish, func() { end(context.Cause(c.wish)) }) // at the latest when the call leaves
	if at, ok := c.wish.Deadline(); ok {                             // for the action to see
		c.ctx, c.free = context.WithDeadline(c.ctx, at)
	}
	c.flow.held(c)
	c.flow.rest.Go(c.listen)
	return nil
}

// take takes the lease of the record, which is made for it. What a dead call has left is made anew.
func (c *call) take(ctx context.Context) (*pawl.Lease, error) {
	set := pawl.Set{State: record{Action: c.action}}
	asked := []pawl.LeaseOption{pawl.LeaseFor(c.flow.config.Lease), pawl.Applying(set, pawl.IfAbsent())}
	for {
		lease, err := c.record.Acquire(ctx, asked...)
		switch {
		case errors.Is(err, pawl.ErrHeld):
			return nil, &BusyError{InFlight: c.Request, Scope: c.record.Key()}
		case errors.Is(err, pawl.ErrExists):
			asked[1] = pawl.Applying(set)
		case gone(err):
			asked[1] = pawl.Applying(set, pawl.IfAbsent())
		default:
			return lease, err
		}
	}
}

// listen waits for the wish of another process to cancel the call, and keeps what the call has in the store from expiring, for as long as it has its lease: an action may
// take its time after the end of its context.
func (c *call) listen() {
	ctx := c.lease.Context()
	renew := time.NewTicker(idleFor / 3)
	defer renew.Stop()
	changes := c.record.Changes(ctx)
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			changes = c.record.Changes(ctx)
		case change, ok := <-changes:
			switch {
			case !ok:
				return // with ctx
			case change.Err != nil: // the store could not be reached
				changes, again = nil, time.After(lookAgain)
			case change.Exists() && change.ReadOnly().Canceled:
				c.cancel(ErrCanceled)
			}
		case <-renew.C:
			c.renew(ctx)
		}
	}
}

// keep does for a call that is a part of another what listen does for that: its gate may be another one.
func (c *call) keep(ctx context.Context) {
	renew := time.NewTicker(idleFor / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			c.renew(ctx)
		}
	}
}

// renew puts off the expiry of what the call has in the store: a write that changes nothing does.
func (c *call) renew(ctx context.Context) {
	_, err := c.record.Apply(ctx, pawl.All{})
	if c.flow.config.Admit != Allow {
		_, late := c.gate.Apply(ctx, pawl.All{})
		err = errors.Join(err, late)
	}
	if err != nil && ctx.Err() == nil {
		c.flow.log.Warn("flow: expiry of a call not put off", "flow", c.flow.config.Kind, "request", c.Request, "err", err)
	}
}

// verdict is what Do returns for the action's err.
func (c *call) verdict(err error) error {
	var lost *pawl.LeaseLostError
	cause := c.ended()
	switch {
	case err == nil && errors.As(context.Cause(c.lease.Context()), &lost):
		return lost
	case err != nil && cause != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) && !errors.Is(err, cause):
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// leave ends the call, whatever has become of it.
func (c *call) leave() {
	c.over.Store(true)
	defer c.flow.remove(c)
	c.cancel(nil)
	if c.free != nil {
		c.free()
	}
	if c.keeps {
		c.local.Close()
	}
	if c.lease == nil {
		return
	}
	lost, err := c.forget()
	switch {
	case err != nil && !c.holds: // the lease does not run out: it is that of an outer call
		c.flow.rest.Go(c.insist)
	case err != nil:
		c.flow.log.Warn("flow: end of a call not recorded, its lease will run out", "flow", c.flow.config.Kind, "request", c.Request, "err", err)
	}
	if c.holds { // its record is gone, and the lease with it, but this process has to stop renewing it
		c.flow.rest.Go(func() {
			_ = c.lease.Release(context.WithoutCancel(c.lease.Context()))
			if lost {
				c.flow.tidy(ticket{Request: c.Request, Token: c.lease.Token()})
			}
		})
	}
}

// tidy removes the record of a call that has ended, unless another has it. If it takes long, the record is left to expire.
func (f *Flow) tidy(t ticket) {
	ctx, stop := context.WithTimeout(context.Background(), leaveWithin)
	defer stop()
	for ctx.Err() == nil {
		over, left, err := f.probe(ctx, t)
		if over {
			return
		}
		if err != nil {
			left = lookAgain
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(left, lookAgain)):
		}
	}
}

// insist removes the ticket of a call that is a part of another, which may have its lease for long.
func (c *call) insist() {
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		select {
		case <-c.lease.Context().Done():
			return // it counts as dead now
		case <-again.C:
			if _, err := c.forget(); err == nil {
				return
			}
		}
	}
}

// forget removes what the call has in the store, unless its lease was lost.
func (c *call) forget() (lost bool, err error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.lease.Context()), leaveWithin)
	defer stop()
	switch {
	case c.holds && c.ticket == "":
		err = c.record.Delete(ctx)
	case c.holds:
		err = pawl.Transact(ctx, c.flow.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := c.gate.In(tx).DeleteStateRecord(ctx, tickets, c.ticket)
			return errors.Join(err, c.record.In(tx).Delete(ctx))
		}, pawl.WithRetry(atGates))
	case c.ticket != "":
		_, err = c.gate.DeleteStateRecord(ctx, tickets, c.ticket)
	}
	if !errors.Is(err, pawl.ErrLeaseLost) {
		return false, err
	}
	// Others will remove the ticket, too; it can go at once, though, for the action has returned.
	if c.ticket != "" {
		c.flow.rest.Go(func() {
			plain, stop := context.WithTimeout(context.Background(), leaveWithin)
			defer stop()
			_, _ = c.gate.DeleteStateRecord(plain, tickets, c.ticket)
		})
	}
	return true, nil
}
