package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// ways are those that a commit of one write can go.
var ways = map[string]func(t *testing.T, url string) *Store{
	"direct": func(t *testing.T, url string) *Store { return openAt(t, url, Config{}) },
	"batched": func(t *testing.T, url string) *Store {
		s := openAt(t, url, Config{})
		s.queue.maxDirect = 0
		return s
	},
}

// expired returns the record of an id that was created and has expired.
func expired(t *testing.T, s *Store, id string) persist.Record {
	t.Helper()
	c := put(id, 0)
	c.Writes[0].TTL = time.Millisecond
	must(t, s, c)
	var r persist.Record
	testkit.Eventually(t, func() bool { r = load(t, s, id); return r.Expired(r.Now) })
	return r
}

// found returns the ids of the things that match q.
func found(t *testing.T, s *Store, q persist.Query) (ids []string) {
	t.Helper()
	page, err := s.List(t.Context(), q)
	require.NoError(t, err)
	for _, r := range page.Records {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestSwept: a tombstone that keeps the expiry of its record is listed like any other tombstone,
// and the sweeper does not find it again.
//
// Proves SCOPE-14.
func TestSwept(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			s := open(t, pgtest.URL(t))
			before := expired(t, s, "a")
			sweep := persist.Write{Key: thing("a"), Expected: 1, Gone: true, Version: 2, Deleted: true, Swept: true}
			must(t, s, persist.Commit{ID: "sweep.1", Writes: []persist.Write{sweep}})
			r := load(t, s, "a")
			require.True(t, r.Deleted)
			require.False(t, r.Expired(r.Now))
			require.Equal(t, before.Expires, r.Expires)

			must(t, s, put("deleted", 0), persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("deleted"), Expected: 1, Version: 2, Deleted: true}}})
			require.Equal(t, []string{"a", "deleted"}, found(t, s, persist.Query{Kind: "thing", Deleted: true}))
			require.Empty(t, found(t, s, persist.Query{Kind: "thing", Expired: true}))
			require.Empty(t, found(t, s, persist.Query{Kind: "thing", Expired: true, Deleted: true}))
			require.Empty(t, found(t, s, persist.Query{Kind: "thing"}))

			again := put("a", 2) // starts over, and has no expiry then
			again.Writes[0].Gone, again.Writes[0].TTL = true, persist.KeepTTL
			must(t, s, again)
			require.Zero(t, load(t, s, "a").Expires)

			expired(t, s, "b")
			sweep.Key = thing("b")
			must(t, s, persist.Commit{ID: "sweep.2", Writes: []persist.Write{sweep}})
			plain := put("b", 2)
			plain.Writes[0].Gone = true
			must(t, s, plain)
			require.Zero(t, load(t, s, "b").Expires)

			expired(t, s, "c")
			sweep.Key = thing("c")
			must(t, s, persist.Commit{ID: "sweep.3", Writes: []persist.Write{sweep}})
			removed, err := s.Purge(t.Context(), persist.Query{})
			require.NoError(t, err)
			require.Equal(t, 2, removed)
		})
	}
}

// TestSweptTooLate: sweeping a record that is alive again, or was never gone, is a conflict.
//
// Proves SCOPE-14.
func TestSweptTooLate(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("a", 0))
	_, err := s.Commit(t.Context(), persist.Commit{ID: "sweep.1", Writes: []persist.Write{
		{Key: thing("a"), Expected: 1, Gone: true, Version: 2, Deleted: true, Swept: true}}})
	require.EqualValues(t, 1, winner(t, err).Version)
	require.False(t, load(t, s, "a").Deleted)
}

// TestKeptExpiry: a write may leave the expiry where it is, and then does to that what
// persist.Apply says.
//
// Proves SCOPE-14.
func TestKeptExpiry(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			s := open(t, pgtest.URL(t))
			c := put("a", 0)
			c.Writes[0].TTL = time.Hour
			at := must(t, s, c)
			keep := put("a", 1)
			keep.Writes[0].TTL = persist.KeepTTL
			keep.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
			must(t, s, keep)
			r := load(t, s, "a")
			require.Equal(t, at.Add(time.Hour), r.Expires)
			require.EqualValues(t, 2, r.Lease.Token)
			must(t, s, put("a", 2))
			require.Zero(t, load(t, s, "a").Expires)
			absent := put("b", 0)
			absent.Writes[0].TTL = persist.KeepTTL
			must(t, s, absent)
			require.Zero(t, load(t, s, "b").Expires)
			gone := put("a", 3)
			gone.Writes[0].Doc, gone.Writes[0].Deleted, gone.Writes[0].TTL = nil, true, persist.KeepTTL
			must(t, s, gone)
			require.Zero(t, load(t, s, "a").Expires)
		})
	}
}

// TestEndedLease: a document that starts over ends the lease of any holder, and may acquire it.
//
// Proves STORE-13.
func TestEndedLease(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			s := open(t, pgtest.URL(t))
			c := put("a", 0)
			c.Writes[0].Acquire = &persist.Acquire{Holder: "one", For: time.Hour}
			must(t, s, c)
			taken := put("a", 1)
			taken.Writes[0].Acquire = &persist.Acquire{Holder: "two", For: time.Hour}
			_, err := s.Commit(t.Context(), taken)
			require.EqualValues(t, 1, winner(t, err).Lease.Token)
			taken.Writes[0].EndLease = true
			must(t, s, taken)
			require.Equal(t, "two", load(t, s, "a").Lease.Holder)
			_, err = s.Commit(t.Context(), persist.Commit{ID: "w.1", Guards: []persist.Guard{{Key: thing("a"), Token: 1, Extend: time.Hour}}})
			require.ErrorAs(t, err, new(*persist.Fenced))
			over := put("a", 2)
			over.Writes[0].EndLease = true
			must(t, s, over)
			require.Zero(t, load(t, s, "a").Lease)
		})
	}
}

// TestPagesOfExpired: pages of what has expired are without gaps and repetitions, also where
// several expired at the same moment.
//
// Proves STORE-1.
func TestPagesOfExpired(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, expires, updated, holder, token, commits)
		SELECT 'k' || n % 2, n::text, 1, 1, '{}', 0, '', now() - n / 10 * interval '1 s', now(), '', 0, '{}' FROM generate_series(1, 100) n`)
	for _, kind := range []string{"", "k0"} {
		seen := make(map[persist.Key]bool)
		q := persist.Query{Kind: kind, Expired: true, Limit: 7}
		var last time.Time
		for more := true; more; more = q.After != "" {
			page, err := s.List(t.Context(), q)
			require.NoError(t, err)
			for _, r := range page.Records {
				require.False(t, seen[r.Key])
				require.False(t, r.Expires.Before(last))
				seen[r.Key], last = true, r.Expires
			}
			q.After = page.Next
		}
		require.Len(t, seen, map[string]int{"": 100, "k0": 50}[kind])
	}
}

// TestSweepingStepsOverNothing: a sweep does not read tombstones of earlier sweeps.
//
// Proves SCOPE-14.
func TestSweepingStepsOverNothing(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, expires, updated, deleted, holder, token, commits)
		SELECT 'k', n::text, 1, 1, CASE WHEN n % 100 = 0 THEN '{}'::jsonb END, 0, '', now() - interval '1 s', now(),
			CASE WHEN n % 100 > 0 THEN now() END, '', 0, '{}' FROM generate_series(1, 20000) n`, "VACUUM ANALYZE pawl_records")
	conn := pgtest.Connect(t, url)
	require.EqualValues(t, 200, value[float32](t, conn, "SELECT reltuples FROM pg_class WHERE relname = 'pawl_expires'"))
	for _, q := range []persist.Query{{Kind: "k", Expired: true}, {Kind: "k", Expired: true, Unheld: true, Limit: 10}} {
		statement, err := s.sql.list(q, q.PageSize())
		require.NoError(t, err)
		require.Contains(t, plan(t, conn, statement), "pawl_expires ")
		require.Len(t, found(t, s, q), q.PageSize())
	}
}
