//go:build !windows

package fs

import (
	"errors"
	"math"
	"os"
	"slices"
	"syscall"
)

// openFile is os.OpenFile without the five system calls by which that finds out that a regular file or a folder
// cannot be polled.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	fd, err := open(path, flag, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func open(path string, flag int, mode os.FileMode) (fd int, err error) {
	err = uninterrupted(func() error {
		fd, err = syscall.Open(path, flag|syscall.O_CLOEXEC, uint32(mode.Perm()))
		return err
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// tooManyFiles reports whether err says that no more files can be opened.
func tooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// fileLimit is how many files the process may open.
func fileLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) // of either sign, by system
}

// uninterrupted makes a system call again that a signal has interrupted.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// readFile returns the bytes of the file at path, and its permissions, which are those of one file, whatever is renamed meanwhile.
func readFile(path string) (data []byte, mode os.FileMode, err error) {
	fd, err := open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	defer syscall.Close(fd)
	data, stat, err := readOpen(fd, path)
	return data, os.FileMode(stat.Mode).Perm(), err
}

// readOpen returns the bytes of the open file fd, whose path is only told, and what the system knows of it.
func readOpen(fd int, path string) (data []byte, stat syscall.Stat_t, err error) {
	if err := uninterrupted(func() error { return syscall.Fstat(fd, &stat) }); err != nil {
		return nil, stat, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	data = make([]byte, 0, stat.Size+1) // and what tells that there is no more
	for {
		n := 0
		err := uninterrupted(func() error {
			n, err = syscall.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil {
			return nil, stat, &os.PathError{Op: "read", Path: path, Err: err}
		}
		data = data[:len(data)+n]
		if n == 0 || int64(len(data)) == stat.Size && len(data) < cap(data) { // or there was less than was asked for
			return data, stat, nil
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data))
		}
	}
}

// tentative is the mode of a record's file whose name may not be durable yet; see journal.go.
const tentative os.FileMode = 0o400

// isTentative reports whether a file has that mode. One that its owner may not write to for another reason is taken
// for such a file, and is written again.
func isTentative(mode os.FileMode) bool { return mode&0o200 == 0 }

// isAt reports whether the file at path is the one that file is about.
func isAt(path string, file syscall.Stat_t) bool {
	var now syscall.Stat_t
	err := uninterrupted(func() error { return syscall.Stat(path, &now) })
	return err == nil && now.Dev == file.Dev && now.Ino == file.Ino
}

// certify says of the tentative file at path that it is durable.
func certify(path string) error { return os.Chmod(path, private) }

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
	if err := uninterrupted(func() error { return syscall.Rename(from, to) }); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
