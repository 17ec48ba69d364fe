package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	for role, c := range commits {
		testkit.Child(role, func() error { return commitTraced(c, false) })
		testkit.Child(role+" and more", func() error { return commitTraced(c, true) })
	}
	if testkit.Role() != "" {
		runtime.LockOSThread() // strace counts the system calls of each thread, and follows the first
	}
}

var (
	ann     = persist.Key{Kind: "account", ID: "ann"}
	bob     = persist.Key{Kind: "account", ID: "bob"}
	receipt = persist.Key{Kind: "receipt", ID: "1"}
)

// commits are made by children. "transfer" has several records, one of them new and of a new kind.
// The others have one record. The child makes the version that "again" expects, so that there is a
// spare.
var commits = map[string]persist.Commit{
	"transfer": {ID: "child.1", Writes: []persist.Write{setTo(ann, 1, 70), setTo(bob, 1, 130), setTo(receipt, 0, 30)}},
	"deposit":  {ID: "child.1", Writes: []persist.Write{setTo(bob, 1, 130)}},
	"again":    {ID: "child.1", Writes: []persist.Write{setTo(bob, 2, 130)}},
}

// seed returns a directory with the records that commits expect.
func seed(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	s := openAt(t, dir, Config{})
	for _, key := range []persist.Key{ann, bob} {
		_, err := s.Commit(context.Background(), persist.Commit{ID: "seed.1", Writes: []persist.Write{setTo(key, 0, 100)}})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	return dir
}

// commitTraced makes a commit once strace is attached, and prints its outcome. With more, it then
// reads whether the commit is there, and commits on top of it.
func commitTraced(c persist.Commit, more bool) error {
	s, err := Open(context.Background(), os.Getenv(childDir), Config{})
	if err != nil {
		return err
	}
	testkit.Begin()
	for range 3 { // a system call may fail
		r, err := s.Load(context.Background(), bob)
		if c.Writes[0].Key == bob && err == nil && r.Version < c.Writes[0].Expected {
			_ = add(context.Background(), s, bob, "before.1", 0)
		}
	}
	_, err = s.Commit(context.Background(), c)
	testkit.Say("%s", outcomeOf(err))
	if !more {
		testkit.Say("done")
		return s.Close()
	}
	// A commit of another record with the same stripe must not overwrite the file that was replaced
	// before that is durable.
	if err := add(context.Background(), s, neighbour(bob), "side.1", 1); err != nil {
		return err
	}
	r, err := s.Load(context.Background(), bob)
	if err != nil {
		return err
	}
	testkit.Say("%t", slices.Contains(r.Commits, c.ID))
	if err := add(context.Background(), s, bob, "top.1", 1000); err != nil {
		return err
	}
	testkit.Say("done")
	return s.Close()
}

// traced returns a child that calls child once strace is attached, and prints its answers.
func traced(child func(s *Store) (answers []string, err error)) func() error {
	return func() error {
		s, err := newStore(os.Getenv(childDir), Config{LockTimeout: defaultLockTimeout})
		if err != nil {
			return err
		}
		testkit.Begin()
		answers, err := child(s)
		for _, answer := range answers {
			testkit.Say("%s", answer)
		}
		return err
	}
}

// has returns "true" if the commit of a child is in r, else "false".
func has(r persist.Record) string { return strconv.FormatBool(slices.Contains(r.Commits, "child.1")) }

// The outcomes of a commit, by its error.
const (
	committed = "committed"
	refused   = "not applied"
	unknown   = "unknown"
)

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return committed
	case errors.Is(err, persist.ErrNotApplied):
		return refused
	}
	return unknown
}

// newDisk returns a disk with the directory as it is.
func newDisk(t testing.TB, dir string) *disk.Disk {
	t.Helper()
	return disk.New(t, dir, rand.Uint64())
}

// startTrace starts a child, attaches strace, and lets the child begin.
func startTrace(t testing.TB, role, dir string, flags ...string) *disk.Tracee {
	t.Helper()
	return disk.Start(t, role, []string{childDir + "=" + dir}, flags)
}

// trace runs a child under strace and returns the lines that it prints.
func trace(t testing.TB, role, dir string, flags ...string) (said []string) {
	t.Helper()
	return startTrace(t, role, dir, flags...).Wait()
}

// watched lists the system calls by which a commit changes files or learns what to change.
var watched = []string{"openat", "write", "ftruncate", "fsync", "fdatasync", "?rename,?renameat", "?renameat2", disk.Unlinks, disk.Mkdirs, "?chmod,?fchmodat", "fchmod", "flock", "close"}

// state asserts that all records of a commit are there or none, and reports which.
func state(t testing.TB, c persist.Commit, read func(persist.Key) persist.Record) bool {
	t.Helper()
	present := 0
	for _, w := range c.Writes {
		if slices.Contains(read(w.Key).Commits, c.ID) {
			present++
		}
	}
	require.Contains(t, []int{0, len(c.Writes)}, present, "the commit is there in part")
	return present > 0
}

// byLoad reads records one by one.
func byLoad(t testing.TB, s *Store) func(persist.Key) persist.Record {
	return func(key persist.Key) persist.Record {
		r, err := s.Load(context.Background(), key)
		if !errors.Is(err, persist.ErrNotFound) {
			require.NoError(t, err)
		}
		return r
	}
}

// byLoadAll reads records at one moment.
func byLoadAll(t testing.TB, s *Store) func(persist.Key) persist.Record {
	t.Helper()
	keys := []persist.Key{bob, receipt, ann}
	records, err := s.LoadAll(context.Background(), keys)
	require.NoError(t, err)
	return func(key persist.Key) persist.Record { return records[slices.Index(keys, key)] }
}

// byList reads all records at once.
func byList(t testing.TB, s *Store) func(persist.Key) persist.Record {
	t.Helper()
	page, err := s.List(context.Background(), persist.Query{})
	require.NoError(t, err)
	return func(key persist.Key) persist.Record {
		for _, r := range page.Records {
			if r.Key == key {
				return r
			}
		}
		return persist.Record{Key: key}
	}
}

// newcomer returns a store of dir without calling Open, like a store that was open all the time.
func newcomer(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := newStore(dir, Config{LockTimeout: defaultLockTimeout})
	require.NoError(t, err)
	return s
}

// afterKill runs several readers and writers, each on a copy of the directory that a killed writer
// left. Acknowledged says whether the commit of the writer was acknowledged.
func afterKill(t testing.TB, dir string, c persist.Commit, acknowledged bool) {
	t.Helper()
	settled := func(s *Store, there bool) {
		t.Helper()
		require.Equal(t, there, state(t, c, byLoad(t, s)))
		require.Equal(t, there, state(t, c, byList(t, s)))
		require.True(t, there || !acknowledged, "an acknowledged commit is lost")
	}
	for _, first := range []persist.Write{c.Writes[0], c.Writes[len(c.Writes)-1]} { // a reader of one record
		s := newcomer(t, copied(t, dir))
		settled(s, slices.Contains(byLoad(t, s)(first.Key).Commits, c.ID))
	}
	s := newcomer(t, copied(t, dir)) // a reader of all records at one moment
	settled(s, state(t, c, byLoadAll(t, s)))
	s = newcomer(t, copied(t, dir)) // a list
	settled(s, state(t, c, byList(t, s)))

	again := copied(t, dir) // a writer on top of one record
	s = openAt(t, again, Config{})
	before := byLoad(t, s)(bob)
	require.NoError(t, add(context.Background(), s, bob, "top.1", 1000))
	after := byLoad(t, s)(bob)
	require.Equal(t, before.Version+1, after.Version)
	there := slices.Contains(before.Commits, c.ID)
	settled(s, there)
	n, err := numberOf(after)
	require.NoError(t, err)
	require.Equal(t, map[bool]int{false: 1100, true: 1130}[there], n)
	require.NoError(t, s.Close())  // which removes its spares
	s = openAt(t, again, Config{}) // opens after the writer
	require.Equal(t, after.Version, byLoad(t, s)(bob).Version)
	require.Empty(t, inFolder(t, filepath.Join(again, "tmp"), ""))
	require.Empty(t, inFolder(t, filepath.Join(again, "journal"), ""))
}

// TestKilledAtEverySystemCall kills a writer at its first, second, third... call of each sort,
// until the writer makes fewer calls.
//
// Proves TX-3, STORE-6.
func TestKilledAtEverySystemCall(t *testing.T) {
	start := seed(t)
	for role, c := range commits {
		kills := 0
		for _, calls := range watched {
			for n := 1; ; n++ {
				dir := copied(t, start)
				said := trace(t, role, dir, "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, n), "-o", os.DevNull)
				if len(said) > 0 {
					require.Equal(t, committed, said[0])
				}
				afterKill(t, dir, c, len(said) > 0)
				if len(said) > 1 {
					break
				}
				kills++
			}
		}
		testkit.Figures(t, "%s: killed at %d system calls", role, kills)
		require.Greater(t, kills, map[string]int{"transfer": 40, "deposit": 15, "again": 30}[role])
	}
}
