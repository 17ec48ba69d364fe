package pawl

import (
	"context"
	"errors"
)

// Functions that sort errors for a caller: by code, by HTTP status, and by what a retry would do.

// Coded is an error with a stable code and an HTTP status. Every sentinel and typed error of this
// module implements it, except *PanicError. Code and HTTPStatus also work on errors of the caller
// that implement it.
type Coded interface {
	error
	Code() string
	HTTPStatus() int
}

// Code returns the stable code of err: "" for nil, CANCELED and DEADLINE for the errors of a
// context, and INTERNAL for other errors that are not Coded.
func Code(err error) string {
	own, code, _ := classify(err)
	if own != nil {
		return own.Code()
	}
	return code
}

// HTTPStatus returns the HTTP status for err: 200 for nil, 499 and 504 for the errors of a context,
// and 500 for other errors that are not Coded.
func HTTPStatus(err error) int {
	own, _, status := classify(err)
	if own != nil {
		return own.HTTPStatus()
	}
	return status
}

// classify returns the Coded error in err, or nil and the code and the HTTP status of err.
func classify(err error) (own Coded, code string, status int) {
	switch {
	case err == nil:
		return nil, "", 200
	case errors.As(err, &own):
		return own, "", 0
	case errors.Is(err, context.Canceled):
		return nil, "CANCELED", 499
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "DEADLINE", 504
	}
	return nil, "INTERNAL", 500
}

// IsAbsent reports whether err says that the scope has no state: it never had any (ErrNotFound), it
// is deleted (*DeletedError), or it has expired (ErrExpired). Nothing was written.
func IsAbsent(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrDeleted) || errors.Is(err, ErrExpired)
}

// IsRetryable reports whether err promises that nothing was applied and that a retry may succeed.
// The retry may be the same call, except after *ConcurrencyError: then read the scope again first,
// and assert the version that was read.
func IsRetryable(err error) bool {
	var (
		timeout     *ScopeMutationTimeoutError
		conflict    *ConcurrentModificationError
		moved       *ConcurrencyError
		overloaded  *OverloadedError
		unavailable *UnavailableError
		held        *HeldError
		own         interface{ Retryable() bool } // an error of a layer above
	)
	switch {
	case errors.As(err, &timeout):
		return timeout.Phase == PhaseQueued
	case errors.As(err, &conflict), errors.As(err, &moved), errors.As(err, &overloaded), errors.As(err, &unavailable), errors.As(err, &held):
		return true
	case errors.As(err, &own):
		return own.Retryable()
	}
	return false
}

// OutcomeUnknown reports whether the change may have been applied, or may still be applied, in
// spite of err.
func OutcomeUnknown(err error) bool {
	var (
		timeout  *ScopeMutationTimeoutError
		canceled *CanceledError
		unknown  *UnknownOutcomeError
	)
	switch {
	case errors.As(err, &timeout):
		return timeout.Phase != PhaseQueued
	case errors.As(err, &canceled):
		return canceled.Phase != PhaseQueued
	case errors.As(err, &unknown):
		return true
	}
	return false
}
