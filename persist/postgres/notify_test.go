package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// notifying reports whether a commit, as a proxy sees it, sends notifications.
func notifying(c pgproxy.Commit) bool {
	return strings.Contains(strings.Join(c.Statements, ";"), "pg_notify")
}

// notifyProxied returns a proxy that also asks what to do about notifications, its URL, and that of
// the server behind it.
func notifyProxied(t *testing.T) (proxy *pgproxy.Proxy, url, direct string) {
	server := pgtest.New(t)
	network, address := server.Addr()
	proxy = pgproxy.Start(t, network, address, "write", "write_together", "create_records", "replace_records", "touch_records", "pg_notify")
	return proxy, proxy.URL(server.URL("postgres")), server.URL("postgres")
}

// TestCommitDoesNotWaitForNotifications: commits are answered while no notification gets through,
// and what they changed is heard when one does.
//
// Proves SCOPE-13.
func TestCommitDoesNotWaitForNotifications(t *testing.T) {
	proxy, url, direct := notifyProxied(t)
	s := openAt(t, connections(t, url, 1), Config{})
	s.outbox.tries = math.MaxInt
	w := watching(t, openAt(t, direct, Config{}))
	held := make(chan struct{}, 1)
	var block atomic.Bool
	block.Store(true)
	proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
		if notifying(c) && block.Load() {
			select {
			case held <- struct{}{}:
			default:
			}
			return pgproxy.BeforeCommit // as if it had waited until its time was over
		}
		return pgproxy.Pass
	})
	must(t, s, put("a", 0))
	<-held
	for version := uint64(1); version < 20; version++ {
		must(t, s, put("a", version), together(put("b", version-1), put("c", version-1)))
	}
	times, _ := w.times(thing("a"))
	require.Zero(t, times)
	block.Store(false)
	for id, version := range map[string]uint64{"a": 20, "b": 19, "c": 19} {
		w.hears(thing(id), version)
	}
}

// TestHeldNotification: a notification that is never answered occupies no connection of the pool.
//
// Proves SCOPE-13.
func TestHeldNotification(t *testing.T) {
	proxy, url, _ := notifyProxied(t)
	s := openAt(t, connections(t, url, 1), Config{})
	held, release := make(chan struct{}, 100), make(chan struct{})
	proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
		if notifying(c) {
			held <- struct{}{}
			return pgproxy.HoldUntil(release)
		}
		return pgproxy.Pass
	})
	must(t, s, put("a", 0))
	<-held // and not released before the commits are answered
	for version := uint64(1); version < 20; version++ {
		must(t, s, put("a", version))
	}
	close(release)
}

// TestNotificationConnection: notifications have one connection beside the pool. It is replaced when
// it breaks, also by Close, which closes it.
//
// Proves SCOPE-13.
func TestNotificationConnection(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 1), Config{})
	w := watching(t, openAt(t, url, Config{}))
	conn := pgtest.Connect(t, url)
	const notifiers = `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_notify%' AND pid <> pg_backend_pid()`
	for version := range uint64(5) {
		must(t, s, put("a", version))
		w.hears(thing("a"), version+1)
		require.EqualValues(t, 1, value[int](t, conn, "SELECT count(*) "+notifiers))
		if version%2 == 1 {
			require.EqualValues(t, 1, value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) "+notifiers))
			eventually(t, conn, "SELECT count(*) = 0 "+notifiers)
		}
	}
	require.EqualValues(t, 1, value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) "+notifiers))
	eventually(t, conn, "SELECT count(*) = 0 "+notifiers)
	must(t, s, put("a", 5))
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(func() { assert.NoError(t, s.Close()) })
	}
	closing.Wait()
	w.hears(thing("a"), 6)
	eventually(t, conn, "SELECT count(*) = 0 "+notifiers)
}

// TestNotificationsFail: when the outbox has given up, the first notification that gets through
// again says that anything may have changed.
//
// Proves SCOPE-13.
func TestNotificationsFail(t *testing.T) {
	proxy, url, direct := notifyProxied(t)
	s := openAt(t, url, Config{})
	w := watching(t, openAt(t, direct, Config{}))
	var block atomic.Bool
	block.Store(true)
	var tried atomic.Int64
	proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
		if notifying(c) && block.Load() {
			tried.Add(1)
			return pgproxy.BeforeCommit
		}
		return pgproxy.Pass
	})
	s.outbox.tries = 3
	must(t, s, put("a", 0))
	testkit.Eventually(t, func() bool {
		s.outbox.mu.Lock()
		defer s.outbox.mu.Unlock()
		return tried.Load() == 3 && !s.outbox.sending
	})
	require.EqualValues(t, 3, tried.Load())
	times, zeros := w.times(thing("a"))
	require.Zero(t, times)
	block.Store(false)
	must(t, s, put("b", 0))
	w.zero(zeros + 1)
}

// TestCloseSendsHints: what was committed before Close is heard.
//
// Proves SCOPE-13.
func TestCloseSendsHints(t *testing.T) {
	url := pgtest.URL(t)
	w := watching(t, openAt(t, url, Config{}))
	for i := range 20 {
		s := openAt(t, connections(t, url, 2), Config{})
		id := fmt.Sprint(i)
		must(t, s, put(id, 0), put(id, 1), put(id, 2))
		require.NoError(t, s.Close())
		w.hears(thing(id), 3)
	}
}

// TestUnknownOutcomeIsHinted: a commit whose answer is lost may have happened. One that happens
// after it was hinted at is hinted at again when it is sent again, and loses to itself.
//
// Proves SCOPE-13.
func TestUnknownOutcomeIsHinted(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, url, Config{})
	w := watching(t, s)
	with := func(ctx context.Context, c persist.Commit) (time.Time, error) {
		return s.CommitWith(ctx, c, func(context.Context, any) error { return nil })
	}
	for name, test := range map[string]struct {
		commit func(context.Context, persist.Commit) (time.Time, error)
		c      persist.Commit
	}{
		"one": {s.Commit, put("a", 0)}, "several": {s.Commit, together(put("b", 0), put("c", 0))}, "with a function": {with, put("d", 0)},
	} {
		c := test.c
		proxy.Script(func(c pgproxy.Commit) pgproxy.Action { return pgproxy.AfterExecute })
		_, err := test.commit(t.Context(), c)
		proxy.Script(nil)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		for _, write := range c.Writes {
			w.hearsNoVersion(t, write.Key)
		}
		_, err = test.commit(t.Context(), c)
		require.True(t, isConflict(err))
		for _, write := range c.Writes {
			w.hears(write.Key, 1)
		}
	}
	ids, before := []string{"a", "b", "c", "d"}, map[string]int{}
	for _, id := range ids {
		before[id], _ = w.times(thing(id))
	}
	proxy.Script(func(c pgproxy.Commit) pgproxy.Action { return pgproxy.AfterExecute })
	_, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	proxy.Script(nil)
	require.Error(t, err)
	require.NotErrorIs(t, err, persist.ErrNotApplied)
	for _, id := range ids {
		testkit.Eventually(t, func() bool {
			times, _ := w.times(thing(id))
			return times > before[id]
		}, "a hint of "+id)
	}
	for _, h := range w.All() {
		require.Less(t, h.Version, uint64(2), "%v may not have been taken", h.Key)
	}
}

// TestLeftBehindIsHinted: a commit whose caller has left is hinted at when it has happened.
//
// Proves SCOPE-13.
func TestLeftBehindIsHinted(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, url, Config{})
	w := watching(t, s)
	sent, release := make(chan struct{}), make(chan struct{})
	proxy.Script(func(pgproxy.Commit) pgproxy.Action {
		close(sent)
		return pgproxy.HoldUntil(release)
	})
	ctx, cancel := context.WithCancel(t.Context())
	answer := commitLater(ctx, s, put("a", 0))
	<-sent
	proxy.Script(nil)
	cancel()
	require.ErrorIs(t, answered(t, answer).err, context.Canceled)
	times, _ := w.times(thing("a"))
	require.Zero(t, times)
	close(release)
	w.hears(thing("a"), 1)
}

// TestPayloads are short enough for PostgreSQL, and say what they were made of, or everything.
//
// Proves SCOPE-13.
func TestPayloads(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	for name, id := range map[string]string{
		"short": "a", "long": strings.Repeat("é", 1000), "growing": strings.Repeat("\x01", 1000), "too long": strings.Repeat("\x01", 2000),
	} {
		hints := make(map[persist.Key]uint64)
		var all []persist.Hint
		for i := range 500 {
			h := persist.Hint{Key: thing(fmt.Sprint(id, i)), Version: uint64(i)}
			hints[h.Key] = h.Version
			all = append(all, h)
		}
		texts := payloads("me", all)
		got := make(map[persist.Key]uint64)
		for _, text := range texts {
			require.Less(t, len(text), 8000)
			var n notification
			require.NoError(t, json.Unmarshal([]byte(text), &n))
			require.Equal(t, "me", n.From)
			for _, h := range n.Hints {
				got[persist.Key{Kind: h.Kind, ID: h.ID}] = h.Version
			}
		}
		if name == "too long" {
			require.Equal(t, []string{`{"from":"me"}`}, texts)
		} else {
			require.Equal(t, hints, got)
		}
		require.NoError(t, s.notify(texts))
	}
	require.Equal(t, []string{`{"from":"me"}`}, payloads("me", []persist.Hint{{Key: thing("a")}, {}}))
}

// TestForeignNotification: what is not understood may mean anything.
//
// Proves SCOPE-13.
func TestForeignNotification(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	w := watching(t, s)
	for i, payload := range []string{"", "hello", "[1]", `{"from":"a later release","what":1}`, `{"hints":[{"k":7}]}`, `{"hints":[{}]}`} {
		_, err := pgtest.Connect(t, url).Exec(t.Context(), "SELECT pg_notify($1, $2)", s.names.channel(), payload)
		require.NoError(t, err)
		w.zero(2 + i)
	}
}

// TestOutbox: hints of one key become one, and too many become the zero hint.
//
// Proves SCOPE-13.
func TestOutbox(t *testing.T) {
	var o outbox
	o.pending.Add([]persist.Hint{{Key: thing("a"), Version: 3}, {Key: thing("b"), Version: 1}}...)
	o.pending.Add([]persist.Hint{{Key: thing("a"), Version: 2}, {Key: thing("b")}, {Key: thing("b"), Version: 2}}...)
	require.ElementsMatch(t, []persist.Hint{{Key: thing("a"), Version: 3}, {Key: thing("b")}}, o.take())
	for i := range hints.Most + 1 {
		o.pending.Add(persist.Hint{Key: thing(fmt.Sprint(i)), Version: 1})
	}
	require.Equal(t, []persist.Hint{{}}, o.take())
	require.Empty(t, o.take())
	require.True(t, o.back([]persist.Hint{{Key: thing("a"), Version: 1}}, false))
	o.pending.Add([]persist.Hint{{Key: thing("a"), Version: 2}}...)
	require.Equal(t, []persist.Hint{{Key: thing("a"), Version: 2}}, o.take())
}

// TestVersions: of any number of keys, in their order, without reading documents.
//
// Proves SCOPE-13.
func TestVersions(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	big := put("big", 0)
	big.Writes[0].Doc = fmt.Appendf(nil, "%q", bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	must(t, s, put("a", 0), put("a", 1), put("b", 0), big)
	deleted := persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("b"), Expected: 1, Version: 5, Deleted: true}}}
	must(t, s, deleted)
	keys := []persist.Key{thing("b"), thing("none"), thing("a"), thing("big"), thing("a"), {}, thing("\x00"), thing("\xff")}
	want := []uint64{5, 0, 2, 1, 2, 0, 0, 0}
	for range 20_000 {
		keys, want = append(keys, thing("a"), thing("none")), append(want, 2, 0)
	}
	got, err := s.Versions(t.Context(), keys)
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = s.Versions(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, got)

	typed := strings.NewReplacer("$1", "$1::text[]", "$2", "$2::text[]").Replace(s.sql.versions)
	plan := value[string](t, pgtest.Connect(t, url), "EXPLAIN (FORMAT json, VERBOSE) "+typed, []string{"thing"}, []string{"a"})
	require.Contains(t, plan, `["r.version", "k.place"]`) // what is below it passes on where documents are, unread
	require.Contains(t, plan, "pawl_records_pkey")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Versions(ctx, keys)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.Versions(t.Context(), keys)
	require.ErrorIs(t, err, persist.ErrClosed)
}

// TestWatchBehindPgBouncer: where it gives each transaction another session, Watch says that it
// cannot be, and hints are still sent; where sessions are kept, it works.
//
// Proves SCOPE-13.
func TestWatchBehindPgBouncer(t *testing.T) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	server := pgtest.New(t)
	direct := openAt(t, server.URL("postgres"), Config{})
	heard := watching(t, direct)
	for name, reset := range map[string]string{"forgetful": "", "transaction": "server_reset_query_always = 0"} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, connections(t, pgBouncer(t, program, server.URL("postgres"), reset), 10), Config{})
			for range 2 {
				err := s.Watch(t.Context(), func(persist.Hint) { t.Error("wake is called") })
				require.ErrorIs(t, err, persist.ErrUnsupported)
			}
			must(t, s, put(name, 0))
			heard.hears(thing(name), 1)
		})
	}
	t.Run("session", func(t *testing.T) {
		s := openAt(t, connections(t, pgBouncer(t, program, server.URL("postgres"), "pool_mode = session"), 2), Config{})
		w := watching(t, s)
		must(t, direct, put("b", 0))
		w.hears(thing("b"), 1)
	})
}
