package fs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// A commit of one record leaves the file that it has replaced behind, as the spare of its stripe, and the next commit there is written into it. So nothing
// is allocated on the disk and nothing freed, and to sync the file is to write its bytes, and nothing about the file itself.
//
// A spare is as good as any other temporary file: whoever has its stripe exclusively may find it left behind, and remove it. It is no record's file any more, and
// that is durable, so nobody misses what was in it. But somebody may have opened it while it was the file of a record, and not have read it yet:
//
//   - Whoever has the stripe, in either mode, has opened no spare: what it reads is in place, and stays there.
//   - Whoever reads without the stripe (glance) takes a lock of the file itself, shared, until it has read it. A spare is written to under the exclusive lock of
//     the file, and a spare whose lock is not to be had is not used. That lock ends before the file is in place again, so that nobody waits for a writer to read what is there.
//   - Who could not have that lock opens the path again. So does who finds a file that is tentative and not in place: a commit that has not happened.
//   - Who finds that a file is damaged opens the path again, unless the file is in place: it may be that of another record by now, which has the same stripe.
//   - A file that anybody has open, with whatever tool, is not used.
//   - A file that has another name as well, because somebody has linked it, is not used.

// largestSpare is how long a document's file may be whose predecessor is kept; of longer ones it is the bytes that take the time.
const largestSpare = 64 << 10

// errReused is the answer of glance when the file was taken for another commit meanwhile.
var errReused = errors.New("the file was replaced and written to")

// newTemp creates a temporary file that the given lock protects.
func (s *Store) newTemp(lock int, mode os.FileMode) (*os.File, error) {
	path := filepath.Join(s.temps, fmt.Sprintf("%s-%016x%s", lockName(lock), rand.Uint64(), extension))
	return openFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
}

// takeSpare returns the spare of a stripe, which the caller has exclusively, tentative and with its old bytes in it, and how many they are; or nil.
func (s *Store) takeSpare(stripe int) (spare *os.File, size int64) {
	path := s.spares[stripe]
	if path == "" {
		return nil, 0
	}
	s.spares[stripe] = ""
	spare, size, err := reuse(path)
	if err != nil {
		_ = os.Remove(path) // or it is gone, or Open removes it
		return nil, 0
	}
	return spare, size
}

// keepSpare keeps the file at path, which was a record's, as the spare of a stripe, which the caller has exclusively. With an empty path there is none then.
func (s *Store) keepSpare(stripe int, path string) {
	if old := s.spares[stripe]; old != "" {
		_ = os.Remove(old)
	}
	s.spares[stripe] = ""
	if path == "" {
		return
	}
	if info, err := os.Lstat(path); err != nil || info.Size() > largestSpare {
		_ = os.Remove(path)
		return
	}
	s.spares[stripe] = path
}
