package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// lockedBy takes the write lock on a connection of its own; release gives it back.
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

// Every waiting caller learns that the database is locked, without SQLite's own error, and work
// resumes by itself.
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

// Commits that wait at the same time share a transaction, and a conflict fails one commit only.
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

// A row that the database refuses fails its own commit only.
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

// Purge removes more tombstones than one transaction takes.
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

// A writer's transaction blocks no reader.
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

// A process that has kept the lock busy for its turn leaves the lock free for a moment, in which a
// waiting process gets it. A turn is short after other processes have written.
//
// Proves STORE-3.
func TestTurns(t *testing.T) {
	path := dbPath(t)
	s, other := openAt(t, path, Config{}), openAt(t, path, Config{})
	w := s.writer
	ended, end := context.WithCancel(t.Context())
	end()
	share := func(busy, idle time.Duration) (pauses bool) {
		t.Helper()
		for {
			now := time.Now()
			w.turn.began, w.turn.used = now.Add(-busy), now.Add(-idle)
			err := w.share(ended) // a pause ends with the context
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
				return true
			}
			if idle > 0 || time.Since(now) <= longestPause {
				return false
			}
			// This goroutine did not run for so long that the lock seemed to be free.
		}
	}
	require.NoError(t, s.look(t.Context()))
	require.True(t, share(longTurn, 0)) // the first look of a connection always finds a change
	require.True(t, share(longTurn, 0))
	require.False(t, w.turn.others)
	require.True(t, share(longTurn, 0))
	require.False(t, share(longTurn/2, 0), "the turn is not over")
	require.False(t, share(longTurn, time.Second), "the lock was free")

	_, err := other.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.True(t, share(longTurn, 0))
	require.True(t, w.turn.others)
	require.True(t, share(shortTurn, 0))
	require.False(t, w.turn.others)
}

// Nothing is acknowledged while the database file or its log is removed or replaced, also by a new
// connection, and nothing is read from a file that was. Once the file is back, work resumes.
//
// Proves STORE-14.
func TestRemovedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not rename open files")
	}
	for _, suffix := range []string{"", "-wal"} {
		for _, replaced := range []bool{false, true} {
			t.Run(fmt.Sprintf("state.db%s, replaced=%t", suffix, replaced), func(t *testing.T) {
				path := dbPath(t)
				s := openAt(t, path, Config{})
				_, err := s.Commit(t.Context(), put("a", 0))
				require.NoError(t, err)
				elsewhere := filepath.Join(t.TempDir(), "elsewhere")
				require.NoError(t, os.Rename(path+suffix, elsewhere))
				if replaced {
					content, err := os.ReadFile(elsewhere)
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(path+suffix, content, 0o600))
				}
				refused := func(err error) {
					t.Helper()
					require.ErrorIs(t, err, persist.ErrNotApplied)
					require.ErrorIs(t, err, persist.ErrUnavailable)
					require.ErrorContains(t, err, path+suffix+" was removed or replaced")
				}
				_, err = s.Commit(t.Context(), put("a", 1))
				refused(err)
				_, err = s.CommitWith(t.Context(), put("a", 1), func(context.Context, any) error { return nil })
				refused(err)
				if suffix == "" {
					for name, read := range reading(t.Context(), s) {
						err := read()
						require.ErrorIs(t, err, persist.ErrUnavailable, name)
						require.ErrorContains(t, err, path+" was removed or replaced", name)
					}
					s.writer.discard()
					_, err = s.Commit(t.Context(), put("a", 1))
					refused(err)
				}
				require.NoError(t, os.Rename(elsewhere, path+suffix))
				_, err = s.Commit(t.Context(), put("a", 1))
				require.NoError(t, err)
				require.EqualValues(t, 2, alive(t, s, "a").Version)
				for name, read := range reading(t.Context(), s) {
					require.NoError(t, read(), name)
				}
			})
		}
	}
}

// reading returns calls that read s, by name.
func reading(ctx context.Context, s *Store) map[string]func() error {
	return map[string]func() error{
		"Load":         func() error { _, err := s.Load(ctx, thing("a")); return err },
		"LoadAll":      func() error { _, err := s.LoadAll(ctx, []persist.Key{thing("a")}); return err },
		"Versions":     func() error { _, err := s.Versions(ctx, []persist.Key{thing("a")}); return err },
		"List":         func() error { _, err := s.List(ctx, persist.Query{Kind: "thing"}); return err },
		"ReadLog":      func() error { _, err := s.ReadLog(ctx, persist.LogQuery{Key: thing("a")}); return err },
		"ReadOrder":    func() error { _, err := s.ReadOrder(ctx, persist.OrderQuery{}); return err },
		"LastPosition": func() error { _, err := s.LastPosition(ctx); return err },
	}
}
