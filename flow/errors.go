package flow

import (
	"fmt"

	"github.com/pawl-go/pawl"
)

// ErrCanceled is the cause of the end of an action's context after Cancel. The error that Do
// returns then matches it. Code CANCELED; 499.
var ErrCanceled error = canceledError{}

type canceledError struct{}

func (canceledError) Error() string   { return "flow: canceled by request" }
func (canceledError) Code() string    { return "CANCELED" }
func (canceledError) HTTPStatus() int { return 499 }

// BusyError is returned for a call that may not run because another call is in flight; its action
// did not start. If InFlight is the call's own request id, that id is already in flight. It matches
// pawl.ErrHeld. Code IN_FLIGHT; 409; retryable.
type BusyError struct {
	// InFlight is the request id of the other call.
	InFlight string
	// Scope is what the other call occupies: the gate of a session, a user or a flow, or the record
	// of the request itself.
	Scope pawl.Key
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("flow: %s: request %s is in flight", e.Scope, e.InFlight)
}

// Unwrap returns the same facts as a *pawl.HeldError, which pawl.IsRetryable recognises.
func (e *BusyError) Unwrap() error { return &pawl.HeldError{Scope: e.Scope, Holder: e.InFlight} }

// Code returns IN_FLIGHT.
func (e *BusyError) Code() string { return "IN_FLIGHT" }

// HTTPStatus returns 409.
func (e *BusyError) HTTPStatus() int { return 409 }
