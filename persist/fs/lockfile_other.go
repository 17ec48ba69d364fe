//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package fs

import "github.com/gofrs/flock"

// lockFile is a file that can be locked, and is open while it is.
type lockFile struct{ file *flock.Flock }

func openLockFile(path string) (*lockFile, error) { return &lockFile{flock.New(path)}, nil }

// try locks the file if others do not have it.
func (f *lockFile) try(m mode) (bool, error) {
	if m == exclusive {
		return f.file.TryLock()
	}
	return f.file.TryRLock()
}

// unlock gives the lock back.
func (f *lockFile) unlock() { _ = f.file.Unlock() } // a file that is open and locked can be unlocked

// inPlace reports whether the file is still the one that has its name: it was opened just now.
func (f *lockFile) inPlace() bool { return true }

func (f *lockFile) close() { f.unlock() }
