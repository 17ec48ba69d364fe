package fs

import (
	"os"
	"path/filepath"
)

// Spares save a commit of one record from allocating a file and freeing another, on Linux.
//
// The file that a commit of one record replaced is kept in tmp/ as the spare of its stripe, and the
// next commit of the stripe overwrites it instead of making a file. The commit takes a write lease
// first: the kernel grants it only if no process has the file open, for example because it opened
// the file when it was a record's, and an open that comes later waits until the file is written.
// The file that a commit replaced becomes a spare after the record's folder was synced, so it is
// not the record's file on the disk either.
//
// A spare is an ordinary temporary file: a process that holds its stripe exclusively may remove it.

// maxSpare is the longest file that is kept as a spare. Writing a longer one takes longer than
// allocating it.
const maxSpare = 64 << 10

// overwriteSpare writes data durably into the spare of a stripe, which the caller holds
// exclusively, and returns its path. The file is tentative then. It returns "" if there is no spare
// that can be used.
func (s *Store) overwriteSpare(stripe int, data []byte) (path string) {
	path, s.spares[stripe] = s.spares[stripe], ""
	if path == "" || len(data) > maxSpare {
		return s.removeSpare(path)
	}
	if err := overwrite(path, data); err != nil {
		return s.removeSpare(path)
	}
	return path
}

// removeSpare removes the file at path, if there is one, and returns "".
func (s *Store) removeSpare(path string) string {
	if path != "" {
		_ = os.Remove(path)
	}
	return ""
}

// removeTemps removes all temporary files of a stripe, which the caller holds exclusively, also the
// spares of other processes, so that nothing is left of a deleted document. No journal has the
// stripe.
func (s *Store) removeTemps(stripe int) {
	s.spares[stripe] = ""
	names, _ := readNames(s.temps) // if this fails, Open removes them
	for _, name := range names {
		if lock, ok := lockOfTemp(name); ok && lock == stripe {
			_ = os.Remove(filepath.Join(s.temps, name))
		}
	}
}
