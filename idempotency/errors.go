package idempotency

import (
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
)

// ErrNoRequest is returned by Respond when its context is not that of a request that came through Middleware.
var ErrNoRequest = errors.New("idempotency: not the context of a request that came through Middleware")

// ErrResponded is returned by Respond when an earlier transaction has responded, and when the response is on its way already, being streamed.
var ErrResponded = errors.New("idempotency: there is a response already")

// ReusedError is returned by Do and DoTx for a key that was used with another input; nothing was run. Code IDEMPOTENCY_KEY_REUSED; 422.
type ReusedError struct {
	Name, Key string // of the Op
}

func (e *ReusedError) Error() string {
	return fmt.Sprintf("idempotency: %s: key %q was used with another input", e.Name, e.Key)
}

// Code returns IDEMPOTENCY_KEY_REUSED.
func (e *ReusedError) Code() string { return codeReused }

// HTTPStatus returns 422.
func (e *ReusedError) HTTPStatus() int { return 422 }

// StoredError is returned by Do and DoTx on a repeat whose first run failed with a pawl.NonRetryable error. It has the code, the status
// and the text of that, and is as final.
type StoredError struct {
	Was    string `json:"code"`
	Status int    `json:"status"`
	Text   string `json:"text"`
}

func (e *StoredError) Error() string { return e.Text }

// Unwrap says that it is pawl.NonRetryable.
func (e *StoredError) Unwrap() error { return errFinal }

var errFinal = pawl.NonRetryable(errors.New("idempotency: stored"))

// Code returns that of the error that was stored.
func (e *StoredError) Code() string { return e.Was }

// HTTPStatus returns that of the error that was stored.
func (e *StoredError) HTTPStatus() int { return e.Status }

// Codes of the problems that Middleware answers with, and of the errors that an observer sees.
const (
	codeMissing     = "IDEMPOTENCY_KEY_MISSING"
	codeInvalid     = "IDEMPOTENCY_KEY_INVALID"
	codeReused      = "IDEMPOTENCY_KEY_REUSED"
	codeRunning     = "IDEMPOTENCY_IN_PROGRESS"
	codeUnknown     = "IDEMPOTENCY_OUTCOME_UNKNOWN"
	codeNoPrincipal = "IDEMPOTENCY_NO_PRINCIPAL"
	codeBody        = "IDEMPOTENCY_REQUEST_BODY"
	codeAnswered    = "IDEMPOTENCY_ANSWERED"
)
