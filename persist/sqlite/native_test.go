package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// appSettings are the settings of a durable database of the application.
const appSettings = "_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000"

var errRefused = errors.New("refused by the function")

func thing(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }

// withTable opens a store whose database has a table of the application.
func withTable(t *testing.T, config Config) (*Store, *sql.DB, string) {
	t.Helper()
	path := dbPath(t)
	s := openAt(t, path, config)
	db := database(t, path, appSettings)
	_, err := db.Exec(`CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	require.NoError(t, err)
	return s, db, path
}

func order(ctx context.Context, tx any, id string) error {
	_, err := tx.(*sql.Tx).ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id)
	return err
}

// idsOf returns the ids of all rows and of all documents.
func idsOf(t *testing.T, s *Store, db *sql.DB) (rows, documents []string) {
	t.Helper()
	found, err := db.Query(`SELECT id FROM orders ORDER BY id`)
	require.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var id string
		require.NoError(t, found.Scan(&id))
		rows = append(rows, id)
	}
	require.NoError(t, found.Err())
	page, err := s.List(t.Context(), persist.Query{Limit: 10000})
	require.NoError(t, err)
	for _, r := range page.Records {
		documents = append(documents, r.ID)
	}
	return rows, documents
}

// The rows of the function and the commit are there together, or not at all.
//
// Proves TX-6.
func TestCommitWith(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	require.Equal(t, "*sql.Tx", s.NativeType().String())

	at, err := s.CommitWith(ctx, put("a", 0), func(ctx context.Context, tx any) error {
		var version int
		require.NoError(t, tx.(*sql.Tx).QueryRowContext(ctx, `SELECT version FROM pawl_records WHERE id = 'a'`).Scan(&version))
		require.Equal(t, 1, version, "the commit is written before the function runs")
		_, err := s.Load(ctx, thing("a"))
		require.ErrorIs(t, err, persist.ErrNotFound, "not visible outside the transaction")
		return order(ctx, tx, "a")
	})
	require.NoError(t, err)
	r, err := s.Load(ctx, thing("a"))
	require.NoError(t, err)
	require.Equal(t, at, r.Updated)

	_, err = s.CommitWith(ctx, put("b", 0), func(ctx context.Context, tx any) error {
		require.NoError(t, order(ctx, tx, "b"))
		return errRefused
	})
	require.True(t, err == errRefused, "unchanged: %v", err)

	var conflict *persist.Conflict
	_, err = s.CommitWith(ctx, put("a", 0), func(context.Context, any) error {
		t.Error("the function runs although the commit is refused")
		return nil
	})
	require.ErrorAs(t, err, &conflict)
	malformed := put("c", 0)
	malformed.ID = ""
	_, err = s.CommitWith(ctx, malformed, nil)
	require.ErrorIs(t, err, persist.ErrNotApplied)

	_, err = s.CommitWith(ctx, persist.Commit{}, func(ctx context.Context, tx any) error { return order(ctx, tx, "c") })
	require.NoError(t, err, "the commit may be empty")

	rows, documents := idsOf(t, s, db)
	require.Equal(t, []string{"a", "c"}, rows)
	require.Equal(t, []string{"a"}, documents)
}

// The transaction takes the lock before it reads, however the application's database begins its
// transactions.
//
// Proves TX-6.
func TestCommitWithOwnDatabase(t *testing.T) {
	for _, lock := range []string{"deferred", "immediate", "exclusive"} {
		path := dbPath(t)
		db := database(t, path, appSettings+"&_txlock="+lock)
		db.SetMaxOpenConns(2)
		s, err := New(t.Context(), db, Config{})
		require.NoError(t, err)
		_, err = db.Exec(`CREATE TABLE orders (id TEXT PRIMARY KEY)`)
		require.NoError(t, err)
		_, err = s.CommitWith(t.Context(), persist.Commit{}, func(ctx context.Context, tx any) error {
			_, err := database(t, path, "_busy_timeout=0").Exec(`INSERT INTO orders VALUES ('late')`)
			require.True(t, isBusy(err), "%s: %v", lock, err)
			return nil
		})
		require.NoError(t, err)
		_, err = s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error { return order(ctx, tx, "a") })
		require.NoError(t, err)
		rows, documents := idsOf(t, s, db)
		require.Equal(t, rows, documents)
		require.NoError(t, s.Close())
	}
}

// A panic and the end of the goroutine roll back, and are passed on.
//
// Proves TX-6.
func TestCommitWithNoReturn(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	for name, leave := range map[string]func(){"panic": func() { panic(errRefused) }, "Goexit": runtime.Goexit} {
		var recovered any
		returned := false
		var group sync.WaitGroup
		group.Add(1)
		go func() {
			defer group.Done()
			defer func() { recovered = recover() }()
			_, _ = s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
				require.NoError(t, order(ctx, tx, "a"))
				leave()
				return nil
			})
			returned = true
		}()
		group.Wait()
		require.False(t, returned, name)
		require.Equal(t, name == "panic", recovered == any(errRefused), name)
		rows, documents := idsOf(t, s, db)
		require.Empty(t, rows, name)
		require.Empty(t, documents, name)
	}
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err, "other callers continue")
}

// When the function ends the transaction itself, the answer says what happened.
//
// Proves TX-6.
func TestCommitWithEnded(t *testing.T) {
	execute := func(text string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.Exec(text)
			return err
		}
	}
	for name, test := range map[string]struct {
		end     func(*sql.Tx) error
		applied bool
	}{
		"Commit":          {(*sql.Tx).Commit, true},
		"Rollback":        {(*sql.Tx).Rollback, false},
		"COMMIT":          {execute("COMMIT"), true},
		"COMMIT; BEGIN":   {execute("COMMIT; BEGIN"), true},
		"ROLLBACK":        {execute("ROLLBACK"), false},
		"ROLLBACK; BEGIN": {execute("ROLLBACK; BEGIN; INSERT INTO orders VALUES ('stray')"), false},
	} {
		for _, failure := range []error{nil, errRefused} {
			t.Run(fmt.Sprint(name, failure), func(t *testing.T) { // Proves TX-6.
				s, db, _ := withTable(t, Config{})
				_, err := s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
					require.NoError(t, order(ctx, tx, "a"))
					require.NoError(t, test.end(tx.(*sql.Tx)))
					return failure
				})
				switch {
				case test.applied && failure == nil:
					require.NoError(t, err)
				case test.applied:
					require.ErrorIs(t, err, errEnded)
					require.NotErrorIs(t, err, errRefused, "it would say that nothing was written")
					require.NotErrorIs(t, err, persist.ErrNotApplied)
				case failure != nil:
					require.True(t, err == errRefused, "%v", err)
				default:
					require.ErrorIs(t, err, errEnded)
					require.ErrorIs(t, err, persist.ErrNotApplied)
				}
				rows, documents := idsOf(t, s, db)
				require.Equal(t, rows, documents)
				require.Equal(t, test.applied, len(rows) == 1)
				_, err = s.CommitWith(t.Context(), persist.Commit{}, func(_ context.Context, tx any) error { return test.end(tx.(*sql.Tx)) })
				require.ErrorIs(t, err, errEnded)
				require.NotErrorIs(t, err, persist.ErrNotApplied, "an empty commit cannot be found again")
				_, err = s.Commit(t.Context(), put("next", 0))
				require.NoError(t, err)
			})
		}
	}
}

// When later writes have pushed the commit's id out of the record, the outcome is unknown.
//
// Proves TX-6.
func TestCommitWithEndedLongAgo(t *testing.T) {
	s, _, path := withTable(t, Config{})
	other := openAt(t, path, Config{})
	for _, failure := range []error{nil, errRefused} {
		id := fmt.Sprint(failure)
		_, err := s.CommitWith(t.Context(), put(id, 0), func(_ context.Context, tx any) error {
			require.NoError(t, tx.(*sql.Tx).Commit())
			for version := range uint64(persist.KeptPerWriter) {
				_, err := other.Commit(t.Context(), put(id, version+1))
				require.NoError(t, err)
			}
			return failure
		})
		require.ErrorIs(t, err, errEnded)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		require.NotErrorIs(t, err, errRefused, "it would say that nothing was written")
	}
}

// A function that does not return when its context ends loses its transaction, and blocks no other
// caller.
//
// Proves TX-6.
func TestCommitWithEndedContext(t *testing.T) {
	for _, failure := range []error{nil, errRefused} {
		s, db, _ := withTable(t, Config{})
		ctx, cancel := context.WithCancelCause(t.Context())
		errLate := errors.New("too late")
		inside, goOn := make(chan *sql.Tx), make(chan struct{})
		var err error
		var group sync.WaitGroup
		group.Go(func() {
			_, err = s.CommitWith(ctx, put("a", 0), func(ctx context.Context, tx any) error {
				require.NoError(t, order(ctx, tx, "a"))
				inside <- tx.(*sql.Tx)
				<-goOn
				return failure
			})
		})
		tx := <-inside
		group.Go(func() {
			_, err := s.Commit(t.Context(), put("b", 0))
			require.NoError(t, err)
		})
		inQueue(t, s, 1)
		cancel(errLate)
		testkit.Eventually(t, func() bool {
			_, err := s.Load(t.Context(), thing("b"))
			return err == nil
		}, "other callers continue while the function hangs")
		require.ErrorIs(t, order(t.Context(), tx, "late"), sql.ErrTxDone)
		close(goOn)
		group.Wait()
		if failure != nil {
			require.True(t, err == failure, "%v", err)
		} else {
			require.ErrorIs(t, err, errLate)
			require.ErrorIs(t, err, persist.ErrNotApplied)
		}
		rows, documents := idsOf(t, s, db)
		require.Empty(t, rows)
		require.Equal(t, []string{"b"}, documents)
		_, err = s.CommitWith(ctx, put("c", 0), nil)
		require.ErrorIs(t, err, persist.ErrNotApplied, "a context that has ended begins nothing")
	}
}

// A function that writes through the store that waits for it gets an error at once. Join works.
//
// Proves TX-6.
func TestCommitWithInside(t *testing.T) {
	s, _, _ := withTable(t, Config{})
	other, _, _ := withTable(t, Config{})
	_, err := s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
		_, err := s.Commit(ctx, put("b", 0))
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorContains(t, err, "Join")
		_, err = s.CommitWith(ctx, put("b", 0), nil)
		require.ErrorIs(t, err, persist.ErrNotApplied)
		_, err = other.Commit(ctx, put("a", 0))
		require.NoError(t, err, "another store does not wait for this one")
		_, err = s.Join(tx.(*sql.Tx)).Commit(ctx, put("b", 0))
		return err
	})
	require.NoError(t, err)
	versions, err := s.Versions(t.Context(), []persist.Key{thing("a"), thing("b")})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1}, versions)
}

// A deferred constraint that fails leaves nothing behind, and the error says so.
//
// Proves TX-6.
func TestCommitWithConstraint(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	_, err := db.Exec(`CREATE TABLE lines (order_id TEXT REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, err)
	_, err = s.writer.conn.ExecContext(t.Context(), "PRAGMA foreign_keys=1")
	require.NoError(t, err)
	_, err = s.CommitWith(t.Context(), put("a", 0), func(_ context.Context, tx any) error {
		_, err := tx.(*sql.Tx).Exec(`INSERT INTO lines VALUES ('missing')`)
		return err
	})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	_, err = s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
}

// CommitWith waits for a lock of another process, then gives up.
//
// Proves TX-6.
func TestCommitWithLocked(t *testing.T) {
	s, _, path := withTable(t, impatient)
	release := lockedBy(t, path)
	_, err := s.CommitWith(t.Context(), put("a", 0), nil)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.Zero(t, resultCode(err), "%v", err)
	release()
	_, err = s.CommitWith(t.Context(), put("a", 0), func(context.Context, any) error { return nil })
	require.NoError(t, err)
}

// Rows that the function has left open do not block the commit.
//
// Proves TX-6.
func TestCommitWithOpenRows(t *testing.T) {
	s, _, _ := withTable(t, Config{})
	for version := range uint64(2) {
		_, err := s.CommitWith(t.Context(), put("a", version), func(ctx context.Context, tx any) error {
			rows, err := tx.(*sql.Tx).QueryContext(ctx, `SELECT id FROM pawl_records`)
			require.NoError(t, err)
			require.True(t, rows.Next())
			return rows.Err()
		})
		require.NoError(t, err)
	}
}

// While functions fail in every way, beside plain commits, rows and documents agree with the
// answers. Close waits for a function that runs.
//
// Proves TX-6.
func TestCommitWithConcurrently(t *testing.T) {
	s, db, path := withTable(t, Config{})
	const writers, rounds = 20, 10
	var mu sync.Mutex
	var want, plain []string
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for round := range rounds {
				id := fmt.Sprintf("%d-%d", w, round)
				if w%4 == 0 {
					_, err := s.Commit(t.Context(), put("plain "+id, 0))
					require.NoError(t, err)
					mu.Lock()
					plain = append(plain, "plain "+id)
					mu.Unlock()
					continue
				}
				ctx, cancel := context.WithCancel(t.Context())
				err := func() (err error) {
					defer func() {
						if recover() != nil {
							err = errRefused
						}
					}()
					_, err = s.CommitWith(ctx, put(id, 0), func(ctx context.Context, tx any) error {
						if err := order(ctx, tx, id); err != nil {
							return err
						}
						switch rand.N(8) {
						case 0:
							return errRefused
						case 1:
							panic(errRefused)
						case 2:
							cancel()
						case 3:
							_ = tx.(*sql.Tx).Rollback()
						case 4:
							_ = tx.(*sql.Tx).Commit()
						}
						return nil
					})
					return err
				}()
				cancel()
				if err == nil {
					mu.Lock()
					want = append(want, id)
					mu.Unlock()
					continue
				}
				require.True(t, err == errRefused || errors.Is(err, persist.ErrNotApplied), "%v", err)
			}
		})
	}
	group.Wait()
	rows, documents := idsOf(t, s, db)
	require.ElementsMatch(t, want, rows)
	require.ElementsMatch(t, append(want, plain...), documents)

	inside, goOn := make(chan struct{}), make(chan struct{})
	group.Go(func() {
		_, err := s.CommitWith(t.Context(), put("last", 0), func(context.Context, any) error {
			close(inside)
			<-goOn
			return nil
		})
		require.NoError(t, err)
	})
	<-inside
	group.Go(func() { require.NoError(t, s.Close()) })
	testkit.Eventually(t, s.calls.ended)
	close(goOn)
	group.Wait()
	_, err := s.CommitWith(t.Context(), put("late", 0), nil)
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = openAt(t, path, Config{}).Load(t.Context(), thing("last"))
	require.NoError(t, err)
}
