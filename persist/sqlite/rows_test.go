package sqlite

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// nextTo is the commit of the version after r.
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

// together commits while somebody holds the lock, so that it is one transaction, and returns the errors.
func together(t *testing.T, s *Store, path string, commits ...persist.Commit) []error {
	t.Helper()
	release := lockedBy(t, path)
	errs := make([]error, len(commits))
	var group sync.WaitGroup
	for i, c := range commits {
		group.Go(func() { _, errs[i] = s.Commit(t.Context(), c) })
	}
	inQueue(t, s, len(commits))
	release()
	group.Wait()
	return errs
}

// rowOf returns the number of the row of id.
func rowOf(t *testing.T, db *sql.DB, id string) (number int64) {
	t.Helper()
	require.NoError(t, db.QueryRow(`SELECT rowid FROM pawl_records WHERE id = ?`, id).Scan(&number))
	return number
}

// TestRows: a number is found for the key that it was noted for, and for no other that shares its place.
func TestRows(t *testing.T) {
	r := newRows()
	require.Nil(t, r.of(thing("a")))
	for _, number := range []int64{1, 2, 1<<40 - 1} {
		r.note(thing("a"), number)
		require.Equal(t, number, r.of(thing("a")))
	}
	for _, number := range []int64{0, -1, 1 << 40} {
		r.note(thing("b"), number)
		require.Nil(t, r.of(thing("b")), "a row of any other number is looked for")
	}
	for i := range 4 * len(r.places) {
		key := thing(fmt.Sprint(i))
		r.note(key, int64(i+1))
		require.Equal(t, int64(i+1), r.of(key))
	}
	right, wrong := 0, 0
	for i := range 4 * len(r.places) {
		switch r.of(thing(fmt.Sprint(i))) {
		case nil:
		case int64(i + 1):
			right++
		default:
			wrong++ // one in forty runs has such a pair, with one place and one tag
		}
	}
	require.Greater(t, right, len(r.places)/2)
	require.Less(t, wrong, 4)
}

// TestRowsAreKnown: who has created or read a record knows where it is.
func TestRowsAreKnown(t *testing.T) {
	path := dbPath(t)
	s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
	for _, err := range together(t, s, path, put("a", 0), put("b", 0), put("c", 0)) {
		require.NoError(t, err)
	}
	other := openAt(t, path, Config{})
	for _, id := range []string{"a", "b", "c"} {
		require.Equal(t, rowOf(t, db, id), s.sql.rows.of(thing(id)))
		require.Nil(t, other.sql.rows.of(thing(id)))
		alive(t, other, id)
		require.Equal(t, rowOf(t, db, id), other.sql.rows.of(thing(id)))
	}
}

// TestRowsThatHaveMoved: a record is written where it is, and no other in its place, after it was moved, and after it was deleted and created
// again elsewhere; and a version that is no longer current is refused there as everywhere.
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
				for _, err := range errs {
					require.NoError(t, err)
				}
			}
			for _, id := range []string{"x", "a", "b", "c"} {
				_, err := s.Commit(t.Context(), put(id, 0))
				require.NoError(t, err)
			}
			a, b, c := alive(t, s, "a"), alive(t, s, "b"), alive(t, s, "c")
			_, err := db.Exec(`DELETE FROM pawl_records WHERE id = 'x'; VACUUM; UPDATE pawl_records SET rowid = rowid - 1`) // which VACUUM may do, too
			require.NoError(t, err)
			require.Equal(t, rowOf(t, db, "b"), s.sql.rows.of(thing("a")), "b is where a was")
			commit(nextTo(a), nextTo(b), nextTo(c))
			for _, r := range []persist.Record{a, b, c} {
				require.Equal(t, rowOf(t, db, r.ID), s.sql.rows.of(r.Key), "it was found again")
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
			require.Equal(t, rowOf(t, db, "b"), s.sql.rows.of(thing("a")), "b was put where a was")
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

// TestTriggersThatRefuseOneOfMany: whichever way a trigger of somebody's refuses a next version that shares its transaction, nothing of it is written, and
// all of the others.
//
// Proves STORE-7.
func TestTriggersThatRefuseOneOfMany(t *testing.T) {
	for _, action := range []string{"ABORT, 'refused'", "FAIL, 'refused'", "ROLLBACK, 'refused'", "IGNORE"} {
		for _, when := range []string{"BEFORE", "AFTER"} {
			t.Run(when+" "+action, func(t *testing.T) {
				path := dbPath(t)
				s := openAt(t, path, Config{})
				ids := []string{"a", "bad", "b", "c"}
				var commits []persist.Commit
				for _, id := range ids {
					_, err := s.Commit(t.Context(), put(id, 0))
					require.NoError(t, err)
					commits = append(commits, nextTo(alive(t, s, id)))
				}
				_, err := database(t, path, "_busy_timeout=5000").Exec(fmt.Sprintf(
					`CREATE TRIGGER refuse %s UPDATE ON pawl_records WHEN NEW.id = 'bad' BEGIN SELECT RAISE(%s); END`, when, action))
				require.NoError(t, err)
				for i, err := range together(t, s, path, commits...) {
					version := 2
					switch {
					case ids[i] != "bad":
						require.NoError(t, err)
					case action == "IGNORE":
						require.NoError(t, err, "who ignores a write says nothing")
						if when == "BEFORE" {
							version = 1
						}
					default:
						require.ErrorIs(t, err, persist.ErrNotApplied)
						require.ErrorContains(t, err, "refused")
						version = 1
					}
					require.EqualValues(t, version, alive(t, s, ids[i]).Version, ids[i])
				}
			})
		}
	}
}
