package run

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/state"
)

// Definition is the code of a run: steps over a state S. The input of a run is its first state.
type Definition[S any] struct {
	// Name identifies the definition in stored runs, for ever.
	Name string
	// Steps are in the order in which they run, unless a step returns another Next. A release may
	// add steps. A step that is removed has to stay as one that does nothing, until no unfinished run
	// has it: a run that comes to a step that is gone is parked; see Run.Parked.
	Steps []Step[S]
}

// Step is one step.
type Step[S any] struct {
	// Name identifies the step in stored runs.
	Name string
	// Do runs the step. It may run more than once: see Attempt. An error is retried, unless it is
	// marked by pawl.NonRetryable.
	Do func(ctx context.Context, a *Attempt[S]) (Next, error)
	// Retry is the policy for failed attempts; zero fields: DefaultRetry. Within is ignored.
	Retry pawl.Retry
	// Timeout ends the context of an attempt; 0: none.
	Timeout time.Duration
}

// DefaultRetry is the retry policy of a step. Its delays add up to less than half an hour.
var DefaultRetry = pawl.Retry{Attempts: 12, First: time.Second, Max: 5 * time.Minute}

// Attempt is one attempt at a step. The context of the step ends when its lease is lost, after
// Step.Timeout, when the run is canceled, and when the context of Engine.Stop ends. Every commit
// made with it is fenced by the lease.
type Attempt[S any] struct {
	RunID     string
	Workspace string
	// Number is 1 in the first attempt.
	Number int
	// State is a copy of the state of the run. Its changes are committed with the step.
	State *S
	// Resumed says that the step runs again because it returned Sleep or Await.
	Resumed bool
	// Signal is the signal that the step awaited; nil: none, or the time of Await is over.
	Signal *Signal

	a *attempt
}

// OnCommit adds writes to the commit that ends the attempt, if the step succeeds. If that commit
// meets a conflict, fn runs again, and the step does not. An error of fn fails the attempt.
func (a *Attempt[S]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx) error) {
	a.a.onCommit = append(a.a.onCommit, fn)
}

// Output records the output of the step, as JSON. It returns the errors of json.Marshal.
func (a *Attempt[S]) Output(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		a.a.output = data
	}
	return err
}

// Key returns a key that is the same in every attempt at this step. Pass it to systems that
// recognise a repeated call by a key. It is also the same when the step runs again after Sleep or
// Await: add a counter from State to it for a call that is repeated on purpose. After a Goto back it
// is another key.
func (a *Attempt[S]) Key() string {
	key := a.RunID + "/" + a.a.step
	if n := a.a.record.step(a.a.step).Visits; n > 0 {
		key = fmt.Sprintf("%s/%d", key, n)
	}
	return key
}

// Next says what follows a step. The zero value is Continue.
type Next struct {
	kind nextKind
	name string // a step or a signal
	in   time.Duration
}

type nextKind uint8

const (
	toNext nextKind = iota
	toStep
	toEnd
	sleep
	await
)

// Continue goes to the next step, or ends the run after the last one.
func Continue() Next { return Next{} }

// Goto goes to a named step. Steps that it jumps over are SKIPPED. Steps that it jumps back over run
// again, and their output, attempts and errors are cleared. An unknown step fails the run.
func Goto(step string) Next { return Next{kind: toStep, name: step} }

// End completes the run now. The steps that are left are SKIPPED.
func End() Next { return Next{kind: toEnd} }

// Sleep runs the same step again after d, by the store's clock. A negative d fails the run.
func Sleep(d time.Duration) Next { return Next{kind: sleep, in: d} }

// Await runs the same step again when the signal arrives, or after d without one; 0: without a
// limit. Signals that arrived before are received first. A negative d or a name that is empty or too
// long fails the run.
func Await(signal string, d time.Duration) Next { return Next{kind: await, name: signal, in: d} }

// attempt is an Attempt without the type of its state.
type attempt struct {
	job      string // the id of the run
	record   record // as taken
	step     string
	signal   *Signal
	state    json.RawMessage // after the step
	output   json.RawMessage
	onCommit []func(ctx context.Context, tx *pawl.Tx) error
}

// definition is a Definition of any state.
type definition interface {
	// faults returns what is wrong with it.
	faults() []error
	// steps returns the names of the steps in order.
	steps() []string
	// policy returns the retry policy and the timeout of a step.
	policy(step string) (pawl.Retry, time.Duration)
	// check returns an error if an input is no state.
	check(input json.RawMessage) error
	// do runs a step.
	do(ctx context.Context, a *attempt) (Next, error)
}

type definitionOf[S any] struct{ Definition[S] }

func (d definitionOf[S]) steps() (names []string) {
	for _, s := range d.Steps {
		names = append(names, s.Name)
	}
	return names
}

func (d definitionOf[S]) step(name string) Step[S] {
	return d.Steps[slices.Index(d.steps(), name)]
}

// maxName is the maximum length of the name of a definition, a step or a signal in bytes.
const maxName = 64

func (d definitionOf[S]) faults() (errs []error) {
	fault := func(format string, args ...any) {
		errs = append(errs, &pawl.ArgumentError{Argument: "Definition " + d.Name, Reason: fmt.Sprintf(format, args...)})
	}
	if d.Name == "" || len(d.Name) > maxName {
		fault("its name must have 1 to %d bytes", maxName)
	}
	if len(d.Steps) == 0 {
		fault("it has no steps")
	}
	for i, s := range d.Steps {
		if s.Name == "" || len(s.Name) > maxName {
			fault("the name of step %d must have 1 to %d bytes", i+1, maxName)
		}
		if slices.Index(d.steps(), s.Name) != i {
			fault("two steps have the name %q", s.Name)
		}
		if s.Do == nil {
			fault("step %q has no Do", s.Name)
		}
		if s.Timeout < 0 || s.Retry.Attempts < 0 || s.Retry.First < 0 || s.Retry.Max < 0 {
			fault("Retry and Timeout of step %q must not be negative", s.Name)
		}
	}
	return errs
}

func (d definitionOf[S]) policy(step string) (pawl.Retry, time.Duration) {
	s := d.step(step)
	return s.Retry.Or(DefaultRetry), s.Timeout
}

func (d definitionOf[S]) check(input json.RawMessage) error {
	var state S
	return json.Unmarshal(input, &state)
}

func (d definitionOf[S]) do(ctx context.Context, a *attempt) (Next, error) {
	var state S
	if err := json.Unmarshal(a.record.Data, &state); err != nil {
		return Next{}, pawl.NonRetryable(fmt.Errorf("the stored state does not fit: %w", err))
	}
	next, err := d.step(a.step).Do(ctx, &Attempt[S]{
		RunID: a.job, Workspace: a.record.Workspace, Number: a.record.Attempts, State: &state,
		Resumed: a.record.Suspended, Signal: a.signal, a: a,
	})
	if err != nil {
		return next, err
	}
	if next.kind == toStep && !slices.Contains(d.steps(), next.name) {
		return next, pawl.NonRetryable(fmt.Errorf("Goto: definition %s has no step %q", d.Name, next.name))
	}
	if next.in < 0 || next.kind == await && (next.name == "" || len(next.name) > maxName) {
		return next, pawl.NonRetryable(fmt.Errorf("Sleep or Await with a negative time or without a signal"))
	}
	a.state, err = json.Marshal(state)
	if err == nil {
		a.state, err = keepUnknown[S](a.record.Data, a.state)
	}
	return next, err
}

// keepUnknown returns the state now with the fields of the state before that S does not have: another
// release has them.
func keepUnknown[S any](before, now json.RawMessage) (json.RawMessage, error) {
	var known S
	if err := json.Unmarshal(before, &known); err != nil {
		return nil, err
	}
	seen, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	return state.Merge(before, seen, now)
}
