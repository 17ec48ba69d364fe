package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// The log of a record is written in the transaction of the record, which holds the write lock. So
// positions are given in the order of the commits, and a reader never sees a higher one first.

// logColumns lists the columns of the log table in the order of scanEntry.
const logColumns = "kind, id, number, position, at, data"

// logStatements holds the SQL texts of the log table.
type logStatements struct {
	taken     string // whether a number in a range is taken
	condition string // a part of statements.update: no number from :first to :last is taken
	drop      string
	append    string
	read      string // by number
	readBack  string // by number, the last first
	order     string // by position
	orderOf   string // by position, some kinds
	last      string // the last position
	remove    string
	restore   string
	raise     string // the last position
}

func newLogStatements(prefix string) logStatements {
	table := `main."` + prefix + `log"`
	selectFrom := "SELECT " + logColumns + " FROM " + table
	ofKey := " WHERE kind = ?1 AND id = ?2 AND number "
	byNumber := "SELECT kind, id, number, 0, at, data FROM " + table + ofKey + ">= ?3 AND number < ?4 ORDER BY number"
	// SQLite keeps the last position of each table in sqlite_sequence. The name of the table is
	// spelt there as in the migration, whose prefix may have had other letter cases.
	sequence := ` WHERE name = '` + prefix + `log' COLLATE NOCASE`
	return logStatements{
		taken: "SELECT EXISTS (SELECT 1 FROM " + table + ofKey + "BETWEEN ?3 AND ?4)",
		condition: "\n	AND (:first IS NULL OR NOT EXISTS (SELECT 1 FROM " + table +
			" WHERE kind = :kind AND id = :id AND number BETWEEN :first AND :last))",
		drop:     "DELETE FROM " + table + ofKey + "< ?3",
		append:   "INSERT INTO " + table + " (kind, id, number, at, data) VALUES (?, ?, ?, ?, ?)",
		read:     byNumber + " LIMIT ?5",
		readBack: byNumber + " DESC LIMIT ?5",
		order:    selectFrom + " WHERE position > ?1 ORDER BY position LIMIT ?2",
		// An index has the next positions of each kind. The lowest of all these are the answer. So
		// entries of other kinds are not read.
		orderOf: selectFrom + " WHERE position IN (SELECT next.value FROM json_each(?3) AS given," +
			" json_each((SELECT json_group_array(position) FROM (SELECT position FROM " + table +
			" WHERE kind = given.value AND position > ?1 ORDER BY position LIMIT ?2))) AS next" +
			" ORDER BY next.value LIMIT ?2) ORDER BY position",
		last:    "SELECT seq FROM main.sqlite_sequence" + sequence,
		remove:  "DELETE FROM " + table + ofKey + "= ?3",
		restore: "INSERT INTO " + table + " (" + logColumns + ") VALUES (?, ?, ?, ?, ?, ?)",
		raise:   "UPDATE main.sqlite_sequence SET seq = max(seq, ?)" + sequence,
	}
}

// newNumbers returns the first and the last number that must not be taken when w is written, NULL
// if there is none.
func newNumbers(w *persist.Write) (first, last any) {
	l := w.Log
	if l == nil || l.Clear || len(l.Entries) == 0 {
		return nil, nil
	}
	return int64(l.First), int64(l.First) + int64(len(l.Entries)) - 1
}

// testNumbers returns *persist.Conflict with the current records of the writes that add a number
// which is taken.
func (t *transaction) testNumbers(c persist.Commit, current map[persist.Key]persist.Record) error {
	var conflict persist.Conflict
	for i := range c.Writes {
		w := &c.Writes[i]
		first, last := newNumbers(w)
		if first == nil {
			continue
		}
		var taken bool
		if err := t.on.QueryRowContext(background, t.sql.log.taken, w.Kind, w.ID, first, last).Scan(&taken); err != nil {
			return t.fail(err)
		}
		if taken {
			conflict.Winners = append(conflict.Winners, current[w.Key])
			conflict.Expected = append(conflict.Expected, persist.Expected{Version: w.Expected, Gone: w.Gone})
		}
	}
	if len(conflict.Winners) > 0 {
		return &conflict
	}
	return nil
}

// writeLog changes the log of the record that w has written. The numbers of its entries are free.
func (t *transaction) writeLog(w *persist.Write) error {
	l := w.Log
	if l == nil {
		return nil
	}
	if l.Clear || l.Drop > 0 {
		below := int64(l.Drop)
		if l.Clear {
			below = math.MaxInt64 // above all numbers
		}
		if _, err := t.on.ExecContext(background, t.sql.log.drop, w.Kind, w.ID, below); err != nil {
			return t.fail(err)
		}
	}
	at, number := t.now.UnixMicro(), int64(l.First)
	for _, entry := range l.Entries {
		if _, err := t.on.ExecContext(background, t.sql.log.append, w.Kind, w.ID, number, at, string(entry)); err != nil {
			return t.fail(err)
		}
		number++
	}
	return nil
}

// ReadLog returns entries of the log of one record, in the order of their numbers. It returns
// persist.ErrClosed after Close, ctx's error, and an error that wraps persist.ErrUnavailable when
// the database stayed locked.
func (r reads) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	text, before := r.sql.log.read, q.Before
	if q.Reverse {
		text = r.sql.log.readBack
	}
	if before == 0 {
		before = math.MaxInt64
	}
	return r.entries(ctx, text, q.Kind, q.ID, integer(q.From), integer(before), q.PageSize())
}

// ReadOrder returns entries of the logs of all records, in the order of their positions. Inside a
// transaction, the positions of entries that it has written itself are given to others if it is
// rolled back. It returns the errors of ReadLog.
func (r reads) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	if len(q.Kinds) == 0 {
		return r.entries(ctx, r.sql.log.order, integer(q.After), q.PageSize())
	}
	kinds, err := json.Marshal(slices.Compact(slices.Sorted(slices.Values(q.Kinds))))
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	return r.entries(ctx, r.sql.log.orderOf, integer(q.After), q.PageSize(), string(kinds))
}

// LastPosition returns the highest position that was ever given, also to an entry that is gone; see
// ReadOrder. It returns the errors of ReadLog.
func (r reads) LastPosition(ctx context.Context) (uint64, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	var last int64
	if err := on.QueryRowContext(ctx, r.sql.log.last).Scan(&last); err != nil {
		return 0, readable(ctx, err)
	}
	return uint64(last), nil
}

// entries returns the result of a query of logColumns.
func (r reads) entries(ctx context.Context, text string, args ...any) ([]persist.LogEntry, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	entries, err := queryAll(ctx, on, scanEntry, text, args...)
	if err != nil {
		return nil, readable(ctx, err)
	}
	return entries, nil
}

// scanEntry reads one row of logColumns.
func scanEntry(rows *sql.Rows) (e persist.LogEntry, err error) {
	var number, position, at int64
	var data []byte
	err = rows.Scan(&e.Kind, &e.ID, &number, &position, &at, &data)
	e.Number, e.Position, e.At, e.Data = uint64(number), uint64(position), time.UnixMicro(at).UTC(), data
	return e, err
}

// integer returns n as a column keeps it. No number and no position is as high as the limit.
func integer(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// RestoreLog writes all entries or none, in one transaction, as persist.LogRestorer describes. It
// returns the errors of Commit except *persist.Conflict and *persist.Fenced. A position that another
// entry has is an error that wraps persist.ErrNotApplied.
func (s *Store) RestoreLog(ctx context.Context, entries []persist.LogEntry, last uint64) error {
	if err := persist.ValidateRestoreLog(entries, last); err != nil {
		return err
	}
	size := 0
	for i := range entries {
		size += len(entries[i].Data)
	}
	_, err := s.write(ctx, &request{size: size, work: func(t *transaction) error {
		return t.restoreLog(entries, last)
	}})
	return err
}

// restoreLog replaces entries and raises the last position.
func (t *transaction) restoreLog(entries []persist.LogEntry, last uint64) error {
	for i := range entries {
		e := &entries[i]
		if _, err := t.on.ExecContext(background, t.sql.log.remove, e.Kind, e.ID, int64(e.Number)); err != nil {
			return t.fail(err)
		}
		if e.Data == nil {
			continue
		}
		_, err := t.on.ExecContext(background, t.sql.log.restore, e.Kind, e.ID, int64(e.Number),
			int64(e.Position), e.At.UnixMicro(), string(e.Data))
		if err != nil {
			return t.fail(fmt.Errorf("entry %d of the log of %q at position %d: %w", e.Number, e.Key, e.Position, err))
		}
	}
	if _, err := t.on.ExecContext(background, t.sql.log.raise, int64(last)); err != nil {
		return t.fail(err)
	}
	return nil
}
