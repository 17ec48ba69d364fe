package fs

import (
	iofs "io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// Proves STORE-12.
func TestFilesArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no file modes")
	}
	dir := filepath.Join(t.TempDir(), "some", "state")
	s := openAt(t, dir, Config{})
	both := put("a", 0)
	both.Writes = append(both.Writes, persist.Write{Key: thing("gone"), Version: 1, Deleted: true})
	_, err := s.Commit(t.Context(), both)
	require.NoError(t, err)
	left := filepath.Join(s.journals, "left")
	require.NoError(t, s.leaveJournal(t, left, setTo(thing("a"), 1, 2), setTo(thing("b"), 0, 2)))
	_, err = s.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	files := 0
	require.NoError(t, filepath.WalkDir(filepath.Dir(dir), func(path string, d iofs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s is accessible to other users: %s", path, info.Mode())
		if !d.IsDir() {
			files++
		}
		return nil
	}))
	require.Greater(t, files, 8)
}

// leaveJournal prepares a commit of several records and leaves its journal at path, or in its place
// if path is empty.
func (s *Store) leaveJournal(t testing.TB, path string, writes ...persist.Write) error {
	t.Helper()
	release, err := s.locks.take(t.Context(), locksOf(persist.Commit{Writes: writes}))
	require.NoError(t, err)
	defer release()
	changes, set := s.plan(t, writes...)
	temp, _, err := s.writeJournal(changes)
	require.NoError(t, err)
	if path == "" {
		path = s.newJournal(set)
	}
	return rename(temp, path)
}

// plan writes the temporary files of a commit.
func (s *Store) plan(t testing.TB, writes ...persist.Write) (changes []change, set stripeSet) {
	t.Helper()
	current, files := map[persist.Key]persist.Record{}, map[persist.Key]stored{}
	for _, w := range writes {
		found, err := s.read(w.Key)
		require.NoError(t, err)
		current[w.Key], files[w.Key] = found.Record, found
	}
	next, err := persist.Apply(persist.Commit{ID: "left.1", Writes: writes}, current, hostTime())
	require.NoError(t, err)
	for _, r := range next {
		ch, err := s.prepare(r, files[r.Key], private)
		require.NoError(t, err)
		changes = append(changes, ch)
		set.add(stripeOf(r.Key))
	}
	return changes, set
}

// Proves STORE-9.
func TestNewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, openAt(t, dir, Config{}).Close())
	path := filepath.Join(dir, formatName)
	require.NoError(t, os.WriteFile(path, []byte(`{"format": 2, "shards": 7}`), 0o600))
	_, err := Open(t.Context(), dir, Config{})
	require.ErrorIs(t, err, persist.ErrNewerSchema)
	require.ErrorContains(t, err, "2")
	for _, text := range []string{"", "{}", "x", `{"format": 0}`, `{"format": "1"}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Open(t.Context(), dir, Config{})
		damaged(t, err, path)
	}
}

// TestOtherDirectoriesAreRefused: Open does not change a directory that holds something else.
//
// Proves STORE-9.
func TestOtherDirectoriesAreRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "letter.txt")
	require.NoError(t, os.WriteFile(file, []byte("Dear Ann"), 0o600))
	_, err := Open(t.Context(), dir, Config{})
	require.ErrorContains(t, err, "letter.txt")
	names, err := readNames(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"letter.txt"}, names)
	_, err = Open(t.Context(), file, Config{})
	require.Error(t, err)
	_, err = Open(t.Context(), filepath.Join(file, "below"), Config{})
	require.Error(t, err)
	_, err = Open(t.Context(), "", Config{})
	require.Error(t, err)

	lost := t.TempDir() // a store without pawl.json
	_, err = openAt(t, lost, Config{}).Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(lost, formatName)))
	_, err = Open(t.Context(), lost, Config{})
	require.ErrorContains(t, err, "no "+formatName)
}

// TestCreationIsResumed: Open completes a store whose creator died.
//
// Proves STORE-9.
func TestCreationIsResumed(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"locks", "tmp"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tmp", "meta-0123456789abcdef.json"), []byte("{"), 0o600))
	s := openAt(t, dir, Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.Empty(t, inFolder(t, s.temps, ""))
}

// TestEmptyFoldersMayBeMissing: Open makes empty folders again that a copy of the store lacks.
func TestEmptyFoldersMayBeMissing(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for _, folder := range []string{s.temps, s.journals, s.locks.folder} {
		require.NoError(t, os.RemoveAll(folder))
	}
	_, err = openAt(t, dir, Config{}).Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
}

// TestLeftoversAreRemoved: Open removes the temporary files of dead writers, and no others.
//
// Proves TX-3.
func TestLeftoversAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, Config{})
	dead, _ := s.plan(t, setTo(thing("dead"), 0, 1))
	live, _ := s.plan(t, setTo(thing("live"), 0, 1))
	release, err := s.locks.take(t.Context(), wanted{stripeOf(thing("live")): exclusive})
	require.NoError(t, err)
	require.NoError(t, s.leaveJournal(t, "", setTo(thing("x"), 0, 1), setTo(thing("y"), 0, 1)))
	foreign := filepath.Join(s.temps, "notes.txt")
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	require.Len(t, inFolder(t, s.temps, ""), 5)

	second := openAt(t, dir, Config{})
	require.NoFileExists(t, dead[0].temp)
	require.FileExists(t, live[0].temp, "its writer holds the lock")
	require.FileExists(t, foreign)
	require.Len(t, inFolder(t, s.temps, ""), 4, "the journal names two")
	release()
	require.EqualValues(t, 1, load(t, second, thing("x")).Version)
	require.EqualValues(t, 1, load(t, second, thing("y")).Version)
	openAt(t, dir, Config{})
	require.Equal(t, []string{foreign}, inFolder(t, s.temps, ""))
}

// TestDirectoryGone: while the directory is missing, calls fail instead of reporting absent
// records, and they succeed once it is back.
//
// Proves STORE-14.
func TestDirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openAt(t, dir, Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	for _, empty := range []bool{false, true} {
		require.NoError(t, os.Rename(dir, dir+"-away"))
		if empty {
			require.NoError(t, os.Mkdir(dir, 0o700))
		}
		for _, id := range []string{"a", "b"} {
			_, err = s.Load(t.Context(), thing(id))
			require.ErrorIs(t, err, persist.ErrUnavailable)
			require.NotErrorIs(t, err, persist.ErrNotFound)
			_, err = s.Commit(t.Context(), put(id, 1))
			require.ErrorIs(t, err, persist.ErrUnavailable)
			require.ErrorIs(t, err, persist.ErrNotApplied)
		}
		_, err = s.List(t.Context(), persist.Query{})
		require.ErrorIs(t, err, persist.ErrUnavailable)
		if empty {
			require.NoError(t, os.Remove(dir))
		}
		require.NoError(t, os.Rename(dir+"-away", dir))
		load(t, s, thing("a"))
	}
}
