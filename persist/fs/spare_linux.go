package fs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// renameat2 is the number of that system call; 0: it is not known.
var renameat2 = map[string]uintptr{"amd64": 316, "arm64": 276, "riscv64": 276, "loong64": 276}[runtime.GOARCH]

// exchange lets two files change places, at once. Its error wraps errors.ErrUnsupported if there is only one of them, or they cannot do that.
func exchange(a, b string) error {
	if renameat2 == 0 {
		return errors.ErrUnsupported
	}
	const (
		here    = ^uintptr(99) // AT_FDCWD
		swapped = 1 << 1       // RENAME_EXCHANGE
	)
	first, err := syscall.BytePtrFromString(a)
	if err != nil {
		return err
	}
	second, err := syscall.BytePtrFromString(b)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(renameat2, here, uintptr(unsafe.Pointer(first)), here, uintptr(unsafe.Pointer(second)), swapped, 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOENT, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EPERM:
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, errno)
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: errno}
}

var errInUse = errors.New("the file is in use")

// reuse opens the file at path to be written to anew: locked, tentative, with its old bytes in it. It returns how many they are, and
// fails if anybody else has it in use.
func reuse(path string) (file *os.File, size int64, err error) {
	if file, err = openFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0); err != nil {
		return nil, 0, err
	}
	fd := int(file.Fd())
	var stat syscall.Stat_t
	err = uninterrupted(func() error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	if err == nil {
		err = uninterrupted(func() error { return syscall.Fstat(fd, &stat) })
	}
	if err == nil && (stat.Nlink != 1 || stat.Mode&syscall.S_IFMT != syscall.S_IFREG || int(stat.Uid) != os.Geteuid()) {
		err = errInUse
	}
	if err == nil {
		err = unopened(fd)
	}
	if err == nil {
		err = file.Chmod(tentative)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, stat.Size, nil
}

// letGo ends the lock of reuse, also if a process that is being started has a copy of the open file, and closes it.
func letGo(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close() // it is synced, or abandoned
}

// unopened returns an error if anybody else has the file fd open: only who is alone with a file can have a lease of it for writing. That is for people who
// read files with tools that know nothing of locks. The lease is not kept: who opens the file would wait for its end.
func unopened(fd int) error {
	for _, lease := range []uintptr{syscall.F_WRLCK, syscall.F_UNLCK} {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETLEASE, lease); errno != 0 {
			return errno
		}
	}
	return nil
}

// syncData makes what is in a file durable.
func syncData(file *os.File) error {
	return uninterrupted(func() error { return syscall.Fdatasync(int(file.Fd())) })
}

// glance is readFile for those who have no lock that keeps writers away. It returns errReused if the file at path was replaced, and written to for another commit,
// before it could be read.
func glance(path string) (data []byte, mode os.FileMode, err error) { return readUnused(path, false) }

// stare is glance, and returns errReused also if the file was replaced and not written to: what it returns was at path when it was read.
func stare(path string) (data []byte, mode os.FileMode, err error) { return readUnused(path, true) }

func readUnused(path string, inPlace bool) (data []byte, mode os.FileMode, err error) {
	fd, err := open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	defer syscall.Close(fd)
	return readLocked(fd, path, inPlace)
}

// readLocked is readUnused once the file is open.
func readLocked(fd int, path string, inPlace bool) (data []byte, mode os.FileMode, err error) {
	err = uninterrupted(func() error { return syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, 0, errReused
	}
	if err != nil {
		return nil, 0, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	data, stat, err := readOpen(fd, path)
	if err != nil {
		return nil, 0, err
	}
	mode = os.FileMode(stat.Mode).Perm()
	if (inPlace || isTentative(mode)) && !isAt(path, stat) { // with the lock: it has not come back
		return nil, 0, errReused
	}
	return data, mode, nil
}
