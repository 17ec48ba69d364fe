package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
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
)

// diarist writes one record, or two together, again and again. The documents name every commit that
// counts, so that one that is lost, doubled or torn shows. Some diarists also keep a log, with an entry
// for each commit.
type diarist struct {
	t       *testing.T
	store   *Store
	keys    []persist.Key
	version uint64
	ids     []string // of the commits that were applied
	logs    bool
	recent  []string // Record.Commits
	tried   int
	unknown *atomic.Int64 // outcomes
}

func (d *diarist) next() persist.Commit {
	d.tried++
	c := persist.Commit{ID: fmt.Sprintf("%s.%d", d.keys[0].ID, d.tried)}
	doc, err := json.Marshal(append(slices.Clone(d.ids), c.ID))
	require.NoError(d.t, err)
	for _, key := range d.keys {
		w := persist.Write{Key: key, Expected: d.version, Version: d.version + 1, Doc: doc}
		if d.logs {
			entry := json.RawMessage(fmt.Sprintf("%q", c.ID))
			w.Log, w.Recent = &persist.LogWrite{First: d.version, Entries: []json.RawMessage{entry}}, d.recent
		}
		c.Writes = append(c.Writes, w)
	}
	return c
}

// write applies one more commit, whatever stands in its way. It reports false when an answer was
// not true.
func (d *diarist) write() bool {
	c, sentBefore := d.next(), false
	deadline := time.Now().Add(2 * testkit.Patience)
	for {
		_, err := d.store.Commit(d.t.Context(), c)
		var conflict *persist.Conflict
		switch {
		case err == nil:
			d.applied(c)
			return true
		case errors.As(err, &conflict):
			if !sentBefore || !slices.Contains(conflict.Winners[0].Commits, c.ID) {
				d.t.Errorf("%s lost to %v, but no other writer exists", c.ID, conflict.Winners[0].Commits)
				return false
			}
			d.applied(c)
			return true
		case time.Now().After(deadline):
			d.t.Errorf("the store does not come back: %v", err)
			return false
		case !errors.Is(err, persist.ErrUnavailable):
			d.t.Errorf("%s: %v", c.ID, err)
			return false
		case errors.Is(err, persist.ErrNotApplied):
			if !sentBefore {
				c = d.next() // under another name, so that it shows if the first was applied after all
			}
			time.Sleep(time.Millisecond)
		default:
			d.unknown.Add(1)
			sentBefore = true
		}
	}
}

// applied notes that c was applied.
func (d *diarist) applied(c persist.Commit) {
	d.version++
	d.ids, d.recent = append(d.ids, c.ID), persist.Remember(d.recent, c.ID)
}

// diaries has many write until stop is closed, and then compares what is there with what they were
// told. A reader follows the order of the log entries meanwhile. It returns how many outcomes were
// unknown.
func diaries(t *testing.T, s *Store, stop <-chan struct{}) int64 {
	var unknown atomic.Int64
	var writers sync.WaitGroup
	all := make([]*diarist, 24)
	for i := range all {
		d := &diarist{t: t, store: s, keys: []persist.Key{thing(fmt.Sprint("diary-", i))}, logs: i%2 == 0, unknown: &unknown}
		if i%3 == 0 {
			d.keys = append(d.keys, thing(fmt.Sprint("copy-", i)))
		}
		all[i] = d
		writers.Go(func() {
			for d.write() {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	var reader sync.WaitGroup
	written := make(chan struct{})
	var order []persist.LogEntry
	reader.Go(func() { order = follow(t, s, written) })
	writers.Wait()
	close(written)
	reader.Wait()
	entries := make(map[persist.Key][]string)
	for _, e := range order {
		entries[e.Key] = append(entries[e.Key], strings.Trim(string(e.Data), `"`))
	}
	for _, d := range all {
		for _, key := range d.keys {
			r, err := s.Load(t.Context(), key)
			require.NoError(t, err)
			var ids []string
			require.NoError(t, json.Unmarshal(r.Doc, &ids))
			require.Equal(t, d.ids, ids)
			require.Equal(t, d.version, r.Version)
			if d.logs {
				require.Equal(t, d.ids, entries[key])
			}
		}
	}
	return unknown.Load()
}

// proxied returns a proxy in front of a server of t's own.
func proxied(t *testing.T) (*pgproxy.Proxy, string) {
	server := pgtest.New(t)
	network, address := server.Addr()
	proxy := pgproxy.Start(t, network, address, "write", "write_together", "create_records", "replace_records", "touch_records", "change_logs")
	return proxy, proxy.URL(server.URL("postgres"))
}

// TestLostAnswers cuts connections around commits. An answer that nothing was written is always
// true. An unknown outcome is settled by sending the commit again.
//
// Proves STORE-14.
func TestLostAnswers(t *testing.T) {
	proxy, url := proxied(t)
	for name, direct := range map[string]int{"direct": 1 << 20, "batched": 0} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, connections(t, url, 6), Config{TablePrefix: name})
			s.queue.maxDirect = direct
			before := proxy.Counts()
			proxy.Cut(0.2, 1)
			defer proxy.Script(nil)
			stop := make(chan struct{})
			go func() {
				defer close(stop)
				deadline := time.Now().Add(testkit.Patience)
				for time.Now().Before(deadline) {
					c := proxy.Counts()
					if min(c.BeforeCommit-before.BeforeCommit, c.AfterSend-before.AfterSend, c.AfterExecute-before.AfterExecute) >= 10 {
						proxy.Script(nil)
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			require.Positive(t, diaries(t, s, stop))
			after := proxy.Counts()
			require.GreaterOrEqual(t, after.AfterExecute-before.AfterExecute, 10)
		})
	}
}

// TestKilledServer: the server crashes under load and comes back, several times.
//
// Proves STORE-14.
func TestKilledServer(t *testing.T) {
	server := pgtest.New(t)
	s := openAt(t, connections(t, server.URL("postgres"), 6), Config{})
	stop := make(chan struct{})
	var commits atomic.Int64
	go func() {
		defer close(stop)
		for range 3 {
			progress(t, s, &commits)
			server.Kill()
			_, err := s.Load(t.Context(), thing("diary-0"))
			if !errors.Is(err, persist.ErrUnavailable) {
				t.Errorf("the server is down: %v", err)
			}
			server.Start()
		}
		progress(t, s, &commits)
	}()
	diaries(t, s, stop)
}

// progress waits until the first diary has grown by some commits.
func progress(t *testing.T, s *Store, commits *atomic.Int64) {
	deadline := time.Now().Add(2 * testkit.Patience)
	for time.Now().Before(deadline) {
		r, err := s.Load(t.Context(), thing("diary-0"))
		if err == nil && int64(r.Version) > commits.Load()+20 {
			commits.Store(int64(r.Version))
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("no progress")
}

// TestServerDown: every call says so, and works again when the server does.
//
// Proves STORE-14.
func TestServerDown(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	proxy.Refuse(true)
	for range 10 { // the first ones may still find connections from before
		_, err := s.Load(t.Context(), thing("a"))
		require.ErrorIs(t, err, persist.ErrUnavailable)
		_, err = s.Commit(t.Context(), put("never", 0))
		require.ErrorIs(t, err, persist.ErrUnavailable)
	}
	for _, c := range []persist.Commit{put("b", 0), together(put("b", 0), put("c", 0))} {
		_, err := s.Commit(t.Context(), c)
		unavailable(t, err)
	}
	_, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{For: time.Hour}, nil)
	unavailable(t, err)
	_, err = s.Purge(t.Context(), persist.Query{})
	unavailable(t, err)
	_, err = Open(t.Context(), url, Config{})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	for _, r := range batchedWhileDown(t, s) {
		unavailable(t, r.err)
	}
	proxy.Refuse(false)
	must(t, s, put("a", 1), together(put("b", 0), put("c", 0)))
}

// batchedWhileDown commits more than go directly.
func batchedWhileDown(t *testing.T, s *Store) []result {
	var answers []<-chan result
	for i := range 50 {
		answers = append(answers, commitLater(t.Context(), s, put(fmt.Sprint("down-", i), 0)))
	}
	var results []result
	for _, answer := range answers {
		results = append(results, answered(t, answer))
	}
	return results
}

// TestOldErrorOfAConnection: a request that arrives while a connection attempt fails does not get
// its error; the store tries again.
//
// Proves STORE-14.
func TestOldErrorOfAConnection(t *testing.T) {
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	config.MaxConns = 1
	var fails atomic.Bool
	connecting, refuse := make(chan struct{}), make(chan struct{})
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if !fails.CompareAndSwap(true, false) {
			return nil
		}
		close(connecting)
		<-refuse
		return errors.New("refused")
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	s, err := New(t.Context(), pool, Config{Schema: t.Name()})
	require.NoError(t, err)
	defer s.Close()
	s.queue.maxDirect = 0
	fails.Store(true)
	pool.Reset()
	first := commitLater(t.Context(), s, put("a", 0))
	<-connecting
	second := commitLater(t.Context(), s, put("b", 0))
	testkit.Eventually(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == 2
	})
	close(refuse)
	require.NoError(t, answered(t, second).err)
	answered(t, first)
}

// TestSilentServer: one that accepts connections and says nothing is given up in time.
//
// Proves STORE-14.
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, err = Open(t.Context(), "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable", Config{AcquireTimeout: 100 * time.Millisecond})
	require.ErrorIs(t, err, persist.ErrUnavailable)
}

// TestLeftBehind: a caller whose context ends while the database works gets away at once, the
// commit goes on, and Close waits for it.
//
// Proves STORE-14.
func TestLeftBehind(t *testing.T) {
	proxy, url := proxied(t)
	for name, c := range map[string]persist.Commit{"one": put("a", 0), "several": together(put("a", 0), put("b", 0))} {
		s := openAt(t, url, Config{Schema: name})
		sent, release := make(chan struct{}), make(chan struct{})
		proxy.Script(func(pgproxy.Commit) pgproxy.Action {
			close(sent)
			return pgproxy.HoldUntil(release)
		})
		ctx, cancel := context.WithCancel(t.Context())
		answer := commitLater(ctx, s, c)
		<-sent
		cancel()
		err := answered(t, answer).err
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		closed := make(chan struct{})
		go func() { defer close(closed); _ = s.Close() }()
		require.Never(t, func() bool { return isClosed(closed) }, 50*time.Millisecond, 10*time.Millisecond)
		proxy.Script(nil)
		close(release)
		testkit.Receive(t, closed, "Close does not return")
		require.Equal(t, []string{c.ID}, load(t, openAt(t, url, Config{Schema: name}), "a").Commits)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestCommitTimeout: an answer that does not come in time leaves the outcome unknown, and its
// connection is replaced.
//
// Proves STORE-14.
func TestCommitTimeout(t *testing.T) {
	proxy, url := proxied(t)
	s := openAt(t, connections(t, url, 1), Config{})
	s.config.CommitTimeout = time.Second // long enough to send it
	release := make(chan struct{})
	proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(release) })
	_, err := s.Commit(t.Context(), put("a", 0))
	proxy.Script(nil)
	close(release)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NotErrorIs(t, err, persist.ErrNotApplied)
	s.config.CommitTimeout = defaultCommitTimeout
	require.Equal(t, put("a", 0).ID, load(t, s, "a").Commits[0])
}
