package fs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// spare is an empty temporary file for the next commit of a record in its stripe. To create a file can take as long as to sync it, so where
// one commit follows the other it is done while the folder of the one before is synced. A spare is as good as any other
// temporary file: whoever has its stripe exclusively may find it left behind, and remove it.
type spare struct {
	stripe int
	file   *os.File
}

// newTemp creates a temporary file that the given lock protects.
func (s *Store) newTemp(lock int, mode os.FileMode) (*os.File, error) {
	path := filepath.Join(s.temps, fmt.Sprintf("%s-%016x%s", lockName(lock), rand.Uint64(), extension))
	return openFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
}

// keepSpare creates a spare for the next commit, in the place of the last one.
func (s *Store) keepSpare(stripe int) {
	if file, err := s.newTemp(stripe, tentative); err == nil {
		discard(s.spare.Swap(&spare{stripe, file}))
	}
}

// takeSpare returns the spare for a stripe, which the caller has exclusively, or nil.
func (s *Store) takeSpare(stripe int) *os.File {
	kept := s.spare.Load()
	if kept == nil || kept.stripe != stripe || !s.spare.CompareAndSwap(kept, nil) {
		return nil
	}
	if !hasName(kept.file) { // somebody has found it
		_ = kept.file.Close()
		return nil
	}
	return kept.file
}

// discard removes a spare that nobody takes; nil: there is none.
func discard(unused *spare) {
	if unused != nil {
		_ = unused.file.Close()
		_ = os.Remove(unused.file.Name())
	}
}
