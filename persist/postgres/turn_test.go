package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// insisting is c by a caller that has lost before.
func insisting(c persist.Commit) persist.Commit {
	c.Insist = true
	return c
}

// heldAt asserts that err is a conflict with a version that is held for the caller.
func heldAt(t *testing.T, version uint64, err error) {
	t.Helper()
	require.EqualValues(t, version, winner(t, err).Version)
	var conflict *persist.Conflict
	require.True(t, errors.As(err, &conflict) && conflict.Held)
}

// noTurn asserts that no turn of s is open.
func noTurn(t *testing.T, s *Store) {
	t.Helper()
	s.turns.Range(func(key, _ any) bool {
		t.Errorf("the turn of %v is open", key)
		return true
	})
}

// TestTurn: a commit that insists and loses keeps the record locked, so that its caller's next
// commit precedes that of a rival with the same knowledge. The commit in the turn is durable.
//
// Proves CAS-1.
func TestTurn(t *testing.T) {
	url := pgtest.URL(t)
	s, rival := openAt(t, url, Config{}), openAt(t, url, Config{})
	s.turnFor = testkit.Patience
	must(t, rival, put("a", 0), put("a", 1))
	execute(t, url, `CREATE TABLE settings (value text)`,
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO settings VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`,
		`CREATE TRIGGER note BEFORE UPDATE ON pawl_records FOR EACH ROW EXECUTE FUNCTION note()`)

	_, err := s.Commit(t.Context(), insisting(put("a", 1)))
	heldAt(t, 2, err)
	answer := commitLater(t.Context(), rival, put("a", 2))
	conn := pgtest.Connect(t, url)
	eventually(t, conn, someoneWaits)
	other := put("a", 2)
	other.ID = "other.1"
	must(t, s, insisting(other))
	won := winner(t, answered(t, answer).err)
	require.EqualValues(t, 3, won.Version)
	require.Equal(t, "other.1", won.Commits[len(won.Commits)-1])
	require.Equal(t, "on", value[string](t, conn, "SELECT value FROM settings"))

	_, err = s.Commit(t.Context(), insisting(put("a", 2)))
	heldAt(t, 3, err)
	_, err = s.Commit(t.Context(), put("b", 7)) // which is no concern of the turn
	require.True(t, winner(t, err).Absent())
	_, err = s.Commit(t.Context(), insisting(put("b", 7)))
	require.True(t, winner(t, err).Absent())
	must(t, s, insisting(put("a", 3)), insisting(put("a", 4)), put("a", 5))
}

// TestTurnEnds: a turn whose caller does not return blocks other writers only briefly, and its
// connection is released.
//
// Proves CAS-1, CAS-11.
func TestTurnEnds(t *testing.T) {
	url := pgtest.URL(t)
	s, rival := openAt(t, url, Config{}), openAt(t, url, Config{})
	must(t, rival, put("a", 0), put("a", 1))
	_, err := s.Commit(t.Context(), insisting(put("a", 1)))
	heldAt(t, 2, err)
	must(t, rival, put("a", 2))
	testkit.Eventually(t, func() bool { return s.pool.Stat().AcquiredConns() == 0 && len(s.slots) == 0 })

	_, err = s.Commit(t.Context(), insisting(put("a", 2)))
	heldAt(t, 3, err)
	require.NoError(t, s.Close())
	noTurn(t, s)
	must(t, rival, put("a", 3))
}

// TestTurnOfALostConnection: a turn whose connection was lost has no effect.
//
// Proves CAS-7.
func TestTurnOfALostConnection(t *testing.T) {
	url := pgtest.URL(t)
	s, rival := openAt(t, url, Config{}), openAt(t, url, Config{})
	s.turnFor = testkit.Patience
	must(t, rival, put("a", 0), put("a", 1))
	_, err := s.Commit(t.Context(), insisting(put("a", 1)))
	heldAt(t, 2, err)
	execute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
	must(t, rival, put("a", 2))
	_, err = s.Commit(t.Context(), insisting(put("a", 2)))
	require.Error(t, err)
	require.Len(t, load(t, s, "a").Commits, 3)
	_, err = s.Commit(t.Context(), insisting(put("a", 1)))
	heldAt(t, 3, err)
	must(t, s, insisting(put("a", 3)))
}

// TestTurnsAreNotKept: the connections of turns are released and the store can be closed, if the
// connection of a turn is lost and another request gets the next turn, and if turns end at once.
//
// Proves STORE-14.
func TestTurnsAreNotKept(t *testing.T) {
	for name, test := range map[string]struct {
		turnFor   time.Duration
		lost      bool
		overtaken bool
	}{
		"lost":      {turnFor: testkit.Patience, lost: true},
		"overtaken": {turnFor: testkit.Patience, lost: true, overtaken: true},
		"over":      {turnFor: 1},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			s, rival := openAt(t, connections(t, url, 12), Config{}), openAt(t, url, Config{})
			s.turnFor = test.turnFor
			must(t, rival, put("a", 0), put("a", 1))
			for version := uint64(2); version < 100; version++ {
				_, err := s.Commit(t.Context(), insisting(put("a", 1)))
				require.EqualValues(t, version, winner(t, err).Version)
				if !test.lost {
					must(t, rival, put("a", version))
					continue
				}
				execute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
				if !test.overtaken {
					break
				}
				must(t, rival, put("a", version))
				if version == 5 {
					break
				}
			}
			if test.lost {
				s.turnFor = time.Millisecond
				_, err := s.Commit(t.Context(), insisting(put("a", 1)))
				winner(t, err)
			}
			testkit.Eventually(t, func() bool { return s.pool.Stat().AcquiredConns() == 0 && len(s.slots) == 0 })
			require.NoError(t, s.Close())
			noTurn(t, s)
		})
	}
}

// TestTurnWritesAsOthersDo: a slow write may take as long in a turn as without one, and the commit
// uses the synchronous_commit that the application has chosen.
//
// Proves STORE-10.
func TestTurnWritesAsOthersDo(t *testing.T) {
	for _, chosen := range []string{"remote_apply", "local", "off"} {
		t.Run(chosen, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, with(t, url, "synchronous_commit", chosen), Config{})
			s.turnFor = testkit.Patience
			must(t, s, put("a", 0), put("a", 1))
			execute(t, url, `CREATE TABLE settings (n serial, value text)`,
				`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN PERFORM pg_sleep(0.5); INSERT INTO settings (value) VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`,
				`CREATE TRIGGER note BEFORE UPDATE ON pawl_records FOR EACH ROW EXECUTE FUNCTION note()`)
			must(t, s, put("a", 2))
			_, err := s.Commit(t.Context(), insisting(put("a", 1)))
			heldAt(t, 3, err)
			must(t, s, insisting(put("a", 3)))
			want := strings.ReplaceAll(chosen, "off", "on")
			require.Equal(t, want+" "+want, value[string](t, pgtest.Connect(t, url), "SELECT string_agg(value, ' ' ORDER BY n) FROM settings"))
		})
	}
}

// TestLostCommitDoesNotWait: a commit whose version has moved is answered at once, even while
// another transaction has locked the record.
//
// Proves CAS-11, STORE-5.
func TestLostCommitDoesNotWait(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0), put("a", 1))
	release := locked(t, url, "a")
	unknown := put("a", 1)
	unknown.Writes[0].Recent = nil
	for _, c := range []persist.Commit{put("a", 1), unknown} {
		_, err := s.Commit(t.Context(), c)
		require.EqualValues(t, 2, winner(t, err).Version)
	}
	release()
}
