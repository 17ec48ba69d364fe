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
//	newCall: acquire the record ─► draw a ticket ─► awaitAdmission: it is the lowest ─► the action
//	                                                                                      │
//	         ticket and record are deleted in one commit ◄── leave ◄──────────────────────┘
//
// docs/flows.md lists the races, and what decides each.

// watchAfter is how long a call runs before its record is watched for a cancellation by another
// process: most calls are over by then, and spare the store a read.
const watchAfter = 50 * time.Millisecond

// leaveTimeout bounds the commit that ends a call.
const leaveTimeout = 5 * time.Second

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
	// outer is the call in whose action this call was made; nil: none.
	outer *call
	// base is the context that the outermost call was made with.
	base context.Context

	// callerCtx ends with the caller's context, and by cancel.
	callerCtx context.Context
	cancel    context.CancelCauseFunc
	// ctx is the context of the action. It ends with callerCtx and with the lease.
	ctx    context.Context
	local  *pawl.Local
	record pawl.Scope[record]
	// lease is the lease of the record; nil: not acquired.
	lease *pawl.Lease

	// over is set once the action has returned, or will not run.
	over atomic.Bool
	// ownsLease is false if the lease belongs to an outer call of the same request.
	ownsLease bool
	// ownsLocal is false if local belongs to an outer call of the same request.
	ownsLocal bool
	// cleanup releases the deadline of ctx, or stops renewNested; nil: there is neither.
	cleanup func()

	gate pawl.Scope[gate]
	// ticket is the name of the call's ticket; empty: it needs none, or has none yet.
	ticket string
	// admitted is set if the ticket was the lowest when it was drawn.
	admitted bool
}

type callKey struct{}

// outers yields c and the calls around it, from the innermost to the outermost.
func (c *call) outers(yield func(*call) bool) {
	for ; c != nil && yield(c); c = c.outer {
	}
}

// inside reports whether c was made inside a call of f that is in flight. The caller holds f.mu.
func (c *call) inside(f *Flow) bool {
	for o := range c.outer.outers {
		if _, ok := f.inFlight[o]; ok {
			return true
		}
	}
	return false
}

// newCall starts a call. When it returns, the call is admitted or has its place in the queue. A
// background call is never a nested call, and outlives ctx.
func (f *Flow) newCall(ctx context.Context, action string, ids IDs, background bool) (*call, error) {
	unit, err := f.checkCall(ctx, &ids)
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
		if o.over.Load() { // no commit of c could pass the fence
			return nil, &pawl.LeaseLostError{Scope: o.record.Key(), Token: o.lease.Token(), Released: true}
		}
	}
	// detach makes a background call independent of ctx. It reports false if ctx ended first.
	detach := func() bool { return true }
	if background {
		c.callerCtx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		detach = context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	} else {
		c.callerCtx, c.cancel = context.WithCancelCause(ctx)
	}
	if err := f.add(c); err != nil {
		c.cancel(nil)
		detach()
		return nil, err
	}
	ready := false
	defer func() { // also when the store panics
		if !ready {
			c.leave()
		}
	}()
	if err = c.obtainLease(background); err == nil && f.config.Admit != Allow {
		err = c.drawTicket()
	}
	if !detach() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	ready = true
	return c, nil
}

// endCause returns why the context of the action has ended, or is about to end; nil if neither.
func (c *call) endCause() error {
	// The deadline of ctx is that of callerCtx. Wait for callerCtx, which has its own cause.
	if c.ctx.Err() == context.DeadlineExceeded {
		select {
		case <-c.callerCtx.Done():
		case <-time.After(checkInterval):
		}
	}
	if err := context.Cause(c.callerCtx); err != nil {
		return err
	}
	return context.Cause(c.ctx)
}

// checkCall validates a call before anything is written, and returns the id of its gate. It sets an
// empty request id.
func (f *Flow) checkCall(ctx context.Context, ids *IDs) (unit string, err error) {
	if ctx == nil {
		return "", &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if ids.Request == "" {
		ids.Request = rand.Text()
	}
	for _, id := range []struct{ what, id string }{
		{"request", ids.Request}, {"session", ids.Session}, {"user", ids.User}, {"org", ids.Org},
	} {
		if id.id != "" {
			err = errors.Join(err, f.checkID(ctx, id.what, id.id))
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
		reason := fmt.Sprintf("flow %s admits per %s, and the %s id is empty", f.config.Kind,
			unitNames[f.config.Per], unitNames[f.config.Per])
		err = errors.Join(err, &pawl.ArgumentError{Argument: "IDs", Reason: reason})
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return unit, err
}

// obtainLease acquires the record of the request and derives the action's context from its lease. A
// nested call of the same request shares the lease of the outer call.
func (c *call) obtainLease(background bool) error {
	for o := range c.outer.outers {
		if o.Request != c.Request {
			continue
		}
		if c.local == nil {
			c.local = o.local
		}
		// The record is the same one even if o belongs to another Flow value of this kind.
		if o.flow.rt == c.flow.rt && o.record.Key() == c.record.Key() {
			c.lease = o.lease
			c.ctx = context.WithValue(c.callerCtx, callKey{}, c)
			return c.endCause()
		}
	}
	if c.local == nil {
		c.local, c.ownsLocal = pawl.NewLocal(c.flow.rt, c.flow.config.Options...), true
	}
	// The lease outlives callerCtx: it is kept until the action has returned. The end of callerCtx
	// only stops the attempt to acquire it.
	from := c.callerCtx
	if background {
		from = pawl.WithoutLeases(c.base) // the call continues after its caller has released its leases
	}
	over, stop := context.WithCancelCause(context.WithoutCancel(from))
	acquired := context.AfterFunc(c.callerCtx, func() { stop(context.Cause(c.callerCtx)) })
	lease, err := c.acquireRecord(over)
	if err != nil {
		stop(nil)
		if pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrLeaseLost) { // the record may stay without a lease
			c.flow.background.Go(func() { c.flow.removeRecord(ticket{Request: c.Request}) })
		}
		return err
	}
	c.lease, c.ownsLease = lease, true
	inner, end := context.WithCancelCause(lease.Context())
	c.ctx = context.WithValue(inner, callKey{}, c)
	if !acquired() {
		end(nil)
		return context.Cause(c.callerCtx)
	}
	// leave cancels callerCtx at the latest.
	context.AfterFunc(c.callerCtx, func() { end(context.Cause(c.callerCtx)) })
	c.flow.addHolder(c)
	c.flow.background.Go(c.watchRecord)
	return nil
}

// acquireRecord creates the record and acquires its lease. It replaces the record of a dead call.
func (c *call) acquireRecord(ctx context.Context) (*pawl.Lease, error) {
	set := pawl.Set{State: record{Action: c.action}}
	asked := []pawl.LeaseOption{pawl.LeaseFor(c.flow.config.Lease), pawl.WithMutation(set, pawl.IfAbsent())}
	for {
		lease, err := c.record.Acquire(ctx, asked...)
		switch {
		case errors.Is(err, pawl.ErrHeld):
			return nil, &BusyError{InFlight: c.Request, Scope: c.record.Key()}
		case errors.Is(err, pawl.ErrExists):
			asked[1] = pawl.WithMutation(set)
		case gone(err):
			asked[1] = pawl.WithMutation(set, pawl.IfAbsent())
		default:
			return lease, err
		}
	}
}

// watchRecord cancels the call when another process asks for it, and renews the call's documents.
// It runs until the lease ends, because the action may continue after the end of its context.
func (c *call) watchRecord() {
	ctx := c.lease.Context()
	renew := time.NewTicker(idleTTL / 3)
	defer renew.Stop()
	var changes <-chan pawl.Change[record]
	watch := time.NewTimer(watchAfter)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-watch.C:
			changes = c.record.Changes(ctx)
		case change, ok := <-changes:
			switch {
			case !ok:
				return // ctx has ended
			case change.Err != nil: // the store could not be reached
				changes = nil
				watch.Reset(checkInterval)
			case change.Exists() && change.ReadOnly().Canceled:
				c.cancel(ErrCanceled)
			}
		case <-renew.C:
			c.renewDocuments(ctx)
		}
	}
}

// renewNested renews the documents of a nested call that shares a lease: watchRecord of the outer
// call does not know its gate.
func (c *call) renewNested(ctx context.Context) {
	renew := time.NewTicker(idleTTL / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			c.renewDocuments(ctx)
		}
	}
}

// renewDocuments extends the time to live of the call's record and gate, by writes that change
// nothing.
func (c *call) renewDocuments(ctx context.Context) {
	_, err := c.record.Apply(ctx, pawl.All{})
	if c.flow.config.Admit != Allow {
		_, failed := c.gate.Apply(ctx, pawl.All{})
		err = errors.Join(err, failed)
	}
	if err != nil && ctx.Err() == nil {
		c.flow.log.Warn("flow: cannot extend the time to live of a call's documents",
			"flow", c.flow.config.Kind, "request", c.Request, "err", err)
	}
}

// actionError returns what Do returns for the action's err.
func (c *call) actionError(err error) error {
	var lost *pawl.LeaseLostError
	cause := c.endCause()
	reportsEnd := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil && errors.As(context.Cause(c.lease.Context()), &lost):
		return lost
	case cause != nil && reportsEnd && !errors.Is(err, cause):
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// leave ends the call, in whatever state it is.
func (c *call) leave() {
	c.over.Store(true)
	defer c.flow.remove(c)
	c.cancel(nil)
	if c.cleanup != nil {
		c.cleanup()
	}
	if c.ownsLocal {
		c.local.Close()
	}
	if c.lease == nil {
		return
	}
	lost, err := c.removeDocuments()
	switch {
	case err != nil && !c.ownsLease: // the lease does not run out: it belongs to an outer call
		c.flow.background.Go(c.retryRemoval)
	case err != nil:
		c.flow.log.Warn("flow: cannot record the end of a call; its lease will run out",
			"flow", c.flow.config.Kind, "request", c.Request, "err", err)
	}
	switch {
	case c.ownsLease && err == nil && !lost:
		c.lease.Abandon() // the store knows: the lease ended with its record
	case c.ownsLease:
		c.flow.background.Go(func() {
			_ = c.lease.Release(context.WithoutCancel(c.lease.Context()))
			if lost {
				c.flow.removeRecord(ticket{Request: c.Request, Token: c.lease.Token()})
			}
		})
	}
}

// removeRecord removes the record of a call that has ended, unless another call holds it. It gives
// up after leaveTimeout and leaves the record to expire.
func (f *Flow) removeRecord(t ticket) {
	ctx, stop := context.WithTimeout(context.Background(), leaveTimeout)
	defer stop()
	for ctx.Err() == nil {
		dead, left, err := f.checkDead(ctx, t)
		if dead {
			return
		}
		if err != nil {
			left = checkInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(left, checkInterval)):
		}
	}
}

// retryRemoval removes the ticket of a nested call that shares a lease, until it succeeds or the
// outer call ends. The outer call may hold its lease for a long time.
func (c *call) retryRemoval() {
	retry := time.NewTicker(checkInterval)
	defer retry.Stop()
	for {
		select {
		case <-c.lease.Context().Done():
			return // the call counts as dead now
		case <-retry.C:
			if _, err := c.removeDocuments(); err == nil {
				return
			}
		}
	}
}

// removeDocuments removes the call's record and ticket. It reports whether the lease was lost,
// which is not an error: other calls remove the documents then.
func (c *call) removeDocuments() (lost bool, err error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.lease.Context()), leaveTimeout)
	defer stop()
	switch {
	case c.ownsLease && c.ticket == "":
		err = c.record.Delete(ctx)
	case c.ownsLease:
		err = pawl.Transact(ctx, c.flow.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return errors.Join(c.removeTicket(ctx, c.gate.In(tx)), c.record.In(tx).Delete(ctx))
		}, pawl.WithRetry(gateRetry))
	case c.ticket != "":
		err = c.removeTicket(ctx, c.gate)
	}
	if !errors.Is(err, pawl.ErrLeaseLost) {
		return false, err
	}
	// The action has returned, so the ticket can be removed without waiting for another call.
	if c.ticket != "" {
		c.flow.background.Go(func() {
			plain, stop := context.WithTimeout(context.Background(), leaveTimeout)
			defer stop()
			_ = c.removeTicket(plain, c.gate)
		})
	}
	return true, nil
}

// removeTicket removes the call's ticket. A gate that was erased meanwhile has none.
func (c *call) removeTicket(ctx context.Context, at pawl.Scope[gate]) error {
	if _, err := at.DeleteStateRecord(ctx, tickets, c.ticket); !errors.Is(err, pawl.ErrDeleted) {
		return err
	}
	return nil
}
