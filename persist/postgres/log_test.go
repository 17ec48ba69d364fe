package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// adding returns c with new entries in the log of its first record.
func adding(c persist.Commit, first uint64, texts ...string) persist.Commit {
	log := persist.LogWrite{First: first}
	for _, text := range texts {
		log.Entries = append(log.Entries, json.RawMessage(text))
	}
	c.Writes[0].Log = &log
	return c
}

// spelled returns entries as "id number text".
func spelled(entries []persist.LogEntry) []string {
	texts := []string{}
	for _, e := range entries {
		texts = append(texts, fmt.Sprintf("%s %d %s", e.ID, e.Number, e.Data))
	}
	return texts
}

// logOf returns the log of an id.
func logOf(t testing.TB, s persist.Logger, id string) []string {
	t.Helper()
	entries, err := s.ReadLog(t.Context(), persist.LogQuery{Key: thing(id), Limit: 1000})
	require.NoError(t, err)
	return spelled(entries)
}

// orderAfter returns the entries of all records after a position.
func orderAfter(t testing.TB, s persist.Logger, after uint64) []persist.LogEntry {
	t.Helper()
	entries, err := s.ReadOrder(t.Context(), persist.OrderQuery{After: after, Limit: 1000})
	require.NoError(t, err)
	for _, e := range entries {
		require.Greater(t, e.Position, after)
		after = e.Position
	}
	return entries
}

// foreignEntry adds an entry to a log behind the back of the store.
const foreignEntry = "INSERT INTO pawl_log (kind, id, number, at, data) VALUES ('thing', $1, $2, now(), '\"foreign\"')"

// TestAppendGoesTheFastWay: entries are written by the statement that writes their record, directly
// and in a batch, and only if that record is written.
//
// Proves STORE-2.
func TestAppendGoesTheFastWay(t *testing.T) {
	ctx, url := t.Context(), pgtest.URL(t)
	s := openAt(t, url, Config{})
	conn := pgtest.Connect(t, url).PgConn()
	fast := func(commits ...persist.Commit) []result {
		t.Helper()
		var requests []*request
		for _, c := range commits {
			r, err := newRequest(ctx, c)
			require.NoError(t, err)
			require.True(t, isFast(&r.commit))
			requests = append(requests, r)
		}
		if len(requests) == 1 {
			one, err := s.writeOne(ctx, conn, requests[0])
			require.NoError(t, err)
			return []result{one}
		}
		all, err := s.write(ctx, conn, requests)
		require.NoError(t, err)
		return all
	}
	sameTime(t, fast(adding(put("a", 0), 0, `"a"`, `"b"`))[0])
	at := fast(adding(put("a", 1), 2, `"c"`))
	sameTime(t, at...)
	require.Equal(t, []string{`a 0 "a"`, `a 1 "b"`, `a 2 "c"`}, logOf(t, s, "a"))
	last, err := s.ReadLog(ctx, persist.LogQuery{Key: thing("a"), Reverse: true, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, at[0].at, last[0].At)

	results := fast(adding(put("a", 2), 3, `"d"`), put("plain", 0), adding(put("b", 0), 0, `1`, `2`), adding(put("a2", 7), 0, `"lost"`))
	for _, r := range results[:3] {
		require.NoError(t, r.err)
		require.True(t, r.decided())
	}
	require.True(t, winner(t, results[3].err).Absent())
	require.Equal(t, []string{`a 3 "d"`}, logOf(t, s, "a")[3:])
	require.Equal(t, []string{`b 0 1`, `b 1 2`}, logOf(t, s, "b"))
	require.Empty(t, logOf(t, s, "a2"))
	lost := fast(adding(put("a", 1), 4, `"lost"`))[0]
	require.EqualValues(t, 3, winner(t, lost.err).Version)
	lost = fast(adding(put("a", 0), 4, `"lost"`))[0]
	require.EqualValues(t, 3, winner(t, lost.err).Version)
	require.Len(t, logOf(t, s, "a"), 4)

	clear, drop := put("a", 3), put("a", 3)
	clear.Writes[0].Log, drop.Writes[0].Log = &persist.LogWrite{Clear: true}, &persist.LogWrite{Drop: 1}
	require.False(t, isFast(&clear))
	require.False(t, isFast(&drop))
	empty := put("a", 3)
	empty.Writes[0].Log = &persist.LogWrite{}
	require.True(t, isFast(&empty))
}

// TestTakenNumber: whichever way a commit goes, a number that an entry has by a way around the store
// is a conflict with the current record. Nothing of the commit is written, and the other commits of
// its batch are.
//
// Proves STORE-2, CAS-11.
func TestTakenNumber(t *testing.T) {
	own := func(t *testing.T, s *Store, call func(persist.Native) error) error {
		tx, err := s.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		return call(s.Join(tx).(persist.Native))
	}
	nothing := func(context.Context, any) error { return nil }
	for name, commit := range map[string]func(t *testing.T, s *Store, c persist.Commit) error{
		"fast": func(t *testing.T, s *Store, c persist.Commit) error {
			_, err := s.Commit(t.Context(), c)
			return err
		},
		"batch": func(t *testing.T, s *Store, c persist.Commit) error {
			results := batched(t, s, adding(put("x", 0), 0, `"x"`), c, put("y", 0), adding(put("z", 0), 0, `"z"`))
			for _, other := range []int{0, 2, 3} {
				require.NoError(t, results[other].err)
			}
			require.Equal(t, []string{`x 0 "x"`}, logOf(t, s, "x"))
			require.Equal(t, []string{`z 0 "z"`}, logOf(t, s, "z"))
			return results[1].err
		},
		"several records": func(t *testing.T, s *Store, c persist.Commit) error {
			_, err := s.Commit(t.Context(), together(adding(put("x", 0), 0, `"x"`), c))
			require.Empty(t, logOf(t, s, "x"))
			return err
		},
		"batch of transactions": func(t *testing.T, s *Store, c persist.Commit) error {
			results := batched(t, s, together(adding(put("x", 0), 0, `"x"`), put("y", 0)), c)
			require.NoError(t, results[0].err)
			require.Equal(t, []string{`x 0 "x"`}, logOf(t, s, "x"))
			return results[1].err
		},
		"insisting": func(t *testing.T, s *Store, c persist.Commit) error {
			_, err := s.Commit(t.Context(), insisting(c))
			return err
		},
		"CommitWith": func(t *testing.T, s *Store, c persist.Commit) error {
			_, err := s.CommitWith(t.Context(), c, nothing)
			return err
		},
		"own transaction": func(t *testing.T, s *Store, c persist.Commit) error {
			return own(t, s, func(j persist.Native) error {
				_, err := j.(persist.Store).Commit(t.Context(), c)
				return err
			})
		},
		"CommitWith in own transaction": func(t *testing.T, s *Store, c persist.Commit) error {
			return own(t, s, func(j persist.Native) error {
				_, err := j.CommitWith(t.Context(), c, nothing)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			must(t, s, adding(put("a", 0), 0, `0`))
			conn := pgtest.Connect(t, url)
			for _, id := range []string{"a", "new"} {
				_, err := conn.Exec(t.Context(), foreignEntry, id, 2)
				require.NoError(t, err)
			}
			before := load(t, s, "a")
			got := winner(t, commit(t, s, adding(put("a", 1), 1, `1`, `2`)))
			require.False(t, got.Now.Before(before.Now))
			got.Now = before.Now
			require.Equal(t, before, got)
			require.Equal(t, []string{`a 0 0`, `a 2 "foreign"`}, logOf(t, s, "a"))
			must(t, s, adding(put("a", 1), 3, `3`))

			if name == "fast" {
				got = winner(t, commit(t, s, adding(put("new", 0), 0, `0`, `1`, `2`)))
				require.True(t, got.Absent())
				require.Equal(t, thing("new"), got.Key)
				must(t, s, adding(put("new", 0), 0, `0`, `1`))
			}
		})
	}
}

// TestForeignEntryIsWaitedFor: an uncommitted entry with the same number, of a way around the store,
// delays only the commit that wants its number, and decides that commit when it ends.
//
// Proves CAS-11, STORE-14.
func TestForeignEntryIsWaitedFor(t *testing.T) {
	for _, commits := range []bool{false, true} {
		t.Run(fmt.Sprintf("commits=%t", commits), func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			must(t, s, adding(put("a", 0), 0, `0`), put("b", 0))
			tx, err := pgtest.Connect(t, url).Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), foreignEntry, "a", 1)
			require.NoError(t, err)

			s.queue.maxDirect = 0
			back := usedUp(t, s)
			answers := []<-chan result{commitLater(t.Context(), s, adding(put("a", 1), 1, `1`)), commitLater(t.Context(), s, adding(put("b", 1), 0, `0`))}
			inQueue(t, s, len(answers))
			back()
			require.NoError(t, answered(t, answers[1]).err)
			require.Empty(t, answers[0], "the number is neither free nor taken yet")
			if commits {
				require.NoError(t, tx.Commit(t.Context()))
				require.EqualValues(t, 1, winner(t, answered(t, answers[0]).err).Version)
				return
			}
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, answered(t, answers[0]).err)
			require.Equal(t, []string{`a 0 0`, `a 1 1`}, logOf(t, s, "a"))
		})
	}
}

// TestForeignUniqueIndex: a unique index of the user whose name ends like a usual name for a log is
// not taken for the log's own.
//
// Proves STORE-4.
func TestForeignUniqueIndex(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, "CREATE TABLE audit_log (data text PRIMARY KEY)",
		"CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO audit_log VALUES (NEW.data); RETURN NULL; END$$",
		"CREATE TRIGGER audit AFTER INSERT ON pawl_log FOR EACH ROW EXECUTE FUNCTION audit()")
	must(t, s, adding(put("a", 0), 0, `"same"`))
	_, err := s.Commit(t.Context(), adding(put("a", 1), 1, `"same"`))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	require.Equal(t, codeUniqueViolation, sqlState(err))
}

// TestLogInATurn: a commit that insists adds entries while it waits for its turn, and in its turn.
//
// Proves CAS-1.
func TestLogInATurn(t *testing.T) {
	url := pgtest.URL(t)
	s, rival := openAt(t, url, Config{}), openAt(t, url, Config{})
	s.turnFor = testkit.Patience
	must(t, rival, adding(put("a", 0), 0, `0`))
	must(t, s, insisting(adding(put("a", 1), 1, `1`)))
	must(t, rival, adding(put("a", 2), 2, `2`))
	_, err := s.Commit(t.Context(), insisting(adding(put("a", 2), 2, `"lost"`)))
	heldAt(t, 3, err)
	must(t, s, insisting(adding(put("a", 3), 3, `3`)))
	require.Equal(t, []string{`a 0 0`, `a 1 1`, `a 2 2`, `a 3 3`}, logOf(t, s, "a"))
}

// TestJoinLog: entries of the caller's transaction are read in it by number, get no position there,
// and are in the order when it is committed. Those of a transaction that is rolled back are gone.
//
// Proves TX-6.
func TestJoinLog(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			f := newJoined(t, 2)
			must(t, f.s, adding(put("a", 0), 0, `0`), adding(put("b", 0), 0, `0`))
			before := orderAfter(t, f.s, 0)
			require.Len(t, before, 2)
			for _, undone := range []bool{true, false} {
				tx, joined := f.begin(pgx.TxOptions{IsoLevel: level})
				j := joined.(persist.Logger)
				at, err := j.Commit(t.Context(), adding(put("a", 1), 1, `1`))
				require.NoError(t, err)
				over := adding(put("b", 1), 0, `"over"`)
				over.Writes[0].Log.Clear = true
				_, err = j.Commit(t.Context(), over)
				require.NoError(t, err)
				_, err = j.(persist.Native).CommitWith(t.Context(), adding(put("c", 0), 0, `0`), func(context.Context, any) error { return nil })
				require.NoError(t, err)
				require.Equal(t, []string{`a 0 0`, `a 1 1`}, logOf(t, j, "a"))
				require.Equal(t, []string{`b 0 "over"`}, logOf(t, j, "b"))
				require.Equal(t, before[:1], orderAfter(t, j, 0), "without those that the transaction removed or added")
				last, err := j.LastPosition(t.Context())
				require.NoError(t, err)
				require.Equal(t, before[1].Position, last)
				require.Equal(t, before, orderAfter(t, f.s, 0))
				if undone {
					require.NoError(t, tx.Rollback(t.Context()))
					require.Equal(t, before, orderAfter(t, f.s, 0))
					continue
				}
				require.NoError(t, tx.Commit(t.Context()))
				after := orderAfter(t, f.s, before[1].Position)
				require.Equal(t, []string{`a 1 1`, `b 0 "over"`, `c 0 0`}, spelled(after))
				require.Equal(t, at, after[0].At)
			}
		})
	}
}

// TestRestoredPositions: later commits get positions above the restored ones, and above last. A
// position that another entry has is refused.
//
// Proves STORE-15.
func TestRestoredPositions(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	at := must(t, s, adding(put("a", 0), 0, `0`, `1`))
	require.Len(t, orderAfter(t, s, 0), 2)
	entry := func(number, position uint64, data string) persist.LogEntry {
		return persist.LogEntry{Key: thing("a"), Number: number, Position: position, At: at.Add(-time.Hour), Data: json.RawMessage(data)}
	}
	want := []persist.LogEntry{entry(1, 2, `"exchanged"`), entry(2, 1, `"exchanged too"`), entry(3, 40, ` {"spelling" : 1e2} `)}
	removed := entry(0, 0, "")
	removed.Data = nil
	require.NoError(t, s.RestoreLog(t.Context(), append(want, removed), 7))
	want[0], want[1] = want[1], want[0]
	require.Equal(t, want, orderAfter(t, s, 0))
	err := s.RestoreLog(t.Context(), []persist.LogEntry{entry(9, 40, `0`)}, 0)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	must(t, s, adding(put("a", 1), 4, `4`))
	require.EqualValues(t, 41, orderAfter(t, s, 40)[0].Position)
	require.NoError(t, s.RestoreLog(t.Context(), nil, 100))
	must(t, s, adding(put("a", 2), 5, `5`))
	require.EqualValues(t, 101, orderAfter(t, s, 41)[0].Position)
	last, err := s.LastPosition(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 101, last)
}
