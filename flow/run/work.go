package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// A run from Start to its end. Each arrow is one commit and moves the version by one:
//
//	           take: lease, begun                    step done: state, output, OnCommit, ends the lease
//	PENDING ──────────────────────► RUNNING ──┬─► PENDING at the next step, due at once
//	   ▲                               │      ├─► WAITING (Sleep, Await), due later or by a signal
//	   │                               │      ├─► COMPLETED
//	   │ take, when it is due          │      └─► PENDING, due later (a failed attempt)
//	WAITING ───────────────────────────┤            └─► FAILED, when the attempts are spent
//	                                   └─► the worker dies: its lease runs out, it is taken again
//	Cancel: PENDING, RUNNING, WAITING ─► CANCELED        Retry: FAILED, parked ─► PENDING
//
// Races, and what decides each:
//   - Two workers take a run: taking tests the version. One of them gets the lease; the other
//     (*pawl.HeldError or a conflict, seen by pawl.Kind.Take only) goes on to other runs.
//   - A worker that was paused ends its step after its lease ran out: the commit tests the token
//     (*pawl.LeaseLostError). Nothing was modified, and the step comes again elsewhere. It is logged
//     as *pawl.ConcurrencyError.
//   - Another writer moves the version while the lease holds: a signal, for example. The commit is
//     computed again from the result of the step. The step does not run again.
//   - Cancel while a step runs: the commit finds a status that workers do not take, and writes
//     nothing. The context of the step ends as soon as the worker hears of it.
//   - A signal while the step runs that will await it: the signal is in its inbox. The commit of
//     Await reads the inbox, and the run is due at once. Both transactions read what the other
//     writes, so one of them sees the other.
//   - A signal while the run waits: the commit of Signal makes the run due.
//   - A worker dies after a step received a signal: the commit of the step removes the signal, so
//     the next attempt receives it again.
//   - During a rolling deploy, an old release takes a run whose current step is new: it parks the
//     run for a minute. A process that has the step takes it then.
//   - Two Starts with one key: the key decides the id, and one of them creates the document.

// logFailed logs that a run has failed.
func (e *Engine) logFailed(id string, r record) {
	e.config.Logger.Error("run: failed", "run", id, "definition", r.Definition, "step", r.Current, "attempts", r.Attempts, "err", r.Error)
}

// logLost logs that a step ended without effect: its lease was lost, or the run was canceled or deleted.
func (e *Engine) logLost(id string, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	snap, err := records.Scope(e.rt, id).Snapshot(ctx)
	deleted := err == nil && snap.Version == 0
	if deleted || errors.Is(cause, job.ErrWithdrawn) {
		reason := "the run was withdrawn"
		switch {
		case deleted: // its lease ended with it
			reason = "the run was deleted"
		case err == nil:
			reason = fmt.Sprintf("the run is %s", snap.ReadOnly().Status)
		}
		e.config.Logger.Info("run: a step ended without effect", "run", id, "reason", reason)
		return
	}
	lost := &pawl.ConcurrencyError{Scope: pawl.Key{Kind: records.Name, ID: id}, Actual: snap.Version}
	if l := (*pawl.LeaseLostError)(nil); errors.As(cause, &l) {
		lost.Expected = l.Token
	}
	err = fmt.Errorf("run %s was modified concurrently during step completion: %w", id, lost)
	e.config.Logger.Warn("run: a step ended without effect; another worker goes on", "run", id, "err", err, "cause", cause)
}

// work is the handler of the worker: it runs the current step of a run.
func (e *Engine) work(ctx context.Context, j *job.Job[record]) error {
	r := j.State
	d := e.definition(r.Definition)
	r.adopt(d.steps())
	if !slices.Contains(d.steps(), r.Current) {
		reason := fmt.Sprintf("definition %q has no step %q", r.Definition, r.Current)
		e.config.Logger.ErrorContext(ctx, "run: parked", "run", j.ID, "reason", reason)
		j.Update(func(r *record) error {
			r.park(reason, j.Now().Add(parkedFor))
			return nil
		})
		return nil
	}
	step := r.step(r.Current)
	if step.Status == Completed || step.Status == Skipped {
		e.config.Logger.InfoContext(ctx, "run: step already done, advancing", "run", j.ID, "step", step.Name, "status", step.Status)
		e.commit(j, d, func(r *record) { r.follow(Next{}) })
		return nil
	}

	a := &attempt{job: j.ID, record: r, step: step.Name}
	if r.Awaits != "" {
		in, err := inboxes.Scope(e.rt, inboxID(a.job, r.Awaits)).State(ctx)
		if err != nil {
			return err
		}
		if len(in.Messages) > 0 {
			a.signal = &in.Messages[0]
		}
	}
	if _, timeout := d.policy(a.step); timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	e.hook("step", a)
	next, err := d.do(ctx, a)
	e.hook("done", a)
	if err == nil {
		e.succeed(j, d, a, next)
	}
	return err
}

// commit ends the attempt with a change of the run. It gets the current record, with the steps of
// the definition.
func (e *Engine) commit(j *job.Job[record], d definition, change func(r *record)) {
	j.Update(func(r *record) error {
		r.adopt(d.steps())
		r.Begun = r.Begun[:1]
		r.Due = j.Now() // at once, unless change says otherwise
		change(r)
		return e.fits(j.ID, r)
	})
}

// maxGrowth is how much the record of a run may grow by the text of an error, which it has twice.
const maxGrowth = 64 << 10

// fits returns *pawl.LimitError, as final, for a record that has no room for an error: the run could
// not fail then.
func (e *Engine) fits(id string, r *record) error {
	doc, err := json.Marshal(r)
	limit := e.rt.MaxDoc() - min(maxGrowth, e.rt.MaxDoc()/4)
	if err == nil && len(doc) > limit {
		err = &pawl.LimitError{Scope: pawl.Key{Kind: records.Name, ID: id}, What: "document", Limit: limit, Got: len(doc)}
	}
	return pawl.NonRetryable(err)
}

// succeed ends an attempt that has succeeded.
func (e *Engine) succeed(j *job.Job[record], d definition, a *attempt, next Next) {
	for _, fn := range a.onCommit {
		j.OnCommit(fn)
	}
	ready := false // a signal that the step awaits now is there
	j.OnCommit(func(ctx context.Context, tx *pawl.Tx) (err error) {
		if a.signal != nil {
			if err = receive(ctx, inboxes.Scope(tx, inboxID(j.ID, a.signal.Name)), *a.signal); err != nil {
				return err
			}
		}
		if next.kind == await {
			in, err := inboxes.Scope(tx, inboxID(j.ID, next.name)).State(ctx)
			ready = len(in.Messages) > 0
			return err
		}
		return nil
	})
	e.commit(j, d, func(r *record) {
		r.Data = a.state
		s := r.step(a.step)
		s.Attempts, s.Error, s.NextAttempt = a.record.Attempts, "", time.Time{}
		if a.output != nil {
			s.Output = a.output
		}
		switch next.kind {
		case sleep, await:
			s.Status, r.Suspended, r.Awaits = Waiting, true, ""
			r.become(Waiting)
			if next.kind == await {
				r.Awaits = next.name
			}
			switch {
			case ready: // at once
			case next.kind == await && next.in == 0:
				r.Due = time.Time{}
			default:
				r.Due = j.Now().Add(next.in)
			}
		default:
			s.Status = Completed
			r.follow(next)
		}
	})
}

// receive removes a signal from its inbox. A signal that is not there was received by an earlier
// commit, which is impossible under the lease.
func receive(ctx context.Context, scope pawl.Scope[inbox], s Signal) error {
	_, err := scope.AtomicState(ctx, func(_ context.Context, in *inbox) error {
		if len(in.Messages) == 0 || in.Messages[0].Number != s.Number {
			return fmt.Errorf("signal %s %d is not the first of its inbox", s.Name, s.Number)
		}
		in.Messages = in.Messages[1:]
		return nil
	})
	return err
}

// retry returns the retry policy of the current step of a run.
func (e *Engine) retry(r *record) pawl.Retry {
	d := e.definition(r.Definition)
	if !slices.Contains(d.steps(), r.Current) {
		return DefaultRetry
	}
	retry, _ := d.policy(r.Current)
	return retry
}

// failed records a failed attempt at the current step. The worker has set the time of the next
// attempt, or the run has failed.
func (r *record) failed(final bool) {
	step := r.step(r.Current)
	if step == nil { // of a later release
		r.Steps = append(r.Steps, StepRecord{Name: r.Current})
		step = &r.Steps[len(r.Steps)-1]
	}
	r.Begun = r.Begun[:1]
	step.Attempts, step.Error, step.NextAttempt = r.Attempts, r.Error, r.Due
	if final {
		step.Status = Failed
		r.become(Failed)
		return
	}
	step.Status = Pending
	r.become(Pending)
}
