package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
	"github.com/pawl-go/pawl/persist"
)

// Defaults of JanitorConfig.
const (
	DefaultInterval = 2 * time.Minute
	DefaultAge      = 5 * time.Minute
	DefaultBatch    = 100
)

// JanitorConfig configures a Janitor. Only Module is required.
type JanitorConfig struct {
	Module   string        // the owner of the workflows that it covers
	Interval time.Duration // between two rounds; 0: DefaultInterval
	Age      time.Duration // how long the lease of a claim has to be over; 0: DefaultAge
	Batch    int           // entities asked for at a time; 0: DefaultBatch
	Reverted func(Revert)  // told of each entity; nil: logged
}

// Revert is an entity that a janitor freed.
type Revert struct {
	Workflow string
	ID       string // of the entity
	From, To string
	Age      time.Duration // since its claim's lease was over
	Holder   string        // of the claim, that is gone; empty: not known
}

// Janitor covers the claim states of one module: it reverts claims whose holder is gone. Several processes may run one for the same module. Reverting is a
// version-checked change, so that each claim is reverted once, and never one that is alive: what counts is that its lease is over, by the store's clock, for
// as long as configured.
type Janitor struct {
	e      *Engine
	config JanitorConfig
	loop   *worker.Loop[anyMachine]

	mu    sync.Mutex   // protects what follows
	left  []anyMachine // to be looked through in this round
	round time.Time    // when it began
}

// AddJanitor registers a janitor as the cover of its module; Engine.Start starts it. Faults are returned there: *RuleError for a module without a name or with two
// janitors, and for negative numbers.
func (e *Engine) AddJanitor(c JanitorConfig) *Janitor {
	e.mu.Lock()
	defer e.mu.Unlock()
	fault := func(r Rule, reason string) {
		e.fault(&RuleError{Rule: r, Reason: "janitor: " + reason, Values: []string{c.Module}})
	}
	switch {
	case c.Module == "":
		fault(RuleName, "it has no module")
	case e.janitors[c.Module] != nil:
		fault(RuleDuplicate, "its module has two")
	}
	if c.Interval < 0 || c.Age < 0 || c.Batch < 0 {
		fault(RuleConfig, "a negative number")
	}
	c.Interval, c.Age, c.Batch = cmp.Or(c.Interval, DefaultInterval), cmp.Or(c.Age, DefaultAge), cmp.Or(c.Batch, DefaultBatch)
	j := &Janitor{e: e, config: c}
	j.loop = loop(e, worker.Config[anyMachine]{Name: "janitor of " + c.Module, Take: j.take, Run: j.run, Poll: max(c.Interval, 1)})
	if e.janitors[c.Module] == nil {
		e.janitors[c.Module] = j
	}
	return j
}

// Start begins to look for claims whose holder is gone, until Stop or until ctx ends; the engine's Start does it, too. Starting twice does nothing. It returns an error after Stop,
// and the cause of a ctx that has ended.
func (j *Janitor) Start(ctx context.Context) error { return j.loop.Start(ctx) }

// Stop waits for what is under way until ctx ends: then it returns an error that says so. Stopping twice is safe.
func (j *Janitor) Stop(ctx context.Context) error { return j.loop.Stop(ctx) }

// Sweep looks through everything once, now, whether the janitor was started or not, and returns what it reverted, even with an error: *RuleError for a
// workflow that is not valid, *pawl.UnavailableError, *pawl.CanceledError, pawl.ErrClosed, and those of an entity that cannot be read, which keeps it from no other.
func (j *Janitor) Sweep(ctx context.Context) (all []Revert, err error) {
	for _, m := range j.machines() {
		reverts, failed := j.sweep(ctx, m)
		all, err = append(all, reverts...), errors.Join(err, failed)
	}
	return all, err
}

// Sweep runs all janitors once, as Janitor.Sweep does.
func (e *Engine) Sweep(ctx context.Context) (all []Revert, err error) {
	e.mu.Lock()
	janitors := slices.Collect(maps.Values(e.janitors))
	e.mu.Unlock()
	for _, j := range janitors {
		reverts, failed := j.Sweep(ctx)
		all, err = append(all, reverts...), errors.Join(err, failed)
	}
	return all, err
}

// machines returns what the janitor covers.
func (j *Janitor) machines() (mine []anyMachine) {
	j.e.mu.Lock()
	defer j.e.mu.Unlock()
	for _, m := range j.e.machines {
		if m.workflow().Module == j.config.Module && len(m.stuck()) > 0 {
			mine = append(mine, m)
		}
	}
	return mine
}

// take is the Take of the loop: it begins a round when it is time.
func (j *Janitor) take(_ context.Context, limit int) ([]anyMachine, error) {
	machines := j.machines()
	j.mu.Lock()
	defer j.mu.Unlock()
	if now := time.Now(); len(j.left) == 0 && now.Sub(j.round) >= j.config.Interval {
		j.left, j.round = machines, now
	}
	n := min(limit, len(j.left))
	jobs := j.left[:n]
	j.left = j.left[n:]
	return jobs, nil
}

// run is the Run of the loop.
func (j *Janitor) run(ctx context.Context, m anyMachine) {
	if _, err := j.sweep(ctx, m); err != nil && ctx.Err() == nil && !errors.Is(err, pawl.ErrClosed) {
		j.e.config.Logger.WarnContext(ctx, "machine: the janitor failed, and tries again later", "module", j.config.Module, "workflow", m.workflow().Name, "err", err)
	}
}

// sweep looks through the entities of one workflow.
func (j *Janitor) sweep(ctx context.Context, m anyMachine) (all []Revert, err error) {
	w := m.workflow()
	if err := w.Validate(); err != nil {
		return nil, err
	}
	q := persist.Query{Kind: m.kind(), Labels: slices.Sorted(maps.Keys(m.stuck())), Unheld: true, Limit: j.config.Batch}
	for more := true; more; more = q.After != "" {
		page, failed := j.e.rt.Store().List(ctx, q)
		if failed != nil {
			return all, errors.Join(err, j.unavailable(ctx, pawl.Key{Kind: m.kind()}, failed))
		}
		for _, r := range page.Records {
			reverted, failed := j.free(ctx, m, r)
			if failed != nil {
				err = errors.Join(err, failed)
			}
			if reverted == nil {
				continue
			}
			all = append(all, *reverted)
			j.report(ctx, *reverted)
		}
		q.After = page.Next
	}
	return all, err
}

func (j *Janitor) unavailable(ctx context.Context, key pawl.Key, err error) error {
	switch {
	case ctx.Err() != nil:
		return &pawl.CanceledError{Scope: key, Phase: pawl.PhaseQueued, Cause: context.Cause(ctx)}
	case errors.Is(err, persist.ErrClosed):
		return pawl.ErrClosed
	}
	return &pawl.UnavailableError{Scope: key, Cause: err}
}

// stale is a claim as the store showed it.
type stale struct {
	record   persist.Record
	from, to string
}

// overFor is how long the claim's lease has been over, by the store's clock; negative: it is not. Where the lease is gone altogether, because its holder gave it back and
// nothing else, or has left while it was being taken, the last write counts.
func overFor(r persist.Record) time.Duration {
	if r.Lease.Token == 0 {
		return r.Now.Sub(r.Updated)
	}
	return r.Now.Sub(r.Lease.Until)
}

// triesToFree is how often the janitor looks again when somebody edits the entity at the same moment; then it waits for its next round.
const triesToFree = 8

// free reverts a claim if its holder is gone. It returns nil if there is nothing to revert.
func (j *Janitor) free(ctx context.Context, m anyMachine, r persist.Record) (_ *Revert, err error) {
	key := r.Key
	defer func() {
		if v := recover(); v != nil { // of the entity's own JSON code
			err = fmt.Errorf("machine: %s: %w", key, panicked(v))
		}
	}()
	for range triesToFree {
		to, claimed := m.stuck()[r.Label]
		age := overFor(r)
		if !claimed || r.Gone(r.Now) || r.Held(r.Now) || age < j.config.Age {
			return nil, nil
		}
		reverted, err := m.revert(ctx, &stale{r, r.Label, to})
		if err != nil {
			return nil, err
		}
		if reverted {
			return &Revert{Workflow: m.workflow().Name, ID: r.ID, From: r.Label, To: to, Age: age, Holder: r.Lease.Holder}, nil
		}
		if r, err = j.e.rt.Store().Load(ctx, key); err != nil {
			if errors.Is(err, persist.ErrNotFound) {
				return nil, nil
			}
			return nil, j.unavailable(ctx, key, err)
		}
	}
	return nil, nil
}

// revert makes machine an anyMachine. It reports false if somebody else was faster.
func (m *machine[T]) revert(ctx context.Context, s *stale) (bool, error) {
	_, err := m.entities.Scope(m.e.rt, s.record.ID).Apply(ctx, m.move(s.from, s.to), pawl.IfVersion(s.record.Version))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, pawl.ErrConflict), errors.Is(err, pawl.ErrDeleted), errors.Is(err, pawl.ErrExpired), errors.Is(err, errStatus):
		return false, nil
	}
	return false, err
}

func (j *Janitor) report(ctx context.Context, r Revert) {
	if j.config.Reverted != nil {
		defer func() {
			if v := recover(); v != nil { // the entity is free, and others are to be
				j.e.config.Logger.ErrorContext(ctx, "machine: JanitorConfig.Reverted panicked", "workflow", r.Workflow, "id", r.ID, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
		}()
		j.config.Reverted(r)
		return
	}
	j.e.config.Logger.WarnContext(ctx, "machine: the janitor freed an entity", "workflow", r.Workflow, "id", r.ID, "from", r.From, "to", r.To, "age", r.Age, "holder", r.Holder)
}
