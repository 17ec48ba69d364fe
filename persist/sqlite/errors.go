package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/persist"
)

// Primary result codes, https://www.sqlite.org/rescode.html.
const (
	codeError        = 1
	codeBusy         = 5
	codeLocked       = 6
	codeReadOnly     = 8
	codeFull         = 13
	codeTooBig       = 18
	codeConstraint   = 19
	codeBusySnapshot = 517 // extended
)

// foreignCode is resultCode for a driver that says Code, as modernc.org/sqlite does.
func foreignCode(err error) int {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return 0
}

// isBusy reports whether err says that another connection has the lock.
func isBusy(err error) bool {
	if errors.Is(err, errLocked) {
		return true
	}
	primary := resultCode(err) & 0xff
	return primary == codeBusy || primary == codeLocked
}

// errLocked is what callers see instead of SQLITE_BUSY.
var errLocked = fmt.Errorf("%w: the database is locked", persist.ErrUnavailable)

// errStale is what callers see instead of SQLITE_BUSY_SNAPSHOT.
var errStale = fmt.Errorf("%w: the transaction has read, and others have written since: roll it back and start over", persist.ErrUnavailable)

var errNoConnection = fmt.Errorf("%w: the pool has no free connection", persist.ErrUnavailable)

// readable turns a driver's error into what a caller should see.
func readable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("sqlite: %w", context.Cause(ctx)) // drivers say "interrupted"
	}
	if isBusy(err) {
		return errLocked
	}
	if isUnavailable(err) {
		return err
	}
	return fmt.Errorf("sqlite: %w", err)
}

// notApplied says that nothing was written, because of err.
func notApplied(err error) error {
	if isBusy(err) {
		err = errLocked
	}
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
}

// errNoAnswer leaves the outcome unknown: the transaction has begun and does not end.
var errNoAnswer = fmt.Errorf("%w: the context ended, and the database has not answered since", persist.ErrUnavailable)

// errDiscard makes database/sql close a connection instead of keeping it.
var errDiscard = driver.ErrBadConn

// errNothingWritten marks the failure of a transaction that was rolled back.
var errNothingWritten = errors.New("rolled back")

func nothingWritten(err error) error {
	if isBusy(err) {
		err = errLocked
	}
	return &rolledBack{cause: err}
}

// rolledBack is the failure of a transaction that left nothing behind.
type rolledBack struct{ cause error }

func (e *rolledBack) Error() string {
	return persist.ErrNotApplied.Error() + ": sqlite: " + e.cause.Error()
}

// Unwrap returns what the failure is and why it is.
func (e *rolledBack) Unwrap() []error {
	return []error{persist.ErrNotApplied, errNothingWritten, e.cause}
}

func isUnavailable(err error) bool { return errors.Is(err, persist.ErrUnavailable) }
