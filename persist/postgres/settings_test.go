package postgres

import (
	"context"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// afterCommits writes n versions of id, which does not exist, and returns the last. s sends no
// hints.
func afterCommits(t testing.TB, s *Store, id string, n int) (version uint64) {
	t.Helper()
	s.outbox.mu.Lock()
	s.outbox.sending = true // pretends that a goroutine sends
	s.outbox.mu.Unlock()
	for ; version < uint64(n); version++ {
		must(t, s, put(id, version))
	}
	return version
}

// severalCommits are enough for a session to know its statements by name.
const severalCommits = 18

// untilItWaits returns when a statement has waited for a lock for 50 ms, longer than a fast commit
// does.
func untilItWaits(t testing.TB, url string, done <-chan error) {
	t.Helper()
	conn := pgtest.Connect(t, url)
	for !value[bool](t, conn, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '50 ms'`) {
		require.Empty(t, done)
	}
}

// setting returns the lock_timeout of the only connection of a store.
func setting(t testing.TB, s *Store) (value string) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&value))
	return value
}

// TestLockTimeoutOfTheSession: fast commits leave the lock_timeout of the session unchanged. Other
// calls, and functions in a transaction, wait for locked tables for that long.
//
// Proves STORE-10, STORE-14.
func TestLockTimeoutOfTheSession(t *testing.T) {
	tables := "LOCK TABLE pawl_records, pawl_meta IN ACCESS EXCLUSIVE MODE"
	for name, test := range map[string]struct {
		lock string
		work func(ctx context.Context, s *Store) error
	}{
		"Load": {tables, func(ctx context.Context, s *Store) error {
			_, err := s.Load(ctx, thing("a"))
			return err
		}},
		"LoadAll": {tables, func(ctx context.Context, s *Store) error {
			_, err := s.LoadAll(ctx, []persist.Key{thing("a")})
			return err
		}},
		"List": {tables, func(ctx context.Context, s *Store) error {
			_, err := s.List(ctx, persist.Query{})
			return err
		}},
		"Take": {tables, func(ctx context.Context, s *Store) error {
			_, err := s.Take(ctx, persist.Query{}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
			return err
		}},
		"Purge": {"SELECT FROM pawl_meta WHERE name = 'floor' FOR UPDATE", func(ctx context.Context, s *Store) error {
			_, err := s.Purge(ctx, persist.Query{})
			return err
		}},
		"CommitWith": {"LOCK TABLE orders", func(ctx context.Context, s *Store) error {
			_, err := s.CommitWith(ctx, put("b", 0), func(ctx context.Context, tx any) error {
				_, err := tx.(pgx.Tx).Exec(ctx, "INSERT INTO orders VALUES (1)")
				return err
			})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			execute(t, url, "CREATE TABLE orders (id int)")
			s := openAt(t, with(t, connections(t, url, 1), "lock_timeout", "25s"), Config{})
			version := afterCommits(t, s, "a", severalCommits)
			require.Equal(t, "25s", setting(t, s))
			tx, err := pgtest.Connect(t, url).Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), test.lock)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- test.work(context.Background(), s) }()
			untilItWaits(t, url, done)
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-done)
			require.Equal(t, "25s", setting(t, s))
			if name != "Take" {
				must(t, s, put("a", version))
			}
			require.EqualValues(t, 1, s.pool.Stat().NewConnsCount(), "the connection was given up")
		})
	}
}

// TestNotificationWaits: a notification waits for the transactions before it, and leaves the
// settings of the session unchanged.
//
// Proves SCOPE-13, STORE-14.
func TestNotificationWaits(t *testing.T) {
	url := pgtest.New(t).URL("postgres")
	s := openAt(t, connections(t, url, 1), Config{})
	afterCommits(t, s, "a", severalCommits)
	synchronous := func() (value string) {
		answers, err := roundTrip(t.Context(), s.outbox.conn, query("SHOW synchronous_commit"))
		require.NoError(t, err)
		return string(answers[0][0][0])
	}
	require.NoError(t, s.notify([]string{"{}"}))
	require.Equal(t, "on", synchronous())
	require.Equal(t, "0", setting(t, s))

	execute(t, url, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
	holder, conn := pgtest.Connect(t, url), pgtest.Connect(t, url)
	var released atomic.Bool
	held, done := make(chan error, 1), make(chan error, 1)
	go func() { // its turn lasts until its commit is on a standby, which there is not, as soon as it knows of that
		var err error
		for err == nil && !released.Load() {
			_, err = holder.Exec(context.Background(), "DROP TABLE IF EXISTS held; CREATE TABLE held (); NOTIFY held")
		}
		held <- err
	}()
	waits := func(event string) bool {
		return value[bool](t, conn, `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '`+event+`' AND clock_timestamp() - query_start > interval '50 ms'`)
	}
	testkit.Eventually(t, func() bool { return waits("SyncRep") })
	go func() { done <- s.notify([]string{"{}"}) }()
	testkit.Eventually(t, func() bool { return waits("object") })
	require.Empty(t, done)
	released.Store(true)
	require.True(t, value[bool](t, conn, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
	require.NoError(t, <-held)
	require.NoError(t, <-done)
	require.Equal(t, "on", synchronous())
	require.Equal(t, "0", setting(t, s))
}

// TestForgottenAndLocked: a read whose session has lost the prepared statement waits for a locked
// table.
//
// Proves STORE-10.
func TestForgottenAndLocked(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 1), Config{})
	afterCommits(t, s, "a", severalCommits)
	load(t, s, "a")
	_, err := s.pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE pawl_records")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := s.Load(context.Background(), thing("a"))
		done <- err
	}()
	untilItWaits(t, url, done)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
}

// TestSessionOfTheApplication: commits leave the settings of an application's pool unchanged.
//
// Proves STORE-10.
func TestSessionOfTheApplication(t *testing.T) {
	pool := pooled(t, connections(t, pgtest.URL(t), 1), nil)
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	defer s.Close()
	afterCommits(t, s, "a", severalCommits)
	require.Equal(t, "0", setting(t, s))
}

// TestSessionsBehindPgBouncer: commits leave the settings of a shared session unchanged.
//
// Proves STORE-10.
func TestSessionsBehindPgBouncer(t *testing.T) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	proxy := pgBouncer(t, program, pgtest.New(t).URL("postgres"), "server_reset_query =", "default_pool_size = 1")
	s := openAt(t, connections(t, proxy, 1), Config{})
	afterCommits(t, s, "a", severalCommits)
	conn, err := pgx.Connect(t.Context(), with(t, proxy, "default_query_exec_mode", "simple_protocol"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.Equal(t, "0", value[string](t, conn, "SHOW lock_timeout"))
}
