package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/protect"
)

// The life of one claim: handle the events, then record how it ended.

// end is how a claim ended.
type end struct {
	verb string // acked, released or blocked
	// life and next are where the position goes on.
	life string
	next int64
	// known is above the last event that was seen.
	known int64
	// handled are the events that are acknowledged, in their order.
	handled []*Delivery
	retry   int           // failures of event next
	in      time.Duration // until event next is handled again
	err     error         // of event next; nil: none
}

// Verbs of the events that reactions pass to the runtime's observer, with the Path "stream".
const (
	VerbClaimed  = "claimed"  // a stream is handled; Version is the next event
	VerbAcked    = "acked"    // events up to Version were handled
	VerbReleased = "released" // the event Version is handled again later; see Err
	VerbBlocked  = "blocked"  // the stream is blocked at the event Version, because of Err
	VerbLost     = "lost"     // the lease was lost; what was handled is not acknowledged
)

// emit passes an event to the observer of the runtime.
func (s *shared) emit(ctx context.Context, verb string, c *claim, version int64, err error) {
	s.rt.Observe(ctx, pawl.Event{
		Type: pawl.EventNoted, Path: "stream", Verb: verb, Version: uint64(max(version, 0)), Err: err,
		Key: pawl.Key{Kind: s.positions.Name, ID: c.ID},
	})
}

// run is the Run of the loop: it handles events of one claim. The end of ctx means that Stop
// interrupts it.
func (s *shared) run(ctx context.Context, c claim) {
	defer func() {
		s.mu.Lock()
		s.running[c.reaction.Name]--
		s.mu.Unlock()
		if c.reaction.Concurrency < s.config.Concurrency {
			s.loop.Wake() // its slot may be what others wait for
		}
	}()
	s.emit(ctx, VerbClaimed, &c, c.from.Next, nil)
	err := c.Lease.Run(func(held context.Context, l *pawl.Lease) error {
		s.hook(pointClaimed, c.from.Stream)
		e := s.handle(ctx, held, &c)
		if held.Err() != nil {
			return context.Cause(held)
		}
		return s.finish(context.WithoutCancel(held), l, &c, e) // Stop does not interrupt the commit
	})
	switch {
	case err == nil:
	case errors.Is(err, pawl.ErrLeaseLost):
		s.emit(ctx, VerbLost, &c, c.from.Next, err)
	default:
		s.config.Logger.WarnContext(ctx, "stream: the end of a claim could not be recorded; its events will be handled again",
			"reaction", c.reaction.Name, "stream", c.from.Stream, "err", err)
	}
}

// handle calls the handler for events from the position on, until one fails.
func (s *shared) handle(ctx, held context.Context, c *claim) end {
	p, r := &c.from, c.reaction
	e := end{verb: VerbAcked, life: p.Life, next: p.Next, retry: p.Retry}
	if p.Lost > r.MaxLost {
		e.fail(c, pawl.NonRetryable(fmt.Errorf("%d leases in a row were lost", p.Lost-1)))
		return e
	}
	log := &Log{s, s.rt}
	h, err := log.head(held, p.Stream)
	if err != nil {
		e.putOff(c, err)
		return e
	}
	if h.Life != p.Life {
		e.life, e.next, e.retry = h.Life, 0, 0
	}
	e.next, e.known = max(e.next, h.First), h.Next
	for event, err := range log.entries(held, p.Stream, h.Life, e.next, h.Next, false, r.Batch) {
		switch {
		case err != nil && event.ID == "":
			e.putOff(c, err)
			return e
		case ctx.Err() != nil:
			e.putOff(c, ErrStopped)
			return e
		case !r.wants(p.Stream, event.Type):
		case err != nil:
			e.fail(c, pawl.NonRetryable(err))
			return e
		default:
			d := &Delivery{Event: event, Attempt: e.retry + 1, log: s, claim: c}
			err := s.call(ctx, held, d)
			s.hook(pointHandled, p.Stream)
			if err != nil && ctx.Err() != nil && !pawl.IsNonRetryable(err) {
				err = ErrStopped
			}
			if err != nil {
				e.fail(c, err)
				return e
			}
			e.handled = append(e.handled, d)
		}
		e.next, e.retry = event.Version+1, 0
		if len(e.handled) == r.Batch {
			return e
		}
	}
	return e
}

// call calls the handler for one event.
func (s *shared) call(ctx, held context.Context, d *Delivery) error {
	body, cancel := context.WithCancelCause(context.WithValue(held, deliveryKey{}, d))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(ErrStopped) })()
	body = WithMeta(body, Meta{Correlation: d.Meta.Correlation, Causation: d.ID, Actor: d.Meta.Actor})
	if t := d.claim.reaction.Timeout; t > 0 {
		limited, end := context.WithTimeout(body, t)
		defer end()
		body = limited
	}
	return protect.Call(s.config.Logger, func() error { return d.claim.reaction.Handle(body, d) })
}

// fail makes e the end of a claim whose event e.next failed with err.
func (e *end) fail(c *claim, err error) {
	if later, ok := errors.AsType[*deferral](err); ok {
		e.putOff(c, err)
		e.in = later.in
		return
	}
	if errors.Is(err, ErrStopped) {
		e.putOff(c, err)
		return
	}
	r := c.reaction
	e.verb, e.err, e.retry = VerbReleased, err, e.retry+1
	if spent := e.retry > r.MaxRetries && !r.RetryForever; spent || pawl.IsNonRetryable(err) {
		e.verb = VerbBlocked
		return
	}
	e.in = r.Backoff.Delay(e.retry)
}

// putOff makes e the end of a claim that was interrupted: nothing is counted.
func (e *end) putOff(c *claim, err error) {
	e.verb, e.err = VerbReleased, err
	if !errors.Is(err, ErrStopped) {
		e.in = c.reaction.Backoff.Delay(1)
	}
}

// finish records the end of a claim. If a write of OnCommit fails, the last event whose writes were
// tried has failed.
func (s *shared) finish(ctx context.Context, l *pawl.Lease, c *claim, e end) error {
	for {
		var failed int // the event whose OnCommit failed; -1: none
		err := protect.Call(s.config.Logger, func() (err error) {
			failed, err = s.record(ctx, l, c, e)
			return err
		})
		switch {
		case err == nil:
			s.report(ctx, c, e)
			return nil
		case failed < 0 || pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrLeaseLost):
			return err
		}
		d := e.handled[failed]
		e.handled, e.next, e.retry = e.handled[:failed], d.Version, d.Attempt-1
		e.fail(c, err)
	}
}

// record commits the end of a claim, with the writes of OnCommit, and gives the lease back. Failed is
// the place of the event whose writes failed, -1 if there is none.
func (s *shared) record(ctx context.Context, l *pawl.Lease, c *claim, e end) (failed int, err error) {
	err = pawl.Transact(ctx, s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		for i, d := range e.handled {
			failed = i
			for _, fn := range d.onCommit {
				if err := fn(ctx, tx); err != nil {
					return err
				}
			}
		}
		failed = -1
		_, err := s.positions.Scope(tx, c.ID).AtomicState(ctx, func(_ context.Context, p *position) error {
			e.apply(c, p)
			return nil
		})
		if err != nil {
			return err
		}
		return l.ReleaseIn(tx)
	}, pawl.WithRetry(commitRetry))
	return failed, err
}

// apply changes the position at the end of a claim.
func (e *end) apply(c *claim, p *position) {
	p.Lost = 0
	for _, d := range e.handled {
		delete(p.Made, d.ID)
	}
	if p.Turn != c.from.Turn {
		return // Unblock or Reset came meanwhile: it says where the position goes on
	}
	if p.Life != e.life {
		p.Made = nil
	}
	p.Life, p.Next, p.Retry, p.Reason = e.life, e.next, 0, ""
	p.Known = max(p.Known, e.known)
	if e.err != nil && e.verb != VerbAcked {
		p.Retry, p.Reason = e.retry, protect.Text(e.err)
	}
	switch {
	case e.verb == VerbBlocked:
		p.become(blocked)
		p.Due = time.Time{}
	case p.Next < p.Known:
		p.become(ready)
		p.Due = c.now().Add(e.in)
	default:
		p.become(idle)
		p.Due = time.Time{}
	}
}

// report tells the observer, and the log, how a claim ended.
func (s *shared) report(ctx context.Context, c *claim, e end) {
	switch {
	case e.verb == VerbBlocked:
		s.hook(pointFailed, c.from.Stream)
		s.config.Logger.ErrorContext(ctx, "stream: blocked", "reaction", c.reaction.Name, "stream", c.from.Stream, "event", e.next, "err", e.err)
	case e.verb == VerbReleased:
		s.hook(pointFailed, c.from.Stream)
	default:
		s.hook(pointAcked, c.from.Stream)
	}
	if len(e.handled) > 0 && e.verb != VerbAcked {
		s.emit(ctx, VerbAcked, c, e.handled[len(e.handled)-1].Version, nil)
	}
	at := e.next
	if e.verb == VerbAcked {
		at--
	}
	s.emit(ctx, e.verb, c, at, e.err)
}
