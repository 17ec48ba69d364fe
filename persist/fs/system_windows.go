package fs

import (
	"errors"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}

// tentative is an ordinary mode here: Windows cannot sync a folder, so no file is known to be
// durable.
const tentative = private

func isTentative(os.FileMode) bool { return false }

func markDurable(string) error { return nil }

// syncFolder does nothing: Windows cannot sync a folder.
func syncFolder(string) error { return nil }

const errSharingViolation = syscall.Errno(32)

// rename puts the file at from in the place of the file at to. Windows refuses that while a process
// has the file open, so rename tries again for a second.
func rename(from, to string) error {
	for begun := time.Now(); ; time.Sleep(rand.N(longestPause)) {
		err := os.Rename(from, to)
		busy := errors.Is(err, errSharingViolation) || errors.Is(err, iofs.ErrPermission)
		if !busy || time.Since(begun) > time.Second {
			return err
		}
	}
}
