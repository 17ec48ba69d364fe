package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// openIn returns the files below dir that this process has open.
func openIn(t *testing.T, dir string) (found []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			found = append(found, to)
		}
	}
	return found
}

// TestOpenThatFailsKeepsNothing: no file of it stays open.
func TestOpenThatFailsKeepsNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tmp"), nil, 0o600))
	for range 10 {
		_, err := Open(t.Context(), dir, Config{})
		require.Error(t, err)
	}
	require.Empty(t, openIn(t, dir))
}

// TestFewDescriptors: where few files can be open, the store does not keep them for itself.
func TestFewDescriptors(t *testing.T) {
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	entries, _ := os.ReadDir("/proc/self/fd")
	limit := before
	limit.Cur = uint64(len(entries) + 60)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	s := openAt(t, t.TempDir(), impatient)
	failed := 0
	var last error
	for i := range 200 {
		if _, err := s.Commit(context.Background(), put(fmt.Sprint(i), 0)); err != nil {
			failed, last = failed+1, err
		}
	}
	_, loadErr := s.Load(context.Background(), thing("0"))
	_, foreign := os.ReadFile("/etc/hostname")
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	require.Zero(t, failed, "%v; Load: %v; the program's own: %v", last, loadErr, foreign)
}

// TestLockThatWasWaitedFor: a lock file that was removed while somebody waited for it is no lock.
//
// Proves STORE-3.
func TestLockThatWasWaitedFor(t *testing.T) {
	dir := t.TempDir()
	a, b, c := newLocks(dir, time.Minute), newLocks(dir, time.Minute), newLocks(dir, 50*time.Millisecond)
	releaseA := take(t, a, sameLock)
	got := make(chan func())
	go func() { got <- take(t, b, sameLock) }()
	someoneAtTheGate(t, dir)
	for _, name := range []string{lockNames[7], lockNames[7] + ".gate"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	releaseA()
	releaseB := <-got
	_, err := c.take(t.Context(), sameLock)
	require.Error(t, err, "b and c have the same lock exclusively")
	releaseB()
}

// TestNothingToTake: that a record has been taken is not said before that is durable.
//
// Proves STORE-6.
func TestNothingToTake(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{For: time.Hour})
	require.NoError(t, err)
	require.Len(t, taken, 1)
	doubt(t, s, thing("a")) // whoever took it was killed before the sync
	taken, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{For: time.Hour})
	require.NoError(t, err)
	require.Empty(t, taken)
	require.False(t, doubted(t, s, thing("a")), "Take said that there is nothing to take, because of a lease that is not durable")
}

// brief is a context that ends after it was looked at so often.
type brief struct {
	context.Context
	left atomic.Int64
}

func (b *brief) Err() error {
	if b.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestListEndsWithItsContext: to make sure that what it has read is durable takes long, and ends with the context.
//
// Proves STORE-6.
func TestListEndsWithItsContext(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	const n = 20
	for i := range n {
		_, err := s.Commit(t.Context(), put(fmt.Sprint(i), 0))
		require.NoError(t, err)
		doubt(t, s, thing(fmt.Sprint(i)))
	}
	ctx := &brief{Context: context.Background()}
	ctx.left.Store(n + n/2)
	_, err := s.List(ctx, persist.Query{Kind: "thing", Limit: 1000})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, doubted(t, s, thing(fmt.Sprint(n-1))))
}
