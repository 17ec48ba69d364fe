package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// ledger is a table of a user's own, with one row for each version of a document.
const ledger = "CREATE TABLE ledger (id text, version bigint, PRIMARY KEY (id, version))"

// enter adds a row to the ledger.
func enter(ctx context.Context, tx any, id string, version uint64) error {
	_, err := tx.(pgx.Tx).Exec(ctx, "INSERT INTO ledger VALUES ($1, $2)", id, int64(version))
	return err
}

// sameAsLedger asserts that there is a row for every version of every document, and no other.
func sameAsLedger(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	require.Zero(t, value[int64](t, conn, `SELECT count(*) FROM ledger l FULL JOIN
		(SELECT id, generate_series(1, version) AS version FROM pawl_records) r USING (id, version)
		WHERE l.id IS NULL OR r.id IS NULL`))
	require.Equal(t, value[int64](t, conn, "SELECT coalesce(sum(version), 0)::bigint FROM pawl_records"), value[int64](t, conn, "SELECT count(*) FROM ledger"))
}

// next is a commit that follows the current version of an id.
func next(ctx context.Context, s persist.Store, id, writer string, n int) (persist.Commit, error) {
	r, err := s.Load(ctx, thing(id))
	if err != nil && !errors.Is(err, persist.ErrNotFound) {
		return persist.Commit{}, err
	}
	c := put(id, r.Version)
	c.ID = fmt.Sprintf("%s.%d", writer, n)
	return c, nil
}

// TestNativeAgrees has many commit to few documents together with rows of their own, some of whom
// think better of it. Rows and documents agree exactly.
//
// Proves TX-6.
func TestNativeAgrees(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 6), Config{})
	execute(t, url, ledger)
	var applied, failures atomic.Int64
	regret := errors.New("regret")
	var group sync.WaitGroup
	for worker := range 20 {
		group.Go(func() {
			for n := range 15 {
				id := fmt.Sprint(n/5*3 + rand.IntN(3))
				c, err := next(t.Context(), s, id, fmt.Sprint("w", worker), n)
				if err != nil {
					t.Error(err)
					return
				}
				fails := rand.IntN(3)
				_, err = s.CommitWith(t.Context(), c, func(ctx context.Context, tx any) error {
					if err := enter(ctx, tx, id, c.Writes[0].Version); err != nil || fails > 0 {
						return err
					}
					return regret
				})
				switch {
				case err == nil && fails > 0:
					applied.Add(1)
				case err == regret && fails == 0:
					failures.Add(1)
				case !isConflict(err):
					t.Errorf("%v", err)
				}
			}
		})
	}
	group.Wait()
	conn := pgtest.Connect(t, url)
	sameAsLedger(t, conn)
	require.Equal(t, applied.Load(), value[int64](t, conn, "SELECT count(*) FROM ledger"))
	require.Positive(t, applied.Load())
	require.Positive(t, failures.Load())
}

// TestNativeFunctions: whatever a function does but to return nil in time, with its transaction in
// order, nothing is written, and the connection, which is the only one, is free again.
//
// Proves TX-6.
func TestNativeFunctions(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 1), Config{})
	execute(t, url, ledger, "ALTER TABLE ledger ADD CONSTRAINT later UNIQUE (version) DEFERRABLE INITIALLY DEFERRED")
	conn := pgtest.Connect(t, url)
	failure := errors.New("failure")
	call := func(fn func(ctx context.Context, tx pgx.Tx) error) error {
		_, err := s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
			if err := enter(ctx, tx, "a", 1); err != nil {
				return err
			}
			return fn(ctx, tx.(pgx.Tx))
		})
		return err
	}
	nothing := func(t *testing.T) {
		t.Helper()
		_, err := s.Load(t.Context(), thing("a"))
		require.ErrorIs(t, err, persist.ErrNotFound)
		require.Zero(t, value[int64](t, conn, "SELECT count(*) FROM ledger"))
	}
	t.Run("an error", func(t *testing.T) {
		require.True(t, call(func(context.Context, pgx.Tx) error { return failure }) == failure)
		nothing(t)
	})
	t.Run("an error that could be ours", func(t *testing.T) {
		runs, ours := 0, notApplied(errBusy)
		err := call(func(context.Context, pgx.Tx) error { runs++; return ours })
		require.True(t, err == ours)
		require.Equal(t, 1, runs)
		nothing(t)
	})
	t.Run("a panic", func(t *testing.T) {
		require.PanicsWithValue(t, "oh", func() { _ = call(func(context.Context, pgx.Tx) error { panic("oh") }) })
		nothing(t)
	})
	t.Run("the end of its goroutine", func(t *testing.T) {
		var group sync.WaitGroup
		group.Go(func() { _ = call(func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil }) })
		group.Wait()
		nothing(t)
	})
	t.Run("an error that it keeps", func(t *testing.T) {
		err := call(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1/0")
			require.Error(t, err)
			return nil
		})
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.NotErrorIs(t, err, persist.ErrUnavailable)
		nothing(t)
	})
	t.Run("open rows", func(t *testing.T) {
		err := call(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			return err
		})
		require.ErrorIs(t, err, persist.ErrNotApplied)
		nothing(t)
	})
	t.Run("a lost connection", func(t *testing.T) {
		err := call(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			require.Error(t, err)
			return nil
		})
		unavailable(t, err)
		nothing(t)
	})
	t.Run("a deferred constraint", func(t *testing.T) {
		err := call(func(ctx context.Context, tx pgx.Tx) error { return enter(ctx, tx, "other", 1) })
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorContains(t, err, "later")
		nothing(t)
	})
	t.Run("slow", func(t *testing.T) {
		s.config.CommitTimeout = 2 * time.Second // long enough to begin
		defer func() { s.config.CommitTimeout = defaultCommitTimeout }()
		var ended error
		err := call(func(ctx context.Context, tx pgx.Tx) error {
			<-ctx.Done()
			ended = ctx.Err()
			return nil
		})
		unavailable(t, err)
		require.ErrorIs(t, ended, context.DeadlineExceeded)
		s.config.CommitTimeout = defaultCommitTimeout
		nothing(t)
	})
	t.Run("ending the transaction", func(t *testing.T) {
		var kept pgx.Tx
		err := call(func(ctx context.Context, tx pgx.Tx) error {
			kept = tx
			require.Error(t, tx.Rollback(ctx))
			require.Error(t, tx.Commit(ctx))
			require.Zero(t, value[int64](t, conn, "SELECT count(*) FROM ledger"))
			inner, err := tx.Begin(ctx) // a savepoint, which is its own to end
			require.NoError(t, err)
			require.NoError(t, enter(ctx, inner, "gone", 7))
			return inner.Rollback(ctx)
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, load(t, s, "a").Version)
		require.EqualValues(t, 1, value[int64](t, conn, "SELECT count(*) FROM ledger"))
		_, err = kept.Exec(t.Context(), "SELECT 1")
		require.ErrorIs(t, err, pgx.ErrTxClosed)
	})
}

// TestNativeRefusals: the function does not run when the commit is refused.
//
// Proves TX-6.
func TestNativeRefusals(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("a", 0))
	never := func(context.Context, any) error { t.Error("it ran"); return nil }
	_, err := s.CommitWith(t.Context(), put("a", 0), never)
	require.EqualValues(t, 1, winner(t, err).Version)
	require.JSONEq(t, `{"title": "hello", "n": 12345}`, string(winner(t, err).Doc))
	fenced := put("a", 1)
	fenced.Guards = []persist.Guard{{Key: thing("a"), Token: 5}}
	_, err = s.CommitWith(t.Context(), fenced, never)
	require.ErrorAs(t, err, new(*persist.Fenced))
	for _, c := range []persist.Commit{{ID: "bad\x01id"}, {Writes: put("b", 0).Writes}, {ID: "w.1", Guards: []persist.Guard{{}}}} {
		_, err = s.CommitWith(t.Context(), c, never)
		require.ErrorIs(t, err, persist.ErrNotApplied)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.CommitWith(over, put("b", 0), never)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.CommitWith(t.Context(), put("b", 0), never)
	require.ErrorIs(t, err, persist.ErrClosed)
}

// TestNativeCommits: guards alone, several writes, and nothing at all, but for the function.
//
// Proves TX-6.
func TestNativeCommits(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, ledger)
	conn := pgtest.Connect(t, url)
	require.Equal(t, "pgx.Tx", s.NativeType().String())
	guarded := persist.Commit{Guards: []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}}
	swept := persist.Commit{ID: "sweep.1", Writes: []persist.Write{{Key: thing("c"), Expected: 1, Gone: true, Version: 2, Deleted: true, Swept: true}}}
	before := expired(t, s, "c")
	for i, c := range []persist.Commit{{}, together(put("a", 0), put("b", 0)), guarded, put("a", 1), swept} {
		at, err := s.CommitWith(t.Context(), c, func(ctx context.Context, tx any) error { return enter(ctx, tx, "row", uint64(i)) })
		require.NoError(t, err)
		require.False(t, at.IsZero())
		require.EqualValues(t, i+1, value[int64](t, conn, "SELECT count(*) FROM ledger"))
		for _, w := range c.Writes {
			require.Equal(t, at, load(t, s, w.ID).Updated)
		}
	}
	require.EqualValues(t, 2, load(t, s, "a").Version)
	require.Equal(t, before.Expires, load(t, s, "c").Expires)
}

// TestNativeSettings: the function works with the session's own settings, but READ COMMITTED; and
// the commit is durable whatever the session, or the function, sets.
//
// Proves TX-6, STORE-10.
func TestNativeSettings(t *testing.T) {
	url := pgtest.URL(t)
	own := with(t, with(t, with(t, url, "lock_timeout", "1234"), "synchronous_commit", "off"), "default_transaction_isolation", "serializable")
	s := openAt(t, connections(t, own, 2), Config{})
	execute(t, url, "CREATE TABLE seen (setting text)", `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$`,
		`CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON pawl_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	_, err := s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, tx any) error {
		for setting, want := range map[string]string{
			"lock_timeout": "1234ms", "statement_timeout": "0", "transaction_isolation": "read committed",
			"idle_in_transaction_session_timeout": "10s", "synchronous_commit": "on",
		} {
			var got string
			require.NoError(t, tx.(pgx.Tx).QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&got))
			require.Equal(t, want, got, setting)
		}
		_, err := tx.(pgx.Tx).Exec(ctx, "SET LOCAL synchronous_commit = off")
		return err
	})
	require.NoError(t, err)
	require.Equal(t, "on", value[string](t, pgtest.Connect(t, url), "SELECT string_agg(setting, ',') FROM seen"))
}

// TestNativeWaits: a commit that waits for a lock leaves the only connection to others, and its
// function runs once.
//
// Proves TX-6, STORE-2.
func TestNativeWaits(t *testing.T) {
	url := pgtest.URL(t)
	for _, size := range []int{1, 8} {
		s := openAt(t, connections(t, url, size), Config{Schema: fmt.Sprint("s", size)})
		must(t, s, put("a", 0))
		tx, err := pgtest.Connect(t, url).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), fmt.Sprintf("SELECT FROM s%d.pawl_records FOR UPDATE", size))
		require.NoError(t, err)
		var runs atomic.Int64
		answer := make(chan result, 1)
		go func() {
			at, err := s.CommitWith(t.Context(), put("a", 1), func(context.Context, any) error { runs.Add(1); return nil })
			answer <- result{at, err}
		}()
		for range 20 {
			must(t, s, put(fmt.Sprint(rand.Uint64()), 0))
		}
		require.Zero(t, runs.Load())
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, answered(t, answer).err)
		require.EqualValues(t, 1, runs.Load())
	}
}

// TestNativeWaitsInVain: a record that stays locked, or a caller that leaves, ends the wait, and
// the function has not run.
//
// Proves TX-6, STORE-14.
func TestNativeWaitsInVain(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	release := locked(t, url, "a")
	never := func(context.Context, any) error { t.Error("it ran"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan result, 1)
	go func() {
		_, err := s.CommitWith(ctx, put("a", 1), never)
		answer <- result{err: err}
	}()
	eventually(t, pgtest.Connect(t, url), someoneWaits)
	cancel()
	err := answered(t, answer).err
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, context.Canceled)
	s.config.CommitTimeout = 300 * time.Millisecond
	_, err = s.CommitWith(t.Context(), put("a", 1), never)
	unavailable(t, err)
	s.config.CommitTimeout = defaultCommitTimeout
	release()
	must(t, s, put("a", 1))
}

// TestNativeCancelled: a context that ends while the function runs ends the function's, and nothing
// is written although it returns nil.
//
// Proves TX-6.
func TestNativeCancelled(t *testing.T) {
	s := openAt(t, connections(t, pgtest.URL(t), 1), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.CommitWith(ctx, put("a", 0), func(ctx context.Context, _ any) error {
		cancel()
		<-ctx.Done()
		return nil
	})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, context.Canceled)
	must(t, s, put("a", 0))
}

// TestNativeLostAnswers: once COMMIT is sent, a connection that breaks or a caller that leaves
// makes the outcome unknown, and does not stop it. Close waits for it.
//
// Proves TX-6, STORE-14.
func TestNativeLostAnswers(t *testing.T) {
	proxy, url := proxied(t)
	defer proxy.Script(nil)
	nothing := func(context.Context, any) error { return nil }
	unknown := func(t *testing.T, err error) {
		t.Helper()
		require.Error(t, err)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
	}
	t.Run("cut", func(t *testing.T) {
		s := openAt(t, url, Config{})
		for i, action := range []pgproxy.Action{pgproxy.AfterExecute, pgproxy.AfterSend, pgproxy.BeforeCommit} {
			proxy.Script(func(pgproxy.Commit) pgproxy.Action { return action })
			id := fmt.Sprint(i)
			_, err := s.CommitWith(t.Context(), put(id, 0), nothing)
			proxy.Script(nil)
			unknown(t, err)
			require.ErrorIs(t, err, persist.ErrUnavailable)
			_, err = s.Load(t.Context(), thing(id))
			switch action {
			case pgproxy.AfterExecute:
				require.NoError(t, err)
			case pgproxy.BeforeCommit:
				require.ErrorIs(t, err, persist.ErrNotFound)
			}
		}
	})
	t.Run("left", func(t *testing.T) {
		s := openAt(t, url, Config{})
		w := watching(t, openAt(t, url, Config{}))
		sent, release := make(chan struct{}), make(chan struct{})
		proxy.Script(func(pgproxy.Commit) pgproxy.Action {
			close(sent)
			return pgproxy.HoldUntil(release)
		})
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan result, 1)
		go func() {
			at, err := s.CommitWith(ctx, put("left", 0), nothing)
			answer <- result{at, err}
		}()
		<-sent
		cancel()
		err := answered(t, answer).err
		unknown(t, err)
		require.ErrorIs(t, err, context.Canceled)
		proxy.Script(nil)
		closed := make(chan struct{})
		go func() { defer close(closed); _ = s.Close() }()
		require.Never(t, func() bool { return isClosed(closed) }, 50*time.Millisecond, 10*time.Millisecond)
		close(release)
		<-closed
		require.EqualValues(t, 1, load(t, openAt(t, url, Config{}), "left").Version)
		w.hears(thing("left"), 1) // the answer was waited for, or the version would not be told
	})
}

// TestNativeEndedByStatement: a function that ends the transaction in SQL leaves the outcome
// unknown, which is hinted at, and the connection in order.
//
// Proves TX-6, SCOPE-13.
func TestNativeEndedByStatement(t *testing.T) {
	s := openAt(t, connections(t, pgtest.URL(t), 1), Config{})
	w := watching(t, s)
	for version, end := range []string{"COMMIT", "ROLLBACK"} {
		_, err := s.CommitWith(t.Context(), put(end, 0), func(ctx context.Context, tx any) error {
			_, err := tx.(pgx.Tx).Exec(ctx, end)
			return err
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		w.hearsNoVersion(t, thing(end))
		must(t, s, put("next", uint64(version)))
	}
	require.EqualValues(t, 1, load(t, s, "COMMIT").Version)
	_, err := s.Load(t.Context(), thing("ROLLBACK"))
	require.ErrorIs(t, err, persist.ErrNotFound)
}

// TestNativeClose: Close waits for a function that is under way, and its commit counts.
//
// Proves TX-6.
func TestNativeClose(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	closed := make(chan struct{})
	_, err := s.CommitWith(t.Context(), put("a", 0), func(ctx context.Context, _ any) error {
		go func() { defer close(closed); _ = s.Close() }()
		for s.queue.begin() == nil {
			s.queue.end()
			runtime.Gosched()
		}
		require.False(t, isClosed(closed))
		return nil
	})
	require.NoError(t, err)
	<-closed
	require.EqualValues(t, 1, load(t, openAt(t, url, Config{}), "a").Version)
}
