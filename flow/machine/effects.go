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

// An after-effect from its commit to its end. It is a document, a letter, that the commit of its action writes:
//
//	         Take, under a lease      attempts +1        handler      nil: deleted, with what OnCommit wrote
//	pending ───────────────────────────────────────────────────────► error: pending again, due later
//	   ▲                                                             └─ attempts spent, or pawl.NonRetryable: given up, until Redeliver
//	   └── the worker dies: its lease runs out, and the letter is due still
//
// Races, and what decides them:
//   - two workers want one letter: the lease. One that lost it commits nothing, neither the deletion nor a postponement.
//   - a worker dies after the handler, before the deletion: the handler runs again. That is "at least once", and what Delivery.ID is for.
//   - a handler that kills its worker: attempts are counted before it runs, so that it is given up in the end.
//   - a release that does not know an after-effect: letters are labelled with its name, and it takes only what it has handlers for.

// letter is an after-effect that is to be delivered.
type letter struct {
	Label    string    `json:"label"` // pending or given up, and for whom
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

var letters = pawl.Kind[letter]{Name: "machine.effect", Label: "label", Due: "due"}

// The labels of letters. The first blank after the workflow's name ends it.
func pending(workflow, effect string) string {
	return "pending " + noBlanks.Replace(workflow) + " " + effect
}
func abandoned(workflow, effect string) string {
	return "given up " + noBlanks.Replace(workflow) + " " + effect
}

var noBlanks = strings.NewReplacer("%", "%25", " ", "%20")

// Delivery is one attempt at an after-effect. The handler's context ends when the attempt's lease is lost, and fences commits.
type Delivery[T any] struct {
	ID      string           // stable: deduplicate by it
	Step    string           // whose commit caused it
	By      string           // the requester
	Version uint64           // of the entity, that the commit made
	Attempt int              // 1 on the first
	Entity  pawl.Snapshot[T] // as it is now; it may have moved on since Version

	input    string
	onCommit []func(context.Context, *pawl.Tx) error
}

// Input decodes the Trigger.Input of the step into v. It returns the errors of json.Unmarshal, and leaves v alone where there was no input.
func (d *Delivery[T]) Input(v any) error {
	if d.input == "" {
		return nil
	}
	return json.Unmarshal([]byte(d.input), v)
}

// OnCommit adds writes to the commit that marks the after-effect as delivered. Fn may run again when another writer gets in between.
func (d *Delivery[T]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx) error) {
	d.onCommit = append(d.onCommit, fn)
}

// Undelivered is an after-effect that was given up.
type Undelivered struct {
	ID       string // as Delivery.ID; Engine.Redeliver takes it
	Workflow string
	Effect   string
	Step, By string
	Entity   string // its id
	Version  uint64
	Attempts int
	Error    string // of the last attempt
}

// attempt is a Delivery of some type.
type attempt struct {
	id       string
	letter   letter
	onCommit []func(context.Context, *pawl.Tx) error
}

// outbox delivers after-effects.
type outbox struct {
	e        *Engine
	loop     *worker.Loop[taken]
	machines map[string]anyMachine // by workflow
	labels   []string              // of what this process can deliver
	end      context.CancelFunc    // of listening; nil: it was not started
	over     chan struct{}         // closed when listening has ended
}

// taken is a letter that this process holds.
type taken struct {
	pawl.Taken[letter]
	at time.Time // when, by this process's clock
}

func newOutbox(e *Engine) *outbox {
	o := &outbox{e: e, machines: map[string]anyMachine{}}
	o.loop = loop(e, worker.Config[taken]{Name: "after-effects", Take: o.take, Run: o.run, Concurrency: max(e.config.Deliveries, 1), Poll: e.config.Poll})
	return o
}

// start begins to deliver, if there is anything that these machines could want delivered.
func (o *outbox) start(ctx context.Context, machines []anyMachine) error {
	for _, m := range machines {
		w := m.workflow()
		o.machines[w.Name] = m
		for _, name := range m.effects() {
			o.labels = append(o.labels, pending(w.Name, name))
		}
	}
	if len(o.labels) == 0 {
		return nil
	}
	if err := o.loop.Start(ctx); err != nil {
		return err
	}
	listen, end := context.WithCancel(ctx)
	o.end, o.over = end, make(chan struct{})
	wakeups := letters.Wakeups(listen, o.e.rt)
	go func() {
		defer close(o.over)
		for {
			select {
			case <-wakeups:
				o.loop.Wake()
			case <-listen.Done():
				return
			}
		}
	}()
	return nil
}

func (o *outbox) stop(ctx context.Context) error {
	err := o.loop.Stop(ctx)
	if o.end != nil {
		o.end()
		<-o.over
	}
	return err
}

// effects makes machine an anyMachine.
func (m *machine[T]) effects() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.delivered {
		all = append(all, name)
	}
	return all
}

// letters returns the after-effects of an action that makes this version of its entity.
func (r *run[T]) letters(was pawl.Snapshot[T], version uint64) (all []letter) {
	due := was.Time // by the store's clock, and past
	if due.IsZero() {
		due = time.Now()
	}
	for _, effect := range r.r.effects {
		all = append(all, letter{Label: pending(r.m.w.Name, effect), Due: due, Workflow: r.m.w.Name, Effect: effect, Step: r.r.step, By: r.r.by,
			Entity: r.t.ID, Version: version, Input: string(r.input)})
	}
	return all
}

// record writes letters as part of tx.
func (r *run[T]) record(ctx context.Context, tx *pawl.Tx, all []letter) error {
	for i, l := range all {
		if _, err := letters.Scope(tx, fmt.Sprintf("%s-%d", r.action.key, i)).SetState(ctx, l, pawl.IfAbsent()); err != nil {
			return err
		}
	}
	return nil
}

// take is the Take of the loop. The leases do not end with Stop: what is under way is waited for.
func (o *outbox) take(ctx context.Context, limit int) (jobs []taken, err error) {
	at := time.Now()
	all, err := letters.Take(context.WithoutCancel(ctx), o.e.rt, pawl.Query{Due: true, Labels: o.labels, Limit: limit}, pawl.LeaseFor(o.e.config.Lease))
	for _, t := range all {
		jobs = append(jobs, taken{t, at})
	}
	return jobs, err
}

// run is the Run of the loop.
func (o *outbox) run(ctx context.Context, job taken) {
	scope := letters.Scope(o.e.rt, job.ID)
	err := job.Lease.Run(func(held context.Context, l *pawl.Lease) error {
		if ctx.Err() != nil {
			return nil // Stop lost patience before it began
		}
		body, cancel := context.WithCancelCause(held)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		snap, err := scope.IncState(body, "attempts", 1)
		if err != nil {
			return err
		}
		a := &attempt{id: job.ID, letter: snap.State()}
		if a.letter.Attempts > o.e.config.Effects.Attempts {
			err = pawl.NonRetryable(errors.New("its last attempt never ended"))
		} else {
			err = o.guard(body, a, func() error { return o.machines[a.letter.Workflow].deliver(body, a) })
		}
		fenced := context.WithoutCancel(held) // what is done is noted, whoever stops meanwhile
		if err == nil {
			err = o.guard(fenced, a, func() error {
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
			return nil // delivered, or somebody else's
		case ctx.Err() != nil && !pawl.IsNonRetryable(err): // Stop interrupted it: no attempt was made
			_, err = scope.IncState(fenced, "attempts", -1)
			return err
		}
		return o.postpone(fenced, scope, a, job, err)
	})
	if err != nil && !errors.Is(err, pawl.ErrLeaseLost) && !errors.Is(err, pawl.ErrDeleted) {
		o.e.config.Logger.WarnContext(ctx, "machine: after-effect not noted, it is tried again", "id", job.ID, "err", err)
	}
}

// guard calls fn, which is the handler or calls what it added to its commit; a panic is an error, and so is runtime.Goexit.
func (o *outbox) guard(ctx context.Context, a *attempt, fn func() error) error {
	done := make(chan error, 1)
	go func() { // of its own, for runtime.Goexit
		err := errors.New("machine: the after-effect called runtime.Goexit")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("machine: the after-effect panicked: %v", v)
				o.e.config.Logger.ErrorContext(ctx, err.Error(), "id", a.id, "effect", a.letter.Effect, "stack", string(debug.Stack()))
			}
			done <- err
		}()
		err = fn()
	}()
	return <-done
}

// deliver makes machine an anyMachine.
func (m *machine[T]) deliver(ctx context.Context, a *attempt) error {
	l := a.letter
	snap, err := m.entities.Scope(m.e.rt, l.Entity).Snapshot(ctx)
	if err != nil {
		return err
	}
	d := &Delivery[T]{ID: a.id, Step: l.Step, By: l.By, Version: l.Version, Attempt: l.Attempts, Entity: snap, input: l.Input}
	if snap.ID == "" {
		d.Entity.ID = l.Entity
	}
	m.mu.Lock()
	tell := m.delivered[l.Effect]
	m.mu.Unlock()
	if err := tell(ctx, d); err != nil {
		return err
	}
	a.onCommit = d.onCommit
	return nil
}

// longestError is how much of an error's text is kept, in bytes.
const longestError = 4096

// legible is the text of an error as a document can hold it: what mail servers say is in no certain encoding.
func legible(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(fmt.Sprint(err), "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > longestError {
		s = strings.ToValidUTF8(s[:longestError], "") + "…"
	}
	return s
}

// postpone notes that an attempt failed, and when the next is due; or that there is none.
func (o *outbox) postpone(ctx context.Context, scope pawl.Scope[letter], a *attempt, job taken, why error) error {
	l := a.letter
	if l.Attempts < o.e.config.Effects.Attempts && !pawl.IsNonRetryable(why) {
		delay := o.e.config.Effects.Delay(l.Attempts)
		now := job.Time.Add(time.Since(job.at)) // by the store's clock
		_, err := scope.PatchState(ctx, pawl.Patch{"due": now.Add(delay), "error": legible(why)})
		o.loop.WakeIn(delay)
		return err
	}
	snap, err := scope.PatchState(ctx, pawl.Patch{"label": abandoned(l.Workflow, l.Effect), "due": time.Time{}, "error": legible(why)})
	if err != nil {
		return err
	}
	u := undelivered(snap)
	if o.e.config.GaveUp != nil {
		o.e.config.GaveUp(u)
		return nil
	}
	o.e.config.Logger.ErrorContext(ctx, "machine: after-effect given up", "id", u.ID, "workflow", u.Workflow, "effect", u.Effect, "entity", u.Entity,
		"attempts", u.Attempts, "err", u.Error)
	return nil
}

func undelivered(s pawl.Snapshot[letter]) Undelivered {
	l := s.ReadOnly()
	return Undelivered{ID: s.ID, Workflow: l.Workflow, Effect: l.Effect, Step: l.Step, By: l.By, Entity: l.Entity, Version: l.Version, Attempts: l.Attempts, Error: l.Error}
}

// Undelivered yields the after-effects of this engine's workflows that were given up, by whichever process. It yields at most one error, in the last pair: those of
// pawl.Kind.List.
func (e *Engine) Undelivered(ctx context.Context) iter.Seq2[Undelivered, error] {
	return func(yield func(Undelivered, error) bool) {
		labels := e.abandoned()
		if len(labels) == 0 {
			return
		}
		for snap, err := range letters.List(ctx, e.rt, pawl.Query{Labels: labels}) {
			if err != nil {
				yield(Undelivered{}, err)
				return
			}
			if !yield(undelivered(snap), nil) {
				return
			}
		}
	}
}

// abandoned returns the labels of what was given up.
func (e *Engine) abandoned() (labels []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.machines {
		for _, name := range m.effects() {
			labels = append(labels, abandoned(m.workflow().Name, name))
		}
	}
	return labels
}

// Redeliver lets an after-effect that was given up be tried again, from its first attempt. It returns pawl.ErrNotFound if there is none with that id, and
// the errors of pawl's verbs.
func (e *Engine) Redeliver(ctx context.Context, id string) error {
	_, err := letters.Scope(e.rt, id).AtomicState(ctx, func(_ context.Context, l *letter) error {
		if l.Label != abandoned(l.Workflow, l.Effect) {
			return fmt.Errorf("%w: no after-effect %s was given up", pawl.ErrNotFound, id)
		}
		l.Label, l.Due, l.Attempts, l.Error = pending(l.Workflow, l.Effect), time.Now(), 0, ""
		return nil
	}, pawl.IfExists())
	if errors.Is(err, pawl.ErrDeleted) {
		return fmt.Errorf("%w: %w", pawl.ErrNotFound, err)
	}
	return err
}
