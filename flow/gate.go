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

// gate is the document of a session, user or flow whose calls are admitted one at a time: the one with the lowest ticket is.
type gate struct {
	Last    uint64            `json:"last"`              // number given out
	Tickets map[string]ticket `json:"tickets,omitempty"` // by a name of their own, known before the number is
}

const tickets pawl.Field = "tickets"

// ticket is the place of a call in the queue.
type ticket struct {
	Number  uint64 `json:"number"`
	Request string `json:"request"`
	Token   uint64 `json:"token"` // of the lease of its record
}

// before returns the name of the highest ticket below number, empty if there is none.
func (g *gate) before(number uint64) (name string) {
	best := uint64(0)
	for k, t := range g.Tickets {
		if t.Number < number && t.Number > best {
			best, name = t.Number, k
		}
	}
	return name
}

// lowest returns the name of the ticket that is admitted, empty if there is none.
func (g *gate) lowest() (name string) {
	for k, t := range g.Tickets {
		if name == "" || t.Number < g.Tickets[name].Number {
			name = k
		}
	}
	return name
}

const (
	// lookAgain is how often a waiter looks after the one before it when that runs, is a call of this process, or could not be asked about.
	lookAgain = time.Second
	// lookAgainLate is how often at least it does so otherwise.
	lookAgainLate = 5 * time.Second
	// clearFor is how long the lease of a dead call is held, to remove what is left of it.
	clearFor = 2 * time.Second
)

// rejection is the ticket that a call is rejected for.
type rejection struct {
	name string
	ticket
}

func (r *rejection) Error() string { return "in flight: " + r.Request }

// draw gets a ticket for the gate, unless a call around c has one there.
func (c *call) draw() error {
	f := c.flow
	for o := range c.outer.outers {
		if o.flow.rt == f.rt && o.gate.Key() == c.gate.Key() {
			return nil
		}
	}
	name, token := rand.Text(), c.lease.Token()
	for {
		var full *gate // that has no place for the call
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
		})
		var in *rejection
		if errors.As(err, &in) {
			dead, _, failed := f.probe(c.ctx, in.ticket)
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
			// If those at its end are dead, there is nobody behind them to remove them.
			if removed, _ := c.clear(full, full.before(full.Last+1)); removed {
				continue
			}
		}
		if err == nil || pawl.OutcomeUnknown(err) {
			c.ticket = name
		}
		if err == nil {
			c.admitted = snap.ReadOnly().lowest() == name
			if !c.holds {
				var ctx context.Context
				ctx, c.free = context.WithCancel(c.lease.Context())
				f.rest.Go(func() { c.keep(ctx) })
			}
		}
		return err
	}
}

// await waits until the call is admitted.
func (c *call) await() error {
	if c.ticket != "" && !c.admitted {
		if err := c.queue(); err != nil {
			return err
		}
	}
	return c.ended() // it may have been canceled just now
}

// queue watches the gate until the call's ticket is the lowest, and looks after the one before it.
func (c *call) queue() error {
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	changes := c.gate.Changes(ctx)
	look := time.NewTimer(time.Hour)
	defer look.Stop()
	var (
		seen   *gate
		before string
		again  <-chan time.Time
	)
	for {
		select {
		case <-ctx.Done():
			return c.ended()
		case <-again:
			changes = c.gate.Changes(ctx)
		case change, ok := <-changes:
			switch {
			case !ok:
				return c.ended()
			case errors.As(change.Err, new(*pawl.UnavailableError)): // the call has its place all the same
				changes, again = nil, time.After(lookAgain)
				continue
			case change.Err != nil:
				return change.Err
			}
			if seen = change.ReadOnly(); seen == nil {
				seen = &gate{}
			}
			mine, ok := seen.Tickets[c.ticket]
			if !ok { // others may remove it only when the lease is over
				return &pawl.LeaseLostError{Scope: c.record.Key(), Token: c.lease.Token(), Cause: errors.New("the ticket is gone")}
			}
			was := before
			if before = seen.before(mine.Number); before == "" {
				return nil
			}
			if before != was {
				look.Reset(0)
			}
		case <-look.C:
			_, later := c.clear(seen, before)
			look.Reset(later)
		}
	}
}

// clear removes the ticket called name if its call is dead, and those before it, up to one that lives. It reports whether it removed any, and when to look again.
func (c *call) clear(g *gate, name string) (removed bool, again time.Duration) {
	var dead pawl.All
	again = lookAgain
	for ; name != ""; name = g.before(g.Tickets[name].Number) {
		over, left, err := c.flow.probe(c.ctx, g.Tickets[name])
		if err != nil {
			break
		}
		if !over {
			if again = min(left, lookAgainLate); name == g.lowest() {
				again = min(left, lookAgain) // it is next: a hint that was lost shall not cost it more
			}
			break
		}
		dead = append(dead, pawl.DeleteRecord{Field: tickets, Key: name})
	}
	if len(dead) > 0 {
		if _, err := c.gate.Apply(c.ctx, dead); err != nil {
			return false, lookAgain
		}
	}
	return len(dead) > 0, again
}

// probe asks whether the call of a ticket is over, and otherwise for how long it will not be, whatever happens to it. A ticket without a token stands for
// whichever call the request has.
func (f *Flow) probe(ctx context.Context, t ticket) (over bool, left time.Duration, err error) {
	if c := f.here(t.Request); c != nil && (t.Token == 0 || t.Token == c.lease.Token()) && c.lease.Context().Err() == nil {
		return false, lookAgain, nil
	}
	scope := f.calls.Scope(f.rt, t.Request)
	lease, err := scope.Acquire(ctx, pawl.LeaseFor(clearFor), pawl.Applying(pawl.All{}, pawl.IfExists()))
	var held *pawl.HeldError
	switch {
	case gone(err):
		return true, 0, nil
	case errors.As(err, &held):
		if t.Token != 0 && held.Token != 0 && held.Token != t.Token {
			return true, 0, nil // another has it, so the lease of this one is over
		}
		return false, max(held.Left, time.Millisecond), nil
	case err != nil:
		return false, 0, err
	}
	// What nobody held is held here now, so nothing of the dead call can be committed any more.
	if err := scope.Delete(lease.Context()); err != nil {
		f.log.Warn("flow: record of a dead call not removed, it will expire", "scope", fmt.Sprint(scope.Key()), "err", err)
	}
	_ = lease.Release(context.WithoutCancel(ctx)) // it went with the record
	return true, 0, nil
}
