//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fs

import (
	"errors"
	"os"
	"syscall"
)

// tryLock opens the file at path, which it makes if it is missing, and locks it. It reports false if
// another holder excludes that.
func tryLock(path string, m mode) (unlock func(), ok bool, err error) {
	file, err := openFile(path, os.O_CREATE|os.O_RDONLY, private)
	if err != nil {
		return nil, false, err
	}
	how := syscall.LOCK_SH
	if m == exclusive {
		how = syscall.LOCK_EX
	}
	fd := int(file.Fd())
	if err := syscall.Flock(fd, how|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			return nil, false, nil
		}
		return nil, false, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return func() {
		_ = syscall.Flock(fd, syscall.LOCK_UN) // a process that is being started may have a copy of the open file
		_ = file.Close()
	}, true, nil
}
