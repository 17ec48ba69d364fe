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

// sameLock wants one lock.
var sameLock = wanted{7: exclusive}

// take takes locks that are free now or soon.
func take(t testing.TB, l *locks, want wanted) (release func()) {
	t.Helper()
	release, err := l.take(context.Background(), want)
	require.NoError(t, err)
	return release
}

// TestLocksExclude: two stores of one directory exclude each other like two processes.
//
// Proves STORE-3.
func TestLocksExclude(t *testing.T) {
	dir := t.TempDir()
	one, two := newLocks(dir, time.Minute), newLocks(dir, 10*time.Millisecond)
	for _, c := range []struct {
		first, second mode
		both          bool
	}{{exclusive, exclusive, false}, {exclusive, shared, false}, {shared, exclusive, false}, {shared, shared, true}} {
		for _, l := range []*locks{one, two} { // goroutines of one process, and two processes
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

// TestLocksAreGivenInOrder: goroutines of a process get a lock in order of arrival, in either mode.
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
		time.Sleep(time.Second) // by the clock of the test
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order)
	})
}

// TestWaiterIsNext: a process that releases a lock and wants it again gets it after a process that
// waits already, also if the gate was replaced in between.
//
// Proves STORE-3.
func TestWaiterIsNext(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%t", replaced), func(t *testing.T) { testWaiterIsNext(t, replaced) })
	}
}

func testWaiterIsNext(t *testing.T, replaced bool) {
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
		untilWaiting(t, dir)
		release()
		take(t, busy, sameLock)()
		select {
		case <-got:
		default:
			t.Fatal("the last holder got the lock before the process that waited")
		}
		waiter.Wait()
	}
}

// untilWaiting waits until a process waits for sameLock.
func untilWaiting(t *testing.T, dir string) {
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

// TestLockHeldPastBudget: a call that waits too long for a lock says that nothing was written, and
// calls succeed again once the lock is free.
//
// Proves STORE-14.
func TestLockHeldPastBudget(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	release := take(t, newLocks(s.locks.folder, time.Minute), wanted{stripeOf(thing("a")): exclusive, listLock: exclusive, metaLock: exclusive})
	makeTentative(t, s, thing("a")) // a commit is under way
	both := put("b", 0)
	both.Writes = append(both.Writes, setTo(thing("c"), 0, 1))
	unavailable := map[string]func(context.Context) error{
		"Load":           func(ctx context.Context) error { _, err := s.Load(ctx, thing("a")); return err },
		"List":           func(ctx context.Context) error { _, err := s.List(ctx, persist.Query{}); return err },
		"Commit":         func(ctx context.Context) error { _, err := s.Commit(ctx, put("a", 1)); return err },
		"Commit of many": func(ctx context.Context) error { _, err := s.Commit(ctx, both); return err },
		"Take": func(ctx context.Context) error {
			_, err := s.Take(ctx, persist.Query{}, persist.Acquire{For: time.Hour}, nil)
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
	for name, call := range unavailable { // or until the context ends
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

// TestFailedTakeFreesAll: a call that cannot get one of its locks keeps none.
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

// TestSharedGuards: commits that only test a record do not wait for each other, and a commit that
// changes it waits for them.
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

// TestReadersOfOneProcessShare: lists do not wait for a list of their process that takes long, and
// commits that only test a record do not wait for each other.
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

// TestReplacedLockFiles: a lock excludes others also after its files, or their folder, were
// replaced while the lock was free.
//
// Proves STORE-3.
func TestReplacedLockFiles(t *testing.T) {
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

// TestSharedLockFiles: two shared holders in one process hold the lock until the second releases
// it.
//
// Proves STORE-3.
func TestSharedLockFiles(t *testing.T) {
	dir := t.TempDir()
	one, two := newLocks(dir, time.Minute), newLocks(dir, 10*time.Millisecond)
	first, second := take(t, one, wanted{7: shared}), take(t, one, wanted{7: shared})
	first()
	_, err := two.take(t.Context(), sameLock)
	require.ErrorIs(t, err, persist.ErrUnavailable, "the second still holds it")
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

// busyChild keeps one lock busy all the time, with several goroutines.
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

// TestBusyProcessStarvesNoOther: two processes that want a lock all the time get it about equally
// often.
//
// Proves STORE-3.
func TestBusyProcessStarvesNoOther(t *testing.T) {
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
	t.Logf("the busy process got the lock %d times while the other got it %d times", theirs, mine)
	require.Less(t, theirs, uint64(10*mine))
	require.Greater(t, theirs, uint64(mine/10))
}

var errTest = errors.New("test")

// TestRetry: retry returns the error of its function, and the cause of the end of its context.
func TestRetry(t *testing.T) {
	require.ErrorIs(t, retry(t.Context(), func() (bool, error) { return false, errTest }), errTest)
	tries := 0
	require.NoError(t, retry(t.Context(), func() (bool, error) { tries++; return tries == 5, nil }))
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)
	require.ErrorIs(t, retry(ended, func() (bool, error) { return false, nil }), errTest)
	require.NoError(t, retry(ended, func() (bool, error) { return true, nil }), "it tries once even then")
}

// TestLockThatWasWaitedFor: a process that waits for a lock file which is removed locks the new
// file.
//
// Proves STORE-3.
func TestLockThatWasWaitedFor(t *testing.T) {
	dir := t.TempDir()
	a, b, c := newLocks(dir, time.Minute), newLocks(dir, time.Minute), newLocks(dir, 50*time.Millisecond)
	releaseA := take(t, a, sameLock)
	got := make(chan func())
	go func() { got <- take(t, b, sameLock) }()
	untilWaiting(t, dir)
	for _, name := range []string{lockNames[7], lockNames[7] + ".gate"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	releaseA()
	releaseB := <-got
	_, err := c.take(t.Context(), sameLock)
	require.Error(t, err, "b and c hold the same lock exclusively")
	releaseB()
}
