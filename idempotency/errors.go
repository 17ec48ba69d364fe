package idempotency

import (
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
)

// ErrNoRequest is returned by Respond when its context does not belong to a request that came
// through Middleware.
var ErrNoRequest = errors.New("idempotency: context does not belong to a request of Middleware")

// ErrResponded is returned by Respond when an earlier transaction has responded, or when the
// handler is already streaming its response.
var ErrResponded = errors.New("idempotency: request already has a response")

// ReusedError is returned by Do and DoTx for a key that was used with another input. The function
// did not run. Code IDEMPOTENCY_KEY_REUSED; 422.
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

// runningError is the error of Do while its function runs elsewhere. It names operation and key,
// where the error of the lease has the record's id, which is a hash of them.
type runningError struct {
	name, key string // of the Op
	held      *pawl.HeldError
}

func (e *runningError) Error() string {
	s := fmt.Sprintf("idempotency: %s: key %q: held by %s", e.name, e.key, e.held.Holder)
	if e.held.Left > 0 {
		s += fmt.Sprintf(" for another %v", e.held.Left)
	}
	return s
}

// Unwrap returns the error of the lease.
func (e *runningError) Unwrap() error { return e.held }

// StoredError is returned by Do and DoTx on a repeat whose first run failed with a
// pawl.NonRetryable error. It has the code, the status and the text of that error and is
// pawl.NonRetryable too.
type StoredError struct {
	Was    string `json:"code"`   // the code of the first error, as pawl.Code returns it
	Status int    `json:"status"` // its HTTP status
	Text   string `json:"text"`   // its text
}

func (e *StoredError) Error() string { return e.Text }

// Unwrap makes pawl.IsNonRetryable report true.
func (e *StoredError) Unwrap() error { return errFinal }

var errFinal = pawl.NonRetryable(errors.New("idempotency: stored error"))

// Code returns the code of the stored error.
func (e *StoredError) Code() string { return e.Was }

// HTTPStatus returns the status of the stored error.
func (e *StoredError) HTTPStatus() int { return e.Status }

// answered is the error of a claim or a store that finds a response in the record.
type answered struct{ record record }

func (e *answered) Error() string { return "idempotency: record already holds a response" }

// Code returns the code that an observer sees when the response was stored during the claim.
func (e *answered) Code() string { return codeAnswered }

// HTTPStatus returns 200.
func (e *answered) HTTPStatus() int { return 200 }

// reused is the type of errReused.
type reused struct{}

func (reused) Error() string   { return "idempotency: key was used with another payload" }
func (reused) Code() string    { return codeReused }
func (reused) HTTPStatus() int { return 422 }

// errReused is the error of a claim whose fingerprint is not that of the record.
var errReused error = reused{}

// errWaited is the cause of a context that ended because Config.Wait is over or the record is done.
var errWaited = errors.New("idempotency: wait is over")

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
