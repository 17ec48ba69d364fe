package fs

import (
	"errors"
	iofs "io/fs"
	"math"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// openFile opens a file or a folder.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}

// readFile returns the bytes of the file at path; modes tell nothing here.
func readFile(path string) (data []byte, mode os.FileMode, err error) {
	data, err = os.ReadFile(path)
	return data, private, err
}

// tentative is no mode of its own: where folders cannot be synced no file is ever known to be durable.
const tentative = private

func isTentative(os.FileMode) bool { return false }

func tooManyFiles(error) bool { return false }

func fileLimit() int { return math.MaxInt }

func certify(string) error { return nil }

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
