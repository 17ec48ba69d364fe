package flow

import (
	"fmt"

	"github.com/pawl-go/pawl"
)

// ErrCanceled is the cause of the end of an action's context after Cancel, and matched by what Do returns then. Code CANCELED; 499.
var ErrCanceled error = canceledError{}

type canceledError struct{}

func (canceledError) Error() string   { return "flow: canceled by request" }
func (canceledError) Code() string    { return "CANCELED" }
func (canceledError) HTTPStatus() int { return 499 }

// BusyError is returned for a call that may not run because of another one, which it names; nothing of it ran. If that is the call's own
// request id, that id is in flight already. Code IN_FLIGHT; 409; retryable. It matches pawl.ErrHeld.
type BusyError struct {
	InFlight string   // the request
	Scope    pawl.Key // what it occupies: the gate of a session, a user or a flow, or the record of the request itself
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("flow: %s: request %s is in flight", e.Scope, e.InFlight)
}

// Unwrap returns the same as an error of the root package, which IsRetryable knows.
func (e *BusyError) Unwrap() error { return &pawl.HeldError{Scope: e.Scope, Holder: e.InFlight} }

// Code returns IN_FLIGHT.
func (e *BusyError) Code() string { return "IN_FLIGHT" }

// HTTPStatus returns 409.
func (e *BusyError) HTTPStatus() int { return 409 }
