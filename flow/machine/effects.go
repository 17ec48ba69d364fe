package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
)

// An after-effect is a document that the commit of its action writes:
//
//	         Take, under a lease    attempts +1    handler    nil: deleted, in the commit of OnCommit
//	pending ─────────────────────────────────────────────► error: pending again, due later
//	   ▲                                                   └─ attempts spent, or pawl.NonRetryable:
//	   │                                                      given up, until Redeliver
//	   └── the worker dies: its lease runs out, and the after-effect is still due
//
// Races, and what decides each:
//   - Two workers take one after-effect: the lease decides. A worker that lost it commits neither
//     the deletion nor a failed attempt.
//   - A worker dies after the handler and before the deletion: the handler runs again. Delivery is
//     "at least once", and the handler deduplicates by Delivery.ID.
//   - A handler kills its worker: the attempt is counted before the handler runs, so the
//     after-effect is given up in the end.
//   - A process of another release has no handler for an after-effect: the label names the
//     after-effect, and a process takes only labels that it has handlers for.

// effectRecord is the document of an after-effect that is not delivered yet.
type effectRecord struct {
	Label    string    `json:"label"` // pendingLabel or givenUpLabel
	Due      time.Time `json:"due,omitzero"`
	Workflow string    `json:"workflow"`
	Effect   string    `json:"effect"`
	Step     string    `json:"step"`
	By       string    `json:"by"`
	Entity   string    `json:"entity"`
	Version  uint64    `json:"version"`
	Input    string    `json:"input,omitempty"` // JSON
	Attempts int       `json:"attempts"`
	Error    string    `json:"error,omitempty"`
}

var effectRecords = pawl.Kind[effectRecord]{Name: "machine.effect", Label: "label", Due: "due"}

// pendingLabel is the label of an after-effect that is to be delivered.
func pendingLabel(workflow, effect string) string {
	return "pending " + escapeSpaces.Replace(workflow) + " " + effect
}

// givenUpLabel is the label of an after-effect that was given up.
func givenUpLabel(workflow, effect string) string {
	return "given up " + escapeSpaces.Replace(workflow) + " " + effect
}

// escapeSpaces removes the spaces of a workflow's name, so that the next space in a label ends it.
var escapeSpaces = strings.NewReplacer("%", "%25", " ", "%20")

// Delivery is one attempt to deliver an after-effect. The context of its handler ends when the
// lease of the attempt is lost. Commits made with it are fenced by that lease.
type Delivery[T any] struct {
	// ID is the same in every attempt; deduplicate by it.
	ID string
	// Step is the key of the step whose commit recorded the after-effect.
	Step string
	// By is the requester of the step.
	By string
	// Version is the version of the entity that the commit made.
	Version uint64
	// Attempt is 1 in the first attempt.
	Attempt int
	// Entity is the current entity; it may be newer than Version.
	Entity pawl.Snapshot[T]

	input    string
	onCommit []func(context.Context, *pawl.Tx) error
}

// Input decodes the Trigger.Input of the step into v. It does not change v if there was no input.
// It returns the errors of json.Unmarshal.
func (d *Delivery[T]) Input(v any) error {
	if d.input == "" {
		return nil
	}
	return json.Unmarshal([]byte(d.input), v)
}

// OnCommit adds writes to the commit that marks the after-effect as delivered. On a conflict, fn
// runs again.
func (d *Delivery[T]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx) error) {
	d.onCommit = append(d.onCommit, fn)
}

// Undelivered is an after-effect that was given up.
type Undelivered struct {
	ID       string // the Delivery.ID, for Engine.Redeliver
	Workflow string
	Effect   string
	Step, By string
	Entity   string // the id of the entity
	Version  uint64
	Attempts int
	Error    string // of the last attempt
}

// attempt is a Delivery without the type of its entity.
type attempt struct {
	id       string
	record   effectRecord
	onCommit []func(context.Context, *pawl.Tx) error
}

// outbox delivers after-effects.
type outbox struct {
	e        *Engine
	loop     *worker.Loop[takenEffect]
	machines map[string]anyMachine // by workflow
	// labels are those of the pending after-effects that this process can deliver.
	labels []string
	// stopWaking ends the goroutine that wakes the loop; nil: it was not started.
	stopWaking context.CancelFunc
	// wakingDone is closed when that goroutine has ended.
	wakingDone chan struct{}
}

// takenEffect is an after-effect whose lease this process holds.
type takenEffect struct {
	pawl.Taken[effectRecord]
	at time.Time // when it was taken, by the clock of this process
}

func newOutbox(e *Engine) *outbox {
	o := &outbox{e: e, machines: map[string]anyMachine{}}
	o.loop = newLoop(e, worker.Config[takenEffect]{
		Name: "after-effects", Take: o.take, Run: o.run,
		Concurrency: max(e.config.Deliveries, 1), Poll: e.config.Poll,
	})
	return o
}

// start starts the delivery of the after-effects of machines, if they have any.
func (o *outbox) start(ctx context.Context, machines []anyMachine) error {
	for _, m := range machines {
		w := m.workflow()
		o.machines[w.Name] = m
		for _, name := range m.effects() {
			o.labels = append(o.labels, pendingLabel(w.Name, name))
		}
	}
	if len(o.labels) == 0 {
		return nil
	}
	if err := o.loop.Start(ctx); err != nil {
		return err
	}
	waking, stop := context.WithCancel(ctx)
	o.stopWaking, o.wakingDone = stop, make(chan struct{})
	wakeups := effectRecords.Wakeups(waking, o.e.rt)
	go func() {
		defer close(o.wakingDone)
		for {
			select {
			case <-wakeups:
				o.loop.Wake()
			case <-waking.Done():
				return
			}
		}
	}()
	return nil
}

// stop ends the delivery and waits for the attempts in progress until ctx ends.
func (o *outbox) stop(ctx context.Context) error {
	err := o.loop.Stop(ctx)
	if o.stopWaking != nil {
		o.stopWaking()
		<-o.wakingDone
	}
	return err
}

// effects implements anyMachine.
func (m *machine[T]) effects() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.effectHandlers {
		all = append(all, name)
	}
	return all
}

// effects returns the after-effects of an action whose commit makes this version of its entity.
func (r *run[T]) effects(before pawl.Snapshot[T], version uint64) (all []effectRecord) {
	due := before.Time // by the store's clock, and in the past
	if due.IsZero() {
		due = time.Now()
	}
	for _, effect := range r.r.effects {
		all = append(all, effectRecord{
			Label: pendingLabel(r.m.w.Name, effect), Due: due, Workflow: r.m.w.Name, Effect: effect,
			Step: r.r.step, By: r.r.by, Entity: r.t.ID, Version: version, Input: string(r.input),
		})
	}
	return all
}

// recordEffects writes after-effects as part of tx.
func (r *run[T]) recordEffects(ctx context.Context, tx *pawl.Tx, all []effectRecord) error {
	for i, effect := range all {
		scope := effectRecords.Scope(tx, fmt.Sprintf("%s-%d", r.action.key, i))
		if _, err := scope.SetState(ctx, effect, pawl.IfAbsent()); err != nil {
			return err
		}
	}
	return nil
}

// take is the Take of the loop. The leases outlive ctx, because Stop waits for attempts in
// progress.
func (o *outbox) take(ctx context.Context, limit int) (jobs []takenEffect, err error) {
	at := time.Now()
	q := pawl.Query{Due: true, Labels: o.labels, Limit: limit}
	all, err := effectRecords.Take(context.WithoutCancel(ctx), o.e.rt, q, pawl.LeaseFor(o.e.config.Lease))
	for _, t := range all {
		jobs = append(jobs, takenEffect{t, at})
	}
	return jobs, err
}

// run is the Run of the loop: it makes one attempt. The end of ctx means that Stop interrupts it.
func (o *outbox) run(ctx context.Context, job takenEffect) {
	scope := effectRecords.Scope(o.e.rt, job.ID)
	err := job.Lease.Run(func(held context.Context, l *pawl.Lease) error {
		if ctx.Err() != nil {
			return nil // interrupted before the attempt began
		}
		body, cancel := context.WithCancelCause(held)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		snap, err := scope.IncState(body, "attempts", 1)
		if err != nil {
			return err
		}
		a := &attempt{id: job.ID, record: snap.State()}
		if a.record.Attempts > o.e.config.Effects.Attempts {
			err = pawl.NonRetryable(errors.New("its last attempt never ended"))
		} else {
			err = o.protect(body, a, func() error { return o.machines[a.record.Workflow].deliver(body, a) })
		}
		fenced := context.WithoutCancel(held) // Stop does not interrupt the commit
		if err == nil {
			err = o.protect(fenced, a, func() error {
				return pawl.Transact(fenced, o.e.rt, func(ctx context.Context, tx *pawl.Tx) error {
					for _, fn := range a.onCommit {
						if err := fn(ctx, tx); err != nil {
							return err
						}
					}
					if err := scope.In(tx).Delete(ctx); err != nil {
						return err
					}
					return l.ReleaseIn(tx)
				}, pawl.WithRetry(o.e.config.Commit))
			})
		}
		switch {
		case err == nil || held.Err() != nil:
			return nil // delivered, or the lease was lost
		case ctx.Err() != nil && !pawl.IsNonRetryable(err): // Stop interrupted it: no attempt was made
			_, err = scope.IncState(fenced, "attempts", -1)
			return err
		}
		return o.recordFailure(fenced, scope, a, job, err)
	})
	if err != nil && !errors.Is(err, pawl.ErrLeaseLost) && !errors.Is(err, pawl.ErrDeleted) {
		o.e.config.Logger.WarnContext(ctx, "machine: cannot record an attempt at an after-effect; it will be retried",
			"id", job.ID, "err", err)
	}
}

// protect calls fn, which runs user code, and turns a panic and runtime.Goexit into errors.
func (o *outbox) protect(ctx context.Context, a *attempt, fn func() error) error {
	done := make(chan error, 1)
	go func() { // runtime.Goexit ends this goroutine only
		err := errors.New("machine: the after-effect called runtime.Goexit")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("machine: the after-effect panicked: %v", v)
				o.e.config.Logger.ErrorContext(ctx, err.Error(),
					"id", a.id, "effect", a.record.Effect, "stack", string(debug.Stack()))
			}
			done <- err
		}()
		err = fn()
	}()
	return <-done
}

// deliver implements anyMachine.
func (m *machine[T]) deliver(ctx context.Context, a *attempt) error {
	r := a.record
	snap, err := m.entities.Scope(m.e.rt, r.Entity).Snapshot(ctx)
	if err != nil {
		return err
	}
	d := &Delivery[T]{
		ID: a.id, Step: r.Step, By: r.By, Version: r.Version, Attempt: r.Attempts, Entity: snap, input: r.Input,
	}
	if snap.ID == "" {
		d.Entity.ID = r.Entity
	}
	m.mu.Lock()
	handler := m.effectHandlers[r.Effect]
	m.mu.Unlock()
	if err := handler(ctx, d); err != nil {
		return err
	}
	a.onCommit = d.onCommit
	return nil
}

// maxErrorText is the maximum length of a stored error text in bytes.
const maxErrorText = 4096

// storableText returns the text of err as a document can hold it: valid UTF-8 without NUL, and cut
// to maxErrorText. The errors of mail servers, for example, may have any encoding.
func storableText(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(fmt.Sprint(err), "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > maxErrorText {
		s = strings.ToValidUTF8(s[:maxErrorText], "") + "…"
	}
	return s
}

// recordFailure records that an attempt failed with cause. It sets the time of the next attempt, or
// gives the after-effect up.
func (o *outbox) recordFailure(
	ctx context.Context, scope pawl.Scope[effectRecord], a *attempt, job takenEffect, cause error,
) error {
	r := a.record
	if r.Attempts < o.e.config.Effects.Attempts && !pawl.IsNonRetryable(cause) {
		delay := o.e.config.Effects.Delay(r.Attempts)
		now := job.Time.Add(time.Since(job.at)) // by the store's clock
		_, err := scope.PatchState(ctx, pawl.Patch{"due": now.Add(delay), "error": storableText(cause)})
		o.loop.WakeIn(delay)
		return err
	}
	snap, err := scope.PatchState(ctx, pawl.Patch{
		"label": givenUpLabel(r.Workflow, r.Effect), "due": time.Time{}, "error": storableText(cause),
	})
	if err != nil {
		return err
	}
	u := undelivered(snap)
	if o.e.config.GaveUp != nil {
		o.e.config.GaveUp(u)
		return nil
	}
	o.e.config.Logger.ErrorContext(ctx, "machine: after-effect given up", "id", u.ID, "workflow", u.Workflow,
		"effect", u.Effect, "entity", u.Entity, "attempts", u.Attempts, "err", u.Error)
	return nil
}

func undelivered(s pawl.Snapshot[effectRecord]) Undelivered {
	r := s.ReadOnly()
	return Undelivered{
		ID: s.ID, Workflow: r.Workflow, Effect: r.Effect, Step: r.Step, By: r.By,
		Entity: r.Entity, Version: r.Version, Attempts: r.Attempts, Error: r.Error,
	}
}

// Undelivered yields the after-effects of this engine's workflows that were given up, by any
// process. A record that this release cannot read is yielded with only its ID and
// *pawl.SchemaError; every other error of pawl.Kind.List ends the sequence, in its last pair.
func (e *Engine) Undelivered(ctx context.Context) iter.Seq2[Undelivered, error] {
	return func(yield func(Undelivered, error) bool) {
		labels := e.givenUpLabels()
		if len(labels) == 0 {
			return
		}
		for snap, err := range effectRecords.List(ctx, e.rt, pawl.Query{Labels: labels}) {
			found := Undelivered{ID: snap.ID}
			if err == nil {
				found = undelivered(snap)
			}
			if !yield(found, err) {
				return
			}
		}
	}
}

// givenUpLabels returns the labels of given-up after-effects of all workflows.
func (e *Engine) givenUpLabels() (labels []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.machines {
		for _, name := range m.effects() {
			labels = append(labels, givenUpLabel(m.workflow().Name, name))
		}
	}
	return labels
}

// Redeliver makes an after-effect that was given up due again, with a full budget of attempts. It
// returns pawl.ErrNotFound if no after-effect with that id was given up, and the errors of pawl's
// verbs.
func (e *Engine) Redeliver(ctx context.Context, id string) error {
	_, err := effectRecords.Scope(e.rt, id).AtomicState(ctx, func(_ context.Context, r *effectRecord) error {
		if r.Label != givenUpLabel(r.Workflow, r.Effect) {
			return fmt.Errorf("%w: after-effect %s was not given up", pawl.ErrNotFound, id)
		}
		r.Label, r.Due, r.Attempts, r.Error = pendingLabel(r.Workflow, r.Effect), time.Now(), 0, ""
		return nil
	}, pawl.IfExists())
	if errors.Is(err, pawl.ErrDeleted) {
		return fmt.Errorf("%w: %w", pawl.ErrNotFound, err)
	}
	return err
}
