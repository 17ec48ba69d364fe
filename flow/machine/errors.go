package machine

import (
	"fmt"
	"strings"

	"github.com/pawl-go/pawl"
)

// ErrNotRunning is returned when the engine was not started, or was stopped by Stop or by the end
// of Start's context, and for a workflow that was added after Start. Code NOT_RUNNING; 503.
var ErrNotRunning error = notRunning{}

type notRunning struct{}

func (notRunning) Error() string   { return "machine: engine is not running" }
func (notRunning) Code() string    { return "NOT_RUNNING" }
func (notRunning) HTTPStatus() int { return 503 }

// SyntaxError is returned for a workflow file that cannot be read. Code WORKFLOW_SYNTAX; 500.
type SyntaxError struct {
	Line, Column int // of the fault, both counted from 1
	Reason       string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("machine: workflow: line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

// Code returns WORKFLOW_SYNTAX.
func (e *SyntaxError) Code() string { return "WORKFLOW_SYNTAX" }

// HTTPStatus returns 500.
func (e *SyntaxError) HTTPStatus() int { return 500 }

// Rule names a rule that workflows have to keep.
type Rule string

// The rules. The first seven are about claims.
const (
	// RuleClaimPair: a claim is [claim_into, revert_to], two strings.
	RuleClaimPair Rule = "claim-pair"
	// RuleClaimStatus: both statuses of a claim are in status_types.
	RuleClaimStatus Rule = "claim-status"
	// RuleClaimNoop: claim_into differs from revert_to.
	RuleClaimNoop Rule = "claim-noop"
	// RuleClaimSource: claim_into differs from the step's status; otherwise a second caller would
	// pass.
	RuleClaimSource Rule = "claim-source"
	// RuleClaimTarget: claim_into differs from the successful_state.
	RuleClaimTarget Rule = "claim-target"
	// RuleClaimRevert: a claim_into has one revert_to, in all steps and for all requesters.
	RuleClaimRevert Rule = "claim-revert"
	// RuleClaimOrigin: revert_to is the step's status; otherwise an action that did not succeed
	// would move its entity.
	RuleClaimOrigin Rule = "claim-origin"

	// RuleClaimOnly: a claim state is used for claims only. No step starts there, ends there or
	// reverts to it, and no new entity has it.
	RuleClaimOnly Rule = "claim-only"
	// RuleName: a required name is not empty.
	RuleName Rule = "name"
	// RuleStatus: a status is in status_types, and occurs there once.
	RuleStatus Rule = "status"
	// RuleUnique: step_key and step_id are unique, and so are the after-effects of a step.
	RuleUnique Rule = "unique"
	// RuleRequester: a requester has an action if and only if it has a successful_state.
	RuleRequester Rule = "requester"
	// RuleUnreachable: every status can be reached.
	RuleUnreachable Rule = "unreachable"
	// RuleEntity: the workflow fits the kind of its entities, and no other workflow has that kind.
	RuleEntity Rule = "entity"
	// RuleDuplicate: there is one workflow per name, and one janitor per module.
	RuleDuplicate Rule = "duplicate"
	// RuleConfig: the numbers of a Config or JanitorConfig are not negative, and everything is
	// added before the engine starts.
	RuleConfig Rule = "config"
)

// RuleError is returned for a rule that a workflow, a janitor or an engine violates. Code
// WORKFLOW_RULE; 500.
type RuleError struct {
	Rule Rule
	// Workflow is the name of the workflow; empty: the fault is not in a workflow.
	Workflow string
	// Step is the key of the step; empty: the fault is not in one step.
	Step string
	// By is the requester; empty: the fault is not about one requester.
	By     string
	Values []string
	Reason string
}

func (e *RuleError) Error() string {
	var b strings.Builder
	b.WriteString("machine: ")
	if e.Workflow != "" {
		fmt.Fprintf(&b, "workflow %q", e.Workflow)
		if e.Step != "" {
			fmt.Fprintf(&b, ", step %q", e.Step)
		}
		if e.By != "" {
			fmt.Fprintf(&b, ", requester %q", e.By)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Reason)
	if len(e.Values) > 0 {
		fmt.Fprintf(&b, ": %q", e.Values)
	}
	return b.String() + " (" + string(e.Rule) + ")"
}

// Code returns WORKFLOW_RULE.
func (e *RuleError) Code() string { return "WORKFLOW_RULE" }

// HTTPStatus returns 500.
func (e *RuleError) HTTPStatus() int { return 500 }

// UncoveredError is returned for a claim state that no janitor covers: after a crash, entities
// would stay in it. Code CLAIM_UNCOVERED; 500.
type UncoveredError struct{ Workflow, State, Module string }

func (e *UncoveredError) Error() string {
	return fmt.Sprintf("machine: workflow %q: claim state %q has no janitor: add one for module %q",
		e.Workflow, e.State, e.Module)
}

// Code returns CLAIM_UNCOVERED.
func (e *UncoveredError) Code() string { return "CLAIM_UNCOVERED" }

// HTTPStatus returns 500.
func (e *UncoveredError) HTTPStatus() int { return 500 }

// HandlerError is returned for an action or after-effect that does not have exactly one handler,
// and for a handler that no step names. Code HANDLER; 500.
type HandlerError struct{ Workflow, Name, Reason string }

func (e *HandlerError) Error() string {
	return fmt.Sprintf("machine: workflow %q: %q: %s", e.Workflow, e.Name, e.Reason)
}

// Code returns HANDLER.
func (e *HandlerError) Code() string { return "HANDLER" }

// HTTPStatus returns 500.
func (e *HandlerError) HTTPStatus() int { return 500 }

// StepError is returned for a Trigger that fits no step, and for a new entity with a status that it
// cannot have; nothing was written. Code STEP; 422.
type StepError struct{ Workflow, Step, By, Reason string }

func (e *StepError) Error() string {
	return fmt.Sprintf("machine: workflow %q, step %q, requester %q: %s", e.Workflow, e.Step, e.By, e.Reason)
}

// Code returns STEP.
func (e *StepError) Code() string { return "STEP" }

// HTTPStatus returns 422.
func (e *StepError) HTTPStatus() int { return 422 }

// ClaimLostError is returned when the claim was lost while the body ran, or before it started: its
// lease ran out, or a write outside the machine changed the status. The action committed nothing.
// It matches pawl.ErrLeaseLost. Code CLAIM_LOST; 409.
type ClaimLostError struct {
	Entity pawl.Key
	Step   string
	// Status is the status found instead of the claim's; empty: not known.
	Status string
	// Cause is a *pawl.LeaseLostError, joined with the error of the body; nil: the status was
	// changed.
	Cause error
}

func (e *ClaimLostError) Error() string {
	s := fmt.Sprintf("machine: %s, step %q: claim lost", e.Entity, e.Step)
	if e.Status != "" {
		s += fmt.Sprintf(": the status is %q", e.Status)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause, if there is one.
func (e *ClaimLostError) Unwrap() error { return e.Cause }

// Is matches pawl.ErrLeaseLost.
func (e *ClaimLostError) Is(target error) bool { return target == pawl.ErrLeaseLost }

// Code returns CLAIM_LOST.
func (e *ClaimLostError) Code() string { return "CLAIM_LOST" }

// HTTPStatus returns 409.
func (e *ClaimLostError) HTTPStatus() int { return 409 }

// BusyError is returned by Engine.Stop when its context ended before all actions did. Code BUSY;
// 503.
type BusyError struct {
	// Actions are the entities whose actions still run. The contexts of these actions have ended.
	Actions []pawl.Key
	// Cause is the cause of the end of Stop's context.
	Cause error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("machine: stop: actions still running: %v: %v", e.Actions, e.Cause)
}

// Unwrap returns the cause.
func (e *BusyError) Unwrap() error { return e.Cause }

// Code returns BUSY.
func (e *BusyError) Code() string { return "BUSY" }

// HTTPStatus returns 503.
func (e *BusyError) HTTPStatus() int { return 503 }

// outcomeError is the error of Reject and Fail.
type outcomeError struct {
	result  Result
	reasons []string
}

func (e *outcomeError) Error() string {
	return "machine: " + e.result.String() + ": " + strings.Join(e.reasons, "; ")
}

// Reject returns the error by which a body, or a function of OnCommit, ends its action because the
// request is not valid now. Fire then returns the result Rejected, with the reasons in
// Outcome.Reasons, and no error.
func Reject(reasons ...string) error { return &outcomeError{Rejected, reasons} }

// Fail is like Reject, for an action that could not succeed. Fire returns the result Failed.
func Fail(reasons ...string) error { return &outcomeError{Failed, reasons} }
