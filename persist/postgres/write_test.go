package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// TestBatchOfNextVersions: each commit of a batch that goes the fast way has an outcome of its own.
//
// Proves STORE-2.
func TestBatchOfNextVersions(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			leased, brief := put("leased", 0), put("brief", 0)
			leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
			brief.Writes[0].TTL = time.Millisecond
			deleted := put("deleted", 1)
			deleted.Writes[0].Deleted, deleted.Writes[0].Doc = true, nil
			must(t, s, put("a", 0), put("moved", 0), put("moved", 1), leased, put("deleted", 0), deleted, brief, put("locked", 0))
			testkit.Eventually(t, func() bool { r := load(t, s, "brief"); return r.Expired(r.Now) })
			release := locked(t, url, "locked")
			rich := put("a", 1)
			w := &rich.Writes[0]
			w.Label, w.Schema, w.TTL, w.Due = "l", 7, ttl, time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)

			s.queue.maxDirect = 0
			back := usedUp(t, s)
			var answers []<-chan result
			for _, c := range []persist.Commit{rich, put("leased", 1), put("moved", 1), put("deleted", 2), put("brief", 1), put("absent", 3), put("locked", 1)} {
				answers = append(answers, commitLater(t.Context(), s, c))
			}
			inQueue(t, s, len(answers))
			back()
			first, second := answered(t, answers[0]), answered(t, answers[1])
			sameTime(t, first, second)
			require.EqualValues(t, 2, winner(t, answered(t, answers[2]).err).Version)
			require.True(t, winner(t, answered(t, answers[3]).err).Deleted)
			require.EqualValues(t, 1, winner(t, answered(t, answers[4]).err).Version)
			require.True(t, winner(t, answered(t, answers[5]).err).Absent())
			require.Empty(t, answers[6])
			release()
			require.NoError(t, answered(t, answers[6]).err)

			r := load(t, s, "a")
			require.Equal(t, first.at, r.Updated)
			if ttl > 0 {
				require.Equal(t, first.at.Add(ttl), r.Expires)
			} else {
				require.Zero(t, r.Expires)
			}
			require.Equal(t, w.Due, r.Due)
			require.Equal(t, "l", r.Label)
			require.Equal(t, 7, r.Schema)
			require.EqualValues(t, []any{uint64(2), uint64(1)}, []any{r.Version, r.Born})
			require.EqualValues(t, 1, load(t, s, "leased").Lease.Token, "a lease stays")
		})
	}
}

// TestNextVersionsRemember: a record keeps the same commit ids whether it was written directly or
// in a batch. A commit id without a dot is a writer of its own, even if it is a number.
//
// Proves STORE-1, CAS-7.
func TestNextVersionsRemember(t *testing.T) {
	ids := []string{"a.0"}
	for n := 1; n < 7; n++ {
		ids = append(ids, fmt.Sprint("a.", n))
	}
	ids = append(ids, "a.b.1", "a.b.2", "a", "b", "b.1", ".1", "a.7", "a.8", "a.b.3", "a.b.4", "a.b.5", "a.x", "a.9")
	for name, ids := range map[string][]string{
		"writers":      ids,
		"bare numbers": {"1", "2", "3", "4", "5", "6", "5.1", "5.2", "5.3", "5.4", "5", "5.5"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			s, model := openAt(t, pgtest.URL(t), Config{}), memory.New()
			var recent []string
			for i, id := range ids {
				commits := []persist.Commit{put("one", uint64(i)), put("two", uint64(i))}
				commits[0].ID, commits[1].ID = id, id
				commits[0].Writes[0].Recent, commits[1].Writes[0].Recent = recent, recent
				_, err := model.Commit(ctx, commits[0])
				require.NoError(t, err)
				must(t, s, commits[0]) // directly
				if i == 0 {
					must(t, s, commits[1], put("beside", 0))
				} else {
					sameTime(t, batched(t, s, commits[1], put("beside", uint64(i)))...)
				}
				want, err := model.Load(ctx, thing("one"))
				require.NoError(t, err)
				require.Equal(t, want.Commits, load(t, s, "one").Commits)
				require.Equal(t, want.Commits, load(t, s, "two").Commits)
				recent = want.Commits
			}
		})
	}
}

// TestSessionEndsBeforeItKnowsTheStatement: if the connection is lost while a statement is
// prepared, nothing was written, and the statement stays prepared in other sessions.
//
// Proves STORE-14.
func TestSessionEndsBeforeItKnowsTheStatement(t *testing.T) {
	ctx, url := t.Context(), pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	for _, c := range []persist.Commit{put("a", 1), put("b", 0), adding(put("a", 1), 0, `0`), adding(put("b", 0), 0, `0`), together(put("a", 1), put("b", 0))} {
		conn := pgtest.Connect(t, url)
		pid := conn.PgConn().PID()
		execute(t, url, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
		eventually(t, pgtest.Connect(t, url), fmt.Sprintf("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d)", pid))
		r, err := newRequest(ctx, c)
		require.NoError(t, err)
		_, err = s.commitOne(ctx, conn.PgConn(), r, 0)
		unavailable(t, err)
	}
	for _, p := range []*prepared{s.sql.brief, s.sql.replaceOne, s.sql.briefFree, s.sql.createOne, s.sql.write, s.sql.lockRecords, s.sql.logs.replaceOne, s.sql.logs.createOne} {
		require.False(t, p.forgotten.Load())
	}
}

// TestNextVersionsWaitBriefly: a table lock, or an uncommitted row in a unique index of the user,
// does not keep a fast commit waiting on a connection. It is known in time that nothing was
// written.
//
// Proves STORE-14.
func TestNextVersionsWaitBriefly(t *testing.T) {
	for name, text := range map[string]string{
		"table": "LOCK TABLE pawl_records IN SHARE MODE",
		"index": `UPDATE pawl_records SET doc = '{"title": "taken"}' WHERE id = 'other'`,
	} {
		for known, versions := range map[bool]int{false: 1, true: 2} {
			t.Run(fmt.Sprintf("%s/known=%t", name, known), func(t *testing.T) {
				url := pgtest.URL(t)
				s := openAt(t, connections(t, url, 1), Config{})
				version := afterCommits(t, s, "a", versions)
				execute(t, url, "CREATE UNIQUE INDEX ON pawl_records ((doc->>'title'))")
				other := put("other", 0)
				other.Writes[0].Doc = []byte(`{"title": "other"}`)
				must(t, s, other)
				tx, err := pgtest.Connect(t, url).Begin(t.Context())
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), text)
				require.NoError(t, err)
				s.config.CommitTimeout = 2 * time.Second
				c := put("a", version)
				c.Writes[0].Doc = []byte(`{"title": "taken"}`)
				answer := commitLater(t.Context(), s, c)
				eventually(t, pgtest.Connect(t, url), someoneWaits)
				unavailable(t, answered(t, answer).err)
				require.NoError(t, tx.Rollback(t.Context()))
				must(t, s, c)
				require.EqualValues(t, 1, s.pool.Stat().NewConnsCount(), "the connection was given up")
				require.False(t, s.sql.replaceOne.forgotten.Load())
			})
		}
	}
}

// TestCallerWhoseTimeIsUp: a caller whose context ends while no connection is free gets the error
// of its context.
//
// Proves STORE-14.
func TestCallerWhoseTimeIsUp(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("a", 0))
	back := usedUp(t, s)
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := s.Load(ctx, thing("a"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, errNoConnection)
		_, err = s.Commit(ctx, put("a", 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	back()
	must(t, s, put("a", 1))
}

// TestPlansAreMadeAgain: a session does not keep a plan that reads the whole table after the table
// has grown.
func TestPlansAreMadeAgain(t *testing.T) {
	ctx, url := t.Context(), pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	execute(t, url, "ALTER TABLE pawl_records SET (autovacuum_enabled = off)")
	execute(t, url, "ANALYZE pawl_records")
	conn := pgtest.Connect(t, url)
	version := uint64(1)
	commit := func() {
		t.Helper()
		r, err := newRequest(ctx, put("a", version))
		require.NoError(t, err)
		_, err = s.commitOne(ctx, conn.PgConn(), r, 0)
		require.NoError(t, err)
		version++
	}
	plan := func() (text string) {
		t.Helper()
		rows, err := conn.Query(ctx, fmt.Sprintf(`EXPLAIN EXECUTE %s ('thing', 'a', 1, 2, '{}', 0, '', NULL, NULL, NULL, '{x}', 0, NULL, NULL, false)`, s.sql.replaceOne.name), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return strings.Join(lines, "\n")
	}
	for range 8 { // the first few are planned for their own parameters
		commit()
	}
	require.Contains(t, plan(), "Seq Scan", "a table of one row")
	execute(t, url, `INSERT INTO pawl_records SELECT kind, id || n, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits
		FROM pawl_records, generate_series(1, 5000) AS n`)
	commit()
	require.Contains(t, plan(), "Seq Scan", "the table was not analyzed")
	for key, value := range conn.PgConn().CustomData() {
		if since, ok := value.(time.Time); ok {
			conn.PgConn().CustomData()[key] = since.Add(-2 * replanAfter)
		}
	}
	commit()
	require.NotContains(t, plan(), "Seq Scan")
}

// TestNextVersionIsNotWaitedFor: the fast way does not wait for a record with a lock of any kind,
// of one or several transactions. It writes the record after the locks have ended.
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
				fast := func(c persist.Commit) time.Time {
					t.Helper()
					r, err := newRequest(ctx, c)
					require.NoError(t, err)
					result, err := s.writeOne(ctx, conn, r)
					require.NoError(t, err, "it was waited for")
					return result.at
				}
				require.Zero(t, fast(next(2)))
				for _, tx := range txs {
					require.NoError(t, tx.Rollback(ctx))
				}
				must(t, s, next(2))
				for version := uint64(3); version < 6; version++ {
					switch version {
					case 4:
						must(t, s, together(next(version), put("b", 1)))
					default:
						at := fast(next(version))
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
				require.False(t, fast(next(7)).IsZero(), "after a batch")
				require.Zero(t, fast(next(7)), "the version has moved")
			})
		}
	}
}

// TestNextVersionWithoutExpiry: a write that expects a live record does not replace an expired one,
// and a write without TTL removes the expiry.
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

// TestBatchOfLeases: commits that acquire, extend, release or are fenced by a lease go the fast
// way, directly and in a batch, each with an outcome of its own.
//
// Proves STORE-13, STORE-2.
func TestBatchOfLeases(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			s := open(t, pgtest.URL(t))
			lease := &persist.Acquire{Holder: "me", For: time.Hour}
			acquiring := func(id string, expected uint64) persist.Commit {
				c := put(id, expected)
				c.Writes[0].Acquire = lease
				return c
			}
			guarded := func(id string, g persist.Guard) persist.Commit {
				c := put(id, 1)
				g.Key = thing(id)
				c.Guards = []persist.Guard{g}
				return c
			}
			must(t, s, put("free", 0), acquiring("held", 0), acquiring("fenced", 0), acquiring("kept", 0), acquiring("extended", 0), acquiring("released", 0))
			commits := []persist.Commit{
				acquiring("free", 1), acquiring("new", 0), acquiring("held", 1), guarded("fenced", persist.Guard{Token: 7}), guarded("kept", persist.Guard{Token: 1}),
				guarded("extended", persist.Guard{Token: 1, Extend: 2 * time.Hour}), guarded("released", persist.Guard{Token: 1, Release: true}),
			}
			var results []result
			if name == "batched" {
				results = batched(t, s, commits...)
				sameTime(t, results[0], results[4], results[5], results[6]) // a new record has a clock of its own
			} else {
				for _, c := range commits {
					require.True(t, isFast(&c))
					at, err := s.Commit(t.Context(), c)
					results = append(results, result{at, err})
				}
			}
			for i, want := range map[int]persist.Lease{
				0: {Holder: "me", Token: 2, Until: results[0].at.Add(time.Hour)},
				1: {Holder: "me", Token: 1, Until: results[1].at.Add(time.Hour)},
				5: {Holder: "me", Token: 1, Until: results[5].at.Add(2 * time.Hour)},
				6: {},
			} {
				require.NoError(t, results[i].err)
				require.Equal(t, want, load(t, s, commits[i].Writes[0].ID).Lease)
			}
			require.EqualValues(t, 1, winner(t, results[2].err).Lease.Token)
			var fenced *persist.Fenced
			require.ErrorAs(t, results[3].err, &fenced)
			require.EqualValues(t, 1, load(t, s, "fenced").Version)
			require.NoError(t, results[4].err)
			require.EqualValues(t, 1, load(t, s, "kept").Lease.Token)
		})
	}
}
