package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/worker"
)

// Defaults of Config.
const (
	DefaultDeliveries = 4
	DefaultPoll       = 5 * time.Second
)

// DefaultEffects is the retry budget of an after-effect. It spans about two hours.
var DefaultEffects = pawl.Retry{Attempts: 20, First: time.Second, Max: 10 * time.Minute}

// DefaultCommit is the retry budget of the commit that ends an action.
var DefaultCommit = pawl.Retry{Attempts: 100, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: time.Minute}

// Config configures an Engine; the zero value is the default.
type Config struct {
	// Lease is the length of the lease of a claim and of a delivery. After a crash, the lease ends
	// at most this long after its last renewal. 0: pawl.DefaultLease.
	Lease time.Duration
	// Commit is the retry budget of the commit that ends an action; zero fields: DefaultCommit.
	Commit pawl.Retry
	// Effects is the retry budget of an after-effect; zero fields: DefaultEffects. Within is
	// ignored.
	Effects pawl.Retry
	// Deliveries is the number of after-effects delivered at a time; 0: DefaultDeliveries.
	Deliveries int
	// Poll is how often the engine looks for due after-effects without a hint. A process that died
	// sends no hint for the after-effects that it recorded or held. 0: DefaultPoll.
	Poll time.Duration

	// GaveUp is called for each after-effect that is given up; nil: it is logged.
	GaveUp func(Undelivered)
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger
}

// Engine holds the machines of a process, the janitors that cover their claim states, and the
// delivery of after-effects. Add machines, handlers and janitors to it, in any order, and start it.
// Its methods are safe for concurrent use.
type Engine struct {
	rt     *pawl.Runtime
	config Config
	outbox *outbox
	// hook is for tests: it is called with each step of an action.
	hook func(step string)

	// mu protects the fields below.
	mu       sync.Mutex
	state    engineState
	startCtx context.Context // the context of Start
	machines []anyMachine
	janitors map[string]*Janitor // by module
	faults   []error             // of Add, AddJanitor and NewEngine
	actions  map[*runningAction]struct{}
	// idle is closed when the last action has ended; nil: Stop was not called.
	idle chan struct{}
}

type engineState uint8

const (
	declaring engineState = iota
	running
	stopped
)

// anyMachine is a Machine of any type of entity.
type anyMachine interface {
	workflow() *Workflow
	// faults returns the faults of its declarations.
	faults() []error
	// effects returns the names of the after-effects that it has handlers for.
	effects() []string
	// deliver calls the handler of an after-effect.
	deliver(ctx context.Context, j *job.Job[effectRecord]) error
	// claimStates maps each claim state to the status that it reverts to.
	claimStates() map[string]string
	// kind returns the kind of its entities.
	kind() string
	// revert reverts a claim whose holder is dead. It reports false if another write came first.
	revert(ctx context.Context, s *staleClaim) (bool, error)
}

// runningAction is an action in progress.
type runningAction struct {
	key    pawl.Key
	cancel context.CancelCauseFunc
}

// NewEngine returns an engine that does nothing until Start.
func NewEngine(rt *pawl.Runtime, c Config) *Engine {
	e := &Engine{rt: rt, janitors: map[string]*Janitor{}, actions: map[*runningAction]struct{}{}, hook: func(string) {}}
	if rt == nil || rt.Store() == nil {
		e.faults = append(e.faults, pawl.ErrNoStore)
	}
	e.faults = append(e.faults, c.negatives()...)
	c.Lease = cmp.Or(c.Lease, pawl.DefaultLease)
	c.Deliveries, c.Poll = cmp.Or(c.Deliveries, DefaultDeliveries), cmp.Or(c.Poll, DefaultPoll)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Commit, c.Effects = c.Commit.Or(DefaultCommit), c.Effects.Or(DefaultEffects)
	e.config = c
	e.outbox = &outbox{e: e, machines: map[string]anyMachine{}}
	return e
}

// negatives returns a *RuleError for each negative field.
func (c *Config) negatives() (errs []error) {
	negative := func(r pawl.Retry) bool { return r.Attempts < 0 || r.First < 0 || r.Max < 0 || r.Within < 0 }
	for _, f := range []struct {
		name  string
		value any
		bad   bool
	}{
		{"Lease", c.Lease, c.Lease < 0},
		{"Commit", c.Commit, negative(c.Commit)},
		{"Effects", c.Effects, negative(c.Effects)},
		{"Deliveries", c.Deliveries, c.Deliveries < 0},
		{"Poll", c.Poll, c.Poll < 0},
	} {
		if f.bad {
			reason := fmt.Sprintf("Config.%s must not be negative, got %+v", f.name, f.value)
			errs = append(errs, &RuleError{Rule: RuleConfig, Reason: reason})
		}
	}
	return errs
}

// fault adds an error that Start returns.
func (e *Engine) fault(err error) { e.faults = append(e.faults, err) }

// add adds a machine to the engine. The caller does not hold e.mu.
func (e *Engine) add(m anyMachine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := m.workflow()
	if e.state != declaring {
		e.fault(&RuleError{Rule: RuleConfig, Workflow: w.Name, Reason: "the workflow was added after the engine had started"})
		return // Fire refuses it: nothing has checked its claims, and nothing delivers its after-effects
	}
	for _, other := range e.machines {
		o := other.workflow()
		if o.Name == w.Name {
			e.fault(&RuleError{Rule: RuleDuplicate, Workflow: w.Name, Reason: "two workflows have this name"})
		}
		if o.Kind == w.Kind {
			e.fault(&RuleError{Rule: RuleEntity, Workflow: w.Name, Reason: "another workflow has the same entity_kind", Values: []string{o.Name, w.Kind}})
		}
	}
	e.machines = append(e.machines, m)
}

// check returns all faults of the engine and its machines. The caller holds e.mu.
func (e *Engine) check() error {
	errs := slices.Clone(e.faults)
	for _, m := range e.machines {
		errs = append(errs, m.faults()...)
	}
	return errors.Join(append(errs, e.uncovered()...)...)
}

// uncovered returns an error for each claim state that no janitor covers. The caller holds e.mu.
func (e *Engine) uncovered() (errs []error) {
	for _, m := range e.machines {
		w := m.workflow()
		for _, state := range slices.Sorted(maps.Keys(m.claimStates())) {
			if e.janitors[w.Module] == nil {
				errs = append(errs, &UncoveredError{Workflow: w.Name, State: state, Module: w.Module})
			}
		}
	}
	return errs
}

// Start checks the workflows, handlers and janitors that were added. Then it accepts actions, and
// starts the janitors and the delivery of after-effects, until Stop or until ctx ends. Calling it
// again does nothing.
//
// It returns all faults, joined, and then starts nothing: *RuleError for a workflow or a janitor,
// *HandlerError for an action or after-effect without exactly one handler, *UncoveredError for a
// claim state whose module has no janitor, and pawl.ErrNoStore. It returns ErrNotRunning after
// Stop, and the cause of a ctx that has ended.
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
	e.state, e.startCtx = running, ctx
	return nil
}

// Stop refuses new actions with ErrNotRunning, stops janitors and deliveries, and waits for those
// in progress. If ctx ends first, it ends the contexts of the actions and returns *BusyError. An
// action that still runs keeps its claim; call Stop again to wait for it. Calling Stop twice is
// safe.
//
// Stop the engine before its runtime is closed. An action cannot release its claim afterwards.
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
		errs = append(errs, e.cancelActions(context.Cause(ctx)))
	}
	for _, j := range janitors {
		errs = append(errs, j.Stop(ctx))
	}
	errs = append(errs, e.outbox.stop(ctx))
	return errors.Join(errs...)
}

// cancelActions ends the contexts of the running actions, and returns a *BusyError that names them.
func (e *Engine) cancelActions(cause error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := &BusyError{Cause: cause}
	for a := range e.actions {
		a.cancel(ErrNotRunning)
		busy.Actions = append(busy.Actions, a.key)
	}
	if len(busy.Actions) == 0 { // the last action ended in the meantime
		return nil
	}
	slices.SortFunc(busy.Actions, pawl.Key.Compare)
	return busy
}

// enter registers an action of m and returns a context that Stop can end. It returns ErrNotRunning
// unless the engine runs m.
func (e *Engine) enter(ctx context.Context, m anyMachine, key pawl.Key) (_ context.Context, leave func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != running || e.startCtx.Err() != nil || !slices.Contains(e.machines, m) {
		return nil, nil, ErrNotRunning
	}
	a := &runningAction{key: key}
	ctx, a.cancel = context.WithCancelCause(ctx)
	e.actions[a] = struct{}{}
	return ctx, func() {
		a.cancel(nil)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.actions, a)
		if len(e.actions) == 0 && e.idle != nil {
			close(e.idle)
		}
	}, nil
}

// newLoop returns a background loop with the engine's logger.
func newLoop[J any](e *Engine, c worker.Config[J]) *worker.Loop[J] {
	c.Logger = e.config.Logger
	return worker.New(c)
}
