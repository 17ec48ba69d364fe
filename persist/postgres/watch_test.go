package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// watch is a Watch under way. Its first hint, the zero one, is not taken.
type watch struct{ *testkit.Watch }

// watching begins to watch s, and returns when the first zero hint has come.
func watching(t testing.TB, s *Store) watch {
	t.Helper()
	w := watchLater(t, s)
	w.zero(1)
	return w
}

// watchLater begins to watch s.
func watchLater(t testing.TB, s *Store) watch {
	t.Helper()
	return watch{testkit.StartWatch(t, s.Watch)}
}

// count returns how many hints are of a record.
func count(hints []persist.Hint, key persist.Key) (n int) {
	for _, h := range hints {
		if h.Key == key {
			n++
		}
	}
	return n
}

// zero waits for the n-th zero hint.
func (w watch) zero(n int) {
	w.Until("zero hint", func(hints []persist.Hint) bool { return count(hints, persist.Key{}) >= n })
}

// hears waits until the watch was told of a version of a record.
func (w watch) hears(key persist.Key, version uint64) {
	w.Until(fmt.Sprintf("%s at %d", key, version), func(hints []persist.Hint) bool {
		return slices.ContainsFunc(hints, func(h persist.Hint) bool { return h.Key == key && h.Version >= version })
	})
}

// hearsNoVersion waits until the watch was told of a record, and asserts that no hint has a
// version.
func (w watch) hearsNoVersion(t testing.TB, key persist.Key) {
	t.Helper()
	w.hears(key, 0)
	for _, h := range w.All() {
		require.True(t, h.Key != key || h.Version == 0, "%v", h)
	}
}

// times returns how often the watch was told of a record, and of any.
func (w watch) times(key persist.Key) (times, zeros int) {
	all := w.All()
	return count(all, key), count(all, persist.Key{})
}

// TestWatch: every watcher gets a hint for each change of a record in any process, and for nothing
// else.
//
// Proves SCOPE-13.
func TestWatch(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, url, Config{}), openAt(t, url, Config{})
	watches := []watch{watching(t, s), watching(t, s), watching(t, other)}
	hear := func(id string, version uint64) {
		t.Helper()
		for _, w := range watches {
			w.hears(thing(id), version)
		}
	}
	must(t, s, put("a", 0))
	hear("a", 1)
	must(t, other, put("a", 1))
	hear("a", 2)
	must(t, s, together(put("a", 2), put("b", 0)))
	hear("a", 3)
	hear("b", 1)
	must(t, s, persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("a"), Expected: 3, Version: 4, Deleted: true}}})
	hear("a", 4)

	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	hear("b", 2)

	// Renewals, reads and refused commits cause no hints. Hints of this store come in
	// order, so that by the next one there would be others.
	var before []int
	for _, w := range watches {
		times, _ := w.times(thing("b"))
		before = append(before, times)
	}
	must(t, s, persist.Commit{ID: "w.2", Guards: []persist.Guard{{Key: thing("b"), Token: 2, Extend: 2 * time.Hour}}},
		persist.Commit{ID: "w.3", Guards: []persist.Guard{{Key: thing("b"), Read: true, Version: 2, TTL: time.Hour}}})
	_, err = s.Commit(t.Context(), put("b", 1))
	require.True(t, isConflict(err))
	must(t, s, put("c", 0))
	hear("c", 1)
	for i, w := range watches[:2] {
		times, _ := w.times(thing("b"))
		require.Equal(t, before[i], times)
	}

	must(t, other, persist.Commit{ID: "w.4", Guards: []persist.Guard{{Key: thing("b"), Token: 2, Release: true}}})
	for i, w := range watches {
		w.Until("release", func(hints []persist.Hint) bool { return count(hints, thing("b")) > before[i] })
	}
}

// TestWatchCommitWith: a commit with a function is heard of when it is committed, and not when that
// failed.
//
// Proves SCOPE-13.
func TestWatchCommitWith(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	own, remote := watching(t, s), watching(t, openAt(t, url, Config{}))
	failure := errors.New("no")
	_, err := s.CommitWith(t.Context(), put("a", 0), func(context.Context, any) error { return failure })
	require.ErrorIs(t, err, failure)
	_, err = s.CommitWith(t.Context(), put("b", 0), func(context.Context, any) error { return nil })
	require.NoError(t, err)
	own.hears(thing("b"), 1)
	remote.hears(thing("b"), 1)
	times, _ := own.times(thing("a"))
	require.Zero(t, times)
}

// TestWatchTellsOwnChangesDirectly: what a store changes itself does not come back from the
// database.
//
// Proves SCOPE-13.
func TestWatchTellsOwnChangesDirectly(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, url, Config{}), openAt(t, url, Config{})
	own, remote := watching(t, s), watching(t, other)
	for version := range uint64(20) {
		must(t, s, put("a", version))
		own.hears(thing("a"), version+1)
	}
	remote.hears(thing("a"), 20)
	must(t, other, put("b", 0)) // comes after all that was sent
	own.hears(thing("b"), 1)
	times, _ := own.times(thing("a"))
	require.Equal(t, 20, times)
}

// TestWatchManyWriters: of every record the newest version is told in the end.
//
// Proves SCOPE-13.
func TestWatchManyWriters(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, connections(t, url, 4), Config{}), openAt(t, url, Config{})
	watches := []watch{watching(t, s), watching(t, other)}
	const writers, versions = 40, 8
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for version := range uint64(versions) {
				if _, err := s.Commit(t.Context(), put(fmt.Sprint(i), version)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for _, w := range watches {
		for i := range writers {
			w.hears(thing(fmt.Sprint(i)), versions)
		}
	}
}

// TestWatchThousands: of thousands of records at once all are told, or the zero hint.
//
// Proves SCOPE-13.
func TestWatchThousands(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, url, Config{}), openAt(t, url, Config{})
	for name, n := range map[string]int{"few": hints.Most / 2, "many": hints.Most + 1} {
		w := watching(t, other)
		all := put(name, 0)
		for i := range n {
			all.Writes = append(all.Writes, put(fmt.Sprint(name, i), 0).Writes...)
		}
		must(t, s, all)
		w.Until("all", func(hints []persist.Hint) bool {
			told := map[persist.Key]bool{}
			for _, h := range hints {
				told[h.Key] = true
			}
			return count(hints, persist.Key{}) > 1 || len(told) == 1+n+1
		})
		require.ErrorIs(t, w.Stop(), context.Canceled)
	}
}

// TestWatchWithOneConnection: watching does not use the only connection of a pool, and hints are
// sent while that is in use for long.
//
// Proves SCOPE-13.
func TestWatchWithOneConnection(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, connections(t, url, 1), Config{}), openAt(t, connections(t, url, 1), Config{})
	watches := []watch{watching(t, s), watching(t, s), watching(t, other)}
	for version := range uint64(10) {
		must(t, s, put("a", version))
		for _, w := range watches {
			w.hears(thing("a"), version+1)
		}
	}
	release := usedUp(t, s)
	defer release()
	s.hint(persist.Hint{Key: thing("b"), Version: 7})
	watches[2].hears(thing("b"), 7)
}

// TestWatchSharesAConnection: all Watch calls of a store have one, which ends with the last of
// them.
//
// Proves SCOPE-13.
func TestWatchSharesAConnection(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	listeners := fmt.Sprintf("SELECT count(*) = %%d FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%%%%s%%%%'", s.names.channel())
	for range 3 {
		one, two := watching(t, s), watching(t, s)
		eventually(t, conn, fmt.Sprintf(listeners, 1))
		require.ErrorIs(t, one.Stop(), context.Canceled)
		must(t, s, put(fmt.Sprint(time.Now().UnixNano()), 0))
		eventually(t, conn, fmt.Sprintf(listeners, 1))
		require.ErrorIs(t, two.Stop(), context.Canceled)
		eventually(t, conn, fmt.Sprintf(listeners, 0))
	}
}

// TestWatchEnds with its context, whatever it waits for, and with the store.
//
// Proves SCOPE-13.
func TestWatchEnds(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, url, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	never := func(persist.Hint) { t.Error("wake is called") }
	require.ErrorIs(t, s.Watch(ctx, never), context.DeadlineExceeded)
	proxy.Refuse(true)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Watch(ctx, never), context.DeadlineExceeded)
	down := watchLater(t, s)
	proxy.Refuse(false)
	down.zero(1)
	others := []watch{down, watching(t, s)}
	proxy.Refuse(true)
	require.NoError(t, s.Close())
	for _, w := range others {
		require.ErrorIs(t, w.Ended(), persist.ErrClosed)
	}
	require.ErrorIs(t, s.Watch(t.Context(), never), persist.ErrClosed)
}

// TestWatchClosedAtOnce: Close also ends Watch calls that begin at the same moment.
//
// Proves SCOPE-13.
func TestWatchClosedAtOnce(t *testing.T) {
	url := pgtest.URL(t)
	for range 20 {
		s, err := Open(t.Context(), url, Config{})
		require.NoError(t, err)
		var watches []watch
		for range 4 {
			watches = append(watches, watchLater(t, s))
		}
		require.NoError(t, s.Close())
		for _, w := range watches {
			require.ErrorIs(t, w.Ended(), persist.ErrClosed)
		}
	}
}

// TestWatchMayCloseTheStore: from inside of wake.
//
// Proves SCOPE-13.
func TestWatchMayCloseTheStore(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	require.ErrorIs(t, s.Watch(t.Context(), func(persist.Hint) { _ = s.Close() }), persist.ErrClosed)
}

// TestWatchKilledServer: when the server is back, the zero hint comes, and later changes are heard.
//
// Proves SCOPE-13.
func TestWatchKilledServer(t *testing.T) {
	server := pgtest.New(t)
	s, other := openAt(t, server.URL("postgres"), Config{}), openAt(t, server.URL("postgres"), Config{})
	watches := []watch{watching(t, s), watching(t, other)}
	for round := range 2 {
		server.Restart()
		for _, w := range watches {
			w.zero(2 + round)
		}
		s.pool.Reset() // of connections from before, on which an outcome would be in doubt, and its version not told
		must(t, s, put(fmt.Sprint(round), 0))
		for _, w := range watches {
			w.hears(thing(fmt.Sprint(round)), 1)
		}
	}
}

// TestWatchCutConnection: what was changed while the connection was lost is covered by a zero hint.
//
// Proves SCOPE-13.
func TestWatchCutConnection(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, url, Config{})
	w := watching(t, s)
	for round := range 3 {
		proxy.Refuse(true)
		proxy.Refuse(false)
		w.zero(2 + round)
	}
	other := openAt(t, url, Config{})
	must(t, other, put("a", 0))
	w.hears(thing("a"), 1)
}

// TestWatchSilentPeer: a server that says nothing any more is noticed.
//
// Proves SCOPE-13.
func TestWatchSilentPeer(t *testing.T) {
	server := pgtest.New(t)
	network, address := server.Addr()
	proxy := pgproxy.Start(t, network, address, "pg_listening_channels")
	s := openAt(t, proxy.URL(server.URL("postgres")), Config{})
	s.config.AcquireTimeout = 500 * time.Millisecond // for an answer; the next try has as much
	s.heartbeat = 10 * time.Millisecond
	var silent atomic.Int64
	proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
		silent.CompareAndSwap(0, int64(c.Connection))
		if silent.Load() == int64(c.Connection) {
			return pgproxy.HoldUntil(nil)
		}
		return pgproxy.Pass
	})
	w := watching(t, s)
	w.zero(2)
	require.NotZero(t, silent.Load())
	must(t, openAt(t, server.URL("postgres"), Config{}), put("a", 0))
	w.hears(thing("a"), 1)
	require.NoError(t, s.Close())
	require.ErrorIs(t, w.Ended(), persist.ErrClosed)
}

// TestWatchHeartbeat: while the server answers, the connection stays.
//
// Proves SCOPE-13.
func TestWatchHeartbeat(t *testing.T) {
	server := pgtest.New(t)
	network, address := server.Addr()
	proxy := pgproxy.Start(t, network, address, "pg_listening_channels")
	s := openAt(t, proxy.URL(server.URL("postgres")), Config{AcquireTimeout: testkit.Patience})
	s.heartbeat = time.Millisecond
	w := watching(t, s)
	const beats = 20
	testkit.Eventually(t, func() bool { return proxy.Counts().Pass >= beats })
	must(t, openAt(t, server.URL("postgres"), Config{}), put("a", 0))
	w.hears(thing("a"), 1)
	_, zeros := w.times(thing("a"))
	require.Equal(t, 1, zeros)
}

// TestWatchTerminatedSession: an administrator ends the session, and another one takes its place.
//
// Proves SCOPE-13.
func TestWatchTerminatedSession(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	w := watching(t, s)
	execute(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	w.zero(2)
}

// TestWatchOwnPool: the listening connection is made as the pool makes its own.
//
// Proves SCOPE-13.
func TestWatchOwnPool(t *testing.T) {
	address := pgtest.URL(t)
	var password atomic.Value
	pool := pooled(t, address, func(c *pgxpool.Config) {
		password.Store(c.ConnConfig.Password)
		c.ConnConfig.Password = ""
		c.MaxConns = 1
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.Password = password.Load().(string)
			return nil
		}
	})
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	w := watching(t, s)
	must(t, openAt(t, address, Config{}), put("a", 0))
	w.hears(thing("a"), 1)
	require.NoError(t, s.Close())
	require.ErrorIs(t, w.Ended(), persist.ErrClosed)
	require.Zero(t, pool.Stat().AcquiredConns())
}

// TestWatchHostileNames: whatever schema, prefix and records are called, they are told apart.
//
// Proves SCOPE-13.
func TestWatchHostileNames(t *testing.T) {
	url := pgtest.URL(t)
	channels := make(map[string]bool)
	for _, name := range hostileNames {
		config := Config{Schema: name, TablePrefix: name}
		s, other := openAt(t, url, config), openAt(t, url, config)
		require.LessOrEqual(t, len(s.names.channel()), maxName)
		channels[s.names.channel()] = true
		w := watching(t, other)
		for i, id := range append(hostileNames, "\x01\x1f\u2028<&>", "\U0010ffff") {
			key := persist.Key{Kind: name, ID: id}
			must(t, s, persist.Commit{ID: fmt.Sprint("w.", i), Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte("1")}}})
			w.hears(key, 1)
		}
	}
	require.Len(t, channels, len(hostileNames))
	require.NotEqual(t, names{schema: "a", prefix: "bc"}.channel(), names{schema: "ab", prefix: "c"}.channel())
}

// TestWatchJoined: what a transaction of the caller's own commits is hinted at, soon after.
//
// Proves SCOPE-13, TX-6.
func TestWatchJoined(t *testing.T) {
	url := pgtest.URL(t)
	s, other := openAt(t, url, Config{}), openAt(t, url, Config{})
	w := watching(t, other)
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = s.Join(tx).Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	w.hears(thing("a"), 0)
}
