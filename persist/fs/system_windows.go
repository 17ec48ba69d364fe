package fs

import (
	"errors"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// syncFolder does nothing: Windows cannot sync a folder.
func syncFolder(string) error { return nil }

const errSharingViolation = syscall.Errno(32)

// rename puts the file at from in the place of the one at to. Windows refuses that while somebody
// reads the file, which never takes long.
func rename(from, to string) error {
	for begun := time.Now(); ; time.Sleep(rand.N(longestPause)) {
		err := os.Rename(from, to)
		busy := errors.Is(err, errSharingViolation) || errors.Is(err, iofs.ErrPermission)
		if !busy || time.Since(begun) > time.Second {
			return err
		}
	}
}
