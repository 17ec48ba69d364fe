package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
	"github.com/pawl-go/pawl/persist"
)

// Defaults of JanitorConfig.
const (
	DefaultInterval = 20 * time.Second
	DefaultSurvey   = time.Hour
	DefaultBatch    = 100
)

// JanitorConfig configures a Janitor. Only Module is required.
type JanitorConfig struct {
	// Module is the owner of the workflows that the janitor covers.
	Module string
	// Interval is the longest time between two rounds; 0: DefaultInterval.
	Interval time.Duration
	// Age is how long the lease of a claim must have been over; 0: a claim whose lease is over is
	// reverted in the next round.
	Age time.Duration
	// Survey is the longest time between two surveys, which read all entities of the module; 0:
	// DefaultSurvey. See Janitor.Survey.
	Survey time.Duration
	// Batch is the number of entities listed at a time; 0: DefaultBatch.
	Batch int
	// Reverted is called for each reverted entity; nil: it is logged.
	Reverted func(Revert)
	// Stranded is called for each unknown status that a survey has found; nil: it is logged.
	Stranded func(Stranded)
}

// Revert is an entity that a janitor reverted.
type Revert struct {
	Workflow string
	ID       string // the id of the entity
	From, To string // the status before and after
	// Age is the time since the claim's lease was over.
	Age time.Duration
	// Holder is the dead holder of the claim; empty: not known.
	Holder string
}

// Janitor covers the claim states of one module: it reverts claims whose holder is dead. Several
// processes may run a janitor for the same module. A revert is a version-checked change, so each
// claim is reverted once. A live claim is never reverted: its lease must have been over for the
// configured age, by the store's clock. A claim is reverted to the status that its entity came
// from, also if the workflow of the janitor's release says otherwise.
type Janitor struct {
	e       *Engine
	config  JanitorConfig
	sweeps  *rounds
	surveys *rounds
}

// AddJanitor adds a janitor, which covers its module; Engine.Start starts it.
//
// Engine.Start also returns the faults: *RuleError for an empty module, a module with two janitors,
// and negative numbers.
func (e *Engine) AddJanitor(c JanitorConfig) *Janitor {
	e.mu.Lock()
	defer e.mu.Unlock()
	fault := func(r Rule, format string, args ...any) {
		e.fault(&RuleError{Rule: r, Reason: "janitor: " + fmt.Sprintf(format, args...), Values: []string{c.Module}})
	}
	switch {
	case c.Module == "":
		fault(RuleName, "the module is empty")
	case e.janitors[c.Module] != nil:
		fault(RuleDuplicate, "the module has another janitor")
	}
	if c.Interval < 0 {
		fault(RuleConfig, "Interval must not be negative, got %v", c.Interval)
	}
	if c.Age < 0 {
		fault(RuleConfig, "Age must not be negative, got %v", c.Age)
	}
	if c.Survey < 0 {
		fault(RuleConfig, "Survey must not be negative, got %v", c.Survey)
	}
	if c.Batch < 0 {
		fault(RuleConfig, "Batch must not be negative, got %d", c.Batch)
	}
	c.Interval, c.Survey, c.Batch = cmp.Or(c.Interval, DefaultInterval), cmp.Or(c.Survey, DefaultSurvey), cmp.Or(c.Batch, DefaultBatch)
	j := &Janitor{e: e, config: c}
	j.sweeps = j.newRounds("janitor of "+c.Module, c.Interval, j.claiming, func(ctx context.Context, m anyMachine) (int, error) {
		reverts, err := j.sweep(ctx, m)
		return len(reverts), err
	})
	j.surveys = j.newRounds("survey of "+c.Module, c.Survey, j.machines, func(ctx context.Context, m anyMachine) (int, error) {
		_, err := j.survey(ctx, m) // which changes nothing
		return 0, err
	})
	if e.janitors[c.Module] == nil {
		e.janitors[c.Module] = j
	}
	return j
}

// Start sweeps at least once per interval, and surveys as often as Survey says, until Stop or until
// ctx ends. Engine.Start calls it. Calling it again does nothing. It returns an error after Stop,
// and the cause of a ctx that has ended.
func (j *Janitor) Start(ctx context.Context) error {
	return errors.Join(j.sweeps.loop.Start(ctx), j.surveys.loop.Start(ctx))
}

// Stop ends sweeps and surveys and waits for those in progress. It returns an error if ctx ends
// first. Calling Stop twice is safe.
func (j *Janitor) Stop(ctx context.Context) error {
	return errors.Join(j.sweeps.loop.Stop(ctx), j.surveys.loop.Stop(ctx))
}

// Sweep sweeps all workflows of the module once, whether the janitor was started or not, and
// returns the entities that it reverted, even with an error.
//
// It returns *RuleError for a workflow that is not valid, *pawl.UnavailableError,
// *pawl.CanceledError, pawl.ErrClosed, and the error of an entity that cannot be read. Such an
// entity does not stop the sweep of the others.
func (j *Janitor) Sweep(ctx context.Context) (all []Revert, err error) {
	for _, m := range j.claiming() {
		reverts, failed := j.sweep(ctx, m)
		all, err = append(all, reverts...), errors.Join(err, failed)
	}
	return all, err
}

// Workers returns the state of the janitors of this process, and of their surveys.
func (e *Engine) Workers() (all []pawl.WorkerStats) {
	e.mu.Lock()
	janitors := slices.Collect(maps.Values(e.janitors))
	e.mu.Unlock()
	for _, j := range janitors {
		all = append(all, j.sweeps.stats("janitor of "+j.config.Module, j.config.Interval),
			j.surveys.stats("survey of "+j.config.Module, j.config.Survey))
	}
	slices.SortFunc(all, func(a, b pawl.WorkerStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// stats returns the state of the rounds.
func (r *rounds) stats(name string, interval time.Duration) pawl.WorkerStats {
	running, jobs := r.loop.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	return pawl.WorkerStats{Name: name, Running: running, Working: jobs > 0, Interval: interval, Round: r.began, Done: r.done, Failure: r.failure}
}

// Sweep calls Janitor.Sweep of all janitors.
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

// machines returns the machines of the module.
func (j *Janitor) machines() (mine []anyMachine) {
	j.e.mu.Lock()
	defer j.e.mu.Unlock()
	for _, m := range j.e.machines {
		if m.workflow().Module == j.config.Module {
			mine = append(mine, m)
		}
	}
	return mine
}

// claiming returns the machines of the module that have claim states.
func (j *Janitor) claiming() []anyMachine {
	return slices.DeleteFunc(j.machines(), func(m anyMachine) bool { return len(m.claimStates()) == 0 })
}

// rounds works on all machines of a janitor, one after the other, again and again.
type rounds struct {
	loop     *worker.Loop[anyMachine]
	machines func() []anyMachine
	// pause is the shortest time between the beginnings of two rounds.
	pause time.Duration

	// mu protects the fields below.
	mu      sync.Mutex
	left    []anyMachine // to be worked on in this round
	began   time.Time    // when this round began
	done    int          // entities reverted
	failure error        // of the last machine
}

// newRounds returns rounds of which one begins in each period of length every. The loop extends its
// pause by up to a quarter.
func (j *Janitor) newRounds(name string, every time.Duration, machines func() []anyMachine, work func(context.Context, anyMachine) (int, error)) *rounds {
	r := &rounds{machines: machines, pause: max(every/5*4, 1)}
	r.loop = newLoop(j.e, worker.Config[anyMachine]{Name: name, Take: r.take, Poll: r.pause, Run: func(ctx context.Context, m anyMachine) {
		n, err := work(ctx, m)
		r.mu.Lock()
		r.done, r.failure = r.done+n, err
		r.mu.Unlock()
		if err != nil && ctx.Err() == nil && !errors.Is(err, pawl.ErrClosed) {
			j.e.config.Logger.WarnContext(ctx, "machine: janitor failed; it retries in its next round",
				"module", j.config.Module, "workflow", m.workflow().Name, "err", err)
		}
	}})
	return r
}

// take is the Take of the loop. It begins a round once the pause has passed.
func (r *rounds) take(_ context.Context, limit int) ([]anyMachine, error) {
	machines := r.machines()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); len(r.left) == 0 && now.Sub(r.began) >= r.pause {
		r.left, r.began = machines, now
	}
	n := min(limit, len(r.left))
	jobs := r.left[:n]
	r.left = r.left[n:]
	return jobs, nil
}

// sweep reverts the dead claims of one workflow.
func (j *Janitor) sweep(ctx context.Context, m anyMachine) (all []Revert, err error) {
	w := m.workflow()
	if err := w.Validate(); err != nil {
		return nil, err
	}
	q := persist.Query{
		Kind: m.kind(), Labels: slices.Sorted(maps.Keys(m.claimStates())), Unheld: true, Limit: j.config.Batch,
	}
	for more := true; more; more = q.After != "" {
		page, failed := j.e.rt.Store().List(ctx, q)
		if failed != nil {
			return all, errors.Join(err, j.unavailable(ctx, pawl.Key{Kind: m.kind()}, failed))
		}
		for _, r := range page.Records {
			reverted, failed := j.revertRecord(ctx, m, r)
			if failed != nil {
				err = errors.Join(err, failed)
			}
			if reverted == nil {
				continue
			}
			all = append(all, *reverted)
			j.report(ctx, m.kind(), *reverted)
		}
		q.After = page.Next
	}
	return all, err
}

// unavailable converts an error of the store.
func (j *Janitor) unavailable(ctx context.Context, key pawl.Key, err error) error {
	switch {
	case ctx.Err() != nil:
		return &pawl.CanceledError{Scope: key, Phase: pawl.PhaseQueued, Cause: context.Cause(ctx)}
	case errors.Is(err, persist.ErrClosed):
		return pawl.ErrClosed
	}
	return &pawl.UnavailableError{Scope: key, Cause: err}
}

// staleClaim is a claim whose lease is over.
type staleClaim struct {
	record   persist.Record // as read from the store
	from, to string
}

// sinceLeaseEnd returns how long the claim's lease has been over, by the store's clock; negative:
// the lease lives. A record may have no lease at all: its holder released only the lease, or left
// while it claimed. Then the time of the last write counts.
func sinceLeaseEnd(r persist.Record) time.Duration {
	if r.Lease.Token == 0 {
		return r.Now.Sub(r.Updated)
	}
	return r.Now.Sub(r.Lease.Until)
}

// revertTries is how often the janitor tries to revert an entity that is edited at the same time.
// After that, it leaves the entity to its next round.
const revertTries = 8

// revertRecord reverts a claim if its holder is dead. It returns nil if there is nothing to revert.
func (j *Janitor) revertRecord(ctx context.Context, m anyMachine, r persist.Record) (_ *Revert, err error) {
	key := r.Key
	defer func() {
		if v := recover(); v != nil { // a panic of the entity's own JSON code
			err = fmt.Errorf("machine: %s: %w", key, panicError(v))
		}
	}()
	for range revertTries {
		to, claimed := m.claimStates()[r.Label]
		holder, from := cutOrigin(r.Lease.Holder, r.Label)
		to = cmp.Or(from, to)
		age := sinceLeaseEnd(r)
		if !claimed || r.Gone(r.Now) || r.Held(r.Now) || age < j.config.Age {
			return nil, nil
		}
		reverted, err := m.revert(ctx, &staleClaim{r, r.Label, to})
		if err != nil {
			return nil, err
		}
		if reverted {
			return &Revert{Workflow: m.workflow().Name, ID: r.ID, From: r.Label, To: to, Age: age, Holder: holder}, nil
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

// revert implements anyMachine.
func (m *machine[T]) revert(ctx context.Context, s *staleClaim) (bool, error) {
	scope := m.entities.Scope(m.e.rt, s.record.ID)
	_, err := scope.Apply(ctx, m.changeStatus(s.from, s.to), pawl.IfVersion(s.record.Version))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, pawl.ErrConflict), errors.Is(err, pawl.ErrDeleted), errors.Is(err, pawl.ErrExpired),
		errors.Is(err, errStatus):
		return false, nil
	}
	return false, err
}

// VerbReverted is the verb of the event that a Janitor passes to the runtime's observer for each
// entity that it reverts, with the Path "machine". Waited is Revert.Age.
const VerbReverted = "reverted"

// report tells the observer, and calls Reverted or logs the revert.
func (j *Janitor) report(ctx context.Context, kind string, r Revert) {
	j.e.rt.Observe(ctx, pawl.Event{
		Type: pawl.EventNoted, Path: "machine", Verb: VerbReverted, Waited: max(r.Age, 0), Key: pawl.Key{Kind: kind, ID: r.ID},
	})
	if j.config.Reverted != nil {
		defer j.recoverFrom(ctx, "Reverted", r.Workflow, r.ID)
		j.config.Reverted(r)
		return
	}
	j.e.config.Logger.WarnContext(ctx, "machine: janitor reverted an entity",
		"workflow", r.Workflow, "id", r.ID, "from", r.From, "to", r.To, "age", r.Age, "holder", r.Holder)
}

// recoverFrom logs a panic of a callback, so that the janitor continues. It is deferred.
func (j *Janitor) recoverFrom(ctx context.Context, callback, workflow, id string) {
	if v := recover(); v != nil {
		j.e.config.Logger.ErrorContext(ctx, "machine: JanitorConfig."+callback+" panicked",
			"workflow", workflow, "id", id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}
