package sqlite

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// nextTo returns the commit of the version after r.
func nextTo(r persist.Record) persist.Commit {
	c := put(r.ID, r.Version)
	c.Writes[0].Doc, c.Writes[0].Recent = fmt.Appendf(nil, `{"n":%d}`, r.Version+1), r.Commits
	return c
}

// alive returns the record of id.
func alive(t *testing.T, s *Store, id string) persist.Record {
	t.Helper()
	r, err := s.Load(t.Context(), thing(id))
	require.NoError(t, err)
	return r
}

// possibleRecords returns the absent record, and every other sort that a commit can find.
func possibleRecords(now time.Time) []persist.Record {
	records := []persist.Record{{Key: thing("a"), Now: now}}
	for _, deleted := range []bool{false, true} {
		for _, expires := range []time.Time{{}, now.Add(-time.Hour), now, now.Add(time.Hour)} {
			for _, lease := range []persist.Lease{
				{}, {Holder: "h", Token: 3, Until: now.Add(time.Hour)}, {Holder: "h", Token: 4, Until: now.Add(time.Hour)},
				{Holder: "h", Token: 3, Until: now}, {Holder: "h", Token: 3, Until: now.Add(-time.Hour)},
			} {
				r := persist.Record{
					Key: thing("a"), Version: 5, Born: 2, Expires: expires, Updated: now.Add(-time.Minute), Deleted: deleted,
					Lease: lease, Commits: []string{"w.1"}, Now: now,
				}
				if deleted {
					r.Lease = persist.Lease{} // a tombstone has none
				} else {
					r.Doc, r.Schema, r.Label, r.Due = []byte(`{"n":5}`), 1, "old", now.Add(time.Second)
				}
				records = append(records, r)
			}
		}
	}
	return records
}

// possibleCommits returns commits of one key in every combination of a write and a guard.
func possibleCommits(now time.Time) []persist.Commit {
	write := func(change func(*persist.Write)) *persist.Write {
		w := &persist.Write{Key: thing("a"), Expected: 5, Version: 7, Doc: []byte(`{"n":7}`), Schema: 2, Recent: []string{"w.1"}}
		change(w)
		return w
	}
	writes := []*persist.Write{
		nil,
		write(func(w *persist.Write) {}),
		write(func(w *persist.Write) { w.Expected = 4 }),
		write(func(w *persist.Write) { w.Expected, w.Recent = 0, nil }),
		write(func(w *persist.Write) { w.Recent = nil }),
		write(func(w *persist.Write) { w.Gone = true }),
		write(func(w *persist.Write) { w.Deleted, w.Doc = true, nil }),
		write(func(w *persist.Write) { w.Label, w.Due = "new", now.Add(time.Hour+time.Nanosecond) }),
		write(func(w *persist.Write) { w.DueIn, w.TTL = time.Hour+time.Nanosecond, time.Minute+time.Nanosecond }),
		write(func(w *persist.Write) { w.TTL = persist.KeepTTL }),
		write(func(w *persist.Write) { w.Acquire = &persist.Acquire{Holder: "new", For: time.Hour + time.Nanosecond} }),
		write(func(w *persist.Write) {
			w.EndLease, w.Acquire = true, &persist.Acquire{Holder: "new", For: time.Hour}
		}),
	}
	guards := []*persist.Guard{
		nil, {Read: true, Version: 5}, {Read: true, Version: 4}, {Read: true}, {Read: true, Version: 5, Gone: true},
		{Read: true, Version: 5, TTL: time.Minute}, {Token: 3}, {Token: 3, Extend: time.Minute + time.Nanosecond},
		{Token: 3, Release: true}, {Token: 3, Read: true, Version: 5, TTL: time.Minute, Extend: time.Minute},
		{Token: 3, Read: true, Version: 4, Release: true}, {Token: math.MaxUint64},
	}
	var commits []persist.Commit
	for _, w := range writes {
		for _, g := range guards {
			c := persist.Commit{ID: "w.2"}
			if w != nil {
				c.Writes = []persist.Write{*w}
			}
			if g != nil {
				c.Guards = []persist.Guard{*g}
				c.Guards[0].Key = thing("a")
			}
			if c.Validate() == nil {
				commits = append(commits, c)
			}
		}
	}
	return commits
}

// The statement of the fast way changes a record exactly when persist.Apply does, and to the same.
//
// Proves STORE-2, STORE-13.
func TestUpdateAgreesWithApply(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	ctx, on := t.Context(), s.writer.on
	_, err := on.ExecContext(ctx, textBegin)
	require.NoError(t, err)
	defer func() {
		_, err := on.ExecContext(ctx, textRollback)
		require.NoError(t, err)
	}()
	changed, unchanged, general := 0, 0, 0
	tx := newTransaction(s.sql, on)
	for _, before := range possibleRecords(tx.now) {
		for _, c := range possibleCommits(tx.now) {
			name := fmt.Sprintf("%#v on %#v", c, before)
			u := updateOf(c)
			if u == nil {
				general++
				continue
			}
			tx.hints = nil
			_, err := on.ExecContext(ctx, s.sql.remove, before.Kind, before.ID)
			require.NoError(t, err)
			if !before.Absent() {
				_, err = on.ExecContext(ctx, s.sql.store, values(before)...)
				require.NoError(t, err)
			}
			want, refusal := persist.Apply(c, map[persist.Key]persist.Record{before.Key: before}, tx.now)
			done, err := tx.update(u)
			require.NoError(t, err, name)
			require.Equal(t, refusal == nil, done, "%v: %s", refusal, name)
			if !done {
				want = []persist.Record{before}
				unchanged++
			} else {
				changed++
			}
			got, err := tx.load(before.Key)
			require.NoError(t, err)
			require.Equal(t, want, []persist.Record{got}, name)
			var sent []persist.Hint
			if hint, ok := hints.Of(before, want[0]); ok {
				sent = append(sent, hint)
			}
			require.Equal(t, sent, tx.hints, name)
		}
	}
	require.Greater(t, changed, 100)
	require.Greater(t, unchanged, 100)
	require.Greater(t, general, 100)
}

// The lease operations and writes under a lease are expressed as one statement, which finds its row
// by the key's index.
func TestUpdateOfLeases(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	write := nextTo(persist.Record{Key: thing("a"), Version: 1, Commits: []string{"w.1"}})
	under, acquire := write, nextTo(persist.Record{Key: thing("a"), Version: 1, Commits: []string{"w.1"}})
	under.Guards = []persist.Guard{{Key: thing("a"), Token: 1}}
	acquire.Writes[0].Acquire = &persist.Acquire{Holder: "h", For: time.Hour}
	for name, c := range map[string]persist.Commit{
		"write": write, "write under a lease": under, "acquire": acquire,
		"renew":   {Guards: []persist.Guard{{Key: thing("a"), Token: 1, Extend: time.Hour}}},
		"release": {Guards: []persist.Guard{{Key: thing("a"), Token: 1, Release: true}}},
	} {
		u := updateOf(c)
		require.NotNil(t, u, name)
		var id, parent, unused int
		var plan string
		require.NoError(t, s.reader.QueryRow("EXPLAIN QUERY PLAN "+s.sql.update, u.args...).Scan(&id, &parent, &unused, &plan))
		require.Contains(t, plan, "sqlite_autoindex_pawl_records_1 (kind=? AND id=?)")
	}
}

// Records are written correctly after the application has moved their rows or put others in their
// place, and a version that is no longer current is refused.
//
// Proves STORE-2.
func TestRowsThatHaveMoved(t *testing.T) {
	for name, shared := range map[string]bool{"alone": false, "together": true} {
		t.Run(name, func(t *testing.T) {
			path := dbPath(t)
			s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
			commit := func(commits ...persist.Commit) {
				t.Helper()
				var errs []error
				if shared {
					errs = together(t, s, path, commits...)
				} else {
					for _, c := range commits {
						_, err := s.Commit(t.Context(), c)
						errs = append(errs, err)
					}
				}
				require.NoError(t, errors.Join(errs...))
			}
			for _, id := range []string{"x", "a", "b", "c"} {
				_, err := s.Commit(t.Context(), put(id, 0))
				require.NoError(t, err)
			}
			a, b, c := alive(t, s, "a"), alive(t, s, "b"), alive(t, s, "c")
			_, err := db.Exec(`DELETE FROM pawl_records WHERE id = 'x'; VACUUM; UPDATE pawl_records SET rowid = rowid - 1`)
			require.NoError(t, err)
			commit(nextTo(a), nextTo(b), nextTo(c))
			for _, r := range []persist.Record{a, b, c} {
				now := alive(t, s, r.ID)
				require.EqualValues(t, 2, now.Version)
				require.Equal(t, []string{"test-" + r.ID + ".0", "test-" + r.ID + ".1"}, now.Commits)
			}

			a, b = alive(t, s, "a"), alive(t, s, "b")
			_, err = db.Exec(`UPDATE pawl_records SET rowid = rowid + 10 WHERE id = 'a'; DELETE FROM pawl_records WHERE id = 'b'`)
			require.NoError(t, err)
			_, err = db.Exec(`INSERT INTO pawl_records (rowid, kind, id, version, born, doc, schema, label, updated, deleted, holder, token, commits)
				SELECT rowid - 10, kind, 'b', version, born, doc, schema, label, updated, deleted, holder, token, 'test-b.0' FROM pawl_records WHERE id = 'a'`)
			require.NoError(t, err)
			commit(nextTo(a), nextTo(b))
			stale := nextTo(a)
			stale.ID = "late.1"
			for _, err := range together(t, s, path, stale, nextTo(alive(t, s, "c")), nextTo(alive(t, s, "b"))) {
				if err != nil {
					var conflict *persist.Conflict
					require.ErrorAs(t, err, &conflict)
					require.EqualValues(t, 3, conflict.Winners[0].Version)
				}
			}
			for id, version := range map[string]int{"a": 3, "b": 4, "c": 3} {
				require.EqualValues(t, version, alive(t, s, id).Version)
				require.JSONEq(t, fmt.Sprintf(`{"n":%d}`, version), string(alive(t, s, id).Doc))
			}
		})
	}
}

// Proves STORE-1.
func TestVersionBeyondSQLite(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	c := put("a", 0)
	c.Writes[0].Version = math.MaxInt64 + 1
	_, err := s.Commit(t.Context(), c)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	c.Writes[0].Version = math.MaxInt64
	_, err = s.Commit(t.Context(), c)
	require.NoError(t, err)
}

// deferConstraint makes a commit that creates the record "orphan" fail at COMMIT.
func deferConstraint(t *testing.T, s *Store, path string) {
	t.Helper()
	db := database(t, path, "_busy_timeout=5000")
	for _, text := range []string{
		`CREATE TABLE parent (id TEXT PRIMARY KEY)`,
		`CREATE TABLE child (id TEXT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`,
		`CREATE TRIGGER orphan AFTER INSERT ON pawl_records WHEN NEW.id = 'orphan' BEGIN INSERT INTO child VALUES ('x'); END`,
	} {
		_, err := db.Exec(text)
		require.NoError(t, err)
	}
	_, err := s.writer.conn.ExecContext(t.Context(), "PRAGMA foreign_keys=1")
	require.NoError(t, err)
}

// A deferred constraint that fails at COMMIT leaves nothing behind and fails its own commit only.
//
// Proves STORE-7.
func TestDeferredConstraint(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	deferConstraint(t, s, path)
	conn := s.writer.conn
	_, err := s.Commit(t.Context(), put("orphan", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	errs := together(t, s, path, put("a", 0), put("orphan", 0), put("b", 0))
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], persist.ErrNotApplied)
	require.NoError(t, errs[2])
	_, err = s.Load(t.Context(), thing("orphan"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	require.Same(t, conn, s.writer.conn)
}
