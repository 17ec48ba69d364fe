package flow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pawl-go/pawl"
)

// gate is the document of a session, user or flow whose calls are admitted one at a time. The call
// with the lowest ticket is admitted.
type gate struct {
	Last uint64 `json:"last"` // the highest number given out
	// Tickets are stored by a random name, which a call knows before it knows its number.
	Tickets map[string]ticket `json:"tickets,omitempty"`
}

const tickets pawl.Field = "tickets"

// ticket is the place of a call in the queue.
type ticket struct {
	Number  uint64 `json:"number"`
	Request string `json:"request"`
	Token   uint64 `json:"token"` // of the lease of the call's record
}

// predecessor returns the name of the highest ticket below number, or "" if there is none.
func (g *gate) predecessor(number uint64) (name string) {
	best := uint64(0)
	for k, t := range g.Tickets {
		if t.Number < number && t.Number > best {
			best, name = t.Number, k
		}
	}
	return name
}

// lowest returns the name of the admitted ticket, or "" if there is none.
func (g *gate) lowest() (name string) {
	for k, t := range g.Tickets {
		if name == "" || t.Number < g.Tickets[name].Number {
			name = k
		}
	}
	return name
}

const (
	// checkInterval is how often a waiter checks whether the call before it is alive. It applies if
	// that call runs, belongs to this process, or could not be checked the last time. It is also
	// the delay before a failed read or write is repeated.
	checkInterval = time.Second
	// slowCheckInterval is the longest time between two checks otherwise.
	slowCheckInterval = 5 * time.Second
	// removalLease is how long the lease of a dead call is taken, to remove its record.
	removalLease = 2 * time.Second
)

// rejection is the ticket because of which a call is rejected.
type rejection struct {
	name string
	ticket
}

func (r *rejection) Error() string { return "in flight: " + r.Request }

// drawTicket adds a ticket for the call to its gate, unless an outer call has one there.
func (c *call) drawTicket() error {
	f := c.flow
	for o := range c.outer.outers {
		if o.flow.rt == f.rt && o.gate.Key() == c.gate.Key() {
			return nil
		}
	}
	name, token := rand.Text(), c.lease.Token()
	var anew []pawl.CallOption // IfAbsent, if the gate was deleted: it is a document of a user, which can be erased
	for {
		var full *gate // a copy of the gate if it has no place for the call
		snap, err := c.gate.AtomicState(c.ctx, func(_ context.Context, g *gate) error {
			full = nil
			n := len(g.Tickets)
			switch {
			case n > 0 && f.config.Admit == Reject:
				return &rejection{g.lowest(), g.Tickets[g.lowest()]}
			case n > f.config.MaxWaiting:
				full = &gate{Last: g.Last, Tickets: maps.Clone(g.Tickets)}
				return &pawl.OverloadedError{Scope: c.gate.Key(), Queue: n - 1}
			case n == 0:
				g.Tickets = map[string]ticket{}
			}
			g.Last++
			g.Tickets[name] = ticket{Number: g.Last, Request: c.Request, Token: token}
			return nil
		}, anew...)
		switch {
		case errors.Is(err, pawl.ErrDeleted) && anew == nil:
			anew = []pawl.CallOption{pawl.IfAbsent()}
			continue
		case errors.Is(err, pawl.ErrExists) && anew != nil:
			anew = nil
			continue
		}
		var in *rejection
		if errors.As(err, &in) {
			dead, _, failed := f.checkDead(c.ctx, in.ticket)
			if failed == nil && dead {
				if _, failed = c.gate.DeleteStateRecord(c.ctx, tickets, in.name); failed == nil {
					continue
				}
			}
			if failed != nil {
				return failed
			}
			return &BusyError{InFlight: in.Request, Scope: c.gate.Key()}
		}
		if errors.As(err, new(*pawl.OverloadedError)) && full != nil {
			// Dead calls at the end of the queue have no waiter behind them to remove their
			// tickets.
			if removed, _ := c.removeDead(full, full.predecessor(full.Last+1)); removed {
				continue
			}
		}
		if err == nil || pawl.OutcomeUnknown(err) {
			c.ticket = name
		}
		if err == nil {
			c.admitted = snap.ReadOnly().lowest() == name
			if !c.ownsLease {
				var ctx context.Context
				ctx, c.cleanup = context.WithCancel(c.lease.Context())
				f.background.Go(func() { c.renewNested(ctx) })
			}
		}
		return err
	}
}

// awaitAdmission waits until the call is admitted.
func (c *call) awaitAdmission() error {
	if c.ticket != "" && !c.admitted {
		if err := c.waitInQueue(); err != nil {
			return err
		}
	}
	return c.endCause() // it may have been canceled in the meantime
}

// waitInQueue watches the gate until the call's ticket is the lowest. Meanwhile it removes the
// tickets of dead calls directly before its own.
func (c *call) waitInQueue() error {
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	changes := c.gate.Changes(ctx)
	check := time.NewTimer(time.Hour)
	defer check.Stop()
	var (
		seen   *gate
		before string // the name of the ticket directly before this call's
		retry  <-chan time.Time
	)
	for {
		select {
		case <-ctx.Done():
			return c.endCause()
		case <-retry:
			changes = c.gate.Changes(ctx)
		case change, ok := <-changes:
			switch {
			case !ok:
				return c.endCause()
			case errors.As(change.Err, new(*pawl.UnavailableError)): // the call keeps its ticket
				changes, retry = nil, time.After(checkInterval)
				continue
			case change.Err != nil:
				return change.Err
			}
			if seen = change.ReadOnly(); seen == nil {
				seen = &gate{}
			}
			mine, ok := seen.Tickets[c.ticket]
			if !ok { // other calls may remove it only after the lease has ended
				cause := errors.New("ticket removed from the gate")
				return &pawl.LeaseLostError{Scope: c.record.Key(), Token: c.lease.Token(), Cause: cause}
			}
			was := before
			if before = seen.predecessor(mine.Number); before == "" {
				return nil
			}
			if before != was {
				check.Reset(0)
			}
		case <-check.C:
			_, next := c.removeDead(seen, before)
			check.Reset(next)
		}
	}
}

// removeDead removes the ticket called name if its call is dead, and then the tickets before it,
// down to the first one whose call is alive. It reports whether it removed any, and when to check
// again.
func (c *call) removeDead(g *gate, name string) (removed bool, next time.Duration) {
	var dead pawl.All
	next = checkInterval
	for ; name != ""; name = g.predecessor(g.Tickets[name].Number) {
		over, left, err := c.flow.checkDead(c.ctx, g.Tickets[name])
		if err != nil {
			break
		}
		if !over {
			if next = min(left, slowCheckInterval); name == g.lowest() {
				next = min(left, checkInterval) // c is next: bound its delay after a lost hint
			}
			break
		}
		dead = append(dead, pawl.DeleteRecord{Field: tickets, Key: name})
	}
	if len(dead) > 0 {
		if _, err := c.gate.Apply(c.ctx, dead); err != nil {
			return false, checkInterval
		}
	}
	return len(dead) > 0, next
}

// checkDead reports whether the call of t is over, and otherwise the time for which its lease is
// certain to live. A ticket without a token stands for any call of its request. checkDead removes
// the record of a dead call.
func (f *Flow) checkDead(ctx context.Context, t ticket) (dead bool, left time.Duration, err error) {
	c := f.localCall(t.Request)
	if c != nil && (t.Token == 0 || t.Token == c.lease.Token()) && c.lease.Context().Err() == nil {
		return false, checkInterval, nil
	}
	scope := f.calls.Scope(f.rt, t.Request)
	lease, err := scope.Acquire(ctx, pawl.LeaseFor(removalLease), pawl.WithMutation(pawl.All{}, pawl.IfExists()))
	var held *pawl.HeldError
	switch {
	case gone(err):
		return true, 0, nil
	case errors.As(err, &held):
		if t.Token != 0 && held.Token != 0 && held.Token != t.Token {
			return true, 0, nil // another call holds the record, so the lease of t is over
		}
		return false, max(held.Left, time.Millisecond), nil
	case err != nil:
		return false, 0, err
	}
	// This process holds the record now, so the dead call can no longer commit.
	if err := scope.Delete(lease.Context()); err != nil {
		f.log.Warn("flow: cannot remove the record of a dead call; it will expire",
			"scope", fmt.Sprint(scope.Key()), "err", err)
	}
	_ = lease.Release(context.WithoutCancel(ctx)) // it ended with the record
	return true, 0, nil
}
