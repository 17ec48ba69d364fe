package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestTwoCreators: of two stores that create a key at the same moment, one wins, and the other gets
// the winner's record.
//
// Proves STORE-4, STORE-5.
func TestTwoCreators(t *testing.T) {
	url := pgtest.URL(t)
	stores := []*Store{openAt(t, url, Config{}), openAt(t, url, Config{})}
	for round := range 1000 {
		id := fmt.Sprint(round)
		var answers [2]<-chan result
		for i, s := range stores {
			c := put(id, 0)
			c.ID = fmt.Sprintf("creator-%d.%d", i, round)
			if round%2 == i { // one statement, or a transaction
				c.Guards = []persist.Guard{{Key: thing(id), Read: true}}
			}
			answers[i] = commitLater(t.Context(), s, c)
		}
		one, two := answered(t, answers[0]), answered(t, answers[1])
		require.NotEqual(t, one.err == nil, two.err == nil, "%v, %v", one.err, two.err)
		won, err := 0, two.err
		if one.err != nil {
			won, err = 1, one.err
		}
		require.Equal(t, []string{fmt.Sprintf("creator-%d.%d", won, round)}, winner(t, err).Commits)
	}
}

// foreignCreation creates the record of an id at version 7.
const foreignCreation = `INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, updated, holder, token, commits)
	VALUES ('thing', $1, 7, 7, '{}', 0, '', clock_timestamp(), '', 0, '{foreign.1}')`

// TestForeignCreator: a row that another program creates without its advisory lock is detected by
// the unique index, and wins.
//
// Proves STORE-4, STORE-5.
func TestForeignCreator(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	for i, c := range []persist.Commit{put("0", 0), together(put("1", 0), put("other", 0))} {
		tx, err := pgtest.Connect(t, url).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), foreignCreation, fmt.Sprint(i))
		require.NoError(t, err)
		answer := commitLater(t.Context(), s, c)
		eventually(t, conn, someoneWaits)
		require.NoError(t, tx.Commit(t.Context()))
		require.EqualValues(t, 7, winner(t, answered(t, answer).err).Version)
	}
}

// TestConflictAfterAWait: a commit that waited for a lock gets the version that the holder of the
// lock wrote.
//
// Proves STORE-5.
func TestConflictAfterAWait(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	must(t, s, put("a", 0), put("b", 0))
	for i, c := range []persist.Commit{put("a", 1), together(put("a", 2), put("b", 1))} {
		tx, err := pgtest.Connect(t, url).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE pawl_records SET version = version + 1, doc = '{"by": "another"}', commits = commits || ARRAY['another.1'] WHERE id = 'a'`)
		require.NoError(t, err)
		answer := commitLater(t.Context(), s, c)
		eventually(t, conn, someoneWaits)
		require.NoError(t, tx.Commit(t.Context()))
		r := winner(t, answered(t, answer).err)
		require.EqualValues(t, 2+i, r.Version)
		require.JSONEq(t, `{"by": "another"}`, string(r.Doc))
		require.Contains(t, r.Commits, "another.1")
	}
	require.EqualValues(t, 1, load(t, s, "b").Version)
}

// TestJudgedAfterAWait: a lease or a record that runs out while its writer waits for the lock has
// run out.
//
// Proves STORE-8, STORE-2.
func TestJudgedAfterAWait(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	const lifetime = lockPatience / 3 // so that it runs out during the first wait
	for round := range 3 {
		leased, mortal := put(fmt.Sprint("leased-", round), 0), put(fmt.Sprint("mortal-", round), 0)
		leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: lifetime}
		mortal.Writes[0].TTL = lifetime
		must(t, s, together(leased, mortal))
		ids := []string{leased.Writes[0].ID, mortal.Writes[0].ID}
		release := locked(t, url, ids...)
		held := put(ids[0], 1)
		held.Guards = []persist.Guard{{Key: thing(ids[0]), Token: 1}}
		asHolder, asWriter := commitLater(t.Context(), s, held), commitLater(t.Context(), s, put(ids[1], 1))
		eventually(t, conn, someoneWaits)
		eventually(t, conn, fmt.Sprintf("SELECT every(coalesce(until, expires) < clock_timestamp()) FROM pawl_records WHERE id IN ('%s', '%s')", ids[0], ids[1]))
		release()
		var fenced *persist.Fenced
		require.ErrorAs(t, answered(t, asHolder).err, &fenced)
		require.False(t, fenced.Current.Held(fenced.Current.Now))
		r := winner(t, answered(t, asWriter).err)
		require.True(t, r.Expired(r.Now))
		require.EqualValues(t, 1, load(t, s, ids[0]).Version)
	}
}

// TestJudgedByALaterClock: the fast way reads the clock after it has locked the record. A lease or a
// record that runs out while the statement looks for the record has run out.
//
// Proves STORE-8, STORE-2.
func TestJudgedByALaterClock(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			admin := openAt(t, url, Config{})
			role := "role_" + fmt.Sprint(rand.Uint64())
			execute(t, url, "CREATE ROLE "+role, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+role)
			defer execute(t, url, "DROP OWNED BY "+role, "DROP ROLE "+role)
			s := open(t, with(t, url, "role", role))
			must(t, s, put("warm", 0), put("warm", 1))
			// Each look at a record lasts until its lease and its lifetime have ended.
			execute(t, url, `CREATE FUNCTION stall(until timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
				BEGIN WHILE clock_timestamp() <= until LOOP PERFORM pg_sleep(0.001); END LOOP; RETURN true; END $$`,
				"CREATE POLICY stall ON pawl_records USING (stall(coalesce(until, expires)))", "ALTER TABLE pawl_records ENABLE ROW LEVEL SECURITY")
			const lifetime = 500 * time.Millisecond
			leased, mortal := put("leased", 0), put("mortal", 0)
			leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: lifetime}
			mortal.Writes[0].TTL = lifetime
			paired := put("paired", 0)
			paired.Writes[0].TTL = lifetime
			guarded, renewed := acquiring(put("guarded", 0)), acquiring(put("renewed", 0))
			guarded.Writes[0].Acquire.For, renewed.Writes[0].Acquire.For = lifetime, lifetime
			must(t, admin, together(leased, mortal, paired, guarded, renewed))
			held := guardedBy(put("leased", 1), persist.Guard{Token: 1})
			elsewhere := relyingOn(put("elsewhere", 0), persist.Guard{Key: thing("guarded"), Token: 1})
			renewal := persist.Commit{ID: "renewal.1", Guards: []persist.Guard{{Key: thing("renewed"), Token: 1, Extend: time.Hour}}}
			var asHolders, asWriters []<-chan result
			for _, c := range []persist.Commit{held, elsewhere, renewal} {
				asHolders = append(asHolders, commitLater(t.Context(), s, c))
			}
			for _, c := range []persist.Commit{put("mortal", 1), together(put("paired", 1), put("new", 0))} {
				asWriters = append(asWriters, commitLater(t.Context(), s, c))
			}
			var fenced *persist.Fenced
			for _, answer := range asHolders {
				require.ErrorAs(t, answered(t, answer).err, &fenced)
			}
			for _, answer := range asWriters {
				r := winner(t, answered(t, answer).err)
				require.True(t, r.Expired(r.Now))
			}
			one, two := put("one", 0), put("two", 0)
			one.Writes[0].TTL, two.Writes[0].TTL = lifetime, lifetime
			must(t, admin, together(one, two))
			for _, answer := range batched(t, s, put("one", 1), put("two", 1)) {
				r := winner(t, answer.err)
				require.True(t, r.Expired(r.Now))
			}
		})
	}
}

// TestDeadlockIsRetried: PostgreSQL ends a deadlock by failing one transaction. The store repeats
// its own, and the caller sees no error.
//
// Proves STORE-4.
func TestDeadlockIsRetried(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, with(t, url, "deadlock_timeout", "100ms"), Config{}) // ours looks for circles first
	conn := pgtest.Connect(t, url)
	must(t, s, put("a", 0), put("b", 0))
	deadline := time.Now().Add(testkit.Patience)
	for version := uint64(1); ; version++ {
		require.True(t, time.Now().Before(deadline), "no deadlock came about")
		tx, err := pgtest.Connect(t, url).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT FROM pawl_records WHERE id = 'b' FOR UPDATE")
		require.NoError(t, err)
		answer := commitLater(t.Context(), s, together(put("a", version), put("b", version)))
		eventually(t, conn, someoneWaits) // for b, with a locked
		_, err = tx.Exec(t.Context(), "SELECT FROM pawl_records WHERE id = 'a' FOR UPDATE")
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, answered(t, answer).err)
		if value[int64](t, conn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") > 0 {
			return
		}
	}
}

// waiting is how many connections to this database wait for a record or a key.
const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event IN ('transactionid', 'tuple', 'advisory')"

// TestLockedRecordHoldsUpItsWritersOnly, although they are more than the pool has connections: the
// others commit all they have while it is locked, directly or in batches.
//
// Proves CAS-11, STORE-14.
func TestLockedRecordHoldsUpItsWritersOnly(t *testing.T) {
	for name, direct := range map[string]int{"direct": 1 << 20, "batched": 0, "as it comes": maxDirect} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			const size, held, others = 4, 8, 64
			s := openAt(t, connections(t, url, size), Config{CommitTimeout: time.Minute})
			s.queue.maxDirect = direct
			var ids []string
			for i := range held {
				ids = append(ids, fmt.Sprint("held-", i))
				must(t, s, put(ids[i], 0))
			}
			release := locked(t, url, ids...)
			var stuck []<-chan result
			for i, id := range ids {
				c := put(id, 1)
				if i%2 == 1 {
					c = together(c, put("with-"+id, 0))
				}
				stuck = append(stuck, commitLater(t.Context(), s, c))
			}
			conn := pgtest.Connect(t, url)
			eventually(t, conn, someoneWaits)
			var group sync.WaitGroup
			for i := range others {
				group.Go(func() {
					for version := range uint64(8) {
						if _, err := s.Commit(t.Context(), put(fmt.Sprint("free-", i), version)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { defer close(done); group.Wait() }()
			for finished := false; !finished; {
				select {
				case <-done:
					finished = true
				default:
					require.LessOrEqual(t, value[int64](t, conn, waiting), int64(1), "of %d connections", size)
				}
			}
			for _, answer := range stuck {
				require.Empty(t, answer, "its record is locked")
			}
			release()
			for _, answer := range stuck {
				require.NoError(t, answered(t, answer).err)
			}
		})
	}
}

// Proves STORE-14.
func TestLockedPastBudget(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{CommitTimeout: 2 * time.Second})
	must(t, s, put("a", 0))
	release := locked(t, url, "a")
	one, several := commitLater(t.Context(), s, put("a", 1)), commitLater(t.Context(), s, together(put("a", 1), put("b", 0)))
	unavailable(t, answered(t, one).err)
	unavailable(t, answered(t, several).err)
	release()
	must(t, s, together(put("a", 1), put("b", 0)))
}

// TestReadersShare: records and absences that are only read do not block other readers, but block
// writers.
//
// Proves STORE-2.
func TestReadersShare(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	must(t, s, put("read", 0))
	for lock, free := range map[string]bool{"FOR SHARE": true, "FOR KEY SHARE": true, "FOR NO KEY UPDATE": false, "FOR UPDATE": false} {
		tx, err := pgtest.Connect(t, url).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT FROM pawl_records WHERE id = 'read' "+lock)
		require.NoError(t, err)
		absent := "absent " + lock
		_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared($1)", s.names.lockKey(thing(absent)))
		require.NoError(t, err)
		c := put("written "+lock, 0)
		c.Guards = []persist.Guard{{Key: thing("read"), Read: true, Version: 1}, {Key: thing(absent), Read: true}}
		reading := commitLater(t.Context(), s, c)
		if free {
			require.NoError(t, answered(t, reading).err, lock)
			reading = commitLater(t.Context(), s, put(absent, 0))
		}
		eventually(t, conn, someoneWaits)
		require.Empty(t, reading)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, answered(t, reading).err, lock)
	}
}

// TestAbsenceIsWaitedFor: a commit that relies on the absence of a record waits for a transaction
// that is creating it.
//
// Proves STORE-2, STORE-5.
func TestAbsenceIsWaitedFor(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url)
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", s.names.lockKey(thing("new")))
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), foreignCreation, "new")
	require.NoError(t, err)
	c := put("a", 0)
	c.Guards = []persist.Guard{{Key: thing("new"), Read: true}}
	answer := commitLater(t.Context(), s, c)
	eventually(t, conn, someoneWaits)
	require.Empty(t, answer)
	require.NoError(t, tx.Commit(t.Context()))
	require.EqualValues(t, 7, winner(t, answered(t, answer).err).Version)
}

// TestWriteSkew: two commits that each rest on what the other changes are not both applied, whether
// that is a record or the absence of one.
//
// Proves STORE-2.
func TestWriteSkew(t *testing.T) {
	url := pgtest.URL(t)
	stores := []*Store{openAt(t, url, Config{}), openAt(t, url, Config{})}
	for round := range 300 {
		ids := []string{fmt.Sprint("a", round), fmt.Sprint("b", round)}
		expected := uint64(round % 2) // absent, or there
		if expected == 1 {
			must(t, stores[0], together(put(ids[0], 0), put(ids[1], 0)))
		}
		var answers []<-chan result
		for i, s := range stores {
			c := put(ids[i], expected)
			c.Guards = []persist.Guard{{Key: thing(ids[1-i]), Read: true, Version: expected}}
			answers = append(answers, commitLater(t.Context(), s, c))
		}
		one, two := answered(t, answers[0]), answered(t, answers[1])
		require.NotEqual(t, one.err == nil, two.err == nil, "%v, %v", one.err, two.err)
		for _, r := range []result{one, two} {
			require.True(t, r.err == nil || isConflict(r.err), "%v", r.err)
		}
	}
}

// TestPurgedWhileCreated: a key that is created anew, at the moment at which its tombstone is
// purged, never repeats a version.
//
// Proves STORE-2.
func TestPurgedWhileCreated(t *testing.T) {
	url := pgtest.URL(t)
	one, two := openAt(t, url, Config{}), openAt(t, url, Config{})
	floor := uint64(0)
	for round := range 200 {
		id := fmt.Sprint(round)
		c := put(id, 0)
		c.Writes[0].Version = floor + 10
		must(t, one, c, persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing(id), Expected: floor + 10, Version: floor + 11, Deleted: true}}})
		again := put(id, 0)
		again.Writes[0].Version = floor + 1 // above the floor that was, below the one that will be
		if round%2 == 1 {
			again.Guards = []persist.Guard{{Key: thing(id), Read: true}}
		}
		var group sync.WaitGroup
		group.Go(func() {
			removed, err := 0, error(nil)
			for removed == 0 && err == nil { // it skips what is locked
				removed, err = two.Purge(context.Background(), persist.Query{})
			}
			if err != nil {
				t.Error(err)
			}
		})
		for ended := false; !ended; {
			_, err := one.Commit(t.Context(), again)
			ended = winner(t, err).Absent()
		}
		group.Wait()
		floor += 11
	}
}

// TestFrozenClient: the locks of a client that stops in the middle of a commit end with
// Config.CommitTimeout, however long its connection lives.
//
// Proves CAS-11.
func TestFrozenClient(t *testing.T) {
	url := pgtest.URL(t)
	frozen := openAt(t, url, Config{})
	frozen.config.CommitTimeout = 100 * time.Millisecond // from here on: to open it may take longer
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	conn, err := frozen.acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	stopped := &transaction{store: frozen, conn: conn.Conn().PgConn()}
	c := together(put("a", 1), put("b", 0))
	stopped.add(&request{commit: c, keys: c.Keys()})
	require.NoError(t, stopped.lock(t.Context()))
	must(t, s, together(put("a", 1), put("b", 0)))
	stopped.apply(stopped.parts[0])
	stopped.finish(t.Context())
	require.Error(t, stopped.parts[0].err)
}

// The winner of a conflict is read again, with its document. It keeps the time by which the commit was
// judged: a lease that has run out since is what protected the record, and a sending that was lost on
// its way may still land.
//
// Proves CAS-7.
func TestWinnerKeepsTheTimeOfTheJudgement(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	held := put("a", 0)
	held.Writes[0].Acquire = &persist.Acquire{Holder: "other", For: time.Hour}
	must(t, s, held)
	c := put("a", 1)
	c.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	r, err := newRequest(t.Context(), c)
	require.NoError(t, err)
	conn, err := s.acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()

	tx := &transaction{store: s, conn: conn.Conn().PgConn()}
	at, err := tx.runOne(t.Context(), r)
	w := winner(t, err)
	require.NotEmpty(t, w.Doc)
	require.Equal(t, at, w.Now)
}
