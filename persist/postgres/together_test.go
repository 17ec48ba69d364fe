package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// oneTrip commits c by one call of write_together and reports whether that wrote it.
func oneTrip(t testing.TB, s *Store, c persist.Commit) (at time.Time, written bool) {
	t.Helper()
	require.NoError(t, c.Validate())
	require.True(t, isFast(&c))
	r, err := newRequest(t.Context(), c)
	require.NoError(t, err)
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	got, err := s.writeTogether(t.Context(), conn.Conn().PgConn(), r)
	require.NoError(t, err)
	require.NoError(t, got.err)
	return got.at, got.decided()
}

// acquiring makes the write of a commit acquire a lease.
func acquiring(c persist.Commit) persist.Commit {
	c.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	return c
}

// guardedBy adds a guard of its own record to a commit of one write.
func guardedBy(c persist.Commit, g persist.Guard) persist.Commit {
	g.Key = c.Writes[0].Key
	c.Guards = []persist.Guard{g}
	return c
}

// TestTogether: a commit of several records is one statement. It creates and replaces records, with
// all that belongs to them, at one time.
//
// Proves STORE-2, STORE-4, STORE-13.
func TestTogether(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("plain", 0), acquiring(put("extended", 0)), acquiring(put("released", 0)), acquiring(put("kept", 0)), put("taken", 0))
	rich, mortal := put("plain", 1), put("mortal", 0)
	w := &rich.Writes[0]
	w.Label, w.Schema, w.TTL, w.Due, w.Doc = "l", 7, time.Hour, time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC), []byte(`{"n":1}`)
	mortal.Writes[0].TTL, mortal.Writes[0].DueIn = time.Hour, time.Minute
	at, written := oneTrip(t, s, together(rich, mortal, acquiring(put("leased", 0)), acquiring(put("taken", 1)),
		guardedBy(put("extended", 1), persist.Guard{Token: 1, Extend: 2 * time.Hour}),
		guardedBy(put("released", 1), persist.Guard{Token: 1, Release: true}),
		guardedBy(put("kept", 1), persist.Guard{Token: 1}), adding(put("log", 0), 0, `"a"`, `"b"`)))
	require.True(t, written)

	for _, id := range []string{"plain", "mortal", "leased", "taken", "extended", "released", "kept", "log"} {
		require.Equal(t, at, load(t, s, id).Updated, id)
		require.Contains(t, load(t, s, id).Commits, "all-test-plain.1", id)
	}
	r := load(t, s, "plain")
	require.EqualValues(t, []any{uint64(2), uint64(1), "l", 7, at.Add(time.Hour), w.Due}, []any{r.Version, r.Born, r.Label, r.Schema, r.Expires, r.Due})
	require.JSONEq(t, `{"n":1}`, string(r.Doc))
	r = load(t, s, "mortal")
	require.EqualValues(t, []any{uint64(1), uint64(1), at.Add(time.Hour), at.Add(time.Minute)}, []any{r.Version, r.Born, r.Expires, r.Due})
	for id, want := range map[string]persist.Lease{
		"leased": {Holder: "me", Token: 1, Until: at.Add(time.Hour)}, "taken": {Holder: "me", Token: 2, Until: at.Add(time.Hour)},
		"extended": {Holder: "me", Token: 1, Until: at.Add(2 * time.Hour)}, "released": {}, "plain": {},
	} {
		require.Equal(t, want, load(t, s, id).Lease, id)
	}
	require.EqualValues(t, 1, load(t, s, "kept").Lease.Token)
	entries, err := s.ReadLog(t.Context(), persist.LogQuery{Key: thing("log")})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, at, entries[1].At)
}

// TestTogetherOrNotAtAll: if one of the records is not as the commit expects it, none is written. The
// outcome is then the same as that of a transaction.
//
// Proves STORE-2, STORE-4, STORE-8, STORE-13.
func TestTogetherOrNotAtAll(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	deleted := put("deleted", 1)
	deleted.Writes[0].Deleted, deleted.Writes[0].Doc = true, nil
	brief, lapsed := put("brief", 0), acquiring(put("lapsed", 0))
	brief.Writes[0].TTL, lapsed.Writes[0].Acquire.For = time.Millisecond, time.Millisecond
	must(t, s, put("moved", 0), put("moved", 1), put("deleted", 0), deleted, brief, acquiring(put("held", 0)), put("locked", 0), lapsed, adding(put("log", 0), 0, `"a"`))
	testkit.Eventually(t, func() bool {
		r := load(t, s, "lapsed")
		return load(t, s, "brief").Expired(r.Now) && !r.Held(r.Now)
	})
	ended := put("ended", 0)
	ended.Writes[0].TTL = time.Millisecond
	must(t, s, acquiring(put("endless", 0)), ended)
	testkit.Eventually(t, func() bool { r := load(t, s, "ended"); return r.Expired(r.Now) })
	execute(t, url, "UPDATE pawl_records SET until = NULL WHERE id = 'endless'", // no store does this
		"UPDATE pawl_records SET until = clock_timestamp() + '1h' WHERE id = 'ended'")
	release := locked(t, url, "locked")
	execute(t, url, "UPDATE pawl_meta SET value = 1 WHERE name = 'floor'")
	for i, c := range map[string]persist.Commit{
		"no end": guardedBy(put("endless", 1), persist.Guard{Token: 1}), "no lease": put("ended", 1),
		"moved": put("moved", 1), "deleted": put("deleted", 2), "expired": put("brief", 1), "absent": put("absent", 3), "exists": put("moved", 0),
		"held": acquiring(put("held", 1)), "fenced": guardedBy(put("held", 1), persist.Guard{Token: 7}), "lapsed": guardedBy(put("lapsed", 1), persist.Guard{Token: 1}),
		"purged": put("purged", 0), "number": adding(put("log", 1), 0, `"b"`), "locked": put("locked", 1),
	} {
		t.Run(i, func(t *testing.T) {
			fine := put("fine-"+i, 0)
			fine.Writes[0].Version = 2 // above the floor
			must(t, s, fine)
			next := put("fine-"+i, 2)
			next.Writes[0].Recent = []string{fine.ID}
			made := put("made-"+i, 0)
			made.Writes[0].Version = 2
			all := together(next, made, c)
			_, written := oneTrip(t, s, all)
			require.False(t, written)
			require.EqualValues(t, 2, load(t, s, "fine-"+i).Version)
			_, err := s.Load(t.Context(), thing("made-"+i))
			require.ErrorIs(t, err, persist.ErrNotFound)
			if i == "locked" {
				return
			}
			_, err = s.Commit(t.Context(), all)
			require.NotErrorIs(t, err, persist.ErrNotApplied)
			require.Len(t, lost(err), 1)
			require.Equal(t, c.Writes[0].Key, lost(err)[0].Key)
		})
	}
	release()
	must(t, s, together(put("locked", 1), guardedBy(put("held", 1), persist.Guard{Token: 1})))
}

// removing returns a commit that deletes the record at version 1.
func removing(id string) persist.Commit {
	c := put(id, 1)
	c.Writes[0].Deleted, c.Writes[0].Doc = true, nil
	return c
}

// relyingOn adds guards of records that the commit does not write.
func relyingOn(c persist.Commit, guards ...persist.Guard) persist.Commit {
	c.Guards = append(c.Guards, guards...)
	return c
}

// TestTogetherWithGuards: a commit that relies on records which it does not write is one statement,
// and so is one that deletes. Of a deleted record a tombstone is left.
//
// Proves STORE-2, STORE-8, STORE-13, TX-2.
func TestTogetherWithGuards(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	mortal, gone := acquiring(put("mortal", 0)), put("gone", 0)
	mortal.Writes[0].TTL, mortal.Writes[0].Label, mortal.Writes[0].DueIn = time.Hour, "l", time.Hour
	gone.Writes[0].TTL = time.Millisecond
	lapsed := acquiring(put("lapsed", 0))
	lapsed.Writes[0].Acquire.For = time.Millisecond
	must(t, s, mortal, put("read", 0), acquiring(put("held", 0)), acquiring(put("alone", 0)), gone, lapsed, put("deleted", 0), removing("deleted"), put("locked", 0))
	testkit.Eventually(t, func() bool {
		r := load(t, s, "lapsed")
		return load(t, s, "gone").Expired(r.Now) && !r.Held(r.Now)
	})
	fence, read := persist.Guard{Key: thing("held"), Token: 1}, persist.Guard{Key: thing("read"), Read: true, Version: 1}

	at, written := oneTrip(t, s, relyingOn(together(put("new", 0), guardedBy(removing("mortal"), persist.Guard{Token: 1})), fence, read))
	require.True(t, written)
	r := load(t, s, "mortal")
	require.True(t, r.Deleted)
	require.Equal(t, persist.Record{
		Key: thing("mortal"), Version: 2, Born: 1, Updated: at, Deleted: true, Commits: r.Commits, Now: r.Now,
	}, r)
	require.Contains(t, r.Commits, "all-test-new.0")
	for _, id := range []string{"held", "read"} {
		require.EqualValues(t, 1, load(t, s, id).Version, "no version moves")
	}
	_, written = oneTrip(t, s, removing("alone"))
	require.True(t, written)
	require.True(t, load(t, s, "alone").Deleted)
	require.Zero(t, load(t, s, "alone").Lease)

	release := locked(t, url, "locked")
	for name, g := range map[string]persist.Guard{
		"version": {Key: thing("read"), Read: true, Version: 7}, "absent": {Key: thing("absent"), Read: true, Version: 1},
		"deleted": {Key: thing("deleted"), Read: true, Version: 2}, "expired": {Key: thing("gone"), Read: true, Version: 1},
		"token": {Key: thing("held"), Token: 7}, "lapsed": {Key: thing("lapsed"), Token: 1}, "no lease": {Key: thing("read"), Token: 1},
		"locked": {Key: thing("locked"), Read: true, Version: 1},
	} {
		c := relyingOn(together(put("made", 0), put("read", 1)), g)
		if g.Key == thing("read") {
			c = relyingOn(put("made", 0), g)
		}
		_, written := oneTrip(t, s, c)
		require.False(t, written, name)
		_, err := s.Load(t.Context(), thing("made"))
		require.ErrorIs(t, err, persist.ErrNotFound, name)
		if name == "locked" {
			continue
		}
		_, err = s.Commit(t.Context(), c)
		require.Len(t, lost(err), 1, name)
		require.Equal(t, g.Key, lost(err)[0].Key, name)
	}
	release()
}

// TestTogetherLetsWritersGoFirst: a commit that only reads a record is not written while a writer
// waits for that record. Otherwise readers, whose locks are shared, could keep the writer out for
// ever.
//
// Proves STORE-5.
func TestTogetherLetsWritersGoFirst(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("read", 0))
	writer, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = writer.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", s.names.lockKey(thing("read"))) // as one that waits
	require.NoError(t, err)
	c := relyingOn(put("made", 0), persist.Guard{Key: thing("read"), Read: true, Version: 1})
	_, written := oneTrip(t, s, c)
	require.False(t, written)
	require.NoError(t, writer.Rollback(t.Context()))
	_, written = oneTrip(t, s, c)
	require.True(t, written)
}

// TestTogetherInOtherSessions: a session with another isolation level, or whose commits are not
// durable, leaves a commit of several records to the transaction or makes it durable.
//
// Proves STORE-1, STORE-10.
func TestTogetherInOtherSessions(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, with(t, url, "default_transaction_isolation", "serializable"), Config{})
	_, written := oneTrip(t, s, together(put("a", 0), put("b", 0)))
	require.False(t, written)
	must(t, s, together(put("a", 0), put("b", 0)))

	s = openAt(t, with(t, connections(t, url, 1), "synchronous_commit", "off"), Config{})
	execute(t, url, `CREATE TABLE durability (setting text)`,
		`CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO durability VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER durable AFTER UPDATE ON pawl_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION remember()`)
	_, written = oneTrip(t, s, together(put("a", 1), put("b", 1)))
	require.True(t, written)
	require.Equal(t, "on", value[string](t, pgtest.Connect(t, url), "SELECT min(setting) FROM durability"))
}

// TestTwoCreatorsOfSeveral: of two stores that create the same records at the same moment, in
// opposite orders, one creates all of them. The other gets the winner, and the server has not to
// refuse a row that exists.
//
// Proves STORE-4, STORE-5.
func TestTwoCreatorsOfSeveral(t *testing.T) {
	url := pgtest.URL(t)
	stores := []*Store{openAt(t, url, Config{}), openAt(t, url, Config{})}
	for round := range 300 {
		a, b := put(fmt.Sprint("a", round), 0), put(fmt.Sprint("b", round), 0)
		var answers [2]<-chan result
		for i, c := range []persist.Commit{together(a, b), together(b, a)} {
			c.ID = fmt.Sprintf("creator-%d.%d", i, round)
			answers[i] = commitLater(t.Context(), stores[i], c)
		}
		one, two := answered(t, answers[0]), answered(t, answers[1])
		require.NotEqual(t, one.err == nil, two.err == nil, "%v, %v", one.err, two.err)
		won := 0
		if one.err != nil {
			won = 1
		}
		for _, c := range []persist.Commit{a, b} {
			require.Equal(t, []string{fmt.Sprintf("creator-%d.%d", won, round)}, load(t, stores[0], c.Writes[0].ID).Commits)
		}
	}
}

// TestTogetherRespectsAbsence: records are not created while a transaction that relies on the absence
// of one of them is in progress.
//
// Proves TX-2, STORE-4.
func TestTogetherRespectsAbsence(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	relying := put("relying", 0)
	relying.Guards = []persist.Guard{{Key: thing("absent"), Read: true}}
	_, err = s.Join(tx).Commit(t.Context(), relying)
	require.NoError(t, err)
	both := together(put("absent", 0), put("other", 0))
	_, written := oneTrip(t, s, both)
	require.False(t, written)
	require.NoError(t, tx.Commit(t.Context()))
	_, written = oneTrip(t, s, both)
	require.True(t, written)
}

// TestTogetherInABatch: a commit of several records that shares a transaction with others is written
// in full.
//
// Proves STORE-4.
func TestTogetherInABatch(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	for _, r := range batched(t, s, together(put("a", 0), put("b", 0)), put("c", 0)) {
		require.NoError(t, r.err)
	}
	for _, id := range []string{"a", "b", "c"} {
		require.EqualValues(t, 1, load(t, s, id).Version)
	}
}

// TestLeaseInOneTrip: a lease is renewed or given back by one statement, if it is live. Otherwise
// nothing is written, and the outcome is that of a transaction.
//
// Proves STORE-13.
func TestLeaseInOneTrip(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	lapsed := acquiring(put("lapsed", 0))
	lapsed.Writes[0].Acquire.For = time.Millisecond
	must(t, s, acquiring(put("renewed", 0)), acquiring(put("given back", 0)), acquiring(put("other", 0)), acquiring(put("locked", 0)), lapsed)
	testkit.Eventually(t, func() bool { r := load(t, s, "lapsed"); return !r.Held(r.Now) })
	release := locked(t, url, "locked")
	defer release()
	send := func(id string, g persist.Guard) (persist.Commit, result) {
		g.Key = thing(id)
		c := persist.Commit{ID: "lease." + id, Guards: []persist.Guard{g}}
		require.NoError(t, c.Validate())
		require.True(t, isFast(&c))
		r, err := newRequest(t.Context(), c)
		require.NoError(t, err)
		conn, err := s.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		got, err := s.writeFast(t.Context(), conn.Conn().PgConn(), r)
		require.NoError(t, err)
		require.NoError(t, got.err)
		return c, got
	}
	_, got := send("renewed", persist.Guard{Token: 1, Extend: 2 * time.Hour})
	require.Equal(t, persist.Lease{Holder: "me", Token: 1, Until: got.at.Add(2 * time.Hour)}, load(t, s, "renewed").Lease)
	_, got = send("given back", persist.Guard{Token: 1, Release: true})
	require.True(t, got.decided())
	require.Zero(t, load(t, s, "given back").Lease)
	for _, id := range []string{"renewed", "given back"} {
		require.EqualValues(t, 1, load(t, s, id).Version, "no version moves")
	}
	for id, g := range map[string]persist.Guard{
		"other": {Token: 7, Release: true}, "lapsed": {Token: 1, Extend: time.Hour}, "given back": {Token: 1, Release: true}, "absent": {Token: 1, Release: true},
	} {
		c, got := send(id, g)
		require.False(t, got.decided(), id)
		_, err := s.Commit(t.Context(), c)
		var fenced *persist.Fenced
		require.ErrorAs(t, err, &fenced, id)
	}
	require.EqualValues(t, 1, load(t, s, "other").Lease.Token)
	_, got = send("locked", persist.Guard{Token: 1, Release: true})
	require.False(t, got.decided())
}

// TestTogetherWhileALeaseIsRenewed: a renewal replaces the row of a record and moves no version. A
// commit that began before it writes all of its records nevertheless, or none.
//
// Proves STORE-4.
func TestTogetherWhileALeaseIsRenewed(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, acquiring(put("held", 0)), put("other", 0))
	ctx, stop := context.WithCancel(t.Context())
	var renewing sync.WaitGroup
	for i := range 2 {
		renewing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				renewal := persist.Guard{Key: thing("held"), Token: 1, Extend: time.Hour}
				_, _ = s.Commit(ctx, persist.Commit{ID: fmt.Sprintf("renewal-%d.%d", i, n), Guards: []persist.Guard{renewal}})
			}
		})
	}
	defer renewing.Wait()
	defer stop()
	var written int
	for version := uint64(1); version < 400; version++ {
		all := together(guardedBy(put("held", version), persist.Guard{Token: 1}), put("other", version))
		all.ID = fmt.Sprint("all.", version)
		if _, quick := oneTrip(t, s, all); quick {
			written++
		} else {
			must(t, s, all)
		}
		require.Equal(t, version+1, load(t, s, "held").Version)
		require.Equal(t, version+1, load(t, s, "other").Version)
	}
	require.NotZero(t, written, "the fast way was never taken")
}

// TestTogetherOnceForAVersion: of two commits of several records that start from the same versions,
// one is written at most.
//
// Proves STORE-2.
func TestTogetherOnceForAVersion(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	must(t, s, put("a", 0), put("b", 0))
	var quick int
	for version := uint64(1); version < 300; version++ {
		var written [2]bool
		var both sync.WaitGroup
		for i := range written {
			both.Go(func() {
				all := together(put("a", version), put("b", version))
				all.ID = fmt.Sprintf("%d.%d", i, version)
				_, written[i] = oneTrip(t, s, all)
			})
		}
		both.Wait()
		require.NotEqual(t, [2]bool{true, true}, written)
		if !written[0] && !written[1] { // each found a record locked
			must(t, s, together(put("a", version), put("b", version)))
			continue
		}
		quick++
		require.Equal(t, version+1, load(t, s, "a").Version)
		require.Equal(t, version+1, load(t, s, "b").Version)
	}
	require.NotZero(t, quick, "the fast way was never taken")
}

// TestTogetherWithATrigger: if a trigger of the application ignores a record, none is written.
//
// Proves TX-1.
func TestTogetherWithATrigger(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("fine", 0), put("ignored", 0))
	execute(t, url, "CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"CREATE TRIGGER ignore BEFORE INSERT OR UPDATE ON pawl_records FOR EACH ROW WHEN (NEW.id = 'ignored') EXECUTE FUNCTION ignore()")
	all := together(put("fine", 1), put("ignored", 1))
	_, written := oneTrip(t, s, all)
	require.False(t, written)
	_, err := s.Commit(t.Context(), all)
	require.Error(t, err)
	require.EqualValues(t, 1, load(t, s, "fine").Version)
}
