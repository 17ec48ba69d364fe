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
)

// sqlState returns the SQLSTATE that the server has given err, or "".
func sqlState(err error) string {
	if err == nil { // as it is nearly always
		return ""
	}
	var answered *pgconn.PgError
	if errors.As(err, &answered) {
		return answered.Code
	}
	return ""
}

// refused reports whether err says that the statement which failed was not run, and that what was
// run of its transaction is undone. A FATAL error, or one about connections, may come from a proxy
// that knows no better than we do.
func refused(err error) bool {
	if errors.Is(err, errUnsent) {
		return true
	}
	var answered *pgconn.PgError
	return errors.As(err, &answered) && answered.SeverityUnlocalized == "ERROR" && class(answered.Code) != classConnection
}

func class(code string) string { return code[:min(2, len(code))] }

// worthRetrying reports whether the same transaction, which err has undone, may succeed at once or
// soon: somebody else was in its way.
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
	case codeUniqueViolation: // else of an index that somebody has added
		return strings.HasSuffix(answered.ConstraintName, "records_pkey")
	}
	return false
}

// passes reports whether err, which a statement or connection failed with, passes by itself.
func passes(err error) bool {
	code := sqlState(err)
	if code == codeFailedTransaction { // somebody else's, who has to roll it back
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

// errBusy says that somebody else has a record of the commit locked.
var errBusy = fmt.Errorf("%w: the record is locked by somebody else", persist.ErrUnavailable)

// errUnsent marks the failure of a round trip that the server has not seen anything of.
var errUnsent = errors.New("nothing was sent")

func unsent(err error) error { return fmt.Errorf("%w: %w", errUnsent, err) }

var errConnectionLost = errors.New("the connection is lost")

// errNoConnection says that the pool did not give a connection in time.
var errNoConnection = fmt.Errorf("%w: no connection was free, or could be made, in time", persist.ErrUnavailable)

// errNoAnswer says that the server did not answer in time.
var errNoAnswer = fmt.Errorf("%w: the server did not answer in time", persist.ErrUnavailable)

// explain turns an error of the driver or the server into what a caller should see. The driver's
// own errors are told but not wrapped, because some hold the configuration, password included.
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

// notApplied says that nothing was written, because of err.
func notApplied(err error) error { return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err)) }

// ended says that ctx has ended.
func ended(ctx context.Context) error { return fmt.Errorf("postgres: %w", context.Cause(ctx)) }

// withdrawn says that nothing was written, because ctx ended first.
func withdrawn(ctx context.Context) error {
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, ended(ctx))
}

// leftBehind leaves the outcome unknown: ctx has ended, and what was sent goes on.
func leftBehind(ctx context.Context) error {
	return fmt.Errorf("postgres: the context ended after the commit was sent, which may still happen: %w", context.Cause(ctx))
}

// outcome is the error of a transaction that failed with err: one that wraps persist.ErrNotApplied
// if nothing can have been written. completed statements were answered before the error came, and
// there were before of them until the commit.
func outcome(err error, completed, before int) error {
	if completed < before && refused(err) {
		return notApplied(err)
	}
	return fmt.Errorf("the outcome is unknown: %w", explain(err))
}
