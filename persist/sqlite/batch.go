package sqlite

import (
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// batch is the content of one transaction: the records that its requests have read and changed.
// Requests work on these, one after the other, and only the last state of a record is written.
type batch struct {
	sql     statements
	on      executor  // the transaction
	now     time.Time // of every commit in the transaction, read while the lock is held
	records map[persist.Key]*held
	floor   uint64
	floored bool           // floor was read
	plain   bool           // the table is known to have no triggers, and gets none before the end of the transaction
	failure error          // of the database; the transaction cannot be committed
	hints   []persist.Hint // for those who watch, once it is committed
}

// held is a record as the batch has it.
type held struct {
	persist.Record
	row   int64 // the number of its row; 0: it has none, or that is not known
	dirty bool  // the row is to be written
	whole bool  // all of it, not only what statements.touch does
	fresh bool  // there is no row yet
}

func newBatch(statements statements, on executor) *batch {
	return &batch{sql: statements, on: on, now: hostTime(), records: make(map[persist.Key]*held)}
}

// hostTime is the host's clock as records keep it.
func hostTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// commit applies c to the batch; next is nextOf c, or nil. An error leaves the batch as it was, but for b.failure.
func (b *batch) commit(c persist.Commit, next []any) error {
	if next != nil && b.records[c.Writes[0].Key] == nil {
		if done, err := b.putNext(c, next); done || err != nil {
			return err
		}
	}
	keys := c.Keys()
	current := make(map[persist.Key]persist.Record, len(keys))
	for _, key := range keys {
		r, err := b.get(key)
		if err != nil {
			return err
		}
		current[key] = r
	}
	after, err := persist.Apply(c, current, b.now)
	if err != nil {
		return err
	}
	for _, r := range after {
		b.replace(current[r.Key], r)
	}
	return nil
}

// isNext reports whether c is the next version of one document that is alive and does not expire, and nothing else.
func isNext(c persist.Commit) bool {
	if len(c.Writes) != 1 || len(c.Guards) > 0 {
		return false
	}
	w := &c.Writes[0]
	return w.Recent != nil && w.Expected > 0 && !w.Gone && !w.Deleted && !w.EndLease && w.TTL == 0 && w.DueIn == 0 && w.Acquire == nil
}

// nextOf returns the parameters of next and nextAlone for c, but for the first, which is the time, or nil if c is not the next version of a document.
func (s statements) nextOf(c persist.Commit) []any {
	if !isNext(c) {
		return nil
	}
	w := &c.Writes[0]
	return []any{nil, int64(w.Version), string(w.Doc), strings.Join(persist.Remember(w.Recent, c.ID), "\n"), s.rows.of(w.Key), w.Kind, w.ID,
		int64(w.Expected), int64(w.Schema), w.Label, toMicros(w.Due)}
}

// putNext writes c by statements.next or nextAlone, if there is nothing in its way. It reports false, and has done nothing, if there is, whatever it is:
// perhaps only that the row is no longer where it was, or that there is a trigger. A trigger that ignores a write may have done something before, so
// it must not be tried twice.
func (b *batch) putNext(c persist.Commit, next []any) (done bool, err error) {
	w, text := &c.Writes[0], b.sql.nextAlone
	if b.plain {
		text = b.sql.next
	}
	next[0] = b.now.UnixMicro()
	result, err := b.on.ExecContext(background, text, next...)
	if err != nil {
		return false, b.fail(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, b.fail(err)
	}
	if n == 1 {
		b.plain = true
		b.hints = append(b.hints, persist.Hint{Key: w.Key, Version: w.Version})
	}
	return n == 1, nil
}

// apply applies c, which may be empty, and writes it into the transaction. After an error the
// transaction must be rolled back.
func (b *batch) apply(c persist.Commit) (err error) {
	if !empty(c) {
		err = b.commit(c, b.sql.nextOf(c))
	}
	if err == nil {
		b.flush()
	}
	if b.failure != nil {
		return nothingWritten(b.failure)
	}
	return err
}

// empty reports whether c tests and writes nothing.
func empty(c persist.Commit) bool { return len(c.Writes) == 0 && len(c.Guards) == 0 }

// get returns the record of key as the batch has it, or the absent one.
func (b *batch) get(key persist.Key) (persist.Record, error) {
	if r, ok := b.records[key]; ok {
		return r.Record, nil
	}
	row, err := readOne(background, b.on, b.sql.load, key)
	switch {
	case err == nil:
		r := &held{Record: row.record(b.now), row: row.number()}
		b.records[key] = r
		b.sql.rows.note(key, r.row)
		return r.Record, nil
	case errors.Is(err, sql.ErrNoRows):
		floor, err := b.versionFloor()
		return persist.Record{Key: key, Version: floor, Now: b.now}, err
	default:
		return persist.Record{}, b.fail(err)
	}
}

// versionFloor returns the store's version floor.
func (b *batch) versionFloor() (uint64, error) {
	if b.floored {
		return b.floor, nil
	}
	floor, err := readFloor(background, b.on, b.sql.floor)
	if err != nil {
		return 0, b.fail(err)
	}
	b.floor, b.floored = floor, true
	return b.floor, nil
}

// replace puts a record in the place of what it was before.
func (b *batch) replace(before, after persist.Record) {
	r := b.records[after.Key]
	if r == nil {
		r = &held{fresh: before.Absent()}
		b.records[after.Key] = r
	}
	r.Record, r.dirty = after, true
	r.whole = r.whole || r.row == 0 || !touches(before, after)
	if hint, ok := hints.Of(before, after); ok {
		b.hints = append(b.hints, hint)
	}
}

// flush writes what has changed into the transaction.
func (b *batch) flush() {
	for _, r := range b.records {
		var err error
		switch {
		case !r.dirty:
			continue
		case r.whole:
			err = b.store(r)
		default:
			_, err = b.on.ExecContext(background, b.sql.touch, touched(r.Record, r.row)...)
		}
		if err != nil {
			_ = b.fail(err)
			return
		}
		r.dirty, r.whole = false, false
	}
}

// store writes all of r.
func (b *batch) store(r *held) error {
	result, err := b.on.ExecContext(background, b.sql.store, values(r.Record)...)
	if err != nil || !r.fresh {
		return err // an update leaves LastInsertId as it was: the number of another
	}
	r.fresh = false
	number, err := result.LastInsertId()
	b.sql.rows.note(r.Key, number) // no more than that: a trigger may have kept it from being put in
	return err
}

// fail notes that the transaction cannot be committed, because of err.
func (b *batch) fail(err error) error {
	if b.failure == nil {
		b.failure = err
	}
	return err
}

// query returns the records of the transaction that match q, at most limit of them.
func (b *batch) query(q persist.Query, limit int) ([]persist.Record, error) {
	b.flush()
	if b.failure != nil {
		return nil, b.failure
	}
	text, args, err := b.sql.list(q, b.now, limit)
	if err != nil {
		return nil, err
	}
	rows, err := b.on.QueryContext(background, text, args...)
	if err != nil {
		return nil, b.fail(err)
	}
	records, err := readAll(rows, b.now)
	if err != nil {
		return nil, b.fail(err)
	}
	return records, nil
}
