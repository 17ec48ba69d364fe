package fs

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"syscall"

	"github.com/pawl-go/pawl/persist"
)

// DamagedError says that a file of the store is not what was written, or not what could be read as
// such after somebody has edited it. It stays so until the file is repaired or removed; the package
// comment says how. The records of other keys are not affected, except by a damaged journal, which
// stands in for all records of its commit.
type DamagedError struct {
	Path   string // of the file
	Reason string
}

func (e *DamagedError) Error() string { return "fs: " + e.Path + " is damaged: " + e.Reason }

// errLocked is what callers see who waited for a lock for too long.
var errLocked = fmt.Errorf("%w: fs: somebody else keeps a lock", persist.ErrUnavailable)

// errBusy is what those see who would not wait.
var errBusy = fmt.Errorf("%w: fs: somebody else has a lock", persist.ErrUnavailable)

// passing are failures that end by themselves, or by the hand of somebody who need not know of
// Pawl. What does not exist is a folder: a disk is not mounted, for example.
var passing = []error{
	iofs.ErrNotExist, iofs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT,
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
}

// explain turns an error of the operating system into what a caller should see.
func explain(err error) error {
	if errors.Is(err, persist.ErrUnavailable) {
		return err
	}
	for _, cause := range passing {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: fs: %w", persist.ErrUnavailable, err)
		}
	}
	return err
}

// notApplied says that nothing was written, because of err.
func notApplied(err error) error { return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err)) }

// isDamaged reports whether err is about a damaged file.
func isDamaged(err error) bool {
	var damaged *DamagedError
	return errors.As(err, &damaged)
}
