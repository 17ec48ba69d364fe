package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// inQueue waits until n requests are listed.
func inQueue(t *testing.T, s *Store, n int) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == n
	})
}

// together commits while another connection holds the lock, so that all commits share a
// transaction, and returns the errors.
func together(t *testing.T, s *Store, path string, commits ...persist.Commit) []error {
	t.Helper()
	release := lockedBy(t, path)
	errs := make([]error, len(commits))
	var group sync.WaitGroup
	for i, c := range commits {
		group.Go(func() { _, errs[i] = s.Commit(t.Context(), c) })
	}
	inQueue(t, s, len(commits))
	release()
	group.Wait()
	return errs
}

// A batch holds the owner's request and the first others, up to its limits.
func TestBatchLimits(t *testing.T) {
	for _, c := range []struct{ waiting, size, taken int }{
		{0, 0, 1}, {1, 0, 2}, {maxBatchRequests - 1, 0, maxBatchRequests}, {2 * maxBatchRequests, 0, maxBatchRequests},
		{10, maxBatchBytes / 4, 4}, {10, maxBatchBytes, 1}, {10, 2 * maxBatchBytes, 1},
	} {
		q, own := newQueue(), &request{size: c.size}
		others := []*request{}
		for range c.waiting {
			others = append(others, &request{size: c.size})
			q.add(others[len(others)-1])
			if len(others) == c.waiting/2 {
				q.add(own)
			}
		}
		if c.waiting < 2 {
			q.add(own)
		}
		batch := q.take(own)
		require.Len(t, batch, c.taken, "%+v", c)
		require.Same(t, own, batch[0])
		require.Equal(t, others, append(batch[1:], q.waiting...), "the order of arrival")
		require.Equal(t, c.taken, q.last)
		require.False(t, q.remove(own))
		if len(q.waiting) > 0 {
			require.True(t, q.remove(others[len(others)-1]))
			require.False(t, q.remove(others[len(others)-1]))
		}
	}
}

// The owner of the writer lingers while fewer requests wait than the last batch had, and never for
// a request that does not arrive.
func TestLinger(t *testing.T) {
	q := newQueue()
	q.last = 2
	q.add(&request{})
	q.linger() // returns although the second one does not arrive
	arrived := make(chan struct{})
	go func() {
		q.add(&request{})
		close(arrived)
	}()
	<-arrived
	q.linger()
	require.Len(t, q.waiting, 2)
}

// A goroutine that owns the writer for long blocks writers, but no readers, and writers can leave.
// When it releases the writer, the waiting commits share a transaction.
//
// Proves STORE-7.
func TestSlowOwnerOfTheWriter(t *testing.T) {
	const writers = 20
	s := openAt(t, dbPath(t), Config{})
	require.NoError(t, s.queue.acquire(t.Context()))
	times, errs := make([]time.Time, writers), make([]error, writers)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { times[i], errs[i] = s.Commit(t.Context(), put(fmt.Sprint(i), 0)) })
	}
	inQueue(t, s, writers)

	_, err := s.Load(t.Context(), thing("0"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	leaving, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	left.Go(func() {
		_, err := s.Commit(leaving, put("left", 0))
		require.ErrorIs(t, err, persist.ErrNotApplied)
	})
	left.Go(func() {
		_, err := s.CommitWith(leaving, put("left", 0), nil)
		require.ErrorIs(t, err, persist.ErrNotApplied)
	})
	inQueue(t, s, writers+1)
	leave()
	left.Wait()

	s.queue.release()
	group.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		require.Equal(t, times[0], times[i])
	}
}

// A caller whose request was done gets its answer, also if it gets the writer at the same moment.
//
// Proves STORE-7.
func TestAnswerAndWriterAtOnce(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	r := &request{done: make(chan struct{}), at: hostTime(), err: errRefused}
	close(r.done)
	require.NoError(t, s.queue.acquire(t.Context()))
	at, err := s.lead(t.Context(), r)
	require.Equal(t, errRefused, err)
	require.Equal(t, r.at, at)
	_, err = s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err, "the writer was not released")
}

// A caller whose context ends before its turn is not written, and blocks neither the owner of the
// writer nor later callers.
//
// Proves STORE-7.
func TestWithdrawn(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	release := lockedBy(t, path)
	ended, cancel := context.WithCancel(t.Context())
	errs := make([]error, 4)
	var group, withdrawn sync.WaitGroup
	for i := range errs {
		ctx, waiters := ended, &withdrawn
		if i >= 2 {
			ctx, waiters = t.Context(), &group
		}
		waiters.Go(func() { _, errs[i] = s.Commit(ctx, put(fmt.Sprint(i), 0)) })
		inQueue(t, s, i+1)
	}
	cancel()
	withdrawn.Wait() // the owner and one behind it, while the database is locked
	for _, err := range errs[:2] {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, persist.ErrNotApplied)
	}
	release()
	group.Wait()
	require.NoError(t, errs[2])
	require.NoError(t, errs[3])
	page, err := s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Len(t, page.Records, 2)
}

// Close answers the waiting callers.
//
// Proves STORE-7.
func TestCloseDrains(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	release := lockedBy(t, path)
	errs := make([]error, 3)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { _, errs[i] = s.Commit(t.Context(), put(fmt.Sprint(i), 0)) })
	}
	inQueue(t, s, len(errs))
	group.Go(func() { require.NoError(t, s.Close()) })
	testkit.Eventually(t, s.calls.ended)
	_, err := s.Commit(t.Context(), put("late", 0))
	require.ErrorIs(t, err, persist.ErrClosed)
	release()
	group.Wait()
	require.Equal(t, []error{nil, nil, nil}, errs)
}

// A caller that leaves during its transaction learns that the outcome is unknown, and its work is
// done as it was asked for, whatever the caller does with its query.
//
// Proves STORE-2.
func TestCallerLeavesDuringItsTransaction(t *testing.T) {
	s := openAt(t, dbPath(t), Config{BusyTimeout: 20 * time.Millisecond})
	labelled := put("a", 0)
	labelled.Writes[0].Label = "x"
	_, err := s.Commit(t.Context(), labelled)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("c", 0))
	require.NoError(t, err)
	require.NoError(t, s.queue.acquire(t.Context()))
	begun, proceed := make(chan bool), make(chan bool)
	slow := &request{done: make(chan struct{}), arrived: time.Now(), work: func(*transaction) error {
		close(begun)
		<-proceed
		return nil
	}}
	s.queue.add(slow)
	ctx, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	commit := func(c persist.Commit, listed int) {
		left.Go(func() {
			_, err := s.Commit(ctx, c)
			require.ErrorIs(t, err, persist.ErrUnavailable)
			require.NotErrorIs(t, err, persist.ErrNotApplied)
		})
		inQueue(t, s, listed)
	}
	guarded := put("b", 0)
	guarded.Guards = []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}
	guarded.Writes[0].Acquire = &persist.Acquire{Holder: "b", For: time.Hour}
	commit(guarded, 2)
	q := persist.Query{Kind: "thing", Labels: []string{"x"}}
	left.Go(func() {
		_, err := s.Take(ctx, q, persist.Acquire{Holder: "x", For: time.Hour}, nil)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		q.Labels[0] = "other"
	})
	inQueue(t, s, 3)
	next := put("c", 1)
	next.Writes[0].Recent = []string{next.ID, "before.2"}
	commit(next, 4)
	var group sync.WaitGroup
	group.Go(func() {
		_, err := s.lead(t.Context(), slow)
		require.NoError(t, err)
	})
	<-begun
	leave()
	left.Wait()
	close(proceed)
	group.Wait()
	for id, holder := range map[string]string{"a": "x", "b": "b"} {
		require.Equal(t, holder, alive(t, s, id).Lease.Holder)
	}
	require.Contains(t, alive(t, s, "c").Commits, "before.2")
}
