package postgres

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestStatementTimeoutOfTheRole does not end a wait for a lock.
//
// Proves STORE-10.
func TestStatementTimeoutOfTheRole(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0), put("b", 0))
	s = openAt(t, connections(t, with(t, url, "statement_timeout", "120"), 8), Config{}) // of which two may wait
	release := locked(t, url, "a", "b")
	one, two := commitLater(t.Context(), s, put("a", 1)), commitLater(t.Context(), s, together(put("b", 1), put("c", 0)))
	eventually(t, pgtest.Connect(t, url), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '180 ms'`)
	release()
	require.NoError(t, answered(t, one).err)
	require.NoError(t, answered(t, two).err)
}

// TestFailedSiblingFailsAlone: an error that passes by itself, but that one part of a batch has
// caused, does not fail the others.
//
// Proves CAS-11.
func TestFailedSiblingFailsAlone(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `CREATE FUNCTION exhausted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE disk_full; END$$`,
		`CREATE TRIGGER exhausted AFTER INSERT ON pawl_records FOR EACH ROW WHEN (NEW.id = 'x') EXECUTE FUNCTION exhausted()`)
	results := batched(t, s, put("x", 0), put("y", 0), put("z", 0))
	unavailable(t, results[0].err)
	require.NoError(t, results[1].err)
	require.NoError(t, results[2].err)
}

// TestNumbersThatCannotBeRead: jsonb writes exponents out, and could keep a small document that is
// too large to be read, or listed with others.
//
// Proves CAS-11.
func TestNumbersThatCannotBeRead(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	for name, doc := range map[string]string{
		"many":     "[" + strings.Repeat("1e131000,", 9000) + "1]",
		"small":    "[" + strings.Repeat("1e-16000,", 9000) + "1]",
		"one":      `{"a": 1E+131000}`,
		"overflow": `1e99999999999999999999999`,
	} {
		c := put(name, 0)
		c.Writes[0].Doc = []byte(doc)
		_, err := s.Commit(t.Context(), c)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
		require.NotErrorIs(t, err, persist.ErrUnavailable, name)
	}
	for i, doc := range []string{`1e400`, `-1.5e-400`, `"1e131000 \" 1e131000"`, "[" + strings.Repeat("12345678901234567890.5,", 9000) + "1]"} {
		c := put(fmt.Sprint(i), 0)
		c.Writes[0].Doc = []byte(doc)
		must(t, s, c)
		require.NotEmpty(t, load(t, s, fmt.Sprint(i)).Doc)
	}
}

// TestOneNewSchemaForManyStores: stores with prefixes of their own create it together.
//
// Proves STORE-9.
func TestOneNewSchemaForManyStores(t *testing.T) {
	url := connections(t, pgtest.URL(t), 2)
	const openers, rounds = 8, 3
	for round := range rounds {
		stores, errs := make([]*Store, openers), make([]error, openers)
		var group sync.WaitGroup
		for i := range openers {
			group.Go(func() {
				stores[i], errs[i] = Open(t.Context(), url, Config{Schema: fmt.Sprint("fresh", round), TablePrefix: fmt.Sprintf("p%d_", i)})
			})
		}
		group.Wait()
		for _, s := range stores {
			if s != nil {
				require.NoError(t, s.Close())
			}
		}
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
}

// TestOpenIsBounded: Open fails in time if the tables are locked.
//
// Proves STORE-14.
func TestOpenIsBounded(t *testing.T) {
	url := pgtest.URL(t)
	require.NoError(t, openAt(t, url, Config{}).Close())
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE pawl_meta IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	_, err = Open(t.Context(), url, Config{CommitTimeout: 300 * time.Millisecond})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NoError(t, tx.Rollback(t.Context()))
	openAt(t, url, Config{})
}

// TestClockIsTheServers, also where a schema before pg_catalog in the search path has another.
//
// Proves STORE-8, STORE-10.
func TestClockIsTheServers(t *testing.T) {
	url := pgtest.URL(t)
	for _, name := range []string{"clock_timestamp", "statement_timestamp"} {
		execute(t, url, "CREATE FUNCTION public."+name+"() RETURNS timestamptz LANGUAGE sql AS $$SELECT '2140-01-01'::timestamptz$$")
	}
	url = with(t, url, "search_path", "public, pg_catalog")
	require.Equal(t, 2140, value[time.Time](t, pgtest.Connect(t, url), "SELECT clock_timestamp()").Year())
	s := openAt(t, url, Config{Schema: "public"})
	leased := put("a", 0)
	leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	require.Less(t, must(t, s, leased).Year(), 2140)
	require.Less(t, must(t, s, together(put("b", 0), put("c", 0))).Year(), 2140)
	require.Less(t, load(t, s, "a").Now.Year(), 2140)
	all, err := s.LoadAll(t.Context(), []persist.Key{thing("a")})
	require.NoError(t, err)
	require.Less(t, all[0].Now.Year(), 2140)
	taken, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{Holder: "another", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 2, "one is leased")
	require.Less(t, taken[0].Now.Year(), 2140)
	require.EqualValues(t, 3, value[int64](t, pgtest.Connect(t, url), "SELECT count(*) FROM pawl_state WHERE held_until < '2140-01-01'"))
}

// TestHugeCommitIsRefused before it fills the server's table of locks.
//
// Proves CAS-11.
func TestHugeCommitIsRefused(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	huge := persist.Commit{ID: "huge.1"}
	for i := range maxKeys + 1 {
		huge.Writes = append(huge.Writes, put(fmt.Sprint(i), 0).Writes...)
	}
	_, err := s.Commit(t.Context(), huge)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	huge.Writes = huge.Writes[:maxKeys]
	must(t, s, huge)
}

// TestLongestKey can be created, found and deleted, and a longer one cannot be created.
func TestLongestKey(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	random := make([]byte, maxKey) // so that it cannot be compressed
	_, _ = rand.Read(random)
	text := base64.RawURLEncoding.EncodeToString(random)
	longest := put(text[:maxKey-len("thing")], 0)
	longest.ID = "w.1"
	longest.Writes[0].DueIn, longest.Writes[0].TTL, longest.Writes[0].Label = time.Hour, time.Hour, strings.Repeat("label", 20)
	must(t, s, longest)
	key := longest.Writes[0].Key
	must(t, s, persist.Commit{ID: "w.2", Writes: []persist.Write{{Key: key, Expected: 1, Version: 2, Deleted: true}}})
	removed, err := s.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	longest.Writes[0].ID += "x"
	_, err = s.Commit(t.Context(), longest)
	require.ErrorContains(t, err, "2049 bytes")
	require.ErrorIs(t, err, persist.ErrNotApplied)
	_, err = s.Commit(t.Context(), persist.Commit{Guards: []persist.Guard{{Key: thing(key.ID + "x"), Read: true}}})
	require.ErrorIs(t, err, persist.ErrNotApplied)
}

// TestNamesThatNoRecordHas are looked for, and not found.
//
// Proves STORE-1.
func TestNamesThatNoRecordHas(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("a", 0))
	for _, name := range []string{"a\x00", "\xff"} {
		r, err := s.Load(t.Context(), thing(name))
		require.ErrorIs(t, err, persist.ErrNotFound)
		require.Equal(t, thing(name), r.Key)
		records, err := s.LoadAll(t.Context(), []persist.Key{{Kind: name, ID: "a"}, thing("a"), thing(name)})
		require.NoError(t, err)
		require.True(t, records[0].Absent())
		require.False(t, records[1].Absent())
		require.True(t, records[2].Absent())
		for _, q := range []persist.Query{{Kind: name}, {Prefix: name}, {Labels: []string{name}}} {
			page, err := s.List(t.Context(), q)
			require.NoError(t, err)
			require.Empty(t, page.Records)
		}
		page, err := s.List(t.Context(), persist.Query{Labels: []string{name, ""}})
		require.NoError(t, err)
		require.Len(t, page.Records, 1)
	}
}

// TestLargestNumbers overflow nowhere.
//
// Proves STORE-1.
func TestLargestNumbers(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{CommitTimeout: math.MaxInt64})
	last := put("last", 0)
	last.Writes[0].Version = math.MaxInt64
	early, together := put("early", 0), together(put("early too", 0), put("other", 0))
	early.Writes[0].Due, together.Writes[0].Due = time.Time{}.Add(500), time.Time{}.Add(500)
	must(t, s, last, early, together)
	page, err := s.List(t.Context(), persist.Query{Limit: math.MaxInt})
	require.NoError(t, err)
	require.Len(t, page.Records, 4)
	page, err = s.List(t.Context(), persist.Query{Due: true})
	require.NoError(t, err)
	require.Empty(t, page.Records, "less than a microsecond is nothing")
	taken, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 3, "one has no next version")
}

// TestPurgesLeaveConnections: concurrent purges of a store wait on one connection.
//
// Proves STORE-14.
func TestPurgesLeaveConnections(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 2), Config{})
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM pawl_meta WHERE name = 'floor' FOR UPDATE")
	require.NoError(t, err)
	var group sync.WaitGroup
	const purges = 4
	begun := make(chan struct{}, purges)
	for range purges {
		group.Go(func() {
			begun <- struct{}{}
			if _, err := s.Purge(t.Context(), persist.Query{}); err != nil {
				t.Error(err)
			}
		})
	}
	for range purges {
		<-begun
	}
	eventually(t, pgtest.Connect(t, url), someoneWaits)
	for version := range uint64(10) {
		must(t, s, put("free", version))
	}
	require.NoError(t, tx.Rollback(t.Context()))
	group.Wait()
}

// TestPurgeIsBounded: a purge fails in time if the floor stays locked, and is known to have removed
// nothing.
//
// Proves STORE-14.
func TestPurgeIsBounded(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	s.config.CommitTimeout = time.Second // from here on: to open it may take longer
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM pawl_meta WHERE name = 'floor' FOR UPDATE")
	require.NoError(t, err)
	_, err = s.Purge(t.Context(), persist.Query{})
	unavailable(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
}

// TestCommitTimeoutBeginsWithAConnection: how long one was waited for does not count.
//
// Proves STORE-14.
func TestCommitTimeoutBeginsWithAConnection(t *testing.T) {
	s := openAt(t, connections(t, pgtest.URL(t), 2), Config{})
	s.config.CommitTimeout = 500 * time.Millisecond
	release := usedUp(t, s)
	began := time.Now()
	answer := commitLater(t.Context(), s, put("a", 0))
	testkit.Eventually(t, func() bool { return time.Since(began) > 600*time.Millisecond })
	release()
	require.NoError(t, answered(t, answer).err)
}

// TestConnectionIsWaitedForOnce: a request that has waited for AcquireTimeout is answered, even if
// its committer has just begun to wait for a connection. Younger requests continue to wait.
//
// Proves STORE-14.
func TestConnectionIsWaitedForOnce(t *testing.T) {
	s := openAt(t, connections(t, pgtest.URL(t), 2), Config{})
	s.queue.maxDirect = 0
	release := usedUp(t, s)
	s.config.AcquireTimeout = time.Hour
	enter := func(id string, arrived time.Time) *request {
		c := put(id, 0)
		r := &request{ctx: t.Context(), commit: c, keys: c.Keys(), arrived: arrived, done: make(chan struct{})}
		_, err := s.queue.enter(r)
		require.NoError(t, err)
		return r
	}
	old, young := enter("old", time.Now().Add(-time.Hour)), enter("young", time.Now())
	testkit.Receive(t, old.done, "it has waited for an hour")
	unavailable(t, old.result.err)
	require.False(t, isClosed(young.done))
	release()
	<-young.done
	require.NoError(t, young.result.err)
}
