//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package fs

import "github.com/gofrs/flock"

// tryLock opens the file at path, which it makes if it is missing, and locks it. It reports false if
// another holder excludes that.
func tryLock(path string, m mode) (unlock func(), ok bool, err error) {
	file := flock.New(path)
	try := file.TryRLock
	if m == exclusive {
		try = file.TryLock
	}
	ok, err = try()
	return func() { _ = file.Unlock() }, ok, err
}
