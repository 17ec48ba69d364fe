package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// An after-effect is a document that the commit of its action writes. It is a job: package job has
// the drawing and the races. Delivery is "at least once", and the handler deduplicates by
// Delivery.ID. One race is decided here: a process of another release has no handler for an
// after-effect. The label names the after-effect, and a process takes only labels that it has
// handlers for.

// effectRecord is the document of an after-effect that is not delivered yet.
type effectRecord struct {
	job.State        // its label is pendingLabel or givenUpLabel
	Workflow  string `json:"workflow"`
	Effect    string `json:"effect"`
	Step      string `json:"step"`
	By        string `json:"by"`
	Entity    string `json:"entity"`
	Version   uint64 `json:"version"`
	Input     string `json:"input,omitempty"` // JSON
}

var effectRecords = pawl.Kind[effectRecord]{Name: "machine.effect", Label: job.Label, Due: job.Due}

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
	onCommit func(func(context.Context, *pawl.Tx) error)
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
	d.onCommit(fn)
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

// outbox delivers after-effects.
type outbox struct {
	e        *Engine
	worker   *job.Worker[effectRecord] // nil: there is nothing to deliver
	machines map[string]anyMachine     // by workflow
}

// start starts the delivery of the after-effects of machines, if they have any.
func (o *outbox) start(ctx context.Context, machines []anyMachine) (err error) {
	var labels []string
	for _, m := range machines {
		w := m.workflow()
		o.machines[w.Name] = m
		for _, name := range m.effects() {
			labels = append(labels, pendingLabel(w.Name, name))
		}
	}
	if len(labels) == 0 {
		return nil
	}
	c := o.e.config
	o.worker, err = job.New(o.e.rt, job.Config[effectRecord]{
		Kind: effectRecords, Retry: c.Effects, Concurrency: c.Deliveries, Lease: c.Lease, Poll: c.Poll, Logger: c.Logger,
		Handle: func(ctx context.Context, j *job.Job[effectRecord]) error {
			return o.machines[j.State.Workflow].deliver(ctx, j)
		},
		Parked: o.gaveUp,
		Protocol: job.Protocol[effectRecord]{
			Labels: labels,
			Failed: func(r *effectRecord, final bool) {
				if final {
					r.Label = givenUpLabel(r.Workflow, r.Effect)
				}
			},
		},
	})
	if err != nil {
		return err
	}
	return o.worker.Start(ctx)
}

// stop ends the delivery and waits for the attempts in progress until ctx ends.
func (o *outbox) stop(ctx context.Context) error {
	if o.worker == nil {
		return nil
	}
	return o.worker.Stop(ctx)
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
			State: job.State{Label: pendingLabel(r.m.w.Name, effect), Due: due}, Workflow: r.m.w.Name, Effect: effect,
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

// deliver implements anyMachine.
func (m *machine[T]) deliver(ctx context.Context, j *job.Job[effectRecord]) error {
	r := j.State
	snap, err := m.entities.Scope(m.e.rt, r.Entity).Snapshot(ctx)
	if err != nil {
		return err
	}
	d := &Delivery[T]{
		ID: j.ID, Step: r.Step, By: r.By, Version: r.Version, Attempt: j.Attempt, Entity: snap, input: r.Input, onCommit: j.OnCommit,
	}
	if snap.ID == "" {
		d.Entity.ID = r.Entity
	}
	m.mu.Lock()
	handler := m.effectHandlers[r.Effect]
	m.mu.Unlock()
	return handler(ctx, d)
}

// gaveUp tells that an after-effect was given up.
func (o *outbox) gaveUp(id string, r effectRecord) {
	u := undelivered(id, r)
	if o.e.config.GaveUp != nil {
		o.e.config.GaveUp(u)
		return
	}
	o.e.config.Logger.Error("machine: after-effect given up", "id", u.ID, "workflow", u.Workflow,
		"effect", u.Effect, "entity", u.Entity, "attempts", u.Attempts, "err", u.Error)
}

func undelivered(id string, r effectRecord) Undelivered {
	return Undelivered{
		ID: id, Workflow: r.Workflow, Effect: r.Effect, Step: r.Step, By: r.By,
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
				found = undelivered(snap.ID, snap.State())
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
		r.State = job.State{Label: pendingLabel(r.Workflow, r.Effect), Due: time.Now()}
		return nil
	}, pawl.IfExists())
	if errors.Is(err, pawl.ErrDeleted) {
		return fmt.Errorf("%w: %w", pawl.ErrNotFound, err)
	}
	return err
}
