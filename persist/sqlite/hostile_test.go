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
