package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/pawl-go/pawl/persist"
)

// Result codes, https://www.sqlite.org/rescode.html.
const (
	codeError        = 1
	codeBusy         = 5
	codeLocked       = 6
	codeNoMemory     = 7
	codeReadOnly     = 8
	codeIOError      = 10
	codeCorrupt      = 11
	codeFull         = 13
	codeCannotOpen   = 14
	codeProtocol     = 15 // too many connections started to read at once
	codeConstraint   = 19
	codeNotADatabase = 26
	codeBusySnapshot = 517 // extended
)

var (
	// errLocked replaces SQLITE_BUSY.
	errLocked = fmt.Errorf("%w: the database is locked", persist.ErrUnavailable)

	// errStale replaces SQLITE_BUSY_SNAPSHOT.
	errStale = fmt.Errorf("%w: the transaction read data that has changed since: roll it back and start over", persist.ErrUnavailable)

	errNoConnection = fmt.Errorf("%w: the pool has no free connection", persist.ErrUnavailable)

	// errNoAnswer leaves the outcome unknown: the transaction has begun and does not end.
	errNoAnswer = fmt.Errorf("%w: the context ended, and the database has not answered since", persist.ErrUnavailable)

	// errDiscard makes database/sql close a connection instead of keeping it.
	errDiscard = driver.ErrBadConn

	// errRolledBack is wrapped around the failure of a transaction that left nothing behind.
	errRolledBack = fmt.Errorf("%w: rolled back", persist.ErrNotApplied)
)

// DamagedError says that the database failed the check of Config.CheckIntegrity.
type DamagedError struct {
	Path   string // the absolute path of the file; empty for New
	Reason string // the first findings of SQLite
}

func (e *DamagedError) Error() string {
	return strings.TrimRight("sqlite: damaged database "+e.Path, " ") + ": " + e.Reason
}

// foreignCode is resultCode for a driver whose errors have a method Code, such as
// modernc.org/sqlite.
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
	return primary == codeBusy || primary == codeLocked || primary == codeProtocol
}

// readable returns err as callers see it: a lock and the end of ctx in the words of the contract.
func readable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // a driver says "interrupted"
		return fmt.Errorf("sqlite: %w", context.Cause(ctx))
	case isBusy(err):
		return errLocked
	case errors.Is(err, persist.ErrUnavailable):
		return err
	}
	return fmt.Errorf("sqlite: %w", err)
}

// explain returns an error of the disk, the file or a lock as one that wraps persist.ErrUnavailable:
// it can pass, and no document is to blame.
func explain(err error) error {
	if isBusy(err) {
		return errLocked
	}
	switch resultCode(err) & 0xff {
	case codeNoMemory, codeReadOnly, codeIOError, codeFull, codeCannotOpen:
		return fmt.Errorf("%w: %w", persist.ErrUnavailable, err)
	}
	return err
}

// leavesNothing reports whether err, the error of COMMIT, proves that nothing was written: there was
// no lock, no room for the last frame, which would have made the others count, or a deferred
// constraint failed.
func leavesNothing(err error) bool {
	code := resultCode(err) & 0xff
	return isBusy(err) || code == codeFull || code == codeConstraint
}

// notApplied says that nothing was written, because of err.
func notApplied(err error) error {
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err))
}

// nothingWritten says that the transaction was rolled back, because of cause.
func nothingWritten(cause error) error {
	return fmt.Errorf("%w: sqlite: %w", errRolledBack, explain(cause))
}
