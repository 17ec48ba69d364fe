package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// lockedBy takes the write lock on a connection of its own and returns the function that lets go.
func lockedBy(t *testing.T, path string) (release func()) {
	t.Helper()
	conn, err := database(t, path, "_busy_timeout=5000").Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	return func() {
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// inQueue waits until n requests are in the queue.
func inQueue(t *testing.T, s *Store, n int) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == n
	})
}

// TestLockHeldPastBudget: everybody who waits learns that the database is locked, in SQLite's
// words nobody, and work resumes by itself.
//
// Proves STORE-7.
func TestLockHeldPastBudget(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, impatient)
	release := lockedBy(t, path)
	errs := make([]error, 5)
	var writers sync.WaitGroup
	began := time.Now()
	for i := range errs {
		writers.Go(func() { _, errs[i] = s.Commit(t.Context(), put(fmt.Sprint(i), 0)) })
	}
	writers.Wait()
	require.GreaterOrEqual(t, time.Since(began), impatient.BusyTimeout)
	for _, err := range errs {
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.ErrorContains(t, err, "locked")
		require.Zero(t, resultCode(err), "the driver's error is not for callers: %v", err)
	}
	release()
	for i := range errs {
		_, err := s.Commit(t.Context(), put(fmt.Sprint(i), 0))
		require.NoError(t, err)
	}
}

// Proves STORE-7.
func TestOpenWhileLocked(t *testing.T) {
	path := dbPath(t)
	release := lockedBy(t, path)
	_, err := Open(t.Context(), path, impatient)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.Zero(t, resultCode(err), "%v", err)
	release()
	require.NoError(t, openAt(t, path, impatient).Close())
	release = lockedBy(t, path)
	defer release()
	openAt(t, path, impatient) // there is nothing to migrate, so no lock is needed
}

// TestWaitersShareATransaction: what waits at the same time is committed at the same time, and a
// commit that fails does so alone.
//
// Proves STORE-7, STORE-2.
func TestWaitersShareATransaction(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	release := lockedBy(t, path)
	const writers = 20
	times, errs := make([]time.Time, writers), make([]error, writers)
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() { times[i], errs[i] = s.Commit(t.Context(), put(fmt.Sprint(i/2), 0)) })
	}
	inQueue(t, s, writers)
	release()
	group.Wait()
	var at time.Time
	conflicts := 0
	for i, err := range errs {
		var conflict *persist.Conflict
		if err != nil {
			require.ErrorAs(t, err, &conflict)
			require.EqualValues(t, 1, conflict.Winners[0].Version)
			conflicts++
			continue
		}
		if at.IsZero() {
			at = times[i]
		}
		require.Equal(t, at, times[i])
	}
	require.Equal(t, writers/2, conflicts, "of two creators one wins")
}

// TestRejectedRowFailsAlone: a row that the database refuses does not take others with it.
//
// Proves STORE-7.
func TestRejectedRowFailsAlone(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	_, err := database(t, path, "_busy_timeout=5000").Exec(`CREATE TRIGGER refuse BEFORE INSERT ON pawl_records WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`)
	require.NoError(t, err)
	release := lockedBy(t, path)
	ids := []string{"a", "bad", "b", "c"}
	errs := make([]error, len(ids))
	var group sync.WaitGroup
	for i, id := range ids {
		group.Go(func() { _, errs[i] = s.Commit(t.Context(), put(id, 0)) })
	}
	inQueue(t, s, len(ids))
	release()
	group.Wait()
	for i, id := range ids {
		if id == "bad" {
			require.ErrorIs(t, errs[i], persist.ErrNotApplied)
			require.ErrorContains(t, errs[i], "refused")
			continue
		}
		require.NoError(t, errs[i])
	}
}

// TestWithdrawn: a caller whose context ends before its turn is not written, and neither the
// leader nor those behind it are held up.
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
	withdrawn.Wait() // the leader and one behind it, while the database is locked
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

// TestCloseDrains: Close answers those who wait.
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
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.closed
	})
	_, err := s.Commit(t.Context(), put("late", 0))
	require.ErrorIs(t, err, persist.ErrClosed)
	release()
	group.Wait()
	require.Equal(t, []error{nil, nil, nil}, errs)
}

// TestFullDisk: where there is no room, nothing was written and the store says so.
//
// Proves STORE-7.
func TestFullDisk(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	_, err = s.writer.conn.ExecContext(t.Context(), "PRAGMA max_page_count=1")
	require.NoError(t, err)
	large := put("b", 0)
	large.Writes[0].Doc = fmt.Appendf(nil, "%q", strings.Repeat("x", 1<<20))
	_, err = s.Commit(t.Context(), large)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	_, err = s.Load(t.Context(), persist.Key{Kind: "thing", ID: "a"})
	require.NoError(t, err)
	_, err = s.writer.conn.ExecContext(t.Context(), "PRAGMA max_page_count=1000000")
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), large)
	require.NoError(t, err)
}

// TestFailedCommit: where COMMIT itself fails, the store does not claim to know the outcome, and
// goes on with a new connection.
//
// Proves STORE-7.
func TestFailedCommit(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	db := database(t, path, "_busy_timeout=5000")
	for _, text := range []string{ // a constraint that is only looked at when the transaction ends
		`CREATE TABLE parent (id TEXT PRIMARY KEY)`,
		`CREATE TABLE child (id TEXT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`,
		`CREATE TRIGGER orphan AFTER INSERT ON pawl_records WHEN NEW.id = 'orphan' BEGIN INSERT INTO child VALUES ('x'); END`,
	} {
		_, err := db.Exec(text)
		require.NoError(t, err)
	}
	_, err := s.writer.conn.ExecContext(t.Context(), "PRAGMA foreign_keys=1")
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("orphan", 0))
	require.Error(t, err)
	require.NotErrorIs(t, err, persist.ErrNotApplied)
	_, err = s.Commit(t.Context(), put("next", 0))
	require.NoError(t, err)
}

// Proves STORE-1.
func TestVersionBeyondSQLite(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	c := put("a", 0)
	c.Writes[0].Version = math.MaxInt64 + 1
	_, err := s.Commit(t.Context(), c)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	c.Writes[0].Version = math.MaxInt64
	_, err = s.Commit(t.Context(), c)
	require.NoError(t, err)
}

// TestPurgeInSteps removes more tombstones than one transaction takes.
//
// Proves STORE-1.
func TestPurgeInSteps(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	const tombstones = purgeStep + 20
	writes := make([]persist.Write, tombstones)
	for i := range writes {
		writes[i] = persist.Write{Key: persist.Key{Kind: "thing", ID: fmt.Sprint(i)}, Version: uint64(i + 1), Deleted: true}
	}
	_, err := s.Commit(t.Context(), persist.Commit{ID: "test.1", Writes: writes})
	require.NoError(t, err)
	removed, err := s.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, tombstones, removed)
	r, err := s.Load(t.Context(), writes[0].Key)
	require.ErrorIs(t, err, persist.ErrNotFound)
	require.EqualValues(t, tombstones, r.Version)
}

// TestReadersAreNotHeldUp: a writer's transaction blocks no reader.
//
// Proves STORE-7.
func TestReadersAreNotHeldUp(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	defer lockedBy(t, path)()
	_, err = s.Load(t.Context(), persist.Key{Kind: "thing", ID: "a"})
	require.NoError(t, err)
	_, err = s.reader.ExecContext(t.Context(), "DELETE FROM pawl_records")
	require.Error(t, err, "reading connections cannot write")
	require.NotErrorIs(t, err, sql.ErrConnDone)
}

// TestCallerWhoLeftReuses: what a commit tests and writes is what it was when it was called, whatever becomes of the
// caller's slices once it has left without an answer.
//
// Proves STORE-2.
func TestCallerWhoLeftReuses(t *testing.T) {
	s := openAt(t, dbPath(t), Config{BusyTimeout: 20 * time.Millisecond})
	labelled := put("a", 0)
	labelled.Writes[0].Label = "x"
	_, err := s.Commit(t.Context(), labelled)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("c", 0))
	require.NoError(t, err)
	require.True(t, s.queue.tryLead())
	begun, goOn := make(chan bool), make(chan bool)
	var group sync.WaitGroup
	group.Go(func() { // leads a transaction that takes long
		_, err := s.write(t.Context(), &request{work: func(*batch) error {
			close(begun)
			<-goOn
			return nil
		}})
		require.NoError(t, err)
	})
	inQueue(t, s, 1)
	ctx, leave := context.WithCancel(t.Context())
	c := put("b", 0)
	c.Guards = []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}
	c.Writes[0].Acquire = &persist.Acquire{Holder: "b", For: time.Hour}
	var left sync.WaitGroup
	left.Go(func() {
		_, err := s.Commit(ctx, c)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		c.Guards[0] = persist.Guard{Key: thing("other"), Read: true, Version: 7}
		c.Writes[0].Acquire.Holder = "other"
	})
	inQueue(t, s, 2)
	q := persist.Query{Kind: "thing", Labels: []string{"x"}}
	left.Go(func() {
		_, err := s.Take(ctx, q, persist.Acquire{Holder: "x", For: time.Hour})
		require.ErrorIs(t, err, persist.ErrUnavailable)
		q.Labels[0] = "other"
	})
	inQueue(t, s, 3)
	next := put("c", 1)
	next.Writes[0].Recent = []string{next.ID, "before.2"}
	left.Go(func() {
		_, err := s.Commit(ctx, next)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		next.Writes[0].Recent[1] = "other.2"
	})
	inQueue(t, s, 4)
	s.queue.resign(nil, 0)
	<-begun
	leave()
	left.Wait()
	close(goOn)
	group.Wait()
	for id, holder := range map[string]string{"a": "x", "b": "b"} {
		r, err := s.Load(t.Context(), thing(id))
		require.NoError(t, err)
		require.Equal(t, holder, r.Lease.Holder)
	}
	r, err := s.Load(t.Context(), thing("c"))
	require.NoError(t, err)
	require.Contains(t, r.Commits, "before.2")
}

// TestTriggersThatRefuse: whichever way a trigger of somebody's refuses a next version, nothing of it is written. What RAISE(FAIL) leaves of a statement would
// be committed, were the statement a transaction by itself.
//
// Proves STORE-7.
func TestTriggersThatRefuse(t *testing.T) {
	for _, action := range []string{"ABORT", "FAIL", "ROLLBACK"} {
		for _, when := range []string{"BEFORE", "AFTER"} {
			t.Run(when+" "+action, func(t *testing.T) {
				path := dbPath(t)
				s := openAt(t, path, Config{})
				first, next := put("a", 0), put("a", 1)
				next.Writes[0].Recent = []string{first.ID}
				_, err := s.Commit(t.Context(), first)
				require.NoError(t, err)
				_, err = database(t, path, "_busy_timeout=5000").Exec(fmt.Sprintf(
					`CREATE TRIGGER refuse %s UPDATE ON Pawl_Records BEGIN SELECT RAISE(%s, 'refused'); END`, when, action))
				require.NoError(t, err)
				for range 2 {
					_, err = s.Commit(t.Context(), next)
					require.ErrorIs(t, err, persist.ErrNotApplied)
					require.ErrorContains(t, err, "refused")
				}
				r, err := s.Load(t.Context(), thing("a"))
				require.NoError(t, err)
				require.EqualValues(t, 1, r.Version)
			})
		}
	}
}
