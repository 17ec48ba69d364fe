package fs

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"syscall"

	"github.com/pawl-go/pawl/persist"
)

// DamagedError says that the content of a file is not what the store wrote, nor a valid repair of
// it. The error lasts until the file is repaired or removed; the package comment says how. A
// damaged journal affects all records of its commit, every other file only its own record.
type DamagedError struct {
	Path   string // of the file
	Reason string
}

func (e *DamagedError) Error() string { return "fs: " + e.Path + " is damaged: " + e.Reason }

// isDamaged reports whether err is about a damaged file.
func isDamaged(err error) bool {
	var damaged *DamagedError
	return errors.As(err, &damaged)
}

var (
	// errLocked is the error of a call that waited for locks until its time was used up.
	errLocked = fmt.Errorf("%w: fs: lock timeout: another goroutine or process holds the lock", persist.ErrUnavailable)
	// errBusy is the error of a call that does not wait for a lock.
	errBusy = fmt.Errorf("%w: fs: another goroutine or process holds the lock", persist.ErrUnavailable)
)

// temporary lists the errors of the operating system that can pass without a change to the store.
// ErrNotExist is about a folder: its disk may not be mounted, for example.
var temporary = []error{
	iofs.ErrNotExist, iofs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT,
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO,
	syscall.ESTALE, syscall.ENOLCK, syscall.EBUSY, syscall.ETIMEDOUT,
}

// explain wraps persist.ErrUnavailable around an error of the operating system that can pass.
func explain(err error) error {
	if errors.Is(err, persist.ErrUnavailable) {
		return err
	}
	for _, cause := range temporary {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: fs: %w", persist.ErrUnavailable, err)
		}
	}
	return err
}

// notApplied returns an error that says that nothing was written because of err.
func notApplied(err error) error {
	if errors.Is(err, persist.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err))
}
