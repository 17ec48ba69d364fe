package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// sameLock is the wish for one lock.
var sameLock = wanted{7: exclusive}

// take takes locks that are free, or becoming so.
func take(t testing.TB, l *locks, want wanted) (release func()) {
	t.Helper()
	release, err := l.take(context.Background(), want)
	require.NoError(t, err)
	return release
}

// TestLocksExclude: two stores of one directory are to each other what two processes are.
//
// Proves STORE-3.
func TestLocksExclude(t *testing.T) {
	dir := t.TempDir()
	one, two := newLocks(dir, time.Minute), newLocks(dir, 10*time.Millisecond)
	for _, c := range []struct {
		first, second mode
		both          bool
	}{{exclusive, exclusive, false}, {exclusive, shared, false}, {shared, exclusive, false}, {shared, shared, true}} {
		for _, l := range []*locks{one, two} { // a process excludes itself as well as others
			release := take(t, two, wanted{7: c.first})
			if l == one {
				release()
				release = take(t, one, wanted{7: c.first})
			}
			again, err := two.take(t.Context(), wanted{7: c.second})
			if c.both {
				require.NoError(t, err)
				again()
			} else {
				require.ErrorIs(t, err, persist.ErrUnavailable)
			}
			take(t, two, wanted{8: exclusive})()
			release()
		}
	}
}

// TestLocksAreGivenInOrder of arrival within a process, whether shared or exclusive.
func TestLocksAreGivenInOrder(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := newLocks(dir, time.Minute)
		release := take(t, l, sameLock)
		var mu sync.Mutex // protects order
		var order []int
		for i := range 10 {
			go func() {
				defer take(t, l, wanted{7: []mode{shared, exclusive}[i%2]})()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		release()
		time.Sleep(time.Second) // of the test's own clock
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order)
	})
}

// TestWhoWaitsIsNext: a process that gives a lock back and wants it again comes after another one
// that waits for it, also if it has kept a gate that was replaced since.
//
// Proves STORE-3.
func TestWhoWaitsIsNext(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%t", replaced), func(t *testing.T) { testWhoWaitsIsNext(t, replaced) })
	}
}

func testWhoWaitsIsNext(t *testing.T, replaced bool) {
	dir := t.TempDir()
	for range 20 {
		busy, patient := newLocks(dir, time.Minute), newLocks(dir, time.Minute)
		if replaced {
			take(t, busy, sameLock)()
			require.NoError(t, os.Remove(filepath.Join(dir, lockNames[7]+".gate")))
		}
		release := take(t, busy, sameLock)
		got := make(chan struct{})
		var waiter sync.WaitGroup
		waiter.Go(func() {
			release := take(t, patient, sameLock)
			close(got)
			release()
		})
		someoneAtTheGate(t, dir)
		release()
		take(t, busy, sameLock)()
		select {
		case <-got:
		default:
			t.Fatal("the one that had the lock was given it again before the one that waited")
		}
		waiter.Wait()
	}
}

// someoneAtTheGate waits until somebody waits for sameLock.
func someoneAtTheGate(t *testing.T, dir string) {
	t.Helper()
	gate := flock.New(filepath.Join(dir, lockNames[7]+".gate"))
	testkit.Eventually(t, func() bool {
		free, err := gate.TryLock()
		if free {
			require.NoError(t, gate.Unlock())
		}
		return err == nil && !free
	})
}

// TestLockHeldPastBudget: everybody who waits learns that nothing was written, and work resumes by
// itself.
//
// Proves STORE-14.
func TestLockHeldPastBudget(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	release := take(t, newLocks(s.locks.folder, time.Minute), wanted{stripeOf(thing("a")): exclusive, listLock: exclusive, metaLock: exclusive})
	doubt(t, s, thing("a")) // a commit is under way
	both := put("b", 0)
	both.Writes = append(both.Writes, setTo(thing("c"), 0, 1))
	unavailable := map[string]func(context.Context) error{
		"Load":           func(ctx context.Context) error { _, err := s.Load(ctx, thing("a")); return err },
		"List":           func(ctx context.Context) error { _, err := s.List(ctx, persist.Query{}); return err },
		"Commit":         func(ctx context.Context) error { _, err := s.Commit(ctx, put("a", 1)); return err },
		"Commit of many": func(ctx context.Context) error { _, err := s.Commit(ctx, both); return err },
		"Take": func(ctx context.Context) error {
			_, err := s.Take(ctx, persist.Query{}, persist.Acquire{For: time.Hour})
			return err
		},
	}
	for name, call := range unavailable {
		err := call(t.Context())
		require.ErrorIs(t, err, persist.ErrUnavailable, name)
		if name != "Load" && name != "List" {
			require.ErrorIs(t, err, persist.ErrNotApplied, name)
		}
	}
	patient := &Store{dir: s.dir, records: s.records, temps: s.temps, journals: s.journals, locks: newLocks(s.locks.folder, time.Hour)}
	s = patient
	for name, call := range unavailable { // a caller may leave earlier
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- call(ctx) }()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled, name)
	}
	require.NoError(t, markDurable(s.file(thing("a"))))
	release()
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	require.Empty(t, tempsOf(t, s))
}

// TestFailedTakeFreesAll: whoever cannot have the last lock of several keeps none.
func TestFailedTakeFreesAll(t *testing.T) {
	dir := t.TempDir()
	one, two := newLocks(dir, time.Minute), newLocks(dir, 10*time.Millisecond)
	release := take(t, one, wanted{9: shared})
	_, err := two.take(t.Context(), wanted{7: exclusive, 8: shared, 9: exclusive})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	take(t, one, wanted{7: exclusive, 8: exclusive})()
	release()
	take(t, two, wanted{7: exclusive, 8: exclusive, 9: exclusive})()
}

// TestSharedGuards: commits that only look at a record do not keep each other waiting, and nobody
// changes it meanwhile.
//
// Proves STORE-2.
func TestSharedGuards(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	guarded := persist.Commit{Guards: []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}}
	release := take(t, newLocks(s.locks.folder, time.Minute), locksOf(guarded))
	_, err = s.Commit(t.Context(), guarded)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("a", 1))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	guarded.Guards[0].TTL = time.Hour
	_, err = s.Commit(t.Context(), guarded)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	release()
	_, err = s.Commit(t.Context(), guarded)
	require.NoError(t, err)
}

// TestReadersOfOneProcessShare: those of one process who have a lock together, for however long, keep out nobody
// who shares it: neither a list that is longer than the lock timeout another list, nor a commit that only looks
// at a record another one that does.
//
// Proves STORE-2.
func TestReadersOfOneProcessShare(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	guarded := persist.Commit{Guards: []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}}
	release := take(t, s.locks, wanted{stripeOf(thing("a")): shared, listLock: shared})
	defer release()
	_, err = s.Commit(t.Context(), guarded)
	require.NoError(t, err)
	page, err := s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Len(t, page.Records, 1)
}

// TestKeptLockFiles: files that are kept open lock what is at their place, also when somebody has put others there, are few, and are
// closed with the store.
//
// Proves STORE-3.
func TestKeptLockFiles(t *testing.T) {
	dir := t.TempDir()
	one := newLocks(dir, time.Minute)
	excluded := func() {
		t.Helper()
		release := take(t, one, sameLock)
		two := newLocks(dir, 10*time.Millisecond)
		_, err := two.take(t.Context(), sameLock)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		release()
		take(t, two, sameLock)()
	}
	for range 3 {
		excluded()
	}
	for _, name := range []string{lockNames[7], lockNames[7] + ".gate"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	excluded()
	require.NoError(t, os.Rename(dir, dir+" before"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	excluded()
}

// TestSharedLockFiles: those of one process who share a lock have a file each, and whoever gives it back first leaves it to the other.
//
// Proves STORE-3.
func TestSharedLockFiles(t *testing.T) {
	dir := t.TempDir()
	one, two := newLocks(dir, time.Minute), newLocks(dir, 10*time.Millisecond)
	first, second := take(t, one, wanted{7: shared}), take(t, one, wanted{7: shared})
	first()
	_, err := two.take(t.Context(), sameLock)
	require.ErrorIs(t, err, persist.ErrUnavailable, "one has it still")
	second()
	take(t, two, sameLock)()
}

func init() { testkit.Child("busy", busyChild) }

const childDir = "PAWL_FS_DIR"

// neighbours returns n keys with the same lock.
func neighbours(n int) []persist.Key {
	var keys []persist.Key
	for i := 0; len(keys) < n; i++ {
		if key := thing(strconv.Itoa(i)); stripeOf(key) == 7 {
			keys = append(keys, key)
		}
	}
	return keys
}

// busyChild keeps one lock busy all the time, with several goroutines, and says how often it was
// given.
func busyChild() error {
	testkit.Begin()
	s, err := Open(context.Background(), os.Getenv(childDir), Config{LockTimeout: time.Minute})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i, key := range neighbours(5)[1:] {
		go func() {
			for n := 0; ; n++ {
				c := persist.Commit{ID: fmt.Sprintf("busy-%d.%d", i, n), Writes: []persist.Write{setTo(key, uint64(n), n)}}
				if _, err := s.Commit(context.Background(), c); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// TestBusyProcessStarvesNobody counts how often a process that never lets go of a lock for long
// gets it while another, that wants it just as much, gets it some times.
//
// Proves STORE-3.
func TestBusyProcessStarvesNobody(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, Config{LockTimeout: time.Minute})
	child := testkit.Start(t, "busy", childDir+"="+dir)
	testkit.Ready(child)
	keys := neighbours(5)
	count := func() (total uint64) {
		for _, key := range keys[1:] {
			r, err := s.Load(t.Context(), key)
			if !errors.Is(err, persist.ErrNotFound) {
				require.NoError(t, err)
			}
			total += r.Version
		}
		return total
	}
	testkit.EventuallyWithin(t, time.Minute, func() bool { return count() > 10 })
	before := count()
	const mine = 100
	for n := range uint64(mine) {
		_, err := s.Commit(t.Context(), persist.Commit{ID: "parent.1", Writes: []persist.Write{setTo(keys[0], n, 1)}})
		require.NoError(t, err)
	}
	theirs := count() - before
	child.Kill()
	t.Logf("the busy process had the lock %d times while the other had it %d times", theirs, mine)
	require.Less(t, theirs, uint64(10*mine))
	require.Greater(t, theirs, uint64(mine/10))
}

var errTest = errors.New("test")

// TestRetry passes on what it is told.
func TestRetry(t *testing.T) {
	require.ErrorIs(t, retry(t.Context(), func() (bool, error) { return false, errTest }), errTest)
	tries := 0
	require.NoError(t, retry(t.Context(), func() (bool, error) { tries++; return tries == 5, nil }))
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)
	require.ErrorIs(t, retry(ended, func() (bool, error) { return false, nil }), errTest)
	require.NoError(t, retry(ended, func() (bool, error) { return true, nil }), "what is free is had even then")
}
