package adk

import (
	"errors"

	"github.com/pawl-go/pawl"
)

var (
	// ErrStale is returned by AppendEvent when the handle is behind the store; nothing was written.
	// Get the session again, and decide again. It matches pawl.ErrConflict. Code STALE_SESSION; 409;
	// retryable.
	ErrStale error = &sentinel{"stale session error", "STALE_SESSION", 409, pawl.ErrConflict}
	// ErrNotFound is returned for a session that does not exist; nothing was written. It matches
	// pawl.ErrNotFound. Code NOT_FOUND; 404.
	ErrNotFound error = &sentinel{"session not found", "NOT_FOUND", 404, pawl.ErrNotFound}
)

// sentinel is an error that matches one of package pawl.
type sentinel struct {
	text   string
	code   string
	status int
	like   error
}

func (e *sentinel) Error() string { return e.text }

// Code returns the stable code of the error.
func (e *sentinel) Code() string { return e.code }

// HTTPStatus returns the status for a response.
func (e *sentinel) HTTPStatus() int { return e.status }

// Retryable reports whether the same work may succeed later.
func (e *sentinel) Retryable() bool { return e.status == 409 }

// Is matches the error of package pawl.
func (e *sentinel) Is(target error) bool { return target == e.like }

// existsError says that a session exists, in the words of ADK. Code EXISTS; 409.
type existsError struct{ id string }

func (e *existsError) Error() string   { return "session " + e.id + " already exists" }
func (e *existsError) Code() string    { return pawl.Code(pawl.ErrExists) }
func (e *existsError) HTTPStatus() int { return pawl.HTTPStatus(pawl.ErrExists) }
func (e *existsError) Unwrap() error   { return pawl.ErrExists }

var (
	errNoSession = errors.New("session is nil")
	errNoEvent   = errors.New("event is nil")
	errNoRequest = errors.New("request is nil")
)
