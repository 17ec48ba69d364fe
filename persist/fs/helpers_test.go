package fs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// impatient has a short lock timeout, for tests in which a lock is not released.
var impatient = Config{LockTimeout: 50 * time.Millisecond}

func openAt(t testing.TB, dir string, config Config) *Store {
	t.Helper()
	s, err := Open(context.Background(), dir, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func thing(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }

// put returns the commit of one write that follows version expected.
func put(id string, expected uint64) persist.Commit {
	return persist.Commit{ID: fmt.Sprintf("test-%s.%d", id, expected), Writes: []persist.Write{setTo(thing(id), expected, int(expected)+1)}}
}

// number is the document of most tests.
type number struct {
	N int `json:"n"`
}

// setTo returns the write that follows version expected and sets a number.
func setTo(key persist.Key, expected uint64, n int) persist.Write {
	return persist.Write{Key: key, Expected: expected, Version: expected + 1, Doc: fmt.Appendf(nil, `{"n":%d}`, n)}
}

func numberOf(r persist.Record) (int, error) {
	var content number
	err := json.Unmarshal(r.Doc, &content)
	return content.N, err
}

// load returns the record of key, which exists.
func load(t testing.TB, s *Store, key persist.Key) persist.Record {
	t.Helper()
	r, err := s.Load(context.Background(), key)
	require.NoError(t, err)
	return r
}

// add adds to the number of key in a commit with this id.
func add(ctx context.Context, s *Store, key persist.Key, id string, delta int) error {
	return addAll(ctx, s, id, by{key, delta})
}

// by is a change of the number of a key.
type by struct {
	key   persist.Key
	delta int
}

// addAll adds to several numbers in one commit, and tries again after a conflict.
func addAll(ctx context.Context, s *Store, id string, changes ...by) error {
	for {
		var writes []persist.Write
		for _, c := range changes {
			r, err := s.Load(ctx, c.key)
			if err != nil && !errors.Is(err, persist.ErrNotFound) {
				return err
			}
			n := 0
			if !r.Absent() {
				if n, err = numberOf(r); err != nil {
					return err
				}
			}
			writes = append(writes, setTo(c.key, r.Version, n+c.delta))
		}
		_, err := s.Commit(ctx, persist.Commit{ID: id, Writes: writes})
		if conflict := (*persist.Conflict)(nil); !errors.As(err, &conflict) {
			return err
		}
	}
}

// copied returns a copy of a directory.
func copied(t testing.TB, dir string) string {
	t.Helper()
	to := scratch(t)
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	require.NoError(t, filepath.WalkDir(dir, func(path string, e iofs.DirEntry, err error) error { // CopyFS does not keep modes
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		rel, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		return os.Chmod(filepath.Join(to, rel), info.Mode().Perm())
	}))
	return to
}

// makeTentative leaves the file of a key as a writer does that dies before the file is durable.
func makeTentative(t testing.TB, s *Store, key persist.Key) {
	t.Helper()
	require.NoError(t, os.Chmod(s.file(key), tentative))
}

// isTentativeFile reports whether the file of a key is tentative.
func isTentativeFile(t testing.TB, s *Store, key persist.Key) bool {
	t.Helper()
	info, err := os.Stat(s.file(key))
	require.NoError(t, err)
	return isTentative(info.Mode())
}

// scratch returns a directory in memory, if the system has one, for tests that need very many
// directories.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pawl-fs-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// inFolder returns the names in a folder that begin with prefix.
func inFolder(t testing.TB, folder, prefix string) []string {
	t.Helper()
	all, err := readNames(folder)
	require.NoError(t, err)
	var names []string
	for _, name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, filepath.Join(folder, name))
		}
	}
	return names
}

// damaged asserts that err is a *DamagedError of the file at path.
func damaged(t testing.TB, err error, path string) {
	t.Helper()
	var damaged *DamagedError
	require.ErrorAs(t, err, &damaged)
	require.Equal(t, path, damaged.Path)
	require.ErrorContains(t, err, path)
}

// tempsOf removes the spares of s and returns the other temporary files.
func tempsOf(t testing.TB, s *Store) []string {
	t.Helper()
	for stripe := range s.spares {
		s.spares[stripe] = s.removeSpare(s.spares[stripe])
	}
	return inFolder(t, s.temps, "")
}

// neighbour returns the key of another record with the stripe of key.
func neighbour(key persist.Key) persist.Key {
	for i := 0; ; i++ {
		if other := thing(fmt.Sprintf("n%d", i)); stripeOf(other) == stripeOf(key) {
			return other
		}
	}
}
