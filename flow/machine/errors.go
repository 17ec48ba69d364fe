package machine

import (
	"fmt"
	"strings"

	"github.com/pawl-go/pawl"
)

// ErrNotRunning is returned by what needs an engine that was started and has not been stopped, by Stop or with the context of Start. Code NOT_RUNNING; 503.
var ErrNotRunning error = notRunning{}

type notRunning struct{}

func (notRunning) Error() string   { return "machine: the engine is not running" }
func (notRunning) Code() string    { return "NOT_RUNNING" }
func (notRunning) HTTPStatus() int { return 503 }

// SyntaxError is a workflow file that cannot be read. Code WORKFLOW_SYNTAX; 500.
type SyntaxError struct {
	Line, Column int // of the fault, both from 1
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

// The rules. The first six are about claims.
const (
	RuleClaimPair   Rule = "claim-pair"   // a claim is [claim_into, revert_to]: two strings
	RuleClaimStatus Rule = "claim-status" // both are in status_types
	RuleClaimNoop   Rule = "claim-noop"   // claim_into is not revert_to
	RuleClaimSource Rule = "claim-source" // claim_into is not the step's status: a second caller would pass too
	RuleClaimTarget Rule = "claim-target" // claim_into is not the successful_state
	RuleClaimRevert Rule = "claim-revert" // one claim_into has one revert_to, in all steps and for all requesters

	RuleClaimOnly   Rule = "claim-only"  // a claim state is nothing else: no step starts there, ends there or reverts to it, and no entity begins there
	RuleName        Rule = "name"        // what has to be named is
	RuleStatus      Rule = "status"      // a status is in status_types, and there once
	RuleUnique      Rule = "unique"      // step_key and step_id are
	RuleRequester   Rule = "requester"   // whoever has an action has a successful_state, and the other way round
	RuleUnreachable Rule = "unreachable" // every status can be reached
	RuleEntity      Rule = "entity"      // the workflow fits the kind of its entities, and no other workflow has that kind
	RuleDuplicate   Rule = "duplicate"   // one workflow per name, one janitor per module
	RuleConfig      Rule = "config"      // a janitor's or the engine's numbers make sense
)

// RuleError is a rule that a workflow, or what was put on an engine with it, does not keep. Code WORKFLOW_RULE; 500.
type RuleError struct {
	Rule     Rule
	Workflow string
	Step     string // its key; empty: it is about the workflow
	By       string // the requester; empty: it is about all of them
	Values   []string
	Reason   string
}

func (e *RuleError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "machine: workflow %q", e.Workflow)
	if e.Step != "" {
		fmt.Fprintf(&b, ", step %q", e.Step)
	}
	if e.By != "" {
		fmt.Fprintf(&b, ", requester %q", e.By)
	}
	fmt.Fprintf(&b, ": %s", e.Reason)
	if len(e.Values) > 0 {
		fmt.Fprintf(&b, ": %q", e.Values)
	}
	return b.String() + " (" + string(e.Rule) + ")"
}

// Code returns WORKFLOW_RULE.
func (e *RuleError) Code() string { return "WORKFLOW_RULE" }

// HTTPStatus returns 500.
func (e *RuleError) HTTPStatus() int { return 500 }

// UncoveredError is a claim state that no janitor covers: after a crash nobody would free what is in it. Code CLAIM_UNCOVERED; 500.
type UncoveredError struct{ Workflow, State, Module string }

func (e *UncoveredError) Error() string {
	return fmt.Sprintf("machine: workflow %q: claim state %q is covered by no janitor: module %q has to add one", e.Workflow, e.State, e.Module)
}

// Code returns CLAIM_UNCOVERED.
func (e *UncoveredError) Code() string { return "CLAIM_UNCOVERED" }

// HTTPStatus returns 500.
func (e *UncoveredError) HTTPStatus() int { return 500 }

// HandlerError is an action or after-effect that does not have exactly one handler, or a handler that no step names. Code HANDLER; 500.
type HandlerError struct{ Workflow, Name, Reason string }

func (e *HandlerError) Error() string {
	return fmt.Sprintf("machine: workflow %q: %q: %s", e.Workflow, e.Name, e.Reason)
}

// Code returns HANDLER.
func (e *HandlerError) Code() string { return "HANDLER" }

// HTTPStatus returns 500.
func (e *HandlerError) HTTPStatus() int { return 500 }

// StepError is a Trigger that fits no step, or an entity that fits no status; nothing was written. Code STEP; 422.
type StepError struct{ Workflow, Step, By, Reason string }

func (e *StepError) Error() string {
	return fmt.Sprintf("machine: workflow %q, step %q, requester %q: %s", e.Workflow, e.Step, e.By, e.Reason)
}

// Code returns STEP.
func (e *StepError) Code() string { return "STEP" }

// HTTPStatus returns 422.
func (e *StepError) HTTPStatus() int { return 422 }

// ClaimLostError is returned when the claim was lost while the body ran: its lease ran out, or somebody changed the status by other means. Nothing of
// the action was committed. It matches pawl.ErrLeaseLost. Code CLAIM_LOST; 409.
type ClaimLostError struct {
	Entity pawl.Key
	Step   string
	Status string // that was found instead of the claim's; empty: not known
	Cause  error  // *pawl.LeaseLostError, joined with what the body returned; nil: the status was changed
}

func (e *ClaimLostError) Error() string {
	s := fmt.Sprintf("machine: %s, step %q: claim lost", e.Entity, e.Step)
	if e.Status != "" {
		s += fmt.Sprintf(": its status is %q now", e.Status)
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

// BusyError is returned by Engine.Stop when its context ended first. It wraps the context's cause, and what else still runs. Code BUSY; 503.
type BusyError struct {
	Actions []pawl.Key // entities whose actions still run; their contexts have ended
	Cause   error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("machine: stop: actions that still run: %v: %v", e.Actions, e.Cause)
}

// Unwrap returns the cause.
func (e *BusyError) Unwrap() error { return e.Cause }

// Code returns BUSY.
func (e *BusyError) Code() string { return "BUSY" }

// HTTPStatus returns 503.
func (e *BusyError) HTTPStatus() int { return 503 }

// ending is how a body says that it ended without success, in the ordinary course of things.
type ending struct {
	result  Result
	reasons []string
}

func (e *ending) Error() string {
	return "machine: " + e.result.String() + ": " + strings.Join(e.reasons, "; ")
}

// Reject ends an action because the request is not valid now. Return it from the body, or from a function of OnCommit; Outcome.Reasons carries the
// reasons.
func Reject(reasons ...string) error { return &ending{Rejected, reasons} }

// Fail ends an action that did not succeed, in the ordinary course of things. Return it as Reject.
func Fail(reasons ...string) error { return &ending{Failed, reasons} }
