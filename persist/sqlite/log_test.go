package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// logged returns c with a change of the log of its first record.
func logged(c persist.Commit, l persist.LogWrite) persist.Commit {
	c.Writes[0].Log = &l
	return c
}

// adding returns a change of a log that adds entries.
func adding(first uint64, entries ...string) persist.LogWrite {
	l := persist.LogWrite{First: first}
	for _, e := range entries {
		l.Entries = append(l.Entries, json.RawMessage(e))
	}
	return l
}

// logOf returns the log of a thing as "number:data".
func logOf(t *testing.T, s persist.Logger, id string) (texts []string) {
	t.Helper()
	entries, err := s.ReadLog(t.Context(), persist.LogQuery{Key: thing(id)})
	require.NoError(t, err)
	for _, e := range entries {
		require.Equal(t, thing(id), e.Key)
		require.Zero(t, e.Position)
		texts = append(texts, fmt.Sprintf("%d:%s", e.Number, e.Data))
	}
	return texts
}

// orderIn returns the keys of all entries in the order of their positions, as "position:id:number".
func orderIn(t *testing.T, s persist.Logger, q persist.OrderQuery) (texts []string) {
	t.Helper()
	entries, err := s.ReadOrder(t.Context(), q)
	require.NoError(t, err)
	for _, e := range entries {
		texts = append(texts, fmt.Sprintf("%d:%s:%d", e.Position, e.ID, e.Number))
	}
	return texts
}

// commitWays are the ways to commit on a store.
func commitWays(t *testing.T, s *Store, db *sql.DB) map[string]func(persist.Commit) error {
	nothing := func(context.Context, any) error { return nil }
	// Without the ids of earlier commits the record is read first.
	general := func(c persist.Commit) persist.Commit {
		c.Writes = slices.Clone(c.Writes)
		c.Writes[0].Recent = nil
		return c
	}
	joined := func(c persist.Commit, commit func(persist.Store, persist.Commit) error) error {
		tx := beginOn(t, db)
		if err := commit(s.Join(tx), c); err != nil {
			require.NoError(t, tx.Rollback())
			return err
		}
		return tx.Commit()
	}
	return map[string]func(persist.Commit) error{
		"Commit": func(c persist.Commit) error { _, err := s.Commit(t.Context(), c); return err },
		"Commit, general": func(c persist.Commit) error {
			_, err := s.Commit(t.Context(), general(c))
			return err
		},
		"CommitWith": func(c persist.Commit) error { _, err := s.CommitWith(t.Context(), c, nothing); return err },
		"CommitWith, general": func(c persist.Commit) error {
			_, err := s.CommitWith(t.Context(), general(c), nothing)
			return err
		},
		"Join": func(c persist.Commit) error {
			return joined(c, func(j persist.Store, c persist.Commit) error { _, err := j.Commit(t.Context(), c); return err })
		},
		"Join, CommitWith, general": func(c persist.Commit) error {
			return joined(general(c), func(j persist.Store, c persist.Commit) error {
				_, err := j.(persist.Native).CommitWith(t.Context(), c, nothing)
				return err
			})
		},
	}
}

// Every way to commit writes the log with the record: Clear, then Drop, then Entries.
//
// Proves STREAM-7.
func TestLogOfEveryCommit(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	for way, commit := range commitWays(t, s, db) {
		create := logged(put(way, 0), adding(0, `"a"`, ` {"b" : 1e2}`))
		require.NoError(t, commit(create), way)
		require.Equal(t, []string{`0:"a"`, `1: {"b" : 1e2}`}, logOf(t, s, way), "spelling unchanged: %s", way)
		step := func(l persist.LogWrite, want ...string) {
			t.Helper()
			before := alive(t, s, way)
			require.NoError(t, commit(logged(nextTo(before), l)), way)
			require.Equal(t, want, logOf(t, s, way), way)
			require.Equal(t, before.Version+1, alive(t, s, way).Version, way)
		}
		step(adding(2, `3`, `4`), `0:"a"`, `1: {"b" : 1e2}`, `2:3`, `3:4`)
		step(persist.LogWrite{Drop: 1}, `1: {"b" : 1e2}`, `2:3`, `3:4`)
		drop := adding(4, `5`)
		drop.Drop = 3
		step(drop, `3:4`, `4:5`)
		over := adding(3, `8`, `9`)
		over.Clear, over.Drop = true, 2
		step(over, `3:8`, `4:9`)
		entries, err := s.ReadLog(t.Context(), persist.LogQuery{Key: thing(way)})
		require.NoError(t, err)
		require.Equal(t, alive(t, s, way).Updated, entries[0].At)
		require.NoError(t, commit(nextTo(alive(t, s, way))))
		require.Equal(t, []string{`3:8`, `4:9`}, logOf(t, s, way), "a write without Log leaves it alone")
		gone := nextTo(alive(t, s, way))
		gone.Writes[0].Deleted, gone.Writes[0].Doc = true, nil
		require.NoError(t, commit(logged(gone, persist.LogWrite{Clear: true})))
		require.Empty(t, logOf(t, s, way))
	}
}

// A number that is taken gives a conflict with the current record, and nothing is written. The row
// comes from outside, because the version test keeps the store itself from using a number twice.
//
// Proves STREAM-3.
func TestTakenNumber(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	for way, commit := range commitWays(t, s, db) {
		require.NoError(t, commit(logged(put(way, 0), adding(0, `0`))))
		before := alive(t, s, way)
		_, err := db.Exec(`INSERT INTO pawl_log (kind, id, number, at, data) VALUES ('thing', ?, 3, 0, '"taken"')`, way)
		require.NoError(t, err)
		for _, l := range []persist.LogWrite{
			adding(3, `1`), adding(2, `1`, `1`), adding(1, `1`, `1`, `1`, `1`),
			{Drop: 2, First: 3, Entries: []json.RawMessage{json.RawMessage(`1`)}},
			{Drop: 3, First: 3, Entries: []json.RawMessage{json.RawMessage(`1`)}},
		} {
			err := commit(logged(nextTo(before), l))
			var conflict *persist.Conflict
			require.ErrorAs(t, err, &conflict, "%s: %+v", way, l)
			require.Len(t, conflict.Winners, 1)
			require.NotZero(t, conflict.Winners[0].Now)
			winner := conflict.Winners[0]
			winner.Now = before.Now
			require.Equal(t, before, winner)
			require.Equal(t, []persist.Expected{{Version: before.Version}}, conflict.Expected)
			require.Equal(t, []string{`0:0`, `3:"taken"`}, logOf(t, s, way))
			require.Equal(t, before.Version, alive(t, s, way).Version)
		}
		require.NoError(t, commit(logged(nextTo(before), adding(1, `1`, `2`))), "the numbers before it are free")
		over := adding(3, `"free"`)
		over.Clear = true
		require.NoError(t, commit(logged(nextTo(alive(t, s, way)), over)), "after Clear no number is taken")
		require.Equal(t, []string{`3:"free"`}, logOf(t, s, way))
	}
}

// A number of a new record can be taken as well, and a commit of several records names each that
// failed.
//
// Proves STREAM-3.
func TestTakenNumbersOfSeveral(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	for _, id := range []string{"a", "c"} {
		_, err := db.Exec(`INSERT INTO pawl_log (kind, id, number, at, data) VALUES ('thing', ?, 0, 0, '1')`, id)
		require.NoError(t, err)
	}
	c := logged(put("c", 0), adding(0, `1`))
	for _, id := range []string{"b", "a"} {
		c.Writes = append(c.Writes, logged(put(id, 0), adding(0, `1`)).Writes...)
	}
	_, err := s.Commit(t.Context(), c)
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	require.Len(t, conflict.Winners, 2)
	require.Len(t, conflict.Expected, 2)
	for _, winner := range conflict.Winners {
		require.True(t, winner.Absent())
		require.Contains(t, []string{"a", "c"}, winner.ID)
	}
	require.Empty(t, logOf(t, s, "b"))
	for i := range c.Writes {
		c.Writes[i].Log.Clear = true
	}
	_, err = s.Commit(t.Context(), c)
	require.NoError(t, err, "after Clear no number is taken")
}

// A taken number fails its own commit only, the others of the shared transaction are written.
//
// Proves STREAM-3.
func TestTakenNumberFailsAlone(t *testing.T) {
	s, db, path := withTable(t, Config{})
	ids := []string{"a", "bad", "b", "general"}
	var commits []persist.Commit
	for _, id := range ids {
		_, err := s.Commit(t.Context(), logged(put(id, 0), adding(0, `0`)))
		require.NoError(t, err)
		commits = append(commits, logged(nextTo(alive(t, s, id)), adding(1, `1`, `2`)))
	}
	commits[3].Writes[0].Recent = nil
	_, err := db.Exec(`INSERT INTO pawl_log (kind, id, number, at, data) VALUES ('thing', 'bad', 2, 0, '1')`)
	require.NoError(t, err)
	for i, err := range together(t, s, path, commits...) {
		if ids[i] == "bad" {
			var conflict *persist.Conflict
			require.ErrorAs(t, err, &conflict)
			require.EqualValues(t, 1, conflict.Winners[0].Version)
			require.Equal(t, []string{`0:0`, `2:1`}, logOf(t, s, "bad"))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{`0:0`, `1:1`, `2:2`}, logOf(t, s, ids[i]))
	}
}

// counted is an executor that notes the statements.
type counted struct {
	executor
	texts *[]string
}

func (c counted) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	*c.texts = append(*c.texts, text)
	return c.executor.ExecContext(ctx, text, args...)
}

func (c counted) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	*c.texts = append(*c.texts, text)
	return c.executor.QueryRowContext(ctx, text, args...)
}

// An append to a record whose recent commits are known is one statement for the record and one for
// each entry, all of them prepared.
//
// Proves STREAM-8.
func TestStatementsOfAppend(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), logged(put("a", 0), adding(0, `0`)))
	require.NoError(t, err)
	c := logged(nextTo(alive(t, s, "a")), adding(1, `1`, `2`))
	c.Guards = []persist.Guard{{Key: thing("a"), Read: true, Version: 1}}
	var texts []string
	_, err = s.write(t.Context(), &request{work: func(on *transaction) error {
		on.on = counted{on.on, &texts}
		return on.commit(c, updateOf(c))
	}})
	require.NoError(t, err)
	require.Equal(t, []string{s.sql.update, s.sql.log.append, s.sql.log.append}, texts)
	for _, text := range append(texts, s.sql.log.drop, s.sql.log.taken) {
		require.Contains(t, s.writer.on.statements, text)
	}
	for _, text := range []string{s.sql.log.read, s.sql.log.readBack, s.sql.log.order, s.sql.log.orderOf, s.sql.log.last} {
		require.Contains(t, s.ready.statements, text)
	}
}

// planOf returns the steps of a statement.
func planOf(t *testing.T, s *Store, text string, args ...any) (steps []string) {
	t.Helper()
	rows, err := s.reader.Query("EXPLAIN QUERY PLAN "+text, args...)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var step string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &step))
		steps = append(steps, step)
	}
	require.NoError(t, rows.Err())
	return steps
}

// Statements on the log search an index, read it in the order of the answer, and stop at the limit.
// So neither an append nor a read depends on the length of the log.
//
// Proves STREAM-8.
func TestLogPlans(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	log := s.sql.log
	const byNumber = "SEARCH main.pawl_log USING INDEX sqlite_autoindex_pawl_log_1 (kind=? AND id=? AND number>? AND number<?)"
	for text, want := range map[string]string{log.read: byNumber, log.readBack: byNumber} {
		require.Equal(t, []string{want}, planOf(t, s, text, "k", "a", 3, 4, 5), text)
	}
	require.Equal(t, []string{"SEARCH main.pawl_log USING INTEGER PRIMARY KEY (rowid>?)"}, planOf(t, s, log.order, 1, 2))
	require.Contains(t, planOf(t, s, log.drop, "k", "a", 1)[0], "sqlite_autoindex_pawl_log_1 (kind=? AND id=? AND number<?)")
	for text, parameters := range map[string]int{log.taken: 4, s.sql.update: len(updateNames)} {
		plan := strings.Join(planOf(t, s, text, make([]any, parameters)...), "\n")
		require.Contains(t, plan, "SEARCH main.pawl_log USING COVERING INDEX sqlite_autoindex_pawl_log_1 (kind=? AND id=? AND number>? AND number<?)", text)
	}
	plan := planOf(t, s, log.orderOf, 1, 2, "[]")
	require.Equal(t, "SEARCH main.pawl_log USING INTEGER PRIMARY KEY (rowid=?)", plan[0], "the entries of the answer only")
	require.Contains(t, strings.Join(plan, "\n"), "SEARCH main.pawl_log USING COVERING INDEX pawl_order (kind=? AND rowid>?)")
	require.NotContains(t, strings.Join(plan, "\n"), "SCAN main.pawl_log")
}

// ReadOrder of some kinds returns what ReadOrder of all kinds returns of these, in pages of any
// size, whether their entries are many or few.
//
// Proves STREAM-1.
func TestOrderOfKinds(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	kinds := []string{"many", "few", `with "quotes" & <ümlaut>`, "none"}
	var entries []persist.LogEntry
	for i := range 120 {
		kind := kinds[0]
		if i%17 == 0 {
			kind = kinds[i/17%3]
		}
		entries = append(entries, persist.LogEntry{
			Key: persist.Key{Kind: kind, ID: fmt.Sprint(i % 3)}, Number: uint64(i), Position: uint64(2*i + 1),
			At: time.UnixMicro(int64(i + 1)).UTC(), Data: fmt.Appendf(nil, `{"n":%d}`, i),
		})
	}
	require.NoError(t, s.RestoreLog(t.Context(), entries, 0))
	for _, wanted := range [][]string{nil, {"many"}, {"few"}, {"none"}, kinds, {"few", kinds[2]}, {"few", "few", "many"}, {kinds[2], "none"}} {
		var want []persist.LogEntry
		for _, e := range entries {
			if len(wanted) == 0 || slices.Contains(wanted, e.Kind) {
				want = append(want, e)
			}
		}
		for _, size := range []int{1, 2, 5, 100, 1000} {
			var got []persist.LogEntry
			q := persist.OrderQuery{Kinds: wanted, Limit: size}
			for {
				page, err := s.ReadOrder(t.Context(), q)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page), size)
				got = append(got, page...)
				if len(page) < size {
					break
				}
				q.After = page[len(page)-1].Position
			}
			require.Equal(t, want, got, "%q in pages of %d", wanted, size)
		}
	}
	page, err := s.ReadOrder(t.Context(), persist.OrderQuery{})
	require.NoError(t, err)
	require.Len(t, page, persist.DefaultLimit)
	for _, after := range []uint64{239, math.MaxInt64, math.MaxUint64} {
		require.Empty(t, orderIn(t, s, persist.OrderQuery{After: after}))
		require.Empty(t, orderIn(t, s, persist.OrderQuery{After: after, Kinds: kinds}))
	}
	far, err := s.ReadLog(t.Context(), persist.LogQuery{Key: persist.Key{Kind: "many", ID: "1"}, From: math.MaxUint64})
	require.NoError(t, err)
	require.Empty(t, far)
	far, err = s.ReadLog(t.Context(), persist.LogQuery{Key: persist.Key{Kind: "many", ID: "1"}, From: 118, Before: math.MaxUint64})
	require.NoError(t, err)
	require.Len(t, far, 1)
}

// No position is used twice: not that of the last entry after it was removed, and none that was
// restored or declared as used.
//
// Proves STREAM-1.
func TestPositionsAreNotReused(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	last := func(s persist.Logger, want uint64) {
		t.Helper()
		got, err := s.LastPosition(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	last(s, 0)
	_, err := s.Commit(t.Context(), logged(put("a", 0), adding(0, `1`, `2`)))
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), logged(nextTo(alive(t, s, "a")), persist.LogWrite{Clear: true}))
	require.NoError(t, err)
	require.Empty(t, orderIn(t, s, persist.OrderQuery{}))
	last(s, 2)
	require.NoError(t, s.Close())
	s = openAt(t, path, Config{TablePrefix: "PAWL_"}) // SQLite finds the tables in any case
	last(s, 2)
	_, err = s.Commit(t.Context(), logged(nextTo(alive(t, s, "a")), adding(0, `1`)))
	require.NoError(t, err)
	require.Equal(t, []string{"3:a:0"}, orderIn(t, s, persist.OrderQuery{}))

	entry := persist.LogEntry{Key: thing("a"), Number: 0, Position: 7, At: hostTime(), Data: json.RawMessage(`"moved"`)}
	require.NoError(t, s.RestoreLog(t.Context(), []persist.LogEntry{entry}, 5))
	last(s, 7)
	require.Equal(t, []string{"7:a:0"}, orderIn(t, s, persist.OrderQuery{}))
	require.NoError(t, s.RestoreLog(t.Context(), nil, 9))
	last(s, 9)
	require.NoError(t, s.RestoreLog(t.Context(), nil, 8))
	last(s, 9)
	_, err = s.Commit(t.Context(), logged(nextTo(alive(t, s, "a")), adding(1, `1`)))
	require.NoError(t, err)
	require.Equal(t, []string{"7:a:0", "10:a:1"}, orderIn(t, s, persist.OrderQuery{}))

	entry.Position, entry.Data = 10, json.RawMessage(`"in the place of another"`)
	err = s.RestoreLog(t.Context(), []persist.LogEntry{{Key: thing("a"), Number: 1}, {Key: thing("b"), Position: 1, At: entry.At, Data: entry.Data}}, 0)
	require.NoError(t, err, "an entry without Data removes")
	require.Equal(t, []string{"1:b:0", "7:a:0"}, orderIn(t, s, persist.OrderQuery{}))
	entry.Position = 1
	err = s.RestoreLog(t.Context(), []persist.LogEntry{{Key: thing("b"), Number: 5, Position: 20, At: entry.At, Data: entry.Data}, entry}, 30)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorContains(t, err, "position 1")
	require.Equal(t, []string{"1:b:0", "7:a:0"}, orderIn(t, s, persist.OrderQuery{}))
	last(s, 10)
}

// The log of a joined store belongs to the transaction: it is read inside, and gone with it.
//
// Proves STREAM-7, TX-6.
func TestJoinLog(t *testing.T) {
	s, db, _ := withTable(t, Config{})
	ctx := t.Context()
	_, err := s.Commit(ctx, logged(put("a", 0), adding(0, `0`)))
	require.NoError(t, err)
	for _, keep := range []bool{false, true} {
		tx := beginOn(t, db)
		_, err := tx.Exec(`CREATE TEMP TABLE pawl_log (something TEXT)`) // hides a table named without "main."
		require.NoError(t, err)
		j := s.Join(tx).(persist.Logger)
		_, err = j.Commit(ctx, logged(nextTo(alive(t, s, "a")), adding(1, `1`)))
		require.NoError(t, err)
		require.Equal(t, []string{`0:0`, `1:1`}, logOf(t, j, "a"))
		require.Equal(t, []string{"1:a:0", "2:a:1"}, orderIn(t, j, persist.OrderQuery{}))
		require.Equal(t, []string{"2:a:1"}, orderIn(t, j, persist.OrderQuery{After: 1, Kinds: []string{"thing"}}))
		last, err := j.LastPosition(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 2, last)
		require.Equal(t, []string{`0:0`}, logOf(t, s, "a"), "not visible outside the transaction")
		require.Equal(t, []string{"1:a:0"}, orderIn(t, s, persist.OrderQuery{}))
		last, err = s.LastPosition(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, last)
		want := []string{`0:0`}
		if keep {
			require.NoError(t, tx.Commit())
			want = append(want, `1:1`)
		} else {
			require.NoError(t, tx.Rollback())
		}
		require.Equal(t, want, logOf(t, s, "a"))
		require.NoError(t, j.Close())
		_, err = j.ReadLog(ctx, persist.LogQuery{Key: thing("a")})
		require.ErrorIs(t, err, persist.ErrClosed)
		_, err = j.ReadOrder(ctx, persist.OrderQuery{})
		require.ErrorIs(t, err, persist.ErrClosed)
		_, err = j.LastPosition(ctx)
		require.ErrorIs(t, err, persist.ErrClosed)
	}
	_, err = s.CommitWith(ctx, logged(nextTo(alive(t, s, "a")), adding(2, `2`)), func(context.Context, any) error { return errRefused })
	require.ErrorIs(t, err, errRefused)
	require.Equal(t, []string{`0:0`, `1:1`}, logOf(t, s, "a"))
}

// A trigger that ignores or refuses the write of a record keeps its log as it was, too.
//
// Proves STORE-7.
func TestTriggersKeepTheLog(t *testing.T) {
	for _, action := range []string{"IGNORE", "ABORT, 'refused'"} {
		s, db, _ := withTable(t, Config{})
		_, err := s.Commit(t.Context(), logged(put("a", 0), adding(0, `0`)))
		require.NoError(t, err)
		_, err = db.Exec(fmt.Sprintf(`CREATE TRIGGER no_update BEFORE UPDATE ON pawl_records BEGIN SELECT RAISE(%[1]s); END;
			CREATE TRIGGER no_insert BEFORE INSERT ON pawl_records WHEN NEW.id <> 'a' BEGIN SELECT RAISE(%[1]s); END`, action))
		require.NoError(t, err)
		for way, commit := range commitWays(t, s, db) {
			for _, c := range []persist.Commit{
				logged(nextTo(alive(t, s, "a")), adding(1, `1`)),
				logged(put("b", 0), adding(0, `0`)),
			} {
				if err := commit(c); action == "IGNORE" {
					require.NoError(t, err, way)
				} else {
					require.ErrorContains(t, err, "refused", way)
				}
				require.Equal(t, []string{"1:a:0"}, orderIn(t, s, persist.OrderQuery{}), way)
			}
		}
	}
}

// oldDatabase returns the path of a database that an earlier release made, without a log.
func oldDatabase(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "testdata", "formats", "283d669", "state.sqlite"))
	require.NoError(t, err)
	path := dbPath(t)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// A database of an earlier release gets the log and keeps its records. A process of that release
// that opens it then is refused.
//
// Proves STORE-9.
func TestLogIsMigrated(t *testing.T) {
	path := oldDatabase(t)
	db := database(t, path, appSettings)
	require.Equal(t, 1, count(t, db, `SELECT value FROM pawl_meta WHERE name = 'schema'`))
	records := count(t, db, `SELECT count(*) FROM pawl_records`)
	require.NotZero(t, records)
	s := openAt(t, path, Config{})
	require.Equal(t, 2, count(t, db, `SELECT value FROM pawl_meta WHERE name = 'schema'`))
	require.Equal(t, records, count(t, db, `SELECT count(*) FROM pawl_records`))
	_, err := s.Commit(t.Context(), logged(put("a", 0), adding(0, `0`)))
	require.ErrorAs(t, err, new(*persist.Conflict), "above the version floor only")
	page, err := s.List(t.Context(), persist.Query{Limit: 1})
	require.NoError(t, err)
	c := nextTo(page.Records[0])
	c.Writes[0].Key = page.Records[0].Key
	_, err = s.Commit(t.Context(), logged(c, adding(0, `0`)))
	require.NoError(t, err)
	require.Len(t, orderIn(t, s, persist.OrderQuery{}), 1)

	err = s.writer.migrateTo(t.Context(), []string{"migrations/0001_records.sql"}) // as that release does
	require.ErrorIs(t, err, persist.ErrNewerSchema)
	require.NoError(t, s.Close())
	require.Len(t, orderIn(t, openAt(t, path, Config{}), persist.OrderQuery{}), 1, "nothing to migrate")
}

// A migration that fails leaves the database to the earlier release.
//
// Proves STORE-9.
func TestLogIsNotMigrated(t *testing.T) {
	path := oldDatabase(t)
	db := database(t, path, appSettings)
	_, err := db.Exec(`CREATE TABLE pawl_log (something TEXT)`)
	require.NoError(t, err)
	_, err = Open(t.Context(), path, Config{})
	require.ErrorContains(t, err, "0002_log.sql")
	require.Equal(t, 1, count(t, db, `SELECT value FROM pawl_meta WHERE name = 'schema'`))
	require.Equal(t, 0, count(t, db, `SELECT count(*) FROM sqlite_master WHERE name = 'pawl_order'`))
	_, err = db.Exec(`DROP TABLE pawl_log`)
	require.NoError(t, err)
	require.NoError(t, openAt(t, path, Config{}).Close())
}
