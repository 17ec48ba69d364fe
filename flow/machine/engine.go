package machine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
)

// Defaults of Config.
const (
	DefaultDeliveries = 4 // at a time
	DefaultPoll       = 5 * time.Second
)

// DefaultEffects is how often an after-effect is tried, in about two hours.
var DefaultEffects = pawl.Retry{Attempts: 20, First: time.Second, Max: 10 * time.Minute}

// DefaultCommit is the budget of the commit that ends an action.
var DefaultCommit = pawl.Retry{Attempts: 100, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: time.Minute}

// Config configures an Engine; the zero value is the default.
type Config struct {
	Lease      time.Duration // how long a claim, or the delivery of an after-effect, outlives its holder's last sign of life; 0: pawl.DefaultLease
	Commit     pawl.Retry    // of the commit that ends an action; zero fields: DefaultCommit
	Effects    pawl.Retry    // of after-effects; zero fields: DefaultEffects. Within plays no part
	Deliveries int           // of after-effects at a time; 0: DefaultDeliveries
	Poll       time.Duration // how often to look for after-effects when nothing is heard of them, because whoever recorded or held them has died; 0: DefaultPoll

	GaveUp func(Undelivered) // told of each after-effect that is given up; nil: logged
	Logger *slog.Logger      // nil: slog.Default()
}

// Engine holds the machines of a process, the janitors that cover their claim states, and the delivery of after-effects. Put machines, handlers and
// janitors on it, in any order, and start it. Its methods are safe for concurrent use.
type Engine struct {
	rt     *pawl.Runtime
	config Config
	outbox *outbox
	hook   func(step string) // for tests: told of the steps of an action

	mu       sync.Mutex // protects what follows
	state    engineState
	life     context.Context // of Start
	machines []anyMachine
	janitors map[string]*Janitor // by module
	faults   []error             // of what was put on it
	actions  map[*flight]struct{}
	idle     chan struct{} // closed when the last action has ended; nil: nobody waits for that
}

type engineState uint8

const (
	declaring engineState = iota
	running
	stopped
)

// anyMachine is a Machine of some type.
type anyMachine interface {
	workflow() *Workflow
	faults() []error                                    // of its handlers
	effects() []string                                  // that it has handlers for
	deliver(ctx context.Context, d *attempt) error      // of an after-effect
	stuck() map[string]string                           // claim states, and where they revert to
	kind() string                                       // of its entities
	revert(ctx context.Context, s *stale) (bool, error) // of a claim whose holder is gone
}

// flight is an action under way.
type flight struct {
	key    pawl.Key
	cancel context.CancelCauseFunc
}

// NewEngine returns an engine that does nothing until Start.
func NewEngine(rt *pawl.Runtime, c Config) *Engine {
	e := &Engine{rt: rt, janitors: map[string]*Janitor{}, actions: map[*flight]struct{}{}, hook: func(string) {}}
	if rt == nil || rt.Store() == nil {
		e.faults = append(e.faults, pawl.ErrNoStore)
	}
	if c.Lease < 0 || c.Deliveries < 0 || c.Poll < 0 || negative(c.Commit) || negative(c.Effects) {
		e.faults = append(e.faults, &RuleError{Rule: RuleConfig, Reason: "a negative number in Config"})
	}
	c.Lease = cmp.Or(c.Lease, pawl.DefaultLease)
	c.Deliveries, c.Poll = cmp.Or(c.Deliveries, DefaultDeliveries), cmp.Or(c.Poll, DefaultPoll)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Commit, c.Effects = c.Commit.Or(DefaultCommit), c.Effects.Or(DefaultEffects)
	e.config = c
	e.outbox = newOutbox(e)
	return e
}

func negative(r pawl.Retry) bool {
	return r.Attempts < 0 || r.First < 0 || r.Max < 0 || r.Within < 0
}

// fault notes what Start will return.
func (e *Engine) fault(err error) { e.faults = append(e.faults, err) }

// add puts a machine on the engine. The caller does not hold e.mu.
func (e *Engine) add(m anyMachine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := m.workflow()
	if e.state != declaring {
		e.fault(&RuleError{Rule: RuleConfig, Workflow: w.Name, Reason: "it was added to an engine that was started before"})
	}
	for _, other := range e.machines {
		o := other.workflow()
		if o.Name == w.Name {
			e.fault(&RuleError{Rule: RuleDuplicate, Workflow: w.Name, Reason: "two workflows have this name"})
		}
		if o.Kind == w.Kind {
			e.fault(&RuleError{Rule: RuleEntity, Workflow: w.Name, Reason: "another workflow has the same entities", Values: []string{o.Name, w.Kind}})
		}
	}
	e.machines = append(e.machines, m)
}

// check returns everything that is wrong with what was put on the engine. The caller holds e.mu.
func (e *Engine) check() error {
	errs := slices.Clone(e.faults)
	for _, m := range e.machines {
		errs = append(errs, m.faults()...)
	}
	return errors.Join(append(errs, e.uncovered()...)...)
}

// uncovered compares the claim states that workflows declare with those that janitors cover. The caller holds e.mu.
func (e *Engine) uncovered() (errs []error) {
	for _, m := range e.machines {
		w := m.workflow()
		for _, state := range slices.Sorted(maps.Keys(m.stuck())) {
			if e.janitors[w.Module] == nil {
				errs = append(errs, &UncoveredError{Workflow: w.Name, State: state, Module: w.Module})
			}
		}
	}
	return errs
}

// Start checks all that was put on the engine, and then lets actions be fired and starts janitors and the delivery of after-effects, until
// Stop or until ctx ends. Starting it again does nothing.
//
// It returns, joined, *RuleError for a workflow or a janitor, *HandlerError for an action or after-effect without exactly one handler, *UncoveredError for a claim
// state whose module has no janitor, and pawl.ErrNoStore; nothing runs then. It returns ErrNotRunning after Stop, and the cause of a ctx that has ended.
func (e *Engine) Start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == stopped {
		return ErrNotRunning
	}
	if err := e.check(); err != nil || e.state == running {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, j := range e.janitors {
		if err := j.Start(ctx); err != nil {
			return err
		}
	}
	if err := e.outbox.start(ctx, e.machines); err != nil {
		return err
	}
	e.state, e.life = running, ctx
	return nil
}

// Stop refuses new actions with ErrNotRunning, stops janitors and deliveries, and waits for what is under way. When ctx ends first, it ends the contexts of
// the actions and returns *BusyError; what still runs then keeps its claim, and another Stop can wait for it. Stop the engine before its runtime is closed: an
// action cannot give its claim back afterwards. Stopping twice is safe.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	e.state = stopped
	if e.idle == nil {
		e.idle = make(chan struct{})
		if len(e.actions) == 0 {
			close(e.idle)
		}
	}
	idle, janitors := e.idle, slices.Collect(maps.Values(e.janitors))
	e.mu.Unlock()
	var errs []error
	select {
	case <-idle:
	case <-ctx.Done():
		errs = append(errs, e.abort(context.Cause(ctx)))
	}
	for _, j := range janitors {
		errs = append(errs, j.Stop(ctx))
	}
	errs = append(errs, e.outbox.stop(ctx))
	return errors.Join(errs...)
}

// abort ends the contexts of the actions that still run.
func (e *Engine) abort(cause error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := &BusyError{Cause: cause}
	for f := range e.actions {
		f.cancel(ErrNotRunning)
		busy.Actions = append(busy.Actions, f.key)
	}
	if len(busy.Actions) == 0 { // the last has ended just now
		return nil
	}
	slices.SortFunc(busy.Actions, pawl.Key.Compare)
	return busy
}

// enter admits an action, with a context that Stop can end.
func (e *Engine) enter(ctx context.Context, key pawl.Key) (_ context.Context, leave func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != running || e.life.Err() != nil {
		return nil, nil, ErrNotRunning
	}
	f := &flight{key: key}
	ctx, f.cancel = context.WithCancelCause(ctx)
	e.actions[f] = struct{}{}
	return ctx, func() {
		f.cancel(nil)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.actions, f)
		if len(e.actions) == 0 && e.idle != nil {
			close(e.idle)
		}
	}, nil
}

// loop returns a background loop of the engine.
func loop[J any](e *Engine, c worker.Config[J]) *worker.Loop[J] {
	c.Logger = e.config.Logger
	return worker.New(c)
}
