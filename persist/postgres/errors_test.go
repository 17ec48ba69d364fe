package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// TestOutcomes: what an error proves depends on its origin and on how many of the three statements
// before the commit were answered.
//
// Proves STORE-14.
func TestOutcomes(t *testing.T) {
	answer := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code}
	}
	for _, c := range []struct {
		name                    string
		err                     error
		completed               int
		notApplied, unavailable bool
	}{
		{"a statement is rejected", answer("ERROR", "22P05"), 1, true, false},
		{"a lock is not had", answer("ERROR", codeLockNotAvailable), 1, true, true},
		{"a deadlock", answer("ERROR", codeDeadlockDetected), 2, true, true},
		{"the disk is full", answer("ERROR", "53100"), 2, true, true},
		{"the database is read-only", answer("ERROR", codeReadOnlyTransaction), 0, true, true},
		{"the statement is cancelled", answer("ERROR", "57014"), 2, true, true},
		{"the commit is rejected", answer("ERROR", "23514"), 3, true, false},
		{"the commit cannot be serialized", answer("ERROR", codeSerializationFailure), 3, true, true},
		{"the commit meets an internal error", answer("ERROR", "XX000"), 3, false, false},
		{"the commit meets a system error", answer("ERROR", codeIOError), 3, false, true},
		{"the commit is cancelled", answer("ERROR", "57014"), 3, false, true},
		{"the server shuts down", answer("FATAL", "57P01"), 0, false, true},
		{"the server crashes", answer("FATAL", "57P02"), 3, false, true},
		{"a proxy lost the server", answer("ERROR", "08006"), 0, false, true},
		{"the connection breaks", io.ErrUnexpectedEOF, 0, false, true},
		{"the time is over", context.DeadlineExceeded, 3, false, true},
		{"it was not sent", unsent(io.ErrClosedPipe), 0, true, true},
	} {
		err := outcome(c.err, c.completed, 3)
		require.Equal(t, c.notApplied, errors.Is(err, persist.ErrNotApplied), "%s: %v", c.name, err)
		require.Equal(t, c.unavailable, errors.Is(err, persist.ErrUnavailable), "%s: %v", c.name, err)
	}
}

// TestFailedCommit: a commit that fails because of a deferred constraint of the user is refused, and
// fails no other commit of its batch.
//
// Proves STORE-14, CAS-11.
func TestFailedCommit(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'refused'; END$$`,
		`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON pawl_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = 'bad') EXECUTE FUNCTION refuse()`)
	refused := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "refused")
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.NotErrorIs(t, err, persist.ErrUnavailable)
	}
	for i, c := range []persist.Commit{put("bad", 0), together(put("bad", 0), put("with it", 0))} {
		_, err := s.Commit(t.Context(), c)
		refused(err)
		must(t, s, put("good", uint64(i)))
	}
	several := together(put("also", 0), put("and", 0)) // not fast
	for _, commits := range [][]persist.Commit{{put("good", 2), put("bad", 0), put("better", 0)}, {put("good", 3), put("bad", 0), several}} {
		results := batched(t, s, commits...)
		require.NoError(t, results[0].err)
		refused(results[1].err)
		require.NoError(t, results[2].err)
	}
}

// TestRejectedByAnIndex: a document that violates a unique index of the user is refused. This is
// not a conflict, and no attempt follows.
//
// Proves STORE-4.
func TestRejectedByAnIndex(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `CREATE UNIQUE INDEX ON pawl_records ((doc->>'email'))`)
	for i := range 2 {
		c := put(fmt.Sprint(i), 0)
		c.Writes[0].Doc = []byte(`{"email": "a@example.org"}`)
		_, err := s.Commit(t.Context(), c)
		if i == 0 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.NotErrorIs(t, err, persist.ErrUnavailable)
		require.Equal(t, codeUniqueViolation, sqlState(err))
	}
}
