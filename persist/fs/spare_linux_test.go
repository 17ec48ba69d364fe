package fs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// writer returns a function that commits the next version of the document "a", as long as it is told.
func writer(t *testing.T, s *Store) (commit func(length int)) {
	version := uint64(0)
	return func(length int) {
		t.Helper()
		doc := `{"text":"` + strings.Repeat("x", length) + `"}`
		_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: []persist.Write{{Key: thing("a"), Expected: version, Version: version + 1, Doc: []byte(doc)}}})
		require.NoError(t, err)
		version++
		r, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
		require.Equal(t, version, r.Version)
		require.Equal(t, doc, string(r.Doc))
	}
}

// numberAt returns the number of the file at path.
func numberAt(t *testing.T, path string) uint64 {
	t.Helper()
	var stat syscall.Stat_t
	require.NoError(t, syscall.Stat(path, &stat))
	return stat.Ino
}

// TestSpare: a document that is written again and again has two files, which change places, however long it is. The other one is nothing but a temporary
// file: who opens the store may remove it, and so does Close.
//
// Proves STORE-3, STORE-6.
func TestSpare(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, impatient)
	commit, temps := writer(t, s), func() []string { return inFolder(t, s.temps, "") }
	commit(10)
	require.Empty(t, temps())
	numbers := map[uint64]int{}
	for _, length := range []int{20, 3000, 5, 9000, 0, 12, 5000, 5001, 4999, 1} {
		commit(length)
		require.Len(t, temps(), 1)
		numbers[numberAt(t, s.file(thing("a")))]++
	}
	require.Len(t, numbers, 2, "they are not used again")

	commit(largestSpare) // which its file is longer than
	commit(largestSpare)
	require.Len(t, temps(), 1, "that of the last short one")
	commit(10)
	require.Empty(t, temps(), "a long one is not kept")
	commit(10)
	require.Len(t, temps(), 1)

	openAt(t, dir, impatient)
	require.Empty(t, temps())
	commit(10)
	require.Len(t, temps(), 1)
	require.NoError(t, s.Close())
	require.Empty(t, temps())
	require.Empty(t, openIn(t, s.temps))
}

// TestSpareOfADeletedDocument: nothing is left of what was in a document that is deleted, by a commit of its own or with others.
//
// Proves STORE-6.
func TestSpareOfADeletedDocument(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	for i, others := range [][]persist.Write{nil, {setTo(thing("b"), 0, 1)}} {
		key := thing(string(rune('x' + i)))
		for version := range uint64(3) {
			_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: []persist.Write{setTo(key, version, 1)}})
			require.NoError(t, err)
		}
		require.Len(t, inFolder(t, s.temps, ""), 1)
		_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: append(others, persist.Write{Key: key, Expected: 3, Version: 4, Deleted: true})})
		require.NoError(t, err)
		require.Empty(t, inFolder(t, s.temps, ""))
	}
}

// TestSpareInUse: a file that somebody reads, or has linked elsewhere, or has put something else in the place of, is not written to.
//
// Proves STORE-6.
func TestSpareInUse(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, path string) (left func()){
		"read": func(t *testing.T, path string) (left func()) {
			file, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { file.Close() })
			require.NoError(t, syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return func() {
				now := make([]byte, len(text)+1000)
				n, _ := file.ReadAt(now, 0)
				require.Equal(t, string(text), string(now[:n]))
			}
		},
		"linked": func(t *testing.T, path string) (left func()) {
			copied := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Link(path, copied))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return func() {
				now, err := os.ReadFile(copied)
				require.NoError(t, err)
				require.Equal(t, string(text), string(now))
			}
		},
		"another": func(t *testing.T, path string) (left func()) {
			elsewhere := filepath.Join(t.TempDir(), "mine")
			require.NoError(t, os.WriteFile(elsewhere, []byte("mine"), 0o600))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(elsewhere+".json", text, 0o600))
			require.NoError(t, os.Symlink(elsewhere+".json", path))
			return func() {
				now, err := os.ReadFile(elsewhere + ".json")
				require.NoError(t, err)
				require.Equal(t, string(text), string(now))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir(), impatient)
			commit := writer(t, s)
			commit(10)
			commit(11)
			left := use(t, s.file(thing("a")))
			for length := range 5 {
				commit(20 + length)
				left()
			}
		})
	}
}

// TestReusedWhileItIsRead: who opens a document's file, without its lock, and is late to read it, does not see what is being written to it.
//
// Proves STORE-6.
func TestReusedWhileItIsRead(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	commit, path := writer(t, s), s.file(thing("a"))
	commit(10)
	commit(11)
	stripe := stripeOf(thing("a"))

	// It is in the hands of a writer.
	spare, size := s.takeSpare(stripe)
	require.NotNil(t, spare)
	late := func(path string, inPlace bool) (data []byte, mode os.FileMode, err error) {
		fd, err := open(spare.Name(), os.O_RDONLY, 0) // as it was at path before it was replaced
		require.NoError(t, err)
		defer syscall.Close(fd)
		return readLocked(fd, path, inPlace)
	}
	_, _, err := late(spare.Name(), false)
	require.ErrorIs(t, err, errReused)

	// The writer has died after it has written it.
	require.NoError(t, overwrite(spare, size, []byte("what was not committed")))
	letGo(spare)
	_, _, err = late(path, false)
	require.ErrorIs(t, err, errReused)

	// Or it has become the file of another record that has the same lock.
	require.NoError(t, os.Chmod(spare.Name(), private))
	data, _, err := late(path, false)
	require.NoError(t, err)
	require.Equal(t, "what was not committed", string(data))
	_, _, err = late(path, true)
	require.ErrorIs(t, err, errReused)

	// Or it is where it was.
	require.NoError(t, os.Chmod(spare.Name(), tentative))
	_, mode, err := late(spare.Name(), true)
	require.NoError(t, err)
	require.True(t, isTentative(mode))

	// Somebody else has a lock of the file for as long as he likes.
	file, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NoError(t, file.Close())
	_, err = s.Load(t.Context(), thing("a"))
	require.NoError(t, err)
}
