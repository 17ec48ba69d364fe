//go:build !windows

package fs

import (
	"errors"
	"os"
	"syscall"
)

// openFile is os.OpenFile without the five system calls by which that finds out that a regular file or a folder
// cannot be polled.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, flag|syscall.O_CLOEXEC, uint32(mode.Perm()))
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, syscall.EINTR):
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// tentative is the mode of a record's file whose name may not be durable yet; see journal.go.
const tentative os.FileMode = 0o400

// isTentative reports whether a file has that mode. One that its owner may not write to for another reason is taken
// for such a file, and is written again.
func isTentative(mode os.FileMode) bool { return mode&0o200 == 0 }

// certify says of the tentative file at path that it is durable.
func certify(path string) error { return os.Chmod(path, private) }

// hold opens the file at path, if there is one, so that the kernel frees what it has on the disk when it is closed, and not
// when another one is renamed over it.
func hold(path string) *os.File {
	file, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	return file
}

// syncFolder makes the entries of a folder durable.
func syncFolder(path string) error {
	folder, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// rename puts the file at from in the place of the one at to. Unlike os.Rename it does not look first whether
// that is a folder, which the kernel refuses as well.
func rename(from, to string) error {
	for {
		err := syscall.Rename(from, to)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EINTR):
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
	}
}
