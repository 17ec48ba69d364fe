package stream

import (
	"fmt"

	"github.com/pawl-go/pawl"
)

// ConcurrencyError is returned when the last version of a stream is not the expected one. Nothing
// was appended. Read the stream again before a retry. It matches pawl.ErrConflict, and is not a
// *pawl.ConcurrencyError. Code CONCURRENCY_ERROR; 409; retryable.
type ConcurrencyError struct {
	Stream string
	// Expected is the version that was asserted, -1 for a stream without events.
	Expected int64
	// Last is the version of the last event, -1 for a stream without events. It equals Expected if the
	// stream was deleted and appended to again.
	Last int64
}

func (e *ConcurrencyError) Error() string {
	return fmt.Sprintf("stream: %.80q: expected last version %d, found %d", e.Stream, e.Expected, e.Last)
}

// Is matches pawl.ErrConflict.
func (e *ConcurrencyError) Is(target error) bool { return target == pawl.ErrConflict }

// Retryable returns true: nothing was appended.
func (e *ConcurrencyError) Retryable() bool { return true }

// Code returns CONCURRENCY_ERROR.
func (e *ConcurrencyError) Code() string { return "CONCURRENCY_ERROR" }

// HTTPStatus returns 409.
func (e *ConcurrencyError) HTTPStatus() int { return 409 }

// ClosedError is returned by an append to a stream that CloseStream has closed. Nothing was
// appended. Code STREAM_CLOSED; 409.
type ClosedError struct{ Stream string }

func (e *ClosedError) Error() string { return fmt.Sprintf("stream: %.80q is closed", e.Stream) }

// Code returns STREAM_CLOSED.
func (e *ClosedError) Code() string { return "STREAM_CLOSED" }

// HTTPStatus returns 409.
func (e *ClosedError) HTTPStatus() int { return 409 }

// EventError is returned for an event whose type is not registered, or that cannot be encoded or
// decoded. Code EVENT; 422.
type EventError struct {
	Stream  string // empty: it was not appended
	Version int64  // -1: it was not appended
	Type    string // the stored name, or the Go type if it has none
	Err     error
}

func (e *EventError) Error() string {
	if e.Version < 0 {
		return fmt.Sprintf("stream: event of type %.80s: %v", e.Type, e.Err)
	}
	return fmt.Sprintf("stream: event %d of %.80q, type %.80s: %v", e.Version, e.Stream, e.Type, e.Err)
}

// Unwrap returns the cause.
func (e *EventError) Unwrap() error { return e.Err }

// Code returns EVENT.
func (e *EventError) Code() string { return "EVENT" }

// HTTPStatus returns 422.
func (e *EventError) HTTPStatus() int { return 422 }

// PendingError is returned by CloseStream and Trim while a reaction has not handled the events that
// would be removed, or is handling one. Nothing was removed. Code STREAM_PENDING; 409; retryable.
type PendingError struct {
	Stream, Reaction string
	// Next is the first event that the reaction has not handled.
	Next int64
	// Blocked is the reason if the reaction is blocked there.
	Blocked string
	// Holder is the process that handles the stream; empty: none does.
	Holder string
}

func (e *PendingError) Error() string {
	state := ""
	switch {
	case e.Holder != "":
		state = ", held by " + e.Holder
	case e.Blocked != "":
		state = ", blocked: " + e.Blocked
	}
	return fmt.Sprintf("stream: reaction %s is at event %d of %.80q%s", e.Reaction, e.Next, e.Stream, state)
}

// Is matches pawl.ErrHeld if a process handles the stream.
func (e *PendingError) Is(target error) bool { return target == pawl.ErrHeld && e.Holder != "" }

// Retryable returns true: nothing was removed.
func (e *PendingError) Retryable() bool { return true }

// Code returns STREAM_PENDING.
func (e *PendingError) Code() string { return "STREAM_PENDING" }

// HTTPStatus returns 409.
func (e *PendingError) HTTPStatus() int { return 409 }
