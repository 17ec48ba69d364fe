package pawl

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Sentinel errors, for errors.Is. Typed errors below match the sentinel that their comment names.
var (
	// Errors of the call; nothing was written.

	// ErrReentrant is returned when a function mutates its own scope through its own context.
	ErrReentrant = sentinel("REENTRANT", 500, "mutation of a scope from inside its own function")
	// ErrNotPersisted is returned when an operation that needs a persisted scope gets one in
	// memory.
	ErrNotPersisted = sentinel("NOT_PERSISTED", 500, "scope is in memory only")
	// ErrOutsideTx is returned when a verb gets the context of a transaction that its scope is not
	// part of. Scope.In makes the scope part of it.
	ErrOutsideTx = sentinel("OUTSIDE_TX", 500, "scope used with a transaction's context, but outside the transaction")
	// ErrInTx is returned by operations that are not possible inside a transaction.
	ErrInTx = sentinel("IN_TX", 500, "not possible inside a transaction")
	// ErrNoNative is returned by WithNative when the store has no database transaction of that
	// type.
	ErrNoNative = sentinel("NO_NATIVE", 500, "store has no native transaction of this type")
	// ErrNoStore is returned by a persisted scope of a runtime without a store.
	ErrNoStore = sentinel("NO_STORE", 500, "persisted scope without a store")
	// ErrClosed is returned after Close.
	ErrClosed = sentinel("CLOSED", 503, "closed")
	// ErrAbandoned is returned by a call whose function was discarded by Scope.Abandon.
	ErrAbandoned = sentinel("ABANDONED", 500, "function abandoned")

	// Errors of the state; nothing was written.

	// ErrNotFound is returned with IfExists when the scope has no state.
	ErrNotFound = sentinel("NOT_FOUND", 404, "not found")
	// ErrExists is returned with IfAbsent when the scope has state.
	ErrExists = sentinel("EXISTS", 409, "already exists")
	// ErrExpired is returned with IfVersion when the scope has expired.
	ErrExpired = sentinel("EXPIRED", 410, "expired")
	// ErrConflict is matched by *ConcurrentModificationError and *ConcurrencyError. A Persist wraps
	// it when the expected version is not the current one.
	ErrConflict = sentinel("CONFLICT", 409, "conflict")
	// ErrDeleted is matched by *DeletedError.
	ErrDeleted = sentinel("DELETED", 410, "deleted")
	// ErrHeld is matched by *HeldError.
	ErrHeld = sentinel("HELD", 409, "lease held by another holder")
	// ErrLeaseLost is matched by *LeaseLostError.
	ErrLeaseLost = sentinel("LEASE_LOST", 409, "lease lost")

	// Errors of capacity; nothing was written.

	// ErrOverloaded is matched by *OverloadedError.
	ErrOverloaded = sentinel("OVERLOADED", 503, "queue full")
	// ErrUnavailable is matched by *UnavailableError.
	ErrUnavailable = sentinel("UNAVAILABLE", 503, "store unavailable")

	// Errors after which the change may have been applied: OutcomeUnknown tells.

	// ErrTimeout is matched by *ScopeMutationTimeoutError.
	ErrTimeout = sentinel("SCOPE_MUTATION_TIMEOUT", 504, "mutation timed out")
	// ErrUnknownOutcome is matched by *UnknownOutcomeError.
	ErrUnknownOutcome = sentinel("UNKNOWN_OUTCOME", 500, "outcome unknown")
)

// Phase says how far a mutation had come when its caller stopped waiting.
type Phase uint8

const (
	PhaseQueued     Phase = iota + 1 // withdrawn: it was not and will not be applied; a retry is safe
	PhaseRunning                     // in memory: its function runs on, and commits if it returns
	PhaseCommitting                  // it is part of a commit in progress, which may succeed
)

// String returns the name of the phase in lower case.
func (p Phase) String() string {
	switch p {
	case PhaseQueued:
		return "queued"
	case PhaseRunning:
		return "running"
	case PhaseCommitting:
		return "committing"
	}
	return "unknown"
}

// ScopeMutationTimeoutError is returned at the deadline of an in-memory mutation; it matches
// ErrTimeout. In PhaseQueued the mutation never ran and a retry is safe. In PhaseRunning it runs on
// and commits if it returns: a retry may apply it twice. Code SCOPE_MUTATION_TIMEOUT; 503 while
// queued, 504 once running.
type ScopeMutationTimeoutError struct {
	Scope          Key
	Budget, Waited time.Duration
	Phase          Phase
}

func (e *ScopeMutationTimeoutError) Error() string {
	what := "it never ran, a retry is safe"
	if e.Phase != PhaseQueued {
		what = "it runs on and may still commit, a retry may apply it twice"
	}
	return fmt.Sprintf("pawl: %s: mutation timed out after %v (budget %v) while %v: %s", e.Scope, e.Waited, e.Budget, e.Phase, what)
}

// Is matches ErrTimeout.
func (e *ScopeMutationTimeoutError) Is(target error) bool { return target == ErrTimeout }

// Code returns SCOPE_MUTATION_TIMEOUT.
func (e *ScopeMutationTimeoutError) Code() string { return "SCOPE_MUTATION_TIMEOUT" }

// HTTPStatus returns 503 while queued, 504 once running.
func (e *ScopeMutationTimeoutError) HTTPStatus() int {
	if e.Phase == PhaseQueued {
		return 503
	}
	return 504
}

// ConcurrentModificationError is returned when a persisted mutation, or a transaction, lost to
// other writers until its retry budget was spent; nothing was modified. It is about versions that
// Pawl chose: the caller asserted none. For an asserted version see ConcurrencyError. A retry
// repeats the same call, which reads the current state by itself. Code CONCURRENT_MODIFICATION;
// 409; retryable.
type ConcurrentModificationError struct {
	Scope            Key
	Expected, Actual uint64        // versions of the last attempt; Actual won
	Attempts         int           // commits that lost
	Elapsed          time.Duration // since the call
}

func (e *ConcurrentModificationError) Error() string {
	return fmt.Sprintf("pawl: %s: concurrent modification: expected version %d, found %d, after %d attempts in %v",
		e.Scope, e.Expected, e.Actual, e.Attempts, e.Elapsed)
}

// Is matches ErrConflict.
func (e *ConcurrentModificationError) Is(target error) bool { return target == ErrConflict }

// Code returns CONCURRENT_MODIFICATION.
func (e *ConcurrentModificationError) Code() string { return "CONCURRENT_MODIFICATION" }

// HTTPStatus returns 409.
func (e *ConcurrentModificationError) HTTPStatus() int { return 409 }

// ConcurrencyError is returned when a version that the caller asserted, as with IfVersion, is not
// the current one; the call was not repeated and nothing was modified. For a call that asserted no
// version see ConcurrentModificationError. A retry must read the scope again first and assert the
// version it read: the same call with the same version fails again. Code CONCURRENCY_ERROR; 409;
// retryable.
type ConcurrencyError struct {
	Scope            Key
	Expected, Actual uint64 // Actual is 0 if the scope has no state
}

func (e *ConcurrencyError) Error() string {
	return fmt.Sprintf("pawl: %s: expected version %d, found %d", e.Scope, e.Expected, e.Actual)
}

// Is matches ErrConflict.
func (e *ConcurrencyError) Is(target error) bool { return target == ErrConflict }

// Code returns CONCURRENCY_ERROR.
func (e *ConcurrencyError) Code() string { return "CONCURRENCY_ERROR" }

// HTTPStatus returns 409.
func (e *ConcurrencyError) HTTPStatus() int { return 409 }

// CanceledError is returned when the context ended before the call did; it wraps the cause of the
// context. In PhaseQueued the mutation was withdrawn. In a later phase it may be applied. Code
// CANCELED; 499.
type CanceledError struct {
	Scope Key
	Phase Phase
	Cause error
}

func (e *CanceledError) Error() string {
	what := "it was withdrawn"
	if e.Phase != PhaseQueued {
		what = "it may still commit"
	}
	return fmt.Sprintf("pawl: %s: mutation canceled while %v, %s: %v", e.Scope, e.Phase, what, e.Cause)
}

// Unwrap returns the context's cause.
func (e *CanceledError) Unwrap() error { return e.Cause }

// leftBy returns the error of a call whose context has ended: *LeaseLostError if the loss of a
// lease ended it and the mutation was withdrawn, otherwise *CanceledError.
func leftBy(ctx context.Context, key Key, phase Phase) error {
	cause := context.Cause(ctx)
	if lost, ok := cause.(*LeaseLostError); ok && phase == PhaseQueued {
		return lost
	}
	return &CanceledError{Scope: key, Phase: phase, Cause: cause}
}

// Code returns CANCELED.
func (e *CanceledError) Code() string { return "CANCELED" }

// HTTPStatus returns 499.
func (e *CanceledError) HTTPStatus() int { return 499 }

// UnknownOutcomeError is returned when a commit was sent, its answer was lost, and the store did
// not tell in time whether it was applied. Read the scope before a retry. Code UNKNOWN_OUTCOME;
// 500.
type UnknownOutcomeError struct {
	Scope  Key
	Commit string // id of the commit, as in persist.Record.Commits; empty for the caller's own Persist
	Cause  error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("pawl: %s: commit %s: outcome unknown: %v", e.Scope, e.Commit, e.Cause)
}

// Unwrap returns the last error of the store.
func (e *UnknownOutcomeError) Unwrap() error { return e.Cause }

// Is matches ErrUnknownOutcome.
func (e *UnknownOutcomeError) Is(target error) bool { return target == ErrUnknownOutcome }

// Code returns UNKNOWN_OUTCOME.
func (e *UnknownOutcomeError) Code() string { return "UNKNOWN_OUTCOME" }

// HTTPStatus returns 500.
func (e *UnknownOutcomeError) HTTPStatus() int { return 500 }

// DeletedError is returned by every mutation of a deleted scope, except a deletion and one that
// creates the scope anew with IfAbsent. Code DELETED; 410.
type DeletedError struct {
	Scope   Key
	Version uint64 // of the tombstone
}

func (e *DeletedError) Error() string {
	return fmt.Sprintf("pawl: %s: deleted at version %d", e.Scope, e.Version)
}

// Is matches ErrDeleted.
func (e *DeletedError) Is(target error) bool { return target == ErrDeleted }

// Code returns DELETED.
func (e *DeletedError) Code() string { return "DELETED" }

// HTTPStatus returns 410.
func (e *DeletedError) HTTPStatus() int { return 410 }

// HeldError is returned while another holder has the lease. The lease is free after Left at the
// latest, unless its holder renews it. Code HELD; 409; retryable.
type HeldError struct {
	Scope  Key
	Holder string
	Token  uint64        // of the lease; 0: not known
	Left   time.Duration // until the lease expires, by the store's clock; 0: not known
}

func (e *HeldError) Error() string {
	if e.Left == 0 {
		return fmt.Sprintf("pawl: %s: held by %s", e.Scope, e.Holder)
	}
	return fmt.Sprintf("pawl: %s: held by %s for another %v", e.Scope, e.Holder, e.Left)
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Code returns HELD.
func (e *HeldError) Code() string { return "HELD" }

// HTTPStatus returns 409.
func (e *HeldError) HTTPStatus() int { return 409 }

// LeaseLostError is returned to a former holder of a lease; nothing was committed. Code LEASE_LOST;
// 409.
type LeaseLostError struct {
	Scope    Key
	Token    uint64
	Holder   string // the current holder; empty: none, or not known
	Released bool   // the former holder released it
	Cause    error  // why it was lost; nil: not known
}

func (e *LeaseLostError) Error() string {
	s := fmt.Sprintf("pawl: %s: lease %d lost", e.Scope, e.Token)
	switch {
	case e.Released:
		s = fmt.Sprintf("pawl: %s: lease %d was released", e.Scope, e.Token)
	case e.Holder != "":
		s += ": held by " + e.Holder + " now"
	case e.Cause != nil:
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause, if there is one.
func (e *LeaseLostError) Unwrap() error { return e.Cause }

// Is matches ErrLeaseLost.
func (e *LeaseLostError) Is(target error) bool { return target == ErrLeaseLost }

// Code returns LEASE_LOST.
func (e *LeaseLostError) Code() string { return "LEASE_LOST" }

// HTTPStatus returns 409.
func (e *LeaseLostError) HTTPStatus() int { return 409 }

// FieldError is returned when a verb or a value does not fit the state; nothing was modified.
// Code FIELD; 422.
type FieldError struct {
	Scope  Key
	Field  Field
	Verb   string
	Reason string
}

func (e *FieldError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pawl: %s: ", e.Scope)
	if e.Verb != "" {
		b.WriteString(e.Verb + ": ")
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "field %q: ", string(e.Field))
	}
	return b.String() + e.Reason
}

// Code returns FIELD.
func (e *FieldError) Code() string { return "FIELD" }

// HTTPStatus returns 422.
func (e *FieldError) HTTPStatus() int { return 422 }

// LimitError is returned when a published limit is exceeded; nothing was written. Code LIMIT; 413
// for documents, otherwise 400.
type LimitError struct {
	Scope      Key
	What       string // "kind", "id", "holder", "label", "document", "depth", "scopes", "labels" or "commit" (in bytes)
	Limit, Got int    // Got is 0 if it was not measured
	Reason     string // details; may be empty
}

func (e *LimitError) Error() string {
	s := fmt.Sprintf("pawl: %s: %s: limit %d", shortened(e.Scope.String()), e.What, e.Limit)
	if e.Got != 0 {
		s += fmt.Sprintf(", got %d", e.Got)
	}
	if e.Reason != "" {
		s += ": " + shortened(e.Reason)
	}
	return s
}

// shortenedTo is the length in bytes at which shortened cuts.
const shortenedTo = 100

// shortened returns s for a message. A long s, such as an id beyond its limit, is cut and followed
// by its length.
func shortened(s string) string {
	if len(s) <= shortenedTo {
		return s
	}
	n := shortenedTo
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s... (%d bytes)", s[:n], len(s))
}

// Code returns LIMIT.
func (e *LimitError) Code() string { return "LIMIT" }

// HTTPStatus returns 413 for documents, otherwise 400.
func (e *LimitError) HTTPStatus() int {
	if e.What == "document" {
		return 413
	}
	return 400
}

// KindError is returned when a kind is defined twice in different ways, or its definition is
// invalid. Code KIND; 500.
type KindError struct {
	Kind   string
	Reason string
}

func (e *KindError) Error() string { return fmt.Sprintf("pawl: kind %q: %s", e.Kind, e.Reason) }

// Code returns KIND.
func (e *KindError) Code() string { return "KIND" }

// HTTPStatus returns 500.
func (e *KindError) HTTPStatus() int { return 500 }

// ArgumentError is returned for an invalid argument, such as a nil context or a nil function;
// nothing was done. Code ARGUMENT; 500.
type ArgumentError struct {
	Argument string
	Reason   string
}

func (e *ArgumentError) Error() string { return fmt.Sprintf("pawl: %s: %s", e.Argument, e.Reason) }

// Code returns ARGUMENT.
func (e *ArgumentError) Code() string { return "ARGUMENT" }

// HTTPStatus returns 500.
func (e *ArgumentError) HTTPStatus() int { return 500 }

// SchemaError is returned for a document that this release cannot read: a newer release wrote it
// (Stored is above Known), an upgrade step refused it, or it does not fit the type. Where Take finds
// it, a panic of an upgrade step or of the type's own JSON code counts as well. The document is not
// modified. Code SCHEMA; 500.
type SchemaError struct {
	Scope         Key
	Stored, Known int   // schema versions of the document and of this release
	Cause         error // nil: the document is newer; *PanicError: reading it panicked
}

func (e *SchemaError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("pawl: %s: document has schema version %d, this release knows %d", e.Scope, e.Stored, e.Known)
	}
	var why any = e.Cause
	if p, ok := e.Cause.(*PanicError); ok {
		why = fmt.Sprintf("panic: %v", p.Value) // without the stack, so that equal failures have equal texts
	}
	return fmt.Sprintf("pawl: %s: document of schema version %d (known: %d) cannot be read: %v", e.Scope, e.Stored, e.Known, why)
}

// Unwrap returns the cause, if there is one.
func (e *SchemaError) Unwrap() error { return e.Cause }

// Code returns SCHEMA.
func (e *SchemaError) Code() string { return "SCHEMA" }

// HTTPStatus returns 500.
func (e *SchemaError) HTTPStatus() int { return 500 }

// DeadlockError is returned to the call that would close a cycle of functions that wait for each
// other; its mutation never ran. Code DEADLOCK; 500.
type DeadlockError struct{ Cycle []Key }

func (e *DeadlockError) Error() string {
	names := make([]string, len(e.Cycle))
	for i, k := range e.Cycle {
		names[i] = k.String()
	}
	return "pawl: deadlock: " + strings.Join(names, " waits for ")
}

// Code returns DEADLOCK.
func (e *DeadlockError) Code() string { return "DEADLOCK" }

// HTTPStatus returns 500.
func (e *DeadlockError) HTTPStatus() int { return 500 }

// OverloadedError is returned when the queue of a scope is full; the mutation never ran.
// Code OVERLOADED; 503; retryable.
type OverloadedError struct {
	Scope Key
	Queue int // mutations that wait
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("pawl: %s: queue full: %d mutations waiting", e.Scope, e.Queue)
}

// Is matches ErrOverloaded.
func (e *OverloadedError) Is(target error) bool { return target == ErrOverloaded }

// Code returns OVERLOADED.
func (e *OverloadedError) Code() string { return "OVERLOADED" }

// HTTPStatus returns 503.
func (e *OverloadedError) HTTPStatus() int { return 503 }

// UnavailableError is returned when the store cannot be reached or answers too late, and nothing
// was applied. Code UNAVAILABLE; 503; retryable.
type UnavailableError struct {
	Scope Key
	Cause error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("pawl: %s: store unavailable: %v", e.Scope, e.Cause)
}

// Unwrap returns the error of the store.
func (e *UnavailableError) Unwrap() error { return e.Cause }

// Is matches ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Code returns UNAVAILABLE.
func (e *UnavailableError) Code() string { return "UNAVAILABLE" }

// HTTPStatus returns 503.
func (e *UnavailableError) HTTPStatus() int { return 503 }

// BusyError is returned by Runtime.Close when its context ended while mutations were running; it
// names them. Code BUSY; 503.
type BusyError struct {
	Running []Running
	Cause   error // why the context ended
}

// Running is a mutation that was running when Close returned.
type Running struct {
	Scope   Key
	Verb    string
	Waiting int // mutations queued behind it
}

func (e *BusyError) Error() string {
	var b strings.Builder
	b.WriteString("pawl: close: still running:")
	for _, r := range e.Running {
		fmt.Fprintf(&b, " %s (%s, %d waiting)", r.Scope, r.Verb, r.Waiting)
	}
	return b.String() + ": " + e.Cause.Error()
}

// Unwrap returns the cause of the context's end.
func (e *BusyError) Unwrap() error { return e.Cause }

// Code returns BUSY.
func (e *BusyError) Code() string { return "BUSY" }

// HTTPStatus returns 503.
func (e *BusyError) HTTPStatus() int { return 503 }

// PanicError is the value that a verb panics with when its function panicked. It holds the value
// and the stack of the original panic.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("pawl: function panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// sentinel returns a new error that is equal only to itself.
func sentinel(code string, status int, text string) error {
	return &sentinelError{code: code, status: status, text: "pawl: " + text}
}

type sentinelError struct {
	code   string
	status int
	text   string
}

func (e *sentinelError) Error() string   { return e.text }
func (e *sentinelError) Code() string    { return e.code }
func (e *sentinelError) HTTPStatus() int { return e.status }
