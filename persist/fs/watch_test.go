package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	testkit.Child("five versions", func() error {
		testkit.Begin()
		s, err := Open(context.Background(), os.Getenv(childDir), Config{})
		if err != nil {
			return err
		}
		for version := range uint64(5) {
			if _, err := s.Commit(context.Background(), put("a", version)); err != nil {
				return err
			}
		}
		return s.Close()
	})
}

// bothWays runs a test with inotify, where it is supported, and with polling.
func bothWays(t *testing.T, test func(t *testing.T, open func(dir string) *Store)) {
	for name, polls := range map[string]bool{"notified": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			test(t, func(dir string) *Store {
				s := openAt(t, dir, Config{})
				s.polls = polls
				return s
			})
		})
	}
}

// farApart lists keys whose files are in different folders.
var farApart = []persist.Key{
	{Kind: "thing", ID: "a"},
	{Kind: "A Kind", ID: "B"},
	{Kind: "thing", ID: strings.Repeat("long ", 100)},
	{Kind: strings.Repeat("Kind", 100), ID: "a"},
	{Kind: strings.Repeat("Kind", 100), ID: strings.Repeat("long ", 100)},
}

// write returns the commit of key that follows version expected.
func write(key persist.Key, expected uint64) persist.Commit {
	return persist.Commit{ID: fmt.Sprintf("write.%d", expected), Writes: []persist.Write{setTo(key, expected, 1)}}
}

// TestWatchOthers: a watcher is told of the changes of another store on the directory, in old and
// in new folders.
//
// Proves SCOPE-13.
func TestWatchOthers(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Store) {
		dir := t.TempDir()
		s, other := open(dir), open(dir)
		d := testkit.NewWatch(t, s)
		for version := range uint64(2) {
			for _, key := range farApart {
				d.Take()
				_, err := other.Commit(t.Context(), write(key, version))
				require.NoError(t, err)
				d.Of(key)
			}
		}
	})
}

// TestWatchOwn: a store sends hints of its own commits with their versions, of a released lease
// without a version, because it moves none, and of a renewed lease not at all.
//
// Proves SCOPE-13.
func TestWatchOwn(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	d := testkit.NewWatch(t, &s.hints)
	c := put("a", 0)
	c.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	lease := func(g persist.Guard) persist.Commit {
		g.Key, g.Token = thing("a"), 1
		return persist.Commit{ID: "w.1", Guards: []persist.Guard{g}}
	}
	for _, step := range []struct {
		persist.Commit
		hints int // sent so far
	}{
		{c, 1},
		{lease(persist.Guard{Extend: time.Hour}), 1},
		{lease(persist.Guard{Read: true, Version: 1, TTL: time.Hour}), 1},
		{lease(persist.Guard{Release: true}), 2},
		{persist.Commit{ID: "w.2", Writes: []persist.Write{setTo(thing("b"), 0, 1), setTo(thing("a"), 1, 1)}}, 4},
	} {
		_, err := s.Commit(t.Context(), step.Commit)
		require.NoError(t, err)
		d.Until(fmt.Sprintf("%+v", step), func(all []persist.Hint) bool { return len(all) >= step.hints })
	}
	taken, err := s.Take(t.Context(), persist.Query{Prefix: "a"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	_, err = s.Commit(t.Context(), put("last", 0))
	require.NoError(t, err)
	d.Named(thing("last"))
	want := []persist.Hint{
		{Key: thing("a"), Version: 1}, {Key: thing("a")}, {Key: thing("a"), Version: 2},
		{Key: thing("b"), Version: 1}, {Key: thing("a"), Version: 3}, {Key: thing("last"), Version: 1},
	}
	require.Equal(t, want, d.All())
}

// TestWatchProcess: a watcher is told of the changes of another process.
//
// Proves SCOPE-13.
func TestWatchProcess(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Store) {
		s := open(t.TempDir())
		d := testkit.NewWatch(t, s)
		child := testkit.Start(t, "five versions", childDir+"="+s.dir)
		testkit.Ready(child)
		for version := uint64(0); version < 5; {
			d.Of(thing("a"))
			d.Take()
			versions, err := s.Versions(t.Context(), []persist.Key{thing("a")})
			require.NoError(t, err)
			version = versions[0]
		}
		child.Wait()
	})
}

// TestWatchThousand: a watcher is told of a commit of a thousand records, and of a thousand
// commits.
//
// Proves SCOPE-13.
func TestWatchThousand(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Store) {
		dir := scratch(t)
		s, other := open(dir), open(dir)
		const count = 1000
		var keys []persist.Key
		c := persist.Commit{ID: "w.1"}
		for i := range count {
			keys = append(keys, thing(fmt.Sprint(i)))
			c.Writes = append(c.Writes, setTo(keys[i], 0, 1))
		}
		d := testkit.NewWatch(t, s)
		_, err := other.Commit(t.Context(), c)
		require.NoError(t, err)
		seesAll(t, d, s, keys, 1)
		var writers sync.WaitGroup
		for part := range 4 {
			writers.Go(func() {
				for i := part; i < count; i += 4 {
					if _, err := other.Commit(t.Context(), put(fmt.Sprint(i), 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		seesAll(t, d, s, keys, 2)
	})
}

// seesAll reads records only after a hint, until all have the version.
func seesAll(t testing.TB, d *testkit.Watch, s *Store, keys []persist.Key, version uint64) {
	t.Helper()
	missing := make(map[persist.Key]bool)
	for _, key := range keys {
		missing[key] = true
	}
	for len(missing) > 0 {
		d.Until(fmt.Sprintf("version %d of %d records", version, len(missing)), func(all []persist.Hint) bool { return len(all) > 0 })
		look := make(map[persist.Key]bool)
		for _, hint := range d.Take() {
			if hint == (persist.Hint{}) {
				look = missing
				break
			}
			if missing[hint.Key] {
				look[hint.Key] = true
			}
		}
		for key := range look {
			r, err := s.Load(context.Background(), key)
			require.NoError(t, err)
			if r.Version >= version {
				delete(missing, key)
			}
		}
	}
}

// TestPollTicks: every change sends two hints. The second one covers another change within the same
// tick of the file system's clock. Without a change there is no hint.
//
// Proves SCOPE-13.
func TestPollTicks(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	synctest.Test(t, func(t *testing.T) {
		to := s.hints.Subscribe()
		defer to.End()
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		var count atomic.Int64
		go func() { _ = to.Deliver(ctx, func(persist.Hint) { count.Add(1) }) }()
		synctest.Wait()
		require.EqualValues(t, 1, count.Load())
		go s.poll(ctx, s.modified())
		looks := func(want ...int64) {
			t.Helper()
			for _, more := range want {
				before := count.Load()
				time.Sleep(pollPause)
				synctest.Wait()
				require.Equal(t, more, count.Load()-before)
			}
		}
		looks(1, 0, 0)
		for i := range 3 {
			tick := time.Unix(int64(1000-i), 0) // a clock may be set back
			require.NoError(t, os.Chtimes(s.temps, tick, tick))
			looks(1, 1, 0, 0)
		}
		require.NoError(t, os.Remove(s.temps))
		looks(1, 1, 0)
		require.NoError(t, os.Mkdir(s.temps, 0o700))
		looks(1, 1, 0)
	})
}

// TestWatchWithoutRecords: a watcher polls if records/ cannot be watched, at the start or later.
//
// Proves SCOPE-13.
func TestWatchWithoutRecords(t *testing.T) {
	dir := t.TempDir()
	s, other := openAt(t, dir, Config{}), openAt(t, dir, Config{})
	aside := filepath.Join(t.TempDir(), "records")
	early := testkit.NewWatch(t, s)
	require.NoError(t, os.Rename(s.records, aside))
	late := testkit.NewWatch(t, s)
	require.NoError(t, os.Rename(aside, s.records))
	for version := range uint64(3) {
		early.Take()
		late.Take()
		_, err := other.Commit(t.Context(), put("a", version))
		require.NoError(t, err)
		early.Of(thing("a"))
		late.Of(thing("a"))
	}
}

// TestWatchLeavesNothing: Watch leaves no goroutines and no open files behind, also when wake
// panics.
//
// Proves SCOPE-13.
func TestWatchLeavesNothing(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Store) {
		s := open(t.TempDir())
		before, files := goleak.IgnoreCurrent(), openFiles(t)
		for range 20 {
			require.ErrorIs(t, testkit.NewWatch(t, s).Stop(), context.Canceled)
		}
		require.PanicsWithValue(t, "no", func() { _ = s.Watch(t.Context(), func(persist.Hint) { panic("no") }) })
		require.NoError(t, goleak.Find(before))
		require.Equal(t, files, openFiles(t))
		require.False(t, s.hints.Watched())
	})
}

// openFiles returns how many files this process has open, or 0 if that is not known.
func openFiles(t *testing.T) int {
	t.Helper()
	names, err := readNames("/proc/self/fd")
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(t, err)
	return len(names)
}

// TestCloseInWake: wake may close the store.
//
// Proves SCOPE-13.
func TestCloseInWake(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(string) *Store) {
		s := open(t.TempDir())
		err := s.Watch(t.Context(), func(persist.Hint) { require.NoError(t, s.Close()) })
		require.ErrorIs(t, err, persist.ErrClosed)
	})
}

// TestVersionsWait: Versions completes unfinished commits, and returns an error for a damaged file.
//
// Proves SCOPE-13, STORE-7.
func TestVersionsWait(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	for _, id := range []string{"a", "b", "c"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	makeTentative(t, s, thing("b")) // its writer died
	versions, err := s.Versions(t.Context(), []persist.Key{thing("a"), thing("b"), thing("no"), thing("c")})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1, 0, 1}, versions)
	require.False(t, isTentativeFile(t, s, thing("b")))
	half, journal := pair(t, 1) // its writer died
	versions, err = half.Versions(t.Context(), []persist.Key{thing("b"), thing("a")})
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 2}, versions)
	require.NoFileExists(t, journal)

	require.NoError(t, os.WriteFile(s.file(thing("b")), []byte("{}"), 0o600))
	_, err = s.Versions(t.Context(), []persist.Key{thing("a"), thing("b")})
	damaged(t, err, s.file(thing("b")))
	_, err = s.Versions(t.Context(), []persist.Key{thing("a"), thing("c")})
	require.NoError(t, err)
}
