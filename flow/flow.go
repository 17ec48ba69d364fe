package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// Defaults of Config.
const (
	DefaultLease      = 15 * time.Second
	DefaultMaxWaiting = 1000
)

// MaxKind is how many bytes a flow's kind may have: the kinds of its documents are longer.
const MaxKind = 48

const (
	// idleFor is after how long a gate that nobody uses expires, and what a dead call has left.
	idleFor = time.Hour
	// gravesFor is how long the tombstones of calls are kept: far longer than a commit can be in doubt.
	gravesFor = 10 * time.Minute
)

// atGates is the budget of a commit at a gate, where all processes meet: it ends with its time only.
var atGates = pawl.Retry{Attempts: 1 << 20}

// Config defines a flow; only Kind is required.
type Config struct {
	Kind    string
	Timeout time.Duration // budget of mutations on in-memory scopes of a call; 0: the runtime's; pawl.NoTimeout turns it off
	Options []pawl.Option // further defaults of the verbs on in-memory scopes of a call
	Admit   Admission     // what happens to a call while another is in flight
	Per     Unit          // whose calls Admit counts together
	Lease   time.Duration // for how long a call outlives the last sign of life of its process; 0: DefaultLease

	// MaxWaiting is how many calls may wait at one gate before *pawl.OverloadedError; 0: DefaultMaxWaiting.
	MaxWaiting int

	Logger *slog.Logger // for what no caller is left to hear; nil: slog.Default()
}

// Admission decides about a call that arrives while another of its unit is in flight.
type Admission uint8

const (
	Allow  Admission = iota // run side by side
	Queue                   // wait, in the order of arrival
	Reject                  // return *BusyError
)

// Unit is what admission counts in.
type Unit uint8

const (
	PerSession Unit = iota // IDs.Session
	PerUser                // IDs.User
	PerFlow                // all calls of the flow
)

// unitNames end the names of the kinds of gates.
var unitNames = [...]string{PerSession: "session", PerUser: "user", PerFlow: "flow"}

// Flow is a set of actions that share admission. It is safe for concurrent use.
type Flow struct {
	rt      *pawl.Runtime
	config  Config
	calls   pawl.Kind[record]
	gates   pawl.Kind[gate]
	names   *pawl.Local // see usable
	sweeper *pawl.Sweeper
	begin   sync.Once // starts it
	log     *slog.Logger

	mu      sync.Mutex // protects what follows
	actions map[string]bool
	live    map[*call]struct{} // in flight in this process, waiting or running
	holders map[string]*call   // of them, those who hold the record of a request
	stopped bool
	drained chan struct{}  // closed when live is empty; nil: nobody waits for that
	rest    sync.WaitGroup // what goes on behind calls that have ended; added to while one is live
}

// New returns a flow on rt; several processes may have the same. It does no I/O. It returns *pawl.KindError or *pawl.LimitError for a bad kind, pawl.ErrClosed, *pawl.ArgumentError for the rest of a bad
// configuration, and pawl.ErrNoStore on a runtime without a store.
func New(rt *pawl.Runtime, c Config) (*Flow, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Lease, c.MaxWaiting = cmp.Or(c.Lease, DefaultLease), cmp.Or(c.MaxWaiting, DefaultMaxWaiting)
	if c.Timeout != 0 {
		c.Options = append([]pawl.Option{pawl.WithTimeout(c.Timeout)}, c.Options...)
	}
	f := &Flow{
		rt: rt, config: c, log: cmp.Or(c.Logger, slog.Default()), actions: map[string]bool{}, live: map[*call]struct{}{}, holders: map[string]*call{},
		calls: pawl.Kind[record]{Name: "flow." + c.Kind + ".call", TTL: idleFor},
		gates: pawl.Kind[gate]{Name: "flow." + c.Kind + "." + unitNames[c.Per], TTL: idleFor, Retry: atGates},
	}
	var err error
	f.sweeper, err = newSweeper(rt, gravesFor, f.calls.Name, f.gates.Name)
	if err != nil {
		return nil, err
	}
	f.names = pawl.NewLocal(rt)
	if err := f.usable(context.Background(), "kind", c.Kind); err != nil {
		return nil, err
	}
	f.calls.Scope(rt, c.Kind) // makes the kinds known, so that those who look at them need not say more than their names
	f.gates.Scope(rt, c.Kind)
	return f, nil
}

// newSweeper returns one for the kinds of a flow, which may have far more tombstones than others.
func newSweeper(rt *pawl.Runtime, graves time.Duration, kinds ...string) (*pawl.Sweeper, error) {
	return pawl.NewSweeper(rt, pawl.SweeperConfig{Tombstones: graves, Kinds: kinds})
}

func (c *Config) check() error {
	fault := func(name string, value any) error {
		return &pawl.ArgumentError{Argument: "flow.Config." + name, Reason: fmt.Sprintf("%v makes no sense", value)}
	}
	switch {
	case len(c.Kind) == 0 || len(c.Kind) > MaxKind:
		return &pawl.KindError{Kind: c.Kind, Reason: fmt.Sprintf("the kind of a flow has 1 to %d bytes", MaxKind)}
	case c.Timeout < 0 && c.Timeout != pawl.NoTimeout:
		return fault("Timeout", c.Timeout)
	case c.Admit > Reject:
		return fault("Admit", c.Admit)
	case int(c.Per) >= len(unitNames):
		return fault("Per", c.Per)
	case c.Lease < 0 || c.Lease > 0 && c.Lease < time.Millisecond:
		return fault("Lease", c.Lease)
	case c.MaxWaiting < 0:
		return fault("MaxWaiting", c.MaxWaiting)
	case slices.ContainsFunc(c.Options, func(o pawl.Option) bool { return o == nil }):
		return fault("Options", nil)
	}
	return nil
}

// name is a kind in memory under which nothing is ever kept.
var name = pawl.Kind[struct{}]{Name: "flow.name", InMemory: true}

// usable tells why a call with ctx cannot use id, by opening it where that takes no I/O: *pawl.LimitError, pawl.ErrOutsideTx inside a
// transaction, pawl.ErrClosed after Runtime.Close.
func (f *Flow) usable(ctx context.Context, what, id string) error {
	if _, err := name.Scope(f.names, id).Snapshot(ctx); err != nil {
		return fmt.Errorf("flow: %s: %w", what, err)
	}
	return nil
}

// Cancel ends the call that runs, or waits, under this request id, in whatever process: its context ends with ErrCanceled as the cause. It returns once
// that is recorded; the call hears of it as a watcher does, and may also end by itself before that. It returns pawl.ErrNotFound when there is no such
// call in flight, *pawl.LimitError for what is no id, and the errors of the verbs.
func (f *Flow) Cancel(ctx context.Context, request string) error {
	if ctx == nil {
		return &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if err := f.usable(ctx, "request", request); err != nil {
		return err
	}
	if c := f.here(request); c != nil && c.lease.Context().Err() == nil { // else the request may be in flight elsewhere by now
		c.cancel(ErrCanceled)
		return nil
	}
	none := fmt.Errorf("%w: flow: no request %s is in flight", pawl.ErrNotFound, request)
	dead, _, err := f.probe(ctx, ticket{Request: request})
	if err != nil {
		return err
	}
	if dead {
		return none
	}
	_, err = f.calls.Scope(f.rt, request).PatchState(ctx, pawl.Patch{"canceled": true}, pawl.IfExists())
	if gone(err) {
		return none
	}
	return err
}

// Stop refuses new calls with pawl.ErrClosed, except those made inside one in flight, and waits for those in flight until ctx ends. Then it cancels them, with pawl.ErrClosed as the
// cause, and returns *pawl.BusyError, which names them; Stop again to wait until they have gone. Calling it twice is safe. Stop a flow before its runtime is closed:
// calls that end later cannot say so, and block others for their lease.
func (f *Flow) Stop(ctx context.Context) error {
	if ctx == nil {
		return &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	f.mu.Lock()
	f.stopped = true
	if len(f.live) > 0 && f.drained == nil {
		f.drained = make(chan struct{})
	}
	drained := f.drained
	f.mu.Unlock()
	if drained != nil {
		select {
		case <-drained:
		case <-ctx.Done():
			if err := f.cancelAll(context.Cause(ctx)); err != nil {
				return err
			}
		}
	}
	f.rest.Wait() // it is bounded by the time that the end of a lease may take
	return f.sweeper.Stop(ctx)
}

// cancelAll cancels what is in flight here, and tells of it. It returns nil if there is nothing any more.
func (f *Flow) cancelAll(why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	busy := &pawl.BusyError{Cause: why}
	for c := range f.live {
		c.cancel(pawl.ErrClosed)
		busy.Running = append(busy.Running, pawl.Running{Scope: c.record.Key(), Verb: c.action})
	}
	if len(busy.Running) == 0 {
		return nil
	}
	return busy
}

// add makes c one of those in flight.
func (f *Flow) add(c *call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped && !c.inside(f) {
		return fmt.Errorf("%w: flow %s", pawl.ErrClosed, f.config.Kind)
	}
	f.begin.Do(func() { _ = f.sweeper.Start(context.Background()) }) // it fails after Stop only
	f.live[c] = struct{}{}
	return nil
}

// held notes that c holds the record of its request.
func (f *Flow) held(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders[c.Request] = c
}

// here returns the call that holds the record of request, if it is in flight in this process.
func (f *Flow) here(request string) *call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holders[request]
}

func (f *Flow) remove(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, c)
	if f.holders[c.Request] == c {
		delete(f.holders, c.Request)
	}
	if len(f.live) == 0 && f.drained != nil {
		close(f.drained)
		f.drained = nil
	}
}

// gone reports whether err says that there is no such document.
func gone(err error) bool {
	return errors.Is(err, pawl.ErrNotFound) || errors.Is(err, pawl.ErrDeleted) || errors.Is(err, pawl.ErrExpired)
}
