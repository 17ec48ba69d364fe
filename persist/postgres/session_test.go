package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
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

// afterCommits writes so many versions of id, which does not exist, and returns the last. Nothing else is done by s: it tells nobody.
func afterCommits(t testing.TB, s *Store, id string, n int) (version uint64) {
	t.Helper()
	s.outbox.mu.Lock()
	s.outbox.sending = true // as far as it knows
	s.outbox.mu.Unlock()
	for ; version < uint64(n); version++ {
		must(t, s, put(id, version))
	}
	return version
}

// enoughCommits let a session keep its lock_timeout; the first is a creation.
const enoughCommits = briefAfter + 2

// untilItWaits returns when something in the database has waited for a lock for longer than direct commits do, and is not done.
func untilItWaits(t testing.TB, url string, done <-chan error) {
	t.Helper()
	conn := pgtest.Connect(t, url)
	for !value[bool](t, conn, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '50 ms'`) {
		require.Empty(t, done)
	}
}

// setting returns the lock_timeout of the only connection of a store, past all that the store does when it hands one out.
func setting(t testing.TB, s *Store) (value string) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&value))
	return value
}

// TestBriefSession: a session that only commits directly keeps the lock_timeout of that, other work of the store has the one of the session, and waits for
// tables that are locked for longer, and so does a function in a transaction.
//
// Proves STORE-10, STORE-14.
func TestBriefSession(t *testing.T) {
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
			_, err := s.Take(ctx, persist.Query{}, persist.Acquire{Holder: "me", For: time.Hour})
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
			version := afterCommits(t, s, "a", enoughCommits)
			require.Equal(t, "10ms", setting(t, s))
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

// TestBriefSessionTellsOthers: notifications, which take turns in all of the database, wait for theirs, and leave a session as it was where they
// need not wait.
//
// Proves SCOPE-13, STORE-14.
func TestBriefSessionTellsOthers(t *testing.T) {
	url := pgtest.New(t).URL("postgres")
	s := openAt(t, connections(t, url, 1), Config{})
	afterCommits(t, s, "a", enoughCommits)
	require.NoError(t, s.notify([]string{"{}"}, true))
	require.Equal(t, "10ms", setting(t, s))

	execute(t, url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
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
	go func() { done <- s.notify([]string{"{}"}, true) }()
	testkit.Eventually(t, func() bool { return waits("object") })
	require.Empty(t, done)
	released.Store(true)
	require.True(t, value[bool](t, conn, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
	require.NoError(t, <-held)
	require.NoError(t, <-done)
	require.Equal(t, "0", setting(t, s))
}

// TestForgottenAndLocked: a read whose statement has lost its name, and which then has to wait for longer than direct commits do, waits.
//
// Proves STORE-10.
func TestForgottenAndLocked(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 1), Config{})
	afterCommits(t, s, "a", enoughCommits)
	load(t, s, "a")
	require.Equal(t, "10ms", setting(t, s))
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

// TestSessionOfTheApplication: what a pool of the application's own has set stays as it is, however much is committed.
//
// Proves STORE-10.
func TestSessionOfTheApplication(t *testing.T) {
	pool := pooled(t, connections(t, pgtest.URL(t), 1), nil)
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	defer s.Close()
	afterCommits(t, s, "a", 2*enoughCommits)
	require.Equal(t, "0", setting(t, s))
}

// TestSessionOfAProxy: a session that may be somebody else's by now, because a proxy has made up its number, is left as it is.
//
// Proves STORE-10.
func TestSessionOfAProxy(t *testing.T) {
	s := openAt(t, connections(t, madeUp(t, pgtest.URL(t)), 1), Config{})
	afterCommits(t, s, "a", 2*enoughCommits)
	require.Equal(t, "0", setting(t, s))
}

// TestSessionsBehindPgBouncer: the proxy itself gives sessions to others, who find them as they were.
//
// Proves STORE-10.
func TestSessionsBehindPgBouncer(t *testing.T) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	proxy := pgBouncer(t, program, pgtest.New(t).URL("postgres"), "server_reset_query =", "default_pool_size = 1")
	s := openAt(t, connections(t, proxy, 1), Config{})
	afterCommits(t, s, "a", 2*enoughCommits)
	conn, err := pgx.Connect(t.Context(), with(t, proxy, "default_query_exec_mode", "simple_protocol"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.Equal(t, "0", value[string](t, conn, "SHOW lock_timeout"))
}

// madeUp returns the URL of a proxy that gives connections another number than the server does.
func madeUp(t testing.TB, server string) string {
	t.Helper()
	target, err := url.Parse(server)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := target.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				upstream, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer upstream.Close()
				go func() { _, _ = io.Copy(upstream, client); _ = upstream.Close() }()
				for last := byte(0); last != 'Z'; {
					head := make([]byte, 5)
					if _, err := io.ReadFull(upstream, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
					if _, err := io.ReadFull(upstream, body); err != nil {
						return
					}
					if last = head[0]; last == 'K' { // BackendKeyData
						body[3]++
					}
					_, _ = client.Write(append(head, body...))
				}
				_, _ = io.Copy(client, upstream)
			}()
		}
	}()
	target.Host = listener.Addr().String()
	return target.String()
}

// TestNextVersionIsNotWaitedFor: the short way of the next version, with or without an expiry, finds a record that somebody has locked in whatever way without waiting for it, also
// where it is several who have, and one whose lock is over is written, the short way again after that.
//
// Proves CAS-11, STORE-14.
func TestNextVersionIsNotWaitedFor(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Hour} {
		for _, lock := range []string{"FOR SHARE", "FOR NO KEY UPDATE", "FOR UPDATE", "several"} {
			t.Run(fmt.Sprint(lock, ttl), func(t *testing.T) {
				ctx, url := t.Context(), pgtest.URL(t)
				s := openAt(t, url, Config{})
				next := func(version uint64) persist.Commit {
					c := put("a", version)
					c.Writes[0].TTL = ttl
					return c
				}
				must(t, s, next(0), next(1), put("b", 0))
				conn := pgtest.Connect(t, url).PgConn()
				var txs []pgx.Tx
				locks := []string{lock}
				if lock == "several" {
					locks = []string{"FOR SHARE", "FOR SHARE"}
				}
				for _, lock := range locks {
					tx, err := pgtest.Connect(t, url).Begin(ctx)
					require.NoError(t, err)
					_, err = tx.Exec(ctx, "SELECT FROM pawl_records WHERE id = 'a' "+lock)
					require.NoError(t, err)
					txs = append(txs, tx)
				}
				at, err := s.replaceOne(ctx, conn, next(2))
				require.NoError(t, err, "it was waited for")
				require.Zero(t, at)
				for _, tx := range txs {
					require.NoError(t, tx.Rollback(ctx))
				}
				must(t, s, next(2))
				for version := uint64(3); version < 6; version++ {
					switch version {
					case 4:
						must(t, s, together(next(version), put("b", 1)))
					default:
						at, err = s.replaceOne(ctx, conn, next(version))
						require.NoError(t, err)
						require.False(t, at.IsZero(), "version %d was not written the short way", version)
						require.Equal(t, at, load(t, s, "a").Updated)
					}
				}
				r := load(t, s, "a")
				if ttl != 0 {
					require.Equal(t, r.Updated.Add(ttl), r.Expires)
				} else {
					require.Zero(t, r.Expires)
				}
				sameTime(t, batched(t, s, next(6), put("b", 2))...)
				at, err = s.replaceOne(ctx, conn, next(7))
				require.NoError(t, err)
				require.False(t, at.IsZero(), "after a batch")
				at, err = s.replaceOne(ctx, conn, next(7))
				require.NoError(t, err)
				require.Zero(t, at, "it is not the next version any more")
			})
		}
	}
}

// TestNextVersionWithoutExpiry: a record that has expired is not written to by who takes it for one that lives, nor does one keep its expiry that gets none.
//
// Proves STORE-2, STORE-8.
func TestNextVersionWithoutExpiry(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	brief, long := put("brief", 0), put("long", 0)
	brief.Writes[0].TTL, long.Writes[0].TTL = time.Millisecond, time.Hour
	must(t, s, brief, long)
	testkit.Eventually(t, func() bool { r := load(t, s, "brief"); return r.Expired(r.Now) })
	_, err := s.Commit(t.Context(), put("brief", 1))
	require.EqualValues(t, 1, winner(t, err).Version)
	must(t, s, put("long", 1))
	require.Zero(t, load(t, s, "long").Expires)
}
