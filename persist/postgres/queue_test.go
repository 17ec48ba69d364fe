package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// usedUp takes every connection of the store's pool, and returns the function that gives them back.
func usedUp(t testing.TB, s *Store) (release func()) {
	t.Helper()
	var taken []*pgxpool.Conn
	for range s.pool.Config().MaxConns {
		conn, err := s.pool.Acquire(t.Context())
		require.NoError(t, err)
		taken = append(taken, conn)
	}
	release = func() {
		for _, conn := range taken {
			conn.Release()
		}
	}
	t.Cleanup(release) // if the test ends early, so that the pool can be closed
	return release
}

// inQueue waits until n requests wait for a committer.
func inQueue(t testing.TB, s *Store, n int) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == n
	})
}

// batched commits all at once, in one batch as far as they have no key in common.
func batched(t testing.TB, s *Store, commits ...persist.Commit) []result {
	t.Helper()
	s.queue.maxDirect = 0
	release := usedUp(t, s)
	var answers []<-chan result
	for _, c := range commits {
		answers = append(answers, commitLater(t.Context(), s, c))
		inQueue(t, s, len(answers))
	}
	release()
	var results []result
	for _, answer := range answers {
		results = append(results, answered(t, answer))
	}
	return results
}

// sameTime asserts that commits succeeded, in one transaction.
func sameTime(t testing.TB, results ...result) {
	t.Helper()
	for _, r := range results {
		require.NoError(t, r.err)
		require.Equal(t, results[0].at, r.at)
	}
}

// TestBatch: what waits at the same time is committed at the same time, and each commit has an
// outcome of its own.
//
// Proves STORE-2, STORE-5.
func TestBatch(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	leased := put("leased", 0)
	leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	must(t, s, put("old", 0), put("old", 1), put("other", 0), leased)
	guarded := put("guarded", 0)
	guarded.Guards = []persist.Guard{{Key: thing("other"), Read: true, Version: 1}}
	fenced := put("fenced", 0)
	fenced.Guards = []persist.Guard{{Key: thing("dead"), Token: 1}}
	renewed := persist.Commit{ID: "w.1", Guards: []persist.Guard{{Key: thing("leased"), Token: 1, Extend: 2 * time.Hour}}}
	looked := persist.Commit{ID: "w.2", Guards: []persist.Guard{{Key: thing("nowhere"), Read: true}}}
	results := batched(t, s, put("new", 0), put("old", 1), guarded, fenced, renewed, looked, together(put("x", 0), put("y", 0)))
	sameTime(t, results[0], results[2], results[4], results[5], results[6])
	require.EqualValues(t, 2, winner(t, results[1].err).Version)
	require.NotNil(t, winner(t, results[1].err).Doc)
	var lost *persist.Fenced
	require.ErrorAs(t, results[3].err, &lost)
	require.Equal(t, results[4].at.Add(2*time.Hour), load(t, s, "leased").Lease.Until)
	require.EqualValues(t, 1, load(t, s, "leased").Version)
	_, err := s.Load(t.Context(), thing("fenced"))
	require.ErrorIs(t, err, persist.ErrNotFound)
}

// TestBatchOfOneKey: no key is twice in a batch, so each commit rests on the one before it.
//
// Proves STORE-2.
func TestBatchOfOneKey(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	results := batched(t, s, put("a", 0), put("a", 1), together(put("a", 2), put("b", 0)), put("b", 1))
	for i, r := range results {
		require.NoError(t, r.err)
		require.True(t, i == 0 || r.at.After(results[i-1].at))
	}
}

// TestRejectedDocumentFailsAlone: a document that jsonb cannot keep takes no others with it.
//
// Proves CAS-11.
func TestRejectedDocumentFailsAlone(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	var commits []persist.Commit
	bad := map[int]string{3: `{"a": "\u0000"}`, 7: `"\ud800"`, 8: strings.Repeat("1", 140_000)}
	for i := range 12 {
		c := put(fmt.Sprint(i), 0)
		if text, ok := bad[i]; ok {
			c.Writes[0].Doc = []byte(text)
		}
		commits = append(commits, c)
	}
	for i, r := range batched(t, s, commits...) {
		if bad[i] == "" {
			require.NoError(t, r.err)
			continue
		}
		require.ErrorIs(t, r.err, persist.ErrNotApplied)
		require.NotErrorIs(t, r.err, persist.ErrUnavailable)
	}
}

// TestLockedRecordInABatch goes its own way, and the rest of the batch does not wait for it.
//
// Proves CAS-11.
func TestLockedRecordInABatch(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("locked", 0), put("a", 0), put("b", 0))
	release := locked(t, url, "locked")
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", s.names.lockKey(thing("locked while absent")))
	require.NoError(t, err)

	s.queue.maxDirect = 0
	back := usedUp(t, s)
	var answers []<-chan result
	for _, c := range []persist.Commit{put("locked", 1), put("locked while absent", 0), put("a", 1), put("b", 1), put("c", 0)} {
		answers = append(answers, commitLater(t.Context(), s, c))
	}
	inQueue(t, s, len(answers))
	back()
	sameTime(t, answered(t, answers[2]), answered(t, answers[3]))
	require.NoError(t, answered(t, answers[4]).err)
	require.Empty(t, answers[0])
	require.Empty(t, answers[1])
	release()
	require.NoError(t, answered(t, answers[0]).err)
	require.Empty(t, answers[1])
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, answered(t, answers[1]).err)
}

// TestWithdrawn: a caller whose context ends before its commit is sent leaves nothing behind,
// where- ever the commit waits.
//
// Proves STORE-2.
func TestWithdrawn(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("locked", 0))
	for name, direct := range map[string]int{"for a connection": 1 << 20, "for a committer": 0} {
		s.queue.maxDirect = direct
		release := usedUp(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		answer := commitLater(ctx, s, put(name, 0))
		if direct == 0 {
			inQueue(t, s, 1)
		}
		cancel()
		err := answered(t, answer).err
		require.ErrorIs(t, err, context.Canceled, name)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
		release()
		must(t, s, put(name, 0))
	}
	defer locked(t, url, "locked")()
	ctx, cancel := context.WithCancel(t.Context())
	answer := commitLater(ctx, s, put("locked", 1))
	eventually(t, pgtest.Connect(t, url), someoneWaits)
	cancel() // it is being waited for a lock: no answer is known, or one that says it was withdrawn
	require.ErrorIs(t, answered(t, answer).err, context.Canceled)
}

// TestCloseDrains: Close waits until all requests are answered, and later calls are refused.
//
// Proves STORE-1.
func TestCloseDrains(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	s.queue.maxDirect = 1
	release := usedUp(t, s)
	var answers []<-chan result
	for i := range 5 {
		answers = append(answers, commitLater(t.Context(), s, put(fmt.Sprint(i), 0)))
	}
	inQueue(t, s, 4)
	var group sync.WaitGroup
	group.Go(func() { require.NoError(t, s.Close()) })
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.closed
	})
	_, err := s.Commit(t.Context(), put("late", 0))
	require.ErrorIs(t, err, persist.ErrClosed)
	release()
	group.Wait()
	for _, answer := range answers {
		require.Len(t, answer, 1, "every request is answered when Close returns")
		require.NoError(t, (<-answer).err)
	}
}

// TestUsedUpPool: calls fail in time while all connections are in use, and succeed afterwards.
//
// Proves STORE-14.
func TestUsedUpPool(t *testing.T) {
	url := pgtest.URL(t)
	for _, direct := range []int{1 << 20, 0} {
		s := openAt(t, connections(t, url, 2), Config{})
		s.queue.maxDirect = direct
		release := usedUp(t, s)
		s.config.AcquireTimeout = 50 * time.Millisecond // from here on: connecting may take longer
		var answers []<-chan result
		for i := range 20 {
			answers = append(answers, commitLater(t.Context(), s, put(fmt.Sprint(direct, i), 0)))
		}
		for _, answer := range answers {
			unavailable(t, answered(t, answer).err)
		}
		_, err := s.Load(t.Context(), thing("a"))
		require.ErrorIs(t, err, persist.ErrUnavailable)
		_, err = s.List(t.Context(), persist.Query{})
		require.ErrorIs(t, err, persist.ErrUnavailable)
		_, err = s.Take(t.Context(), persist.Query{}, persist.Acquire{For: time.Hour}, nil)
		unavailable(t, err)
		_, err = New(t.Context(), s.pool, Config{AcquireTimeout: 50 * time.Millisecond})
		require.ErrorIs(t, err, persist.ErrUnavailable)
		s.config.AcquireTimeout = defaultAcquireTimeout
		release()
		must(t, s, put(fmt.Sprint("free-", direct), 0))
	}
}
