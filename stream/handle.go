package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/protect"
	"github.com/pawl-go/pawl/internal/worker"
)

// One claim: handle its events, then record how it ended.

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
	VerbAcked    = "acked"    // Batch events up to Version were handled, in Took; Waited is the age of the first of them
	VerbReleased = "released" // the claim ended before the event Version; Err says why, nil: there was nothing to handle
	VerbBlocked  = "blocked"  // the stream is blocked at the event Version, because of Err
	VerbLost     = "lost"     // the lease was lost, or the end could not be recorded; what was handled is not acknowledged
)

// emit passes an event to the observer of the runtime.
func (s *shared) emit(ctx context.Context, verb string, c *claim, version int64, err error) {
	s.observe(ctx, c, pawl.Event{Verb: verb, Version: uint64(max(version, 0)), Err: err})
}

// emitAcked tells the observer that events were handled.
func (s *shared) emitAcked(ctx context.Context, c *claim, handled []*Delivery) {
	s.observe(ctx, c, pawl.Event{
		Verb: VerbAcked, Version: uint64(max(handled[len(handled)-1].Version, 0)), Batch: len(handled),
		Waited: max(c.now().Sub(handled[0].At), 0), Took: time.Since(c.at),
	})
}

// observe passes an event of a claim to the observer of the runtime.
func (s *shared) observe(ctx context.Context, c *claim, e pawl.Event) {
	e.Type, e.Path, e.Key = pawl.EventNoted, "stream", pawl.Key{Kind: s.positions.Name, ID: c.ID}
	s.rt.Observe(ctx, e)
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
		err := s.finish(context.WithoutCancel(held), l, &c, e) // Stop does not interrupt the commit
		if err != nil {
			worker.PauseUnrecorded(held, ctx) // the events are still due
		}
		return err
	})
	if err != nil {
		s.emit(ctx, VerbLost, &c, c.from.Next, err)
	}
	if err != nil && !errors.Is(err, pawl.ErrLeaseLost) {
		s.config.Logger.WarnContext(ctx, "stream: the end of a claim could not be recorded; its events will be handled again",
			"reaction", c.reaction.Name, "stream", c.from.Stream, "err", err)
	}
}

// manyAppends is how many appends of handlers end a claim: the position has a note of each until the
// claim ends, and each append writes the position.
const manyAppends = 100

// handle calls the handler for events from Next on, until one fails, Batch are handled, or they have
// made many appends. ctx ends when Stop interrupts it, and held when the lease is lost.
func (s *shared) handle(ctx, held context.Context, c *claim) end {
	p, r := &c.from, c.reaction
	appends := 0
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
	if h.Life != p.Life { // recorded first, so that nothing is handled under the old life
		e.life, e.next, e.known, e.retry = h.Life, h.First, h.Next, 0
		return e
	}
	if e.known = h.Next; e.next < h.First {
		e.next, e.retry = h.First, 0
	}
	for event, err := range log.entries(held, p.Stream, h.Life, e.next, h.Next, false, r.Batch) {
		switch {
		case c.Lease.Context().Err() != nil: // lost: another process may handle the event
			return e
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
				e.putOff(c, ErrStopped)
				return e
			}
			if err != nil {
				e.fail(c, err)
				return e
			}
			e.handled = append(e.handled, d)
			appends += d.appended()
		}
		e.next, e.retry = event.Version+1, 0
		if len(e.handled) == r.Batch || appends >= manyAppends {
			return e
		}
	}
	e.next = max(e.next, h.Next) // events that were removed meanwhile are not to be waited for
	return e
}

// call calls the handler for one event.
func (s *shared) call(ctx, held context.Context, d *Delivery) error {
	body, cancel := context.WithCancelCause(context.WithValue(held, deliveryKey{}, d))
	defer cancel(nil)
	defer d.end()
	defer context.AfterFunc(ctx, func() { cancel(ErrStopped) })()
	body = d.meta(body)
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

// finish records the end of a claim. An error of an OnCommit function is a failure of its event. If the
// store refuses the commit of several events, finish commits the first half of them: the reason may be a
// write of a later one, or that there are too many. A refusal of one event is its failure.
func (s *shared) finish(ctx context.Context, l *pawl.Lease, c *claim, e end) error {
	for {
		failed := -1 // the place of the event whose OnCommit failed
		moved := false
		err := protect.Call(s.config.Logger, func() error { return s.record(ctx, l, c, e, &failed, &moved) })
		switch {
		case err == nil:
			if moved {
				e = end{verb: VerbReleased, next: c.from.Next, err: ErrMoved}
			}
			s.report(ctx, c, e)
			s.loop.WakeIn(e.in) // there may be more to handle, also where the store gives no hints
			return nil
		case failed >= 0:
		case pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrLeaseLost) || errors.Is(err, pawl.ErrClosed):
			return err
		case len(e.handled) == 0 || pawl.IsRetryable(err):
			return err // it is not about the events
		case len(e.handled) == 1:
			failed = 0
		default:
			half := e.handled[:len(e.handled)/2]
			e = end{verb: VerbAcked, life: e.life, next: half[len(half)-1].Version + 1, known: e.known, handled: half}
			continue
		}
		d := e.handled[failed]
		e.handled, e.next, e.retry = e.handled[:failed], d.Version, d.Attempt-1
		e.fail(c, err)
	}
}

// record commits the end of a claim, with the writes of OnCommit, and gives the lease back. It sets
// failed to the place of the event whose writes failed, and moved if the position was moved meanwhile.
func (s *shared) record(ctx context.Context, l *pawl.Lease, c *claim, e end, failed *int, moved *bool) error {
	return pawl.Transact(ctx, s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		*failed = -1
		scope := s.positions.Scope(tx, c.ID)
		now, err := scope.State(ctx)
		if err != nil {
			return err
		}
		// Unblock, Reset or a new life came meanwhile, and decides.
		if *moved = now.Turn != c.from.Turn; *moved {
			if _, err := scope.PatchState(ctx, pawl.Patch{"lost": 0}); err != nil {
				return err
			}
			return l.ReleaseIn(tx)
		}
		for i, d := range e.handled {
			*failed = i
			for _, fn := range d.onCommit {
				if err := fn(d.meta(ctx), tx); err != nil {
					return err
				}
			}
		}
		*failed = -1
		_, err = scope.AtomicState(ctx, func(_ context.Context, p *position) error {
			e.apply(c, p)
			return nil
		})
		if err != nil {
			return err
		}
		return l.ReleaseIn(tx)
	}, pawl.WithRetry(commitRetry))
}

// apply changes the position at the end of a claim.
func (e *end) apply(c *claim, p *position) {
	if p.Life != e.life {
		p.Known = 0
	}
	p.Life, p.Next, p.Known = e.life, e.next, max(p.Known, e.known)
	p.Lost, p.Retry, p.Reason = 0, 0, ""
	// Of events that are handled, and of other lives, nothing has to be known any more.
	maps.DeleteFunc(p.Made, func(key string, _ appended) bool {
		id, _, _ := strings.Cut(key, "/")
		life, version, _ := strings.Cut(id, "-")
		n, err := strconv.ParseInt(version, 10, 64)
		return err != nil || life != p.Life || n < p.Next
	})
	if e.verb != VerbAcked {
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
	if len(e.handled) > 0 {
		s.emitAcked(ctx, c, e.handled)
	}
	switch {
	case e.verb != VerbAcked:
		s.emit(ctx, e.verb, c, e.next, e.err)
	case len(e.handled) == 0: // there was nothing to handle
		s.emit(ctx, VerbReleased, c, e.next, nil)
	}
}
