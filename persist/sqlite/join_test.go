package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func beginOn(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// A joined store reads and writes inside the transaction, whose end decides about all of it.
//
// Proves TX-6.
func TestJoin(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	db.SetMaxOpenConns(1)
	for _, keep := range []bool{false, true} {
		tx := beginOn(t, db)
		require.NoError(t, order(ctx, tx, "a"))
		j := s.Join(tx)
		_, err := j.Load(ctx, thing("a"))
		require.ErrorIs(t, err, persist.ErrNotFound)
		at, err := j.Commit(ctx, put("a", 0))
		require.NoError(t, err)

		r, err := j.Load(ctx, thing("a"))
		require.NoError(t, err)
		require.Equal(t, at, r.Updated)
		all, err := j.(persist.Reader).LoadAll(ctx, []persist.Key{thing("b"), thing("a")})
		require.NoError(t, err)
		require.True(t, all[0].Absent())
		require.EqualValues(t, 1, all[1].Version)
		versions, err := j.(persist.Prober).Versions(ctx, []persist.Key{thing("b"), thing("a")})
		require.NoError(t, err)
		require.Equal(t, []uint64{0, 1}, versions)
		page, err := j.List(ctx, persist.Query{})
		require.NoError(t, err)
		require.Len(t, page.Records, 1)

		_, err = s.Load(ctx, thing("a"))
		require.ErrorIs(t, err, persist.ErrNotFound, "not visible outside the transaction")
		require.NoError(t, j.Close())
		_, err = j.Load(ctx, thing("a"))
		require.ErrorIs(t, err, persist.ErrClosed)
		if keep {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		rows, documents := idsOf(t, s, db)
		require.Equal(t, rows, documents)
		require.Equal(t, keep, len(rows) == 1)
	}
}

// A commit that is refused or fails leaves the transaction as it was.
//
// Proves TX-6.
func TestJoinRefusal(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	_, err := db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON pawl_records WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`)
	require.NoError(t, err)
	tx := beginOn(t, db)
	j := s.Join(tx)
	_, err = j.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	require.NoError(t, order(ctx, tx, "a"))

	var conflict *persist.Conflict
	_, err = j.Commit(ctx, put("a", 0))
	require.ErrorAs(t, err, &conflict)
	require.EqualValues(t, 1, conflict.Winners[0].Version)
	both := put("b", 0)
	for i := range 10 { // written before the bad one
		both.Writes = append(both.Writes, put(fmt.Sprint("with bad ", i), 0).Writes...)
	}
	both.Writes = append(both.Writes, put("bad", 0).Writes...)
	_, err = j.Commit(ctx, both)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorContains(t, err, "refused")
	_, err = j.Commit(ctx, persist.Commit{})
	require.ErrorIs(t, err, persist.ErrNotApplied, "empty")

	native := j.(persist.Native)
	require.Equal(t, s.NativeType(), native.NativeType())
	_, err = native.CommitWith(ctx, put("c", 0), func(ctx context.Context, got any) error {
		require.True(t, got == any(tx))
		require.NoError(t, order(ctx, got, "c"))
		return errRefused
	})
	require.True(t, err == errRefused, "%v", err)
	require.PanicsWithValue(t, errRefused, func() {
		_, _ = native.CommitWith(ctx, put("c", 0), func(ctx context.Context, got any) error {
			require.NoError(t, order(ctx, got, "c"))
			panic(errRefused)
		})
	})
	_, err = native.CommitWith(ctx, put("d", 0), func(ctx context.Context, got any) error { return order(ctx, got, "d") })
	require.NoError(t, err)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = j.Commit(ended, put("e", 0))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, persist.ErrNotApplied)

	require.NoError(t, tx.Commit())
	rows, documents := idsOf(t, s, db)
	require.Equal(t, []string{"a", "d"}, rows)
	require.Equal(t, rows, documents)

	_, err = j.Commit(ctx, put("f", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, sql.ErrTxDone)
}

// When the function ends the transaction itself, the answer says what happened.
//
// Proves TX-6.
func TestJoinEnded(t *testing.T) {
	for _, failure := range []error{nil, errRefused} {
		for applied, end := range map[bool]func(*sql.Tx) error{true: (*sql.Tx).Commit, false: (*sql.Tx).Rollback} {
			s, db, _ := withTable(t, Config{})
			db.SetMaxOpenConns(1)
			_, err := s.Join(beginOn(t, db)).(persist.Native).CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
				require.NoError(t, end(tx.(*sql.Tx)))
				return failure
			})
			require.Equal(t, applied && failure == nil, err == nil, "%v", err)
			require.Equal(t, !applied && failure != nil, err == errRefused, "%v", err)
			require.Equal(t, !applied && failure == nil, errors.Is(err, persist.ErrNotApplied), "%v", err)
			_, err = s.Load(t.Context(), thing("a"))
			require.Equal(t, applied, err == nil)
		}
	}
}

// A transaction that the function began in place of the joined one is rolled back.
//
// Proves TX-6.
func TestJoinEndedInSQL(t *testing.T) {
	for _, failure := range []error{nil, errRefused} {
		s, db, _ := withTable(t, Config{})
		tx := beginOn(t, db)
		_, err := s.Join(tx).(persist.Native).CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
			_, err := tx.(*sql.Tx).Exec(`ROLLBACK; BEGIN; INSERT INTO orders VALUES ('stray')`)
			require.NoError(t, err)
			return failure
		})
		require.Equal(t, failure != nil, err == errRefused, "%v", err)
		require.Equal(t, failure == nil, errors.Is(err, persist.ErrNotApplied), "%v", err)
		require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
		rows, documents := idsOf(t, s, db)
		require.Empty(t, rows)
		require.Empty(t, documents)
	}
}

// After SQLite has rolled the transaction back, nothing is written outside of it.
//
// Proves TX-6.
func TestJoinRolledBackBySQLite(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	_, err := db.Exec(`INSERT INTO orders VALUES ('taken')`)
	require.NoError(t, err)
	tx := beginOn(t, db)
	j := s.Join(tx)
	_, err = j.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	_, err = tx.Exec(`INSERT OR ROLLBACK INTO orders VALUES ('taken')`)
	require.Error(t, err)
	_, err = j.Commit(ctx, put("b", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, sql.ErrTxDone)
	require.ErrorIs(t, order(ctx, tx, "stray"), sql.ErrTxDone)

	_, err = db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON pawl_records WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'refused'); END`)
	require.NoError(t, err)
	tx = beginOn(t, db)
	_, err = s.Join(tx).Commit(ctx, put("bad", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorContains(t, err, "refused")
	require.ErrorIs(t, order(ctx, tx, "stray"), sql.ErrTxDone)

	rows, documents := idsOf(t, s, db)
	require.Equal(t, []string{"taken"}, rows)
	require.Empty(t, documents)
}

// A transaction on another file is refused, and so is one that is not durable. Another name of the
// same file is accepted.
//
// Proves TX-6, STORE-10.
func TestJoinElsewhere(t *testing.T) {
	s, _, path := withTable(t, Config{})
	_, elsewhere, _ := withTable(t, Config{})
	memory, err := sql.Open(driverName, ":memory:")
	require.NoError(t, err)
	defer memory.Close()
	for _, db := range []*sql.DB{elsewhere, memory} {
		j := s.Join(beginOn(t, db))
		for name, call := range map[string]func() error{
			"Load":   func() error { _, err := j.Load(t.Context(), thing("a")); return err },
			"List":   func() error { _, err := j.List(t.Context(), persist.Query{}); return err },
			"Commit": func() error { _, err := j.Commit(t.Context(), put("a", 0)); return err },
		} {
			err := call()
			require.ErrorIs(t, err, persist.ErrNotApplied, name)
			require.ErrorContains(t, err, "not on the database file", name)
		}
	}
	lazy := beginOn(t, database(t, path, "_synchronous=NORMAL"))
	_, err = s.Join(lazy).Commit(t.Context(), put("a", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorContains(t, err, "synchronous is 1")
	require.NoError(t, lazy.Rollback())

	s.writer.home.library += " of another build"
	_, err = s.Join(beginOn(t, database(t, path, appSettings))).Commit(t.Context(), put("a", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorContains(t, err, "another copy of SQLite")
	s.writer.home.library = strings.TrimSuffix(s.writer.home.library, " of another build")

	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		link = path // Windows restricts links
	}
	tx := beginOn(t, database(t, link, "_synchronous=EXTRA"))
	_, err = tx.Exec(`CREATE TEMP TABLE pawl_records (kind TEXT, id TEXT)`) // hides a table named without "main."
	require.NoError(t, err)
	_, err = s.Join(tx).Commit(t.Context(), put("a", 0))
	require.NoError(t, err, "the same file by another name")
	require.NoError(t, tx.Commit())
	_, err = s.Load(t.Context(), thing("a"))
	require.NoError(t, err)
}

// A lock of another connection and an outdated snapshot give the errors of the contract.
//
// Proves TX-6.
func TestJoinBusy(t *testing.T) {
	s, _, path := withTable(t, impatient)
	db := database(t, path, "_synchronous=FULL&_busy_timeout=1")
	ctx := t.Context()
	unavailable := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.Zero(t, resultCode(err), "the driver's error is not for callers: %v", err)
	}
	tx := beginOn(t, db)
	release := lockedBy(t, path)
	_, err := s.Join(tx).Commit(ctx, put("a", 0))
	unavailable(err)
	release()
	_, err = s.Join(tx).Commit(ctx, put("a", 0))
	require.NoError(t, err, "the transaction can go on")
	require.NoError(t, tx.Commit())

	tx = beginOn(t, db)
	_, err = s.Join(tx).Load(ctx, thing("a"))
	require.NoError(t, err)
	_, err = s.Commit(ctx, put("b", 0))
	require.NoError(t, err)
	_, err = s.Join(tx).Commit(ctx, put("a", 1))
	unavailable(err)
	require.ErrorContains(t, err, "start over")
	require.NoError(t, tx.Rollback())
}

// Other commits of the store wait for the transaction, and continue after it or give up in time.
// The transaction may be on the *sql.DB of the store.
//
// Proves TX-6.
func TestJoinHoldsTheLock(t *testing.T) {
	db := database(t, dbPath(t), appSettings)
	db.SetMaxOpenConns(2)
	for _, config := range []Config{impatient, {BusyTimeout: time.Minute}} {
		s, err := New(t.Context(), db, config)
		require.NoError(t, err)
		tx := beginOn(t, db)
		id := config.BusyTimeout.String()
		_, err = s.Join(tx).Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
		done := make(chan error)
		go func() {
			_, err := s.Commit(t.Context(), put(id+" other", 0))
			done <- err
		}()
		if config == impatient {
			err := <-done
			require.ErrorIs(t, err, persist.ErrUnavailable)
			require.ErrorIs(t, err, persist.ErrNotApplied)
			require.NoError(t, tx.Commit())
		} else {
			inQueue(t, s, 1)
			require.NoError(t, tx.Commit())
			require.NoError(t, <-done)
		}
		require.NoError(t, s.Close())
	}
}

// Close of the store ends the joined store at once, and does not wait for its transaction.
//
// Proves TX-6.
func TestJoinClosed(t *testing.T) {
	db := database(t, dbPath(t), appSettings)
	db.SetMaxOpenConns(2)
	s, err := New(t.Context(), db, Config{})
	require.NoError(t, err)
	tx := beginOn(t, db)
	j := s.Join(tx)
	_, err = j.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _, _ = s.LoadAll(ctx, []persist.Key{thing("a")}) }) // waits for the connection of tx
	testkit.Eventually(t, func() bool { return db.Stats().WaitCount > 0 })
	group.Go(func() { require.NoError(t, s.Close()) }) // waits for LoadAll
	testkit.Eventually(t, s.calls.ended)
	_, err = j.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = j.Commit(t.Context(), put("b", 0))
	require.ErrorIs(t, err, persist.ErrClosed)
	require.NoError(t, tx.Commit(), "the transaction is the caller's")
	group.Wait()
	cancel()
	var count int
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM pawl_records`).Scan(&count))
	require.Equal(t, 1, count)
}

// Of many transactions that write rows and documents, exactly the committed ones are there.
//
// Proves TX-6.
func TestJoinConcurrently(t *testing.T) {
	for _, lock := range []string{"deferred", "immediate"} {
		s, plain, path := withTable(t, Config{})
		db := database(t, path, appSettings+"&_txlock="+lock)
		const writers, rounds = 20, 5
		var group sync.WaitGroup
		want := make([][]string, writers)
		for w := range writers {
			group.Go(func() {
				for round := range rounds {
					id := fmt.Sprintf("%d-%d", w, round)
					for !joinOnce(t, s, db, id, w%2 == 0) {
					}
					if w%2 == 0 {
						want[w] = append(want[w], id)
					}
					_, err := s.Commit(t.Context(), increment(t, s))
					var conflict *persist.Conflict
					if err != nil {
						require.ErrorAs(t, err, &conflict)
					}
				}
			})
		}
		group.Wait()
		rows, documents := idsOf(t, s, plain)
		var all []string
		for _, ids := range want {
			all = append(all, ids...)
		}
		require.ElementsMatch(t, all, rows)
		require.ElementsMatch(t, append(all, "counter"), documents)
	}
}

// joinOnce writes a row and a document, and keeps them or not. It reports false if the transaction
// has to start over.
func joinOnce(t *testing.T, s *Store, db *sql.DB, id string, keep bool) bool {
	tx := beginOn(t, db)
	defer tx.Rollback()
	if err := order(t.Context(), tx, id); err != nil {
		require.True(t, isBusy(err), "%v", err)
		return false
	}
	if _, err := s.Join(tx).Commit(t.Context(), put(id, 0)); err != nil {
		require.ErrorIs(t, err, persist.ErrUnavailable)
		return false
	}
	if !keep {
		return true
	}
	err := tx.Commit()
	require.NoError(t, err)
	return true
}

// increment returns a commit of the document that all writers write.
func increment(t *testing.T, s *Store) persist.Commit {
	r, err := s.Load(t.Context(), thing("counter"))
	if err != nil {
		require.ErrorIs(t, err, persist.ErrNotFound)
	}
	return put("counter", r.Version)
}

// A commit that only tests takes no lock, and no later write can depend on a state that has
// changed.
//
// Proves TX-6.
func TestJoinConfirms(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	_, err := s.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	tx := beginOn(t, db)
	j := s.Join(tx)
	current := persist.Commit{ID: "test.1", Guards: []persist.Guard{{Key: thing("a"), Read: true, Version: 1}, {Key: thing("b"), Read: true}}}
	_, err = j.Commit(ctx, current)
	require.NoError(t, err)
	_, err = j.Commit(ctx, persist.Commit{ID: "test.2", Guards: []persist.Guard{{Key: thing("b"), Read: true, Version: 1}}})
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)

	_, err = s.Commit(ctx, put("b", 0))
	require.NoError(t, err, "another writer is not blocked")
	_, err = j.Commit(ctx, current)
	require.NoError(t, err, "it still reads its snapshot")
	require.Error(t, order(ctx, tx, "a"), "a write needs the current state")
	require.NoError(t, tx.Rollback())
	_, err = j.Commit(ctx, current)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, sql.ErrTxDone)
}
