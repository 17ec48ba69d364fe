package fs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// pair returns a store with two records of different stripes, and the journal of a commit of both,
// of which the given number of records is renamed.
func pair(t *testing.T, renamed int) (s *Store, journal string) {
	t.Helper()
	s = openAt(t, t.TempDir(), Config{})
	for _, id := range []string{"a", "b"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	changes, set := s.plan(t, setTo(thing("a"), 1, 2), setTo(thing("b"), 1, 2))
	temp, _, err := s.writeJournal(changes)
	require.NoError(t, err)
	journal = s.newJournal(set)
	require.NoError(t, rename(temp, journal))
	for _, ch := range changes[:renamed] {
		require.NoError(t, rename(ch.temp, ch.target))
	}
	return s, journal
}

// TestUnfinishedCommitIsCompleted: every call that needs a record of an unfinished commit completes
// the commit first.
//
// Proves TX-3.
func TestUnfinishedCommitIsCompleted(t *testing.T) {
	for name, come := range map[string]func(*testing.T, *Store){
		"Load of the first":  func(t *testing.T, s *Store) { load(t, s, thing("a")) },
		"Load of the second": func(t *testing.T, s *Store) { load(t, s, thing("b")) },
		"a stale commit": func(t *testing.T, s *Store) {
			_, err := s.Commit(t.Context(), put("b", 1))
			var conflict *persist.Conflict
			require.ErrorAs(t, err, &conflict)
			require.EqualValues(t, 2, conflict.Winners[0].Version)
		},
		"a guard": func(t *testing.T, s *Store) {
			_, err := s.Commit(t.Context(), persist.Commit{Guards: []persist.Guard{{Key: thing("b"), Read: true, Version: 2}}})
			require.NoError(t, err)
		},
		"a lease": func(t *testing.T, s *Store) {
			taken, err := s.Take(t.Context(), persist.Query{Prefix: "b"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
			require.NoError(t, err)
			require.EqualValues(t, 3, taken[0].Version)
		},
		"List": func(t *testing.T, s *Store) {
			page, err := s.List(t.Context(), persist.Query{})
			require.NoError(t, err)
			require.EqualValues(t, 2, page.Records[0].Version)
			require.EqualValues(t, 2, page.Records[1].Version)
		},
	} {
		for renamed := range 3 {
			t.Run(name, func(t *testing.T) {
				s, journal := pair(t, renamed)
				come(t, s)
				require.NoFileExists(t, journal)
				for _, id := range []string{"a", "b"} {
					r := load(t, s, thing(id))
					require.Contains(t, r.Commits, "left.1")
					n, err := numberOf(r)
					require.NoError(t, err)
					require.Equal(t, 2, n)
				}
			})
		}
	}
}

// TestReplayWaitsForLists: no process writes a journal again while a list may look for it, because
// some file systems hide a name that is renamed over from a process that reads the folder.
//
// Proves TX-3.
func TestReplayWaitsForLists(t *testing.T) {
	s, journal := pair(t, 1)
	before, err := os.Stat(journal)
	require.NoError(t, err)
	release := take(t, newLocks(s.locks.folder, time.Minute), wanted{listLock: shared})
	other := openAt(t, s.dir, impatient)
	_, err = other.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	after, err := os.Stat(journal)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "the journal was written again")
	release()
	require.EqualValues(t, 2, load(t, other, thing("a")).Version)
	require.NoFileExists(t, journal)
}

// TestJournalThatComesBack: a power failure may bring back a journal whose removal was not durable,
// and its temporary files. Later changes stay, also one that moved no version.
//
// Proves TX-3.
func TestJournalThatComesBack(t *testing.T) {
	s, journal := pair(t, 0)
	saved := t.TempDir()
	for _, folder := range []string{s.journals, s.temps} {
		require.NoError(t, os.CopyFS(filepath.Join(saved, filepath.Base(folder)), os.DirFS(folder)))
	}
	comeBack := func() {
		t.Helper()
		for _, folder := range []string{s.journals, s.temps} {
			require.NoError(t, os.RemoveAll(folder))
			require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(saved, filepath.Base(folder)))))
		}
		require.FileExists(t, journal)
	}
	load(t, s, thing("a")) // completes it
	_, err := s.Commit(t.Context(), put("a", 2))
	require.NoError(t, err)
	at, err := s.Commit(t.Context(), persist.Commit{Guards: []persist.Guard{{Key: thing("b"), Read: true, Version: 2, TTL: time.Hour}}})
	require.NoError(t, err)
	comeBack()
	require.EqualValues(t, 3, load(t, s, thing("a")).Version)
	require.Equal(t, at.Add(time.Hour), load(t, s, thing("b")).Expires)
	require.NoFileExists(t, journal)
}

// TestTentativeFilesAreCompleted: every call that reads a record that may not be durable makes it
// durable.
//
// Proves STORE-6.
func TestTentativeFilesAreCompleted(t *testing.T) {
	for name, come := range map[string]func(*testing.T, *Store){
		"Load": func(t *testing.T, s *Store) { load(t, s, thing("a")) },
		"List": func(t *testing.T, s *Store) {
			_, err := s.List(t.Context(), persist.Query{})
			require.NoError(t, err)
		},
		"Commit": func(t *testing.T, s *Store) {
			_, err := s.Commit(t.Context(), put("a", 1))
			require.NoError(t, err)
		},
		"Commit of several": func(t *testing.T, s *Store) {
			both := put("a", 1)
			both.Writes = append(both.Writes, setTo(thing("b"), 0, 1))
			_, err := s.Commit(t.Context(), both)
			require.NoError(t, err)
		},
		"a guard": func(t *testing.T, s *Store) {
			_, err := s.Commit(t.Context(), persist.Commit{Guards: []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}})
			require.NoError(t, err)
		},
		"a stale commit": func(t *testing.T, s *Store) {
			_, err := s.Commit(t.Context(), put("a", 0))
			require.ErrorAs(t, err, new(*persist.Conflict))
		},
		"LoadAll": func(t *testing.T, s *Store) {
			_, err := s.LoadAll(t.Context(), []persist.Key{thing("b"), thing("a")})
			require.NoError(t, err)
		},
		"Versions": func(t *testing.T, s *Store) {
			_, err := s.Versions(t.Context(), []persist.Key{thing("a")})
			require.NoError(t, err)
		},
		"a lease": func(t *testing.T, s *Store) {
			taken, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
			require.NoError(t, err)
			require.Len(t, taken, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir(), Config{})
			_, err := s.Commit(t.Context(), put("a", 0))
			require.NoError(t, err)
			before, err := os.Stat(s.file(thing("a")))
			require.NoError(t, err)
			require.NoError(t, os.Link(s.file(thing("a")), filepath.Join(t.TempDir(), "kept"))) // so that its inode is not used again
			makeTentative(t, s, thing("a"))
			come(t, s)
			require.False(t, isTentativeFile(t, s, thing("a")))
			require.Empty(t, tempsOf(t, s))
			after, err := os.Stat(s.file(thing("a")))
			require.NoError(t, err)
			require.False(t, os.SameFile(before, after), "the record was not written again")
		})
	}
	s := openAt(t, t.TempDir(), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	before, err := os.Stat(s.file(thing("a")))
	require.NoError(t, err)
	require.NoError(t, s.completeTentative(t.Context(), thing("a")), "another process completed it")
	after, err := os.Stat(s.file(thing("a")))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.NoError(t, s.completeTentative(t.Context(), thing("absent")), "the file was removed")
}

// TestDamagedJournal: a damaged journal fails the calls that need its records, with its path, and
// no others. It is replayed once it is repaired, and forgotten once it is removed.
//
// Proves STORE-6, TX-3.
func TestDamagedJournal(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"changed":   func(text string) string { return strings.Replace(text, `"id": "b"`, `"id": "c"`, 1) },
		"empty":     func(string) string { return "" },
		"truncated": func(text string) string { return text[:len(text)/2] },
		"no writes": func(string) string { return `{"format":1,"content":{"writes":[]}}` },
	} {
		for repair, mend := range map[string]func(path string, intact []byte) error{
			"repaired": func(path string, intact []byte) error {
				return os.WriteFile(path, []byte(withoutChecksum(string(intact))), 0o600)
			},
			"removed": func(path string, _ []byte) error { return os.Remove(path) },
		} {
			t.Run(name+" "+repair, func(t *testing.T) {
				s, journal := pair(t, 1)
				intact, err := os.ReadFile(journal)
				require.NoError(t, err)
				edit(t, journal, damage)
				for _, id := range []string{"a", "b"} {
					_, err := s.Load(t.Context(), thing(id))
					damaged(t, err, journal)
					_, err = s.Commit(t.Context(), put(id, 1))
					damaged(t, err, journal)
					require.ErrorIs(t, err, persist.ErrNotApplied)
				}
				_, err = s.List(t.Context(), persist.Query{})
				damaged(t, err, journal)
				_, err = s.Commit(t.Context(), put("c", 0))
				require.NoError(t, err)
				load(t, s, thing("c"))

				require.NoError(t, mend(journal, intact))
				require.EqualValues(t, 2, load(t, s, thing("a")).Version)
				_, err = s.Commit(t.Context(), put("b", load(t, s, thing("b")).Version))
				require.NoError(t, err)
				_, err = s.List(t.Context(), persist.Query{})
				require.NoError(t, err)
			})
		}
	}
}

// TestJournalWithoutItsFiles: a journal whose temporary file is missing is an error, and is not
// replayed in part.
//
// Proves TX-3.
func TestJournalWithoutItsFiles(t *testing.T) {
	s, journal := pair(t, 1)
	temps := inFolder(t, s.temps, "")
	require.Len(t, temps, 1)
	edit(t, temps[0], func(text string) string { return strings.Replace(text, `"n": 2`, `"n": 3`, 1) })
	_, err := s.Load(t.Context(), thing("b"))
	damaged(t, err, temps[0])
	require.NoError(t, os.Remove(temps[0]))
	_, err = s.Load(t.Context(), thing("b"))
	damaged(t, err, journal)
	_, err = s.List(t.Context(), persist.Query{})
	damaged(t, err, journal)
}

// TestJournalOfOtherLocks: a journal whose name does not contain the locks of its records is
// damaged, and is not replayed.
//
// Proves STORE-6, TX-3.
func TestJournalOfOtherLocks(t *testing.T) {
	s, journal := pair(t, 0)
	var set stripeSet
	set.add(stripeOf(thing("a")))
	renamed := s.newJournal(set)
	require.NoError(t, os.Rename(journal, renamed))
	_, err := s.Load(t.Context(), thing("a"))
	damaged(t, err, renamed)
	_, err = s.List(t.Context(), persist.Query{})
	damaged(t, err, renamed)
	for _, id := range []string{"a", "b"} {
		r, err := s.read(thing(id))
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
	}
}

// TestForeignJournalsAreIgnored: a file in journal/ with another name is ignored.
func TestForeignJournalsAreIgnored(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	for _, name := range []string{
		"README", "mark-", "mark-zz-0123456789abcdef.json", "mark-00-0123456789abcdef.json~", "mark-0-123456789abcdef.json",
		"commit-" + strings.Repeat("f", 64) + "-0123456789abcdef.json.swp", "commit-" + strings.Repeat("f", 63) + "-0123456789abcdef.json",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(s.journals, name), []byte("x"), 0o600))
	}
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	found, err := s.pending(everyStripe)
	require.NoError(t, err)
	require.Empty(t, found)
}
