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

// count returns what a query that counts gives.
func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(query).Scan(&n))
	return n
}

// TestTriggersRunOnce: what a trigger of somebody's does beside, before it ignores a write, it does once for a commit, alone or in company.
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
		})
	}
}

// TestTriggerThatMovesASibling: a commit is not lost because that of another record moves its row.
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
		require.EqualValues(t, 2, alive(t, s, "k").Version, "it was acknowledged")
	}
}

// TestTemporaryTriggers: a trigger that only the connection which writes knows is a trigger as others are: what it refuses is not written, and it runs once.
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

// TestLeadIsNotLost: who leaves while it is handed the lead takes it, however short its patience is.
func TestLeadIsNotLost(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	s.config.BusyTimeout = time.Nanosecond
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		r := &request{signal: make(chan signal, 1)}
		require.True(t, s.queue.tryLead())
		leads, err := s.queue.enter(r)
		require.NoError(t, err)
		require.False(t, leads)
		require.True(t, s.queue.resign(nil, 0))
		got, err := s.await(ctx, r)
		s.queue.resign(r, 0)
		require.NoError(t, err)
		require.Equal(t, lead, got)
	}
}

// TestRowsOfTakenRecordsAreKnown: who takes a record does not forget where it is, nor takes another's place for its own.
func TestRowsOfTakenRecordsAreKnown(t *testing.T) {
	path := dbPath(t)
	s, db := openAt(t, path, Config{}), database(t, path, "_busy_timeout=5000")
	for _, id := range []string{"a", "b", "c"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing", Prefix: "a"}, persist.Acquire{Holder: "me", For: time.Minute})
	require.NoError(t, err)
	require.Len(t, taken, 1)
	for _, id := range []string{"a", "b", "c"} {
		require.Equal(t, rowOf(t, db, id), s.sql.rows.of(thing(id)), id)
	}
}
