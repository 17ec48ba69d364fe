package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/pawl-go/pawl"
)

// An action from its trigger to its end:
//
//	read ──► claim: status → claim_into, ──► body ──► commit: OnCommit, final status, after-effects;
//	 │       with a lease, at the             │       ends the lease
//	 │       version that was read            │         │ ▲
//	 │        │                               │         └─┘ conflict: again, without the body
//	 │        └─ version moved, or held:      │         │
//	 │           ClaimFailed                  ▼         ▼ refused
//	 └─ another status: WrongStatus,         release: status → revert_to; ends the lease
//	    or ClaimFailed for a claim state
//
// Races, and what decides each:
//   - Two callers claim: both name the version that they read, tested inside the commit. One moves
//     it.
//   - A caller claims what it read before another caller claimed and released: the version has
//     moved.
//   - A holder whose lease ran out commits or releases: the token is tested inside the commit.
//   - The janitor reverts while the holder commits: each expects the version that it read, and one
//     of them moves it. A lease that ran out is not renewed again. So the holder cannot win against
//     a janitor that read the end of the lease, unless its commit came first.
//   - Another writer edits the entity while it is claimed: the version moves. The holder's commit
//     does not expect a version, and is computed again. A pinned commit expects the version that the
//     claim made, or without a claim the one that was read, and is refused.
//   - Another writer changes the status: the commit finds a status other than the claim's, and
//     writes nothing.
//   - The caller's context ends during the claim: a goroutine waits for the claim and releases it.
//   - The caller's context ends while the body runs: the body's context ends, and the lease is kept
//     until the body returns. If the body succeeds, its commit is made.
//   - The answer to the commit is lost: the store settles it (pawl's send.go). If it cannot, the
//     release that follows either finds the claim's status, and the commit in doubt can no longer
//     land; or it finds another status, and changes nothing.

// Trigger says which step to fire on which entity, for which requester.
type Trigger struct {
	ID    string // the id of the entity
	Step  string // the key of the step
	By    string // the requester
	Input any    // the input of the action
}

// Result is how a step ended.
type Result uint8

// The results.
const (
	Done        Result = iota + 1 // the action is committed
	Rejected                      // the body returned Reject
	Failed                        // the body returned Fail
	ClaimFailed                   // another operation is already in progress
	WrongStatus                   // the step does not start from the entity's status
)

// String returns the result in lower case: "done", "rejected", "failed", "claim_failed" or
// "wrong_status".
func (r Result) String() string {
	if int(r) < len(resultNames) && r > 0 {
		return resultNames[r]
	}
	return "unknown"
}

var resultNames = [...]string{
	Done: "done", Rejected: "rejected", Failed: "failed", ClaimFailed: "claim_failed", WrongStatus: "wrong_status",
}

// InProgress is the first reason of ClaimFailed.
const InProgress = "another operation is already in progress"

// Outcome is the outcome of Fire.
type Outcome[T any] struct {
	Result Result
	// Reasons explain any result but Done to a person.
	Reasons []string
	// Entity is the entity as committed for Done, otherwise as it was read before the claim.
	Entity pawl.Snapshot[T]
}

// Action is one run of a body. The body's context ends when the claim is lost, when the context of
// Fire ends, and when the context of Engine.Stop ends. Every commit made with it is fenced by the
// claim.
//
// A body returns nil for success, Reject or Fail for an outcome without an error, and any other
// error for a fault. All but nil release the claim before Fire returns.
type Action[T any] struct {
	ID     string // the id of the entity
	Step   string
	By     string
	Entity T // a copy of the entity, as read before the claim

	key      string
	pinned   bool // the final commit expects the version that the body saw
	onCommit []func(context.Context, *pawl.Tx, *T) error
}

// Key returns a key that is unique to this run of the body and stays the same when its commit is
// repeated. Pass it to systems that recognise a repeated call by a key. A run after a crash has
// another key: a call that must not be repeated even then needs a key from the request, such as the
// reference of a payment.
func (a *Action[T]) Key() string { return a.key }

// OnCommit adds writes to the final commit: changes to the entity through state, and to other
// scopes through tx. The body runs once, but fn runs again on a conflict, so calls to other systems
// belong in the body. The final status is set after all functions. An error of fn, including Reject
// and Fail, ends the action as if the body had returned it.
func (a *Action[T]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx, state *T) error) {
	a.onCommit = append(a.onCommit, fn)
}

// Pin makes the final commit expect Entity unchanged. If any field of the entity was changed since
// it was read, the commit is refused, the claim is released, and Fire returns
// *pawl.ConcurrencyError. Without Pin, OnCommit gets the changed entity, and the commit keeps the
// change.
//
// Pin does not undo the calls that the body has made to other systems. A write of the body to its
// own entity counts as a change, too: make it in OnCommit.
func (a *Action[T]) Pin() { a.pinned = true }

// run is one call of Fire.
type run[T any] struct {
	m       *machine[T]
	r       *route
	h       *handler[T]
	t       Trigger
	input   []byte
	scope   pawl.Scope[T]
	before  pawl.Snapshot[T]
	lease   *pawl.Lease // nil: unclaimed
	action  *Action[T]
	outcome Outcome[T]

	// fenced is the context of commits. It does not end, and is fenced by the claim.
	fenced context.Context
	// stopRenewal ends the renewal of the lease.
	stopRenewal func()
	// leave tells the engine that the action has ended.
	leave func()
	// handedOver is set if another goroutine calls leave.
	handedOver bool
}

// Fire claims, runs and commits one step. Callers branch on Outcome.Result. With an error, the
// Outcome has no Result.
//
// It returns *StepError for an unknown step, requester or input type, pawl.ErrNotFound for an
// entity that does not exist, and ErrNotRunning, all before anything was written. It returns
// *ClaimLostError when the claim was lost while the body ran or before it started,
// *pawl.ConcurrencyError as Action.Pin says, *pawl.CanceledError when ctx ended before the body, the
// errors of the body, and those of pawl's verbs and Transact. If pawl.OutcomeUnknown(err), the step
// may have been committed. A panic of the body is raised again, as *pawl.PanicError, and so is
// runtime.Goexit, after the claim was released.
func (m *Machine[T]) Fire(ctx context.Context, t Trigger) (Outcome[T], error) {
	if ctx == nil {
		return Outcome[T]{}, &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	r := &run[T]{m: m.machine, t: t, scope: m.entities.Scope(m.e.rt, t.ID)}
	ctx, leave, err := m.e.enter(ctx, m.machine, r.scope.Key())
	if err != nil {
		return Outcome[T]{}, err
	}
	r.leave = leave
	defer func() {
		if !r.handedOver {
			leave()
		}
	}()
	if r.r, r.h, r.input, err = m.resolve(t); err != nil {
		return Outcome[T]{}, err
	}
	snap, err := r.scope.Snapshot(ctx)
	if err != nil {
		return Outcome[T]{}, err
	}
	if !snap.Exists() {
		return Outcome[T]{}, fmt.Errorf("%w: %s", pawl.ErrNotFound, r.scope.Key())
	}
	r.before, r.outcome.Entity = snap, snap
	if status := m.status(snap.ReadOnly()); status != r.r.from {
		return r.refuse(status), nil
	}
	m.e.hook("before claim")
	if r.r.into != "" {
		if won, err := r.claim(ctx, snap); err != nil || !won {
			return r.outcome, err
		}
		m.e.hook("after claim")
	}
	return r.runBody(ctx)
}

// refuse sets and returns the outcome for an entity that does not have the status of the step.
func (r *run[T]) refuse(status string) Outcome[T] {
	r.outcome.Result = WrongStatus
	r.outcome.Reasons = []string{fmt.Sprintf("the step starts from %q, and the status is %q", r.r.from, status)}
	if _, claimed := r.m.claims[status]; claimed {
		r.outcome.Result, r.outcome.Reasons = ClaimFailed, []string{InProgress, fmt.Sprintf("the status is %q", status)}
	}
	return r.outcome
}

// claim claims the entity, and reports whether it succeeded. Its commit does not end with ctx: a
// claim that lands after the end of ctx is released. A panic of the entity's own code is raised again,
// or logged if ctx has ended.
func (r *run[T]) claim(ctx context.Context, snap pawl.Snapshot[T]) (won bool, err error) {
	if ctx.Err() != nil {
		return false, r.canceled(ctx)
	}
	type answer struct {
		lease *pawl.Lease
		err   error
	}
	answers := make(chan answer, 1)
	leaseCtx, stopRenewal := context.WithCancel(context.WithoutCancel(ctx))
	r.stopRenewal = stopRenewal
	go func() {
		a := answer{err: errors.New("machine: runtime.Goexit was called")}
		defer func() {
			if v := recover(); v != nil { // a panic of the entity's own JSON code
				a.err = panicError(v)
			}
			answers <- a
		}()
		a.lease, a.err = r.scope.Acquire(leaseCtx, pawl.LeaseFor(r.m.e.config.Lease),
			pawl.HeldBy(claimHolder(r.m.e.rt.Holder(), r.r.revert, r.r.into)),
			pawl.WithMutation(r.m.changeStatus(r.r.from, r.r.into), pawl.IfVersion(snap.Version)))
	}()
	var (
		a      answer
		raised *pawl.PanicError
	)
	select {
	case a = <-answers:
	case <-ctx.Done():
		r.handedOver = true
		go func() {
			defer r.leave()
			defer stopRenewal()
			switch a := <-answers; {
			case a.err == nil:
				r.setLease(a.lease)
				r.release(nil)
			case errors.As(a.err, &raised):
				r.m.e.config.Logger.Error("machine: the claim panicked after its caller had left",
					"entity", r.scope.Key().String(), "step", r.r.step, "panic", fmt.Sprint(raised.Value), "stack", string(raised.Stack))
			}
		}()
		return false, r.canceled(ctx)
	}
	if a.err == nil {
		r.setLease(a.lease)
		return true, nil
	}
	stopRenewal()
	switch {
	case errors.As(a.err, &raised):
		panic(raised)
	case errors.Is(a.err, pawl.ErrHeld), errors.Is(a.err, pawl.ErrConflict), errors.Is(a.err, errStatus):
		r.outcome.Result, r.outcome.Reasons = ClaimFailed, []string{InProgress, a.err.Error()}
		return false, nil
	case errors.Is(a.err, pawl.ErrDeleted), errors.Is(a.err, pawl.ErrExpired):
		return false, fmt.Errorf("%w: %w", pawl.ErrNotFound, a.err)
	}
	if lost, ok := errors.AsType[*pawl.LeaseLostError](a.err); ok && lost.Scope == r.scope.Key() {
		return false, &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Cause: lost}
	}
	return false, a.err
}

// setLease sets the lease of the claim, which fences all later commits.
func (r *run[T]) setLease(l *pawl.Lease) {
	r.lease, r.fenced = l, context.WithoutCancel(l.Context())
}

// canceled returns the error for a context that ended before the body.
func (r *run[T]) canceled(ctx context.Context) error {
	return &pawl.CanceledError{Scope: r.scope.Key(), Phase: pawl.PhaseQueued, Cause: context.Cause(ctx)}
}

// runBody runs the body and ends the action, also if the body panics.
func (r *run[T]) runBody(ctx context.Context) (Outcome[T], error) {
	body := ctx
	if r.lease == nil {
		r.fenced = context.WithoutCancel(ctx)
	} else {
		defer r.stopRenewal()
		held := r.lease.Context()
		if held.Err() != nil { // the claim was answered late, or the process was stopped
			return r.fail(context.Cause(held))
		}
		inner, cancel := context.WithCancelCause(held)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		body = inner
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover() // nil: runtime.Goexit
		r.release(nil)
		if v != nil {
			panic(panicError(v))
		}
	}()
	r.action = &Action[T]{ID: r.t.ID, Step: r.t.Step, By: r.t.By, Entity: r.before.State(), key: rand.Text()}
	r.m.e.hook("in the body")
	err := r.h.run(body, r.action, r.t.Input)
	if err == nil {
		r.m.e.hook("before the commit")
		if err = r.commit(); err == nil {
			returned = true
			r.m.e.hook("after the commit")
			return r.outcome, nil
		}
	}
	returned = true
	return r.fail(err)
}

// fail ends an action that did not succeed: it releases the claim, and returns what Fire returns.
func (r *run[T]) fail(err error) (Outcome[T], error) {
	var (
		lost      *pawl.LeaseLostError
		declared  *outcomeError
		claimLost *ClaimLostError
	)
	switch {
	case errors.As(err, &claimLost):
		r.release(nil)
		return Outcome[T]{}, err
	case r.lease != nil && errors.As(err, &lost) && lost.Token == r.lease.Token() && lost.Scope == r.scope.Key():
		return Outcome[T]{}, &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Cause: lost}
	case errors.Is(err, errStatus): // of an unclaimed action; write has set the outcome
		return r.outcome, nil
	}
	r.release(err)
	if errors.As(err, &declared) {
		return Outcome[T]{Result: declared.result, Reasons: declared.reasons, Entity: r.before}, nil
	}
	if r.lease != nil && !pawl.OutcomeUnknown(err) && errors.As(context.Cause(r.lease.Context()), &lost) && !lost.Released {
		// The lost lease is most likely the reason for err.
		err = &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Cause: errors.Join(lost, err)}
	}
	return Outcome[T]{}, err
}

// commit makes the final commit. It repeats it until it lands, is refused, or the claim is lost.
// The body is not repeated.
func (r *run[T]) commit() error {
	for n := 1; ; n++ {
		err := pawl.Transact(r.fenced, r.m.e.rt, r.write, pawl.WithRetry(r.m.e.config.Commit))
		if !errors.Is(err, pawl.ErrUnavailable) || n >= r.m.e.config.Commit.Attempts || r.lease == nil {
			return err
		}
		// The store is down, and nothing was written. The body has succeeded, so try again as long
		// as the claim lives.
		t := time.NewTimer(r.m.e.config.Commit.Delay(n))
		select {
		case <-t.C:
		case <-r.lease.Context().Done():
			t.Stop()
			return err
		}
	}
}

// write is the function of the final transaction.
func (r *run[T]) write(ctx context.Context, tx *pawl.Tx) error {
	e := r.scope.In(tx)
	snap, err := e.Snapshot(ctx)
	if err != nil {
		return err
	}
	from := r.r.from
	if r.lease != nil {
		from = r.r.into
	}
	if status := r.m.status(snap.ReadOnly()); !snap.Exists() || status != from {
		if r.lease != nil {
			return &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Status: status}
		}
		r.outcome.Entity = snap
		r.refuse(status)
		return errStatus
	}
	var opts []pawl.CallOption
	if r.action.pinned {
		opts = append(opts, pawl.IfVersion(r.seen()))
	}
	done, err := e.Apply(ctx, pawl.All{
		pawl.Atomic(func(ctx context.Context, entity *T) error {
			for _, fn := range r.action.onCommit {
				if err := fn(ctx, tx, entity); err != nil {
					return err
				}
			}
			return nil
		}),
		pawl.Patch{r.m.entities.Label: r.r.to},
	}, opts...)
	if err != nil {
		return err
	}
	if err := r.recordEffects(ctx, tx, r.effects(snap, done.Version)); err != nil {
		return err
	}
	r.outcome.Result, r.outcome.Reasons, r.outcome.Entity = Done, nil, done
	if r.lease != nil {
		return r.lease.ReleaseIn(tx)
	}
	return nil
}

// seen returns the version of the entity when the body started: the claim's, or without a claim the
// one that was read.
func (r *run[T]) seen() uint64 {
	if r.lease != nil {
		return r.lease.Token()
	}
	return r.before.Version
}

// release reverts the status and releases the lease. If it fails, the claim is left to the janitor.
// The cause is the error that ended the action, for the log; nil: there is none.
func (r *run[T]) release(cause error) {
	if r.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.fenced, r.m.e.config.Lease)
	defer cancel()
	err := pawl.Transact(ctx, r.m.e.rt, func(ctx context.Context, tx *pawl.Tx) error {
		e := r.scope.In(tx)
		snap, err := e.Snapshot(ctx)
		if err != nil {
			return err
		}
		if snap.Exists() && r.m.status(snap.ReadOnly()) == r.r.into {
			if _, err := e.PatchState(ctx, pawl.Patch{r.m.entities.Label: r.r.revert}); err != nil {
				return err
			}
		}
		return r.lease.ReleaseIn(tx)
	}, pawl.WithRetry(r.m.e.config.Commit))
	if err == nil || errors.Is(err, pawl.ErrLeaseLost) {
		return
	}
	// Without renewal the lease runs out, and the janitor reverts the claim.
	r.stopRenewal()
	r.m.e.config.Logger.Warn("machine: cannot release a claim; the janitor will revert it",
		"entity", r.scope.Key().String(), "step", r.r.step, "err", err, "cause", cause)
}

// panicError returns the value v of a panic as a *pawl.PanicError with its stack.
func panicError(v any) *pawl.PanicError {
	if p, ok := v.(*pawl.PanicError); ok {
		return p
	}
	return &pawl.PanicError{Value: v, Stack: debug.Stack()}
}
