//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fs

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// lockFile is a file that can be locked. It stays open when it is unlocked, and is locked by one at a time: two with
// one open file would have one lock.
type lockFile struct {
	file *os.File
	stat syscall.Stat_t // of file
}

// openLockFile opens the file at path, and makes it if there is none.
func openLockFile(path string) (*lockFile, error) {
	file, err := openFile(path, os.O_CREATE|os.O_RDONLY, private)
	if err != nil {
		return nil, err
	}
	f := &lockFile{file: file}
	if err := syscall.Fstat(int(file.Fd()), &f.stat); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// try locks the file if others do not have it.
func (f *lockFile) try(m mode) (bool, error) {
	how := syscall.LOCK_SH
	if m == exclusive {
		how = syscall.LOCK_EX
	}
	err := f.flock(how | syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlock gives the lock back.
func (f *lockFile) unlock() { _ = f.flock(syscall.LOCK_UN) } // a file that is open can be unlocked

func (f *lockFile) flock(how int) error {
	defer runtime.KeepAlive(f)
	return uninterrupted(func() error { return syscall.Flock(int(f.file.Fd()), how) })
}

// inPlace reports whether the file is still the one that has its name.
func (f *lockFile) inPlace() bool { return isAt(f.file.Name(), f.stat) }

// close also unlocks the file.
func (f *lockFile) close() { _ = f.file.Close() }
