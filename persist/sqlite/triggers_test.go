package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// count returns the result of a query that counts.
func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(query).Scan(&n))
	return n
}

// An application's trigger that writes elsewhere and then ignores a commit runs once, alone or in a
// shared transaction.
//
// Proves STORE-7.
func TestTriggersRunOnce(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path := dbPath(t)
			s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
			_, err := db.Exec(`CREATE TABLE audit (id TEXT, version INTEGER);
				CREATE TRIGGER frozen BEFORE UPDATE ON pawl_records WHEN NEW.id = 'x0'
				BEGIN INSERT INTO audit VALUES (NEW.id, NEW.version); SELECT RAISE(IGNORE); END`)
			require.NoError(t, err)
			var commits []persist.Commit
			for i := range n {
				id := fmt.Sprint("x", i)
				_, err := s.Commit(t.Context(), put(id, 0))
				require.NoError(t, err)
				commits = append(commits, nextTo(alive(t, s, id)))
			}
			for _, err := range together(t, s, path, commits...) {
				require.NoError(t, err)
			}
			require.Equal(t, 1, count(t, db, `SELECT count(*) FROM audit`))
			require.Equal(t, 1, count(t, db, `SELECT version FROM pawl_records WHERE id = 'x0'`))
		})
	}
}

// Take does not return a record whose lease a trigger of the application has ignored.
//
// Proves STORE-13.
func TestTakeIgnoredByATrigger(t *testing.T) {
	path := dbPath(t)
	s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
	for _, id := range []string{"x0", "x1"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	_, err := db.Exec(`CREATE TRIGGER frozen BEFORE UPDATE ON pawl_records WHEN NEW.id = 'x0' BEGIN SELECT RAISE(IGNORE); END`)
	require.NoError(t, err)
	taken, err := s.Take(t.Context(), persist.Query{Kind: alive(t, s, "x0").Kind}, persist.Acquire{Holder: "me", For: time.Minute}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "x1", taken[0].ID)
}

// A commit is not lost when the trigger of another record's commit moves its row.
func TestTriggerThatMovesASibling(t *testing.T) {
	for range 8 {
		path := dbPath(t)
		s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
		for _, id := range []string{"k", "j"} {
			_, err := s.Commit(t.Context(), put(id, 0))
			require.NoError(t, err)
		}
		_, err := db.Exec(`CREATE TRIGGER moves AFTER UPDATE ON pawl_records WHEN NEW.id = 'j'
			BEGIN UPDATE pawl_records SET rowid = rowid + 100 WHERE id = 'k'; END`)
		require.NoError(t, err)
		general := put("k", 1)
		release := lockedBy(t, path)
		errs := make(chan error, 2)
		go func() { _, err := s.Commit(context.Background(), general); errs <- err }()
		inQueue(t, s, 1)
		j := put("j", 1)
		j.Writes[0].Recent = []string{"test-j.0"}
		go func() { _, err := s.Commit(context.Background(), j); errs <- err }()
		inQueue(t, s, 2)
		release()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.EqualValues(t, 2, alive(t, s, "j").Version)
		require.EqualValues(t, 2, alive(t, s, "k").Version, "an acknowledged commit is lost")
	}
}

// A trigger that only the writing connection knows counts like any other: a commit that it refuses
// is not written, and it runs once.
func TestTemporaryTriggers(t *testing.T) {
	for _, action := range []string{"FAIL, 'refused'", "IGNORE"} {
		t.Run(action, func(t *testing.T) {
			path := dbPath(t)
			s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
			_, err := s.Commit(t.Context(), put("a", 0))
			require.NoError(t, err)
			when := "AFTER"
			if action == "IGNORE" {
				when = "BEFORE"
			}
			_, err = s.writer.conn.ExecContext(t.Context(), fmt.Sprintf(`CREATE TEMP TABLE audit (id TEXT);
				CREATE TEMP TRIGGER frozen %s UPDATE ON main.pawl_records BEGIN INSERT INTO audit VALUES (NEW.id); SELECT RAISE(%s); END`, when, action))
			require.NoError(t, err)
			_, err = s.Commit(t.Context(), nextTo(alive(t, s, "a")))
			runs := 1
			if action != "IGNORE" {
				require.ErrorIs(t, err, persist.ErrNotApplied)
				require.ErrorContains(t, err, "refused")
				runs = 0
			} else {
				require.NoError(t, err)
			}
			require.EqualValues(t, 1, alive(t, s, "a").Version)
			require.Equal(t, 1, count(t, db, `SELECT version FROM pawl_records`))
			var n int
			require.NoError(t, s.writer.conn.QueryRowContext(t.Context(), `SELECT count(*) FROM temp.audit`).Scan(&n))
			require.Equal(t, runs, n)
		})
	}
}

// A commit that a trigger refuses leaves nothing behind, not even what RAISE(FAIL) keeps of the
// statement.
//
// Proves STORE-7.
func TestTriggersThatRefuse(t *testing.T) {
	for _, action := range []string{"ABORT", "FAIL", "ROLLBACK"} {
		for _, when := range []string{"BEFORE", "AFTER"} {
			t.Run(when+" "+action, func(t *testing.T) {
				path := dbPath(t)
				s := openAt(t, path, Config{})
				first, next := put("a", 0), put("a", 1)
				next.Writes[0].Recent = []string{first.ID}
				_, err := s.Commit(t.Context(), first)
				require.NoError(t, err)
				_, err = database(t, path, "_busy_timeout=5000").Exec(fmt.Sprintf(
					`CREATE TRIGGER refuse %s UPDATE ON Pawl_Records BEGIN SELECT RAISE(%s, 'refused'); END`, when, action))
				require.NoError(t, err)
				for range 2 {
					_, err = s.Commit(t.Context(), next)
					require.ErrorIs(t, err, persist.ErrNotApplied)
					require.ErrorContains(t, err, "refused")
				}
				r, err := s.Load(t.Context(), thing("a"))
				require.NoError(t, err)
				require.EqualValues(t, 1, r.Version)
			})
		}
	}
}

// A trigger that refuses one commit of a shared transaction stops that commit only.
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
						require.NoError(t, err, "an ignored write is no error")
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
