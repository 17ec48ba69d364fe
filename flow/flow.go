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

// MaxKind is the maximum length of a flow's kind in bytes. The kinds of its documents add a prefix
// and a suffix to it.
const MaxKind = 48

const (
	// idleTTL is the time to live of an idle gate and of the record of a dead call.
	idleTTL = time.Hour
	// tombstoneAge is how long the tombstones of calls are kept: far longer than a commit can be in
	// doubt.
	tombstoneAge = 10 * time.Minute
)

// gateRetry is the budget of a commit to a gate. All processes write to a gate, so the budget
// limits the time of a commit and not its attempts.
var gateRetry = pawl.Retry{Attempts: 1 << 20}

// Config configures a flow; only Kind is required.
type Config struct {
	// Kind names the flow. Flows of the same kind on one store share their gates and request ids.
	Kind string
	// Timeout is the budget of mutations on in-memory scopes of a call; 0: the runtime's;
	// pawl.NoTimeout turns it off.
	Timeout time.Duration
	// Options are further defaults of the verbs on in-memory scopes of a call.
	Options []pawl.CallOption
	// Admit decides about a call that arrives while another call of its unit is in flight.
	Admit Admission
	// Per is the unit in which Admit counts calls.
	Per Unit
	// Lease is how long a call stays in flight after its process has stopped renewing its lease;
	// 0: DefaultLease.
	Lease time.Duration
	// MaxWaiting is the number of calls that may wait at one gate; further calls get
	// *pawl.OverloadedError. 0: DefaultMaxWaiting.
	MaxWaiting int
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger
}

// Admission says what happens to a call that arrives while another call of its unit is in flight.
type Admission uint8

const (
	Allow  Admission = iota // run side by side
	Queue                   // wait, in the order of arrival
	Reject                  // return *BusyError
)

// Unit is the unit in which admission counts calls.
type Unit uint8

const (
	PerSession Unit = iota // IDs.Session
	PerUser                // IDs.User
	PerFlow                // all calls of the flow
)

// unitNames are the suffixes of the kinds of gates.
var unitNames = [...]string{PerSession: "session", PerUser: "user", PerFlow: "flow"}

// Flow is a set of actions that share admission. It is safe for concurrent use.
type Flow struct {
	rt      *pawl.Runtime
	config  Config
	calls   pawl.Kind[record]
	gates   pawl.Kind[gate]
	idCheck *pawl.Local // opens scopes to validate ids, see checkID
	log     *slog.Logger

	sweeper      *pawl.Sweeper
	startSweeper sync.Once

	// mu protects the fields below.
	mu      sync.Mutex
	actions map[string]bool
	// inFlight holds the calls of this process, waiting or running.
	inFlight map[*call]struct{}
	// holders maps a request id to the call of this process that holds its record.
	holders map[string]*call
	stopped bool
	// drained is closed when inFlight becomes empty; nil: no Stop waits for that.
	drained chan struct{}

	// background counts goroutines that continue after their call has ended. It is only added to
	// while a call is in flight.
	background sync.WaitGroup
}

// New returns a flow on rt. Several processes may create the same flow. New does no I/O.
//
// It returns *pawl.KindError or *pawl.LimitError for a bad kind, and *pawl.ArgumentError for any
// other fault of c. It returns pawl.ErrClosed for a closed runtime, and pawl.ErrNoStore for a
// runtime without a store.
func New(rt *pawl.Runtime, c Config) (*Flow, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Lease, c.MaxWaiting = cmp.Or(c.Lease, DefaultLease), cmp.Or(c.MaxWaiting, DefaultMaxWaiting)
	if c.Timeout != 0 {
		c.Options = append([]pawl.CallOption{pawl.WithTimeout(c.Timeout)}, c.Options...)
	}
	f := &Flow{
		rt: rt, config: c, log: cmp.Or(c.Logger, slog.Default()),
		calls:   pawl.Kind[record]{Name: "flow." + c.Kind + ".call", TTL: idleTTL},
		gates:   pawl.Kind[gate]{Name: "flow." + c.Kind + "." + unitNames[c.Per], TTL: idleTTL, Retry: gateRetry},
		actions: map[string]bool{}, inFlight: map[*call]struct{}{}, holders: map[string]*call{},
	}
	var err error
	f.sweeper, err = newSweeper(rt, tombstoneAge, f.calls.Name, f.gates.Name)
	if err != nil {
		return nil, err
	}
	f.idCheck = pawl.NewLocal(rt)
	if err := f.checkID(context.Background(), "kind", c.Kind); err != nil {
		return nil, err
	}
	// Opening a scope registers its kind, so that other code can use the kind by its name alone.
	f.calls.Scope(rt, c.Kind)
	f.gates.Scope(rt, c.Kind)
	return f, nil
}

// newSweeper returns a sweeper for the kinds of a flow. They have a sweeper of their own because a
// flow may leave many more tombstones than other kinds.
func newSweeper(rt *pawl.Runtime, tombstones time.Duration, kinds ...string) (*pawl.Sweeper, error) {
	return pawl.NewSweeper(rt, pawl.SweeperConfig{Tombstones: tombstones, Kinds: kinds})
}

func (c *Config) check() error {
	fault := func(field, format string, args ...any) error {
		return &pawl.ArgumentError{Argument: "flow.Config." + field, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(c.Kind) == 0 || len(c.Kind) > MaxKind:
		reason := fmt.Sprintf("the kind of a flow must have 1 to %d bytes, got %d", MaxKind, len(c.Kind))
		return &pawl.KindError{Kind: c.Kind, Reason: reason}
	case c.Timeout < 0 && c.Timeout != pawl.NoTimeout:
		return fault("Timeout", "must not be negative, got %v", c.Timeout)
	case c.Admit > Reject:
		return fault("Admit", "unknown admission %d", c.Admit)
	case int(c.Per) >= len(unitNames):
		return fault("Per", "unknown unit %d", c.Per)
	case c.Lease < 0 || c.Lease > 0 && c.Lease < time.Millisecond:
		return fault("Lease", "must be 0 or at least 1ms, got %v", c.Lease)
	case c.MaxWaiting < 0:
		return fault("MaxWaiting", "must not be negative, got %d", c.MaxWaiting)
	case slices.ContainsFunc(c.Options, func(o pawl.CallOption) bool { return o == nil }):
		return fault("Options", "must not contain nil")
	}
	return nil
}

// idCheckKind is an in-memory kind for checkID. No state is ever stored under it.
var idCheckKind = pawl.Kind[struct{}]{Name: "flow.name", InMemory: true}

// checkID validates id by opening an in-memory scope under it, which does no I/O. It returns
// *pawl.LimitError for a bad id, pawl.ErrOutsideTx inside a transaction, and pawl.ErrClosed after
// Runtime.Close.
func (f *Flow) checkID(ctx context.Context, what, id string) error {
	if _, err := idCheckKind.Scope(f.idCheck, id).Snapshot(ctx); err != nil {
		return fmt.Errorf("flow: %s: %w", what, err)
	}
	return nil
}

// Cancel ends the call that runs or waits under this request id, in any process: its context ends
// with ErrCanceled as the cause. Cancel returns once the request to cancel is recorded. The call
// receives it as a watcher does, and may end by itself before that.
//
// Cancel returns pawl.ErrNotFound when no such call is in flight, *pawl.LimitError for a bad id,
// and the errors of the verbs.
func (f *Flow) Cancel(ctx context.Context, request string) error {
	if ctx == nil {
		return &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if err := f.checkID(ctx, "request", request); err != nil {
		return err
	}
	// Without a live lease, the request may by now be in flight in another process.
	if c := f.localCall(request); c != nil && c.lease.Context().Err() == nil {
		c.cancel(ErrCanceled)
		return nil
	}
	none := fmt.Errorf("%w: flow: request %s is not in flight", pawl.ErrNotFound, request)
	dead, _, err := f.checkDead(ctx, ticket{Request: request})
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

// Stop refuses new calls with pawl.ErrClosed, except calls made inside a call in flight, and waits
// for the calls in flight until ctx ends. Then it cancels them, with pawl.ErrClosed as the cause,
// and returns a *pawl.BusyError that names them; call Stop again to wait until they have ended.
// Calling Stop twice is safe.
//
// Stop a flow before its runtime is closed. A call that ends later cannot remove its ticket, and
// blocks its gate until its lease has run out.
func (f *Flow) Stop(ctx context.Context) error {
	if ctx == nil {
		return &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	f.mu.Lock()
	f.stopped = true
	if len(f.inFlight) > 0 && f.drained == nil {
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
	f.background.Wait() // bounded: each goroutine has a timeout or ends with its lease
	return f.sweeper.Stop(ctx)
}

// cancelAll cancels the calls in flight in this process and returns an error that names them, or
// nil if there are none left.
func (f *Flow) cancelAll(why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	busy := &pawl.BusyError{Cause: why}
	for c := range f.inFlight {
		c.cancel(pawl.ErrClosed)
		busy.Running = append(busy.Running, pawl.Running{Scope: c.record.Key(), Verb: c.action})
	}
	if len(busy.Running) == 0 {
		return nil
	}
	return busy
}

// add registers c as in flight. It returns pawl.ErrClosed after Stop.
func (f *Flow) add(c *call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped && !c.inside(f) {
		return fmt.Errorf("%w: flow %s", pawl.ErrClosed, f.config.Kind)
	}
	// Start fails after Stop only.
	f.startSweeper.Do(func() { _ = f.sweeper.Start(context.Background()) })
	f.inFlight[c] = struct{}{}
	return nil
}

// addHolder registers c as the holder of the record of its request.
func (f *Flow) addHolder(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders[c.Request] = c
}

// localCall returns the call of this process that holds the record of request, or nil.
func (f *Flow) localCall(request string) *call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holders[request]
}

// remove ends what add and addHolder began.
func (f *Flow) remove(c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inFlight, c)
	if f.holders[c.Request] == c {
		delete(f.holders, c.Request)
	}
	if len(f.inFlight) == 0 && f.drained != nil {
		close(f.drained)
		f.drained = nil
	}
}

// gone reports whether err says that the document does not exist.
func gone(err error) bool {
	return errors.Is(err, pawl.ErrNotFound) || errors.Is(err, pawl.ErrDeleted) || errors.Is(err, pawl.ErrExpired)
}
