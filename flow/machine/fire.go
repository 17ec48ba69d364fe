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
//	read ─► claim: status → claim_into, with a lease, at the version read ─► body ─► commit: OnCommit + final status + after-effects, ends the lease
//	  │       │                                                               │        │ conflict: again, without the body
//	  │       └─ version moved, held: ClaimFailed                             │        └─ refused for good ──┐
//	  └─ another status: WrongStatus, ClaimFailed                             └─ did not succeed ────────────┴─► release: status → revert_to, ends the lease
//
// Races, and what decides them:
//   - two callers claim: both name the version that they read, tested inside the commit. One moves it.
//   - a caller that read before somebody else claimed, and released, claims: the version has moved.
//   - a holder whose lease ran out commits or releases: the token is tested inside the commit.
//   - the janitor reverts while the holder commits: each expects the version that it read, and one of them moves it. A lease that ran out is
//     not renewed again, so that the holder cannot win against a janitor that saw it over, unless it was faster.
//   - others edit the entity while it is claimed: the version moves, and the holder's commit, which is not pinned to one, is computed again.
//   - others change the status by hand: the commit finds another status than the claim's, and nothing is written.
//   - the caller leaves while the claim is under way: somebody waits for what becomes of it, and gives it back.
//   - the caller leaves while the body runs: its context ends; the lease is kept until it returns. Once it has succeeded its commit is made all the same.
//   - the answer to the commit is lost: it is settled by the store (pawl's send.go). If it cannot be, the release that follows finds the
//     claim's status, and what was in doubt can no longer land; or it finds another status, and leaves it.

// Trigger says which step to fire on which entity, for whom.
type Trigger struct {
	ID    string // of the entity
	Step  string // its key
	By    string // the requester
	Input any    // of the action
}

// Result is how a step ended.
type Result uint8

// The results.
const (
	Done        Result = iota + 1 // committed
	Rejected                      // by the body: not valid now
	Failed                        // by the body: it did not succeed
	ClaimFailed                   // another operation is already in progress
	WrongStatus                   // the step does not start from the entity's status
)

// String returns the result in lower case, as APIs write it: "done", "rejected", "failed", "claim_failed", "wrong_status".
func (r Result) String() string {
	if int(r) < len(resultNames) && r > 0 {
		return resultNames[r]
	}
	return "unknown"
}

var resultNames = [...]string{Done: "done", Rejected: "rejected", Failed: "failed", ClaimFailed: "claim_failed", WrongStatus: "wrong_status"}

// InProgress is the reason that comes with ClaimFailed.
const InProgress = "another operation is already in progress"

// Outcome is what Fire did.
type Outcome[T any] struct {
	Result  Result
	Reasons []string         // of Rejected, Failed, ClaimFailed and WrongStatus, for people
	Entity  pawl.Snapshot[T] // Done: as committed; else: as it was when the step was refused or claimed
}

// Action is one run of a body. The body's context ends when the claim is lost, when the caller of Fire leaves and when the engine's Stop loses patience, and every commit made with
// it is fenced by the claim.
//
// A body returns nil when it is done, Reject or Fail to answer the caller without an error, and any other error when something went wrong. All but nil
// give the claim back first.
type Action[T any] struct {
	ID     string // of the entity
	Step   string
	By     string
	Entity T // as it was when claimed, or read; a copy

	key      string
	onCommit []func(context.Context, *pawl.Tx, *T) error
}

// Key is unique to this run of the body, and the same however often its commit is repeated: for systems that can tell a repeated call by it. A run that follows
// a crash has another one; what must not be repeated even then needs a key that comes with the request, such as the reference of a payment.
func (a *Action[T]) Key() string { return a.key }

// OnCommit adds writes to the final commit: changes to the entity through state, and to any other scope through tx. The body runs once, but fn may
// run again when another writer gets in between, so keep outside effects in the body. The status is set after all of them. An error of fn, Reject and Fail among them, ends the action as
// if the body had returned it.
func (a *Action[T]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx, state *T) error) {
	a.onCommit = append(a.onCommit, fn)
}

// run is one call of Fire.
type run[T any] struct {
	m       *machine[T]
	r       *route
	h       *handler[T]
	t       Trigger
	input   []byte
	scope   pawl.Scope[T]
	before  pawl.Snapshot[T]
	lease   *pawl.Lease     // nil: unclaimed
	fenced  context.Context // of commits
	forget  func()          // stops renewing the lease
	leave   func()          // tells the engine that all is over
	away    bool            // somebody else calls leave
	action  *Action[T]
	outcome Outcome[T]
}

// Fire claims, runs and commits one step. What a caller should branch on is in Outcome; an error says that something went wrong, and the Outcome then has
// no Result.
//
// It returns *StepError for an unknown step, requester or input type, pawl.ErrNotFound for an entity that does not exist, and ErrNotRunning, all before anything was
// written; *ClaimLostError when the claim was lost while the body ran; *pawl.CanceledError when ctx ended before the body; the body's own errors, and those of pawl's verbs and
// Transact. A panic of the body is raised again, as *pawl.PanicError, and so is runtime.Goexit, after the claim was given back. If
// pawl.OutcomeUnknown(err), the step may have been committed.
func (m *Machine[T]) Fire(ctx context.Context, t Trigger) (Outcome[T], error) {
	if ctx == nil {
		return Outcome[T]{}, &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	r := &run[T]{m: m.machine, t: t, scope: m.entities.Scope(m.e.rt, t.ID)}
	ctx, leave, err := m.e.enter(ctx, r.scope.Key())
	if err != nil {
		return Outcome[T]{}, err
	}
	r.leave = leave
	defer func() {
		if !r.away {
			leave()
		}
	}()
	if r.r, r.h, r.input, err = m.find(t); err != nil {
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
	return r.act(ctx)
}

// refuse is the outcome where the entity has another status than the step starts from.
func (r *run[T]) refuse(status string) Outcome[T] {
	r.outcome.Result = WrongStatus
	r.outcome.Reasons = []string{fmt.Sprintf("the step starts from %q, and the status is %q", r.r.from, status)}
	if _, claimed := r.m.claims[status]; claimed {
		r.outcome.Result, r.outcome.Reasons = ClaimFailed, []string{InProgress, fmt.Sprintf("the status is %q", status)}
	}
	return r.outcome
}

// claim takes the claim, and reports whether it did. Its commit does not end with ctx: whoever leaves meanwhile would leave it behind.
func (r *run[T]) claim(ctx context.Context, snap pawl.Snapshot[T]) (won bool, err error) {
	if ctx.Err() != nil {
		return false, r.left(ctx)
	}
	type answer struct {
		lease *pawl.Lease
		err   error
	}
	answers := make(chan answer, 1)
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	r.forget = forget
	go func() {
		a := answer{err: errors.New("machine: runtime.Goexit was called")}
		defer func() {
			if v := recover(); v != nil { // of the entity's own JSON code
				a.err = panicked(v)
			}
			answers <- a
		}()
		a.lease, a.err = r.scope.Acquire(life, pawl.LeaseFor(r.m.e.config.Lease),
			pawl.Applying(r.m.move(r.r.from, r.r.into), pawl.IfVersion(snap.Version)))
	}()
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		r.away = true
		go func() {
			defer r.leave()
			defer forget()
			if a := <-answers; a.err == nil {
				r.hold(a.lease)
				r.release(nil)
			}
		}()
		return false, r.left(ctx)
	}
	if a.err == nil {
		r.hold(a.lease)
		return true, nil
	}
	forget()
	var raised *pawl.PanicError
	switch {
	case errors.As(a.err, &raised):
		panic(raised)
	case errors.Is(a.err, pawl.ErrHeld), errors.Is(a.err, pawl.ErrConflict), errors.Is(a.err, errStatus):
		r.outcome.Result, r.outcome.Reasons = ClaimFailed, []string{InProgress, a.err.Error()}
		return false, nil
	case errors.Is(a.err, pawl.ErrDeleted), errors.Is(a.err, pawl.ErrExpired):
		return false, fmt.Errorf("%w: %w", pawl.ErrNotFound, a.err)
	}
	return false, a.err
}

// hold notes that the claim is ours. What is committed from here on does not end with the caller's context, and is fenced.
func (r *run[T]) hold(l *pawl.Lease) {
	r.lease, r.fenced = l, context.WithoutCancel(l.Context())
}

// left is what a caller gets whose context has ended before the body.
func (r *run[T]) left(ctx context.Context) error {
	return &pawl.CanceledError{Scope: r.scope.Key(), Phase: pawl.PhaseQueued, Cause: context.Cause(ctx)}
}

// act runs the body and ends the action, whatever the body does.
func (r *run[T]) act(ctx context.Context) (Outcome[T], error) {
	body := ctx
	if r.lease == nil {
		r.fenced = context.WithoutCancel(ctx)
	} else {
		defer r.forget()
		inner, cancel := context.WithCancelCause(r.lease.Context())
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
			panic(panicked(v))
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
	return r.give(err)
}

// give ends an action that did not succeed: the claim is given back, and then its caller is told.
func (r *run[T]) give(err error) (Outcome[T], error) {
	var (
		lost *pawl.LeaseLostError
		own  *ending
		gone *ClaimLostError
	)
	switch {
	case errors.As(err, &gone):
		r.release(nil)
		return Outcome[T]{}, err
	case r.lease != nil && errors.As(err, &lost) && lost.Token == r.lease.Token() && lost.Scope == r.scope.Key():
		return Outcome[T]{}, &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Cause: lost}
	case errors.Is(err, errStatus): // unclaimed
		return r.outcome, nil
	}
	r.release(err)
	if errors.As(err, &own) {
		return Outcome[T]{Result: own.result, Reasons: own.reasons, Entity: r.before}, nil
	}
	if r.lease != nil && errors.As(context.Cause(r.lease.Context()), &lost) && !lost.Released {
		err = &ClaimLostError{Entity: r.scope.Key(), Step: r.r.step, Cause: errors.Join(lost, err)} // that is why, most likely
	}
	return Outcome[T]{}, err
}

// commit makes the final commit. It is repeated until it lands, is refused, or the claim is lost; the body is not.
func (r *run[T]) commit() error {
	for n := 1; ; n++ {
		err := pawl.Transact(r.fenced, r.m.e.rt, r.write, pawl.WithRetry(r.m.e.config.Commit))
		if !errors.Is(err, pawl.ErrUnavailable) || n >= r.m.e.config.Commit.Attempts || r.lease == nil {
			return err
		}
		// The store is down, and nothing was written. The body has done its work: as long as the claim lives, try again.
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
	})
	if err != nil {
		return err
	}
	if err := r.record(ctx, tx, r.letters(snap, done.Version)); err != nil {
		return err
	}
	r.outcome.Result, r.outcome.Reasons, r.outcome.Entity = Done, nil, done
	if r.lease != nil {
		return r.lease.ReleaseIn(tx)
	}
	return nil
}

// release gives the claim back, as well as it can: what it cannot is left to the janitor. Why is what ended the action, nil if that is not known to be an error.
func (r *run[T]) release(why error) {
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
	// Nobody renews it any more: it runs out, and the janitor does the rest.
	r.forget()
	r.m.e.config.Logger.Warn("machine: claim not given back, the janitor will", "entity", r.scope.Key().String(), "step", r.r.step, "err", err, "after", why)
}

// panicked is what v is raised again as.
func panicked(v any) *pawl.PanicError {
	if p, ok := v.(*pawl.PanicError); ok {
		return p
	}
	return &pawl.PanicError{Value: v, Stack: debug.Stack()}
}
