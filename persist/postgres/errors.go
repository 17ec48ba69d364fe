package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// SQLSTATE codes, https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeUniqueViolation      = "23505"
	codeReadOnlyTransaction  = "25006"
	codeFailedTransaction    = "25P02"
	codeNoSuchStatement      = "26000"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	codeLockNotAvailable     = "55P03"
	codeQueryCanceled        = "57014"
	codeIOError              = "58030"

	classConnection            = "08"
	classTransactionState      = "25" // read-only, or idle for too long
	classInsufficientResources = "53"
	classOperatorIntervention  = "57"
	classSystem                = "58"
	classInternal              = "XX"
)

// sqlState returns the SQLSTATE that the server has given err, or "".
func sqlState(err error) string {
	if err == nil {
		return ""
	}
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		return answered.Code
	}
	return ""
}

// refused reports whether err proves that the failed statement had no effect and its transaction
// was rolled back. A FATAL error, or one about connections, proves nothing: it may come from a
// proxy.
func refused(err error) bool {
	if errors.Is(err, errUnsent) {
		return true
	}
	var answered *pgconn.PgError
	return errors.As(err, &answered) && answered.SeverityUnlocalized == "ERROR" && class(answered.Code) != classConnection
}

func class(code string) string { return code[:min(2, len(code))] }

// worthRetrying reports whether the transaction that failed with err may soon succeed, because
// another transaction was in its way.
func worthRetrying(err error) bool {
	if errors.Is(err, errBusy) {
		return true
	}
	var answered *pgconn.PgError
	if !errors.As(err, &answered) {
		return false
	}
	switch answered.Code {
	case codeSerializationFailure, codeDeadlockDetected, codeLockNotAvailable:
		return true
	case codeUniqueViolation: // of a primary key, not of an index that a user added
		return strings.HasSuffix(answered.ConstraintName, "records_pkey") || strings.HasSuffix(answered.ConstraintName, "log_numbers")
	}
	return false
}

// passes reports whether the cause of err ends by itself.
func passes(err error) bool {
	code := sqlState(err)
	if code == codeFailedTransaction { // the caller has to roll it back
		return false
	}
	switch class(code) {
	case "": // no answer: the network, or the server is down
		return true
	case classConnection, classTransactionState, classInsufficientResources, classOperatorIntervention:
		return true
	}
	return code == codeIOError || worthRetrying(err)
}

// errBusy means that another transaction has locked a record of the commit.
var errBusy = fmt.Errorf("%w: the record is locked by another transaction", persist.ErrUnavailable)

// errUnsent marks the error of a round trip that sent nothing.
var errUnsent = errors.New("nothing was sent")

func unsent(err error) error { return fmt.Errorf("%w: %w", errUnsent, err) }

var errConnectionLost = errors.New("the connection is lost")

// errNoConnection means that the pool returned no connection within Config.AcquireTimeout.
var errNoConnection = fmt.Errorf("%w: no free connection within the acquire timeout", persist.ErrUnavailable)

// errNoAnswer means that the server did not answer within Config.CommitTimeout.
var errNoAnswer = fmt.Errorf("%w: the server did not answer in time", persist.ErrUnavailable)

// explain turns an error of the driver or the server into one for the caller. Errors of the driver
// are quoted and not wrapped, because some contain the configuration with the password.
func explain(err error) error {
	var answered *pgconn.PgError
	switch {
	case errors.Is(err, persist.ErrUnavailable):
		return err
	case errors.As(err, &answered) && passes(err):
		return fmt.Errorf("%w: postgres: %w", persist.ErrUnavailable, answered)
	case errors.As(err, &answered):
		return fmt.Errorf("postgres: %w", answered)
	default:
		return fmt.Errorf("%w: postgres: %v", persist.ErrUnavailable, err)
	}
}

// notApplied returns the error of a commit that wrote nothing because of err.
func notApplied(err error) error { return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err)) }

// ended returns the error of a call whose ctx ended.
func ended(ctx context.Context) error { return fmt.Errorf("postgres: %w", context.Cause(ctx)) }

// withdrawn returns the error of a commit whose ctx ended before it was sent.
func withdrawn(ctx context.Context) error {
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, ended(ctx))
}

// leftBehind returns the error of a call whose ctx ended when the database could see its statements.
func leftBehind(ctx context.Context) error {
	return fmt.Errorf("postgres: the outcome is unknown: the context ended while the call was in progress: %w", context.Cause(ctx))
}

// outcome returns the error of a transaction that failed with err after completed statements. It
// wraps persist.ErrNotApplied if nothing can have been written: the server refused one of the first
// before statements, which come before the commit, or the commit itself.
func outcome(err error, completed, before int) error {
	if refused(err) && (completed < before || rolledBack(err)) {
		return notApplied(err)
	}
	return fmt.Errorf("the outcome is unknown: %w", explain(err))
}

// rolledBack reports whether err, which a COMMIT was refused with, proves that the transaction was
// rolled back. A deferred constraint does: a committed transaction does not fail any more. An error
// about the server itself may come from a proxy that has lost the server.
func rolledBack(err error) bool {
	switch class(sqlState(err)) {
	case classOperatorIntervention, classSystem, classInternal:
		return false
	}
	return true
}
