//go:build !windows

package fs

import (
	"errors"
	"os"
	"syscall"
)

// openFile is os.OpenFile without the system calls by which that learns that a regular file or a
// folder cannot be polled. A commit opens a dozen files.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, flag|syscall.O_CLOEXEC, uint32(mode.Perm()))
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// tentative is the mode of a record's file whose rename may not be durable yet; see journal.go.
const tentative os.FileMode = 0o400

// isTentative reports whether a file has that mode. A file that its owner may not write to for
// another reason counts as tentative and is written again.
func isTentative(mode os.FileMode) bool { return mode&0o200 == 0 }

// markDurable ends the tentative state of the file at path.
func markDurable(path string) error { return os.Chmod(path, private) }

// syncFolder makes the entries of a folder durable.
func syncFolder(path string) error {
	folder, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// rename puts the file at from in the place of the file at to.
func rename(from, to string) error { return os.Rename(from, to) }
