package sqlite

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, also for a number of a log that is taken, *persist.Fenced, persist.ErrClosed
// after Close, and an error that wraps persist.ErrNotApplied when c is malformed, when ctx ended
// before the commit's turn came, or when the database stayed locked for longer than
// Config.BusyTimeout, could not be written, or was removed or replaced. Where waiting may help, that
// error wraps persist.ErrUnavailable too. Any other error leaves the outcome unknown: the disk
// failed while the commit was made durable.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := validate(c); err != nil {
		return time.Time{}, err
	}
	u := updateOf(c) // here, where callers run in parallel, and not in the transaction
	return s.write(ctx, &request{size: c.Size(), work: func(t *transaction) error { return t.commit(c, u) }})
}

// validate returns an error that wraps persist.ErrNotApplied if c can never be written.
func validate(c persist.Commit) error {
	if err := c.Validate(); err != nil {
		return err
	}
	for i := range c.Writes {
		if w := &c.Writes[i]; w.Version > math.MaxInt64 {
			return notApplied(fmt.Errorf("sqlite: version %d of %q is too large for SQLite", w.Version, w.Key))
		}
	}
	return nil
}

// transaction is an open transaction that holds the write lock. Every commit in it is written at
// once, so that the next one sees it.
type transaction struct {
	sql     statements
	on      executor
	now     time.Time      // the time of its commits, read while the lock is held
	hints   []persist.Hint // to be sent once it is committed
	failure error          // of the database: it must be rolled back
}

func newTransaction(statements statements, on executor) *transaction {
	return &transaction{sql: statements, on: on, now: hostTime()}
}

// hostTime returns the host's clock as records keep it.
func hostTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// fail notes that the transaction cannot be committed because of err, and returns err.
func (t *transaction) fail(err error) error {
	if t.failure == nil {
		t.failure = err
	}
	return err
}

// commit applies c, the fast way if u, updateOf(c), is not nil. An error leaves the transaction as
// it was, unless t.failure is set.
func (t *transaction) commit(c persist.Commit, u *update) error {
	if u == nil {
		return t.general(c, false)
	}
	changed, err := t.update(u)
	switch {
	case err != nil:
		return err
	case !changed:
		return t.general(c, true)
	case len(c.Writes) == 1:
		return t.writeLog(&c.Writes[0])
	}
	return nil
}

// general reads the records of c, applies it and writes the results. Tried says that the statement of
// the fast way changed no row. It tests what persist.Apply and testNumbers test: if these find nothing
// wrong now, a trigger of the application has ignored the write. Then nothing is written, so that the
// trigger does not run twice. A record whose write is ignored keeps its log as it is.
func (t *transaction) general(c persist.Commit, tried bool) error {
	keys := c.Keys()
	current := make(map[persist.Key]persist.Record, len(keys))
	for _, key := range keys {
		r, err := t.load(key)
		if err != nil {
			return err
		}
		current[key] = r
	}
	after, err := persist.Apply(c, current, t.now)
	if err != nil {
		return err
	}
	if err := t.testNumbers(c, current); err != nil || tried {
		return err
	}
	written := make(map[persist.Key]bool, len(after))
	for _, r := range after {
		if written[r.Key], err = t.store(current[r.Key], r); err != nil {
			return err
		}
	}
	for i := range c.Writes {
		if w := &c.Writes[i]; written[w.Key] {
			if err := t.writeLog(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// load returns the record of key, the absent one if there is none.
func (t *transaction) load(key persist.Key) (persist.Record, error) {
	r, err := t.sql.loadFrom(background, t.on, key, t.now)
	if err != nil {
		return persist.Record{}, t.fail(err)
	}
	return r, nil
}

// store writes after in the place of before. It reports false if a trigger of the application has
// ignored the write.
func (t *transaction) store(before, after persist.Record) (written bool, err error) {
	result, err := t.on.ExecContext(background, t.sql.store, values(after)...)
	if err != nil {
		return false, t.fail(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, t.fail(err)
	}
	if hint, ok := hints.Of(before, after); ok {
		t.hints = append(t.hints, hint)
	}
	return n > 0, nil
}

// update is a commit as statements.update expresses it.
type update struct {
	args   []any // of the statement; the first is the time
	hint   persist.Hint
	hinted bool // hint is to be sent
}

// updateOf returns c as an update of one live record, nil if c cannot be expressed as one.
func updateOf(c persist.Commit) *update {
	if len(c.Writes) > 1 || len(c.Guards) > 1 {
		return nil
	}
	var (
		key                                       persist.Key
		expected, token, version, doc, schema     any
		label, due, delay, commits, holder, taken any
		ttl, length                               any = int64(-1), int64(-1) // kept
		first, last                               any
		u                                         update
	)
	if len(c.Writes) == 1 {
		w := &c.Writes[0]
		if w.Expected == 0 || w.Gone || w.Deleted || w.EndLease || w.Recent == nil {
			return nil
		}
		key, expected, version, doc = w.Key, int64(w.Expected), int64(w.Version), string(w.Doc)
		schema, label, due = int64(w.Schema), w.Label, micros(w.Due)
		commits = strings.Join(persist.Remember(w.Recent, c.ID), "\n")
		if w.DueIn > 0 {
			delay = w.DueIn.Microseconds()
		}
		switch {
		case w.TTL > 0:
			ttl = w.TTL.Microseconds()
		case w.TTL == 0:
			ttl = nil
		}
		if w.Acquire != nil {
			holder, taken, length = w.Acquire.Holder, int64(w.Version), w.Acquire.For.Microseconds()
		}
		first, last = newNumbers(w)
		u.hint, u.hinted = persist.Hint{Key: key, Version: w.Version}, true
	}
	if len(c.Guards) == 1 {
		g := &c.Guards[0]
		switch {
		case len(c.Writes) == 0 && !changes(*g):
			return nil
		case len(c.Writes) == 1 && (g.Key != key || g.Read && g.Version != c.Writes[0].Expected):
			return nil
		case g.Read && (g.Version == 0 || g.Gone):
			return nil
		case taken != nil && g.Token != 0: // a lease that is free and held
			return nil
		}
		key = g.Key
		if g.Read {
			expected = int64(g.Version)
		}
		if g.Token != 0 {
			token = int64(g.Token)
		}
		if g.Extend > 0 {
			length = g.Extend.Microseconds()
		}
		if g.Release {
			holder, taken, length = "", int64(0), nil
			if !u.hinted {
				u.hint, u.hinted = persist.Hint{Key: key}, true // no version has moved
			}
		}
		if g.TTL > 0 {
			ttl = g.TTL.Microseconds()
		}
	}
	u.args = []any{nil, key.Kind, key.ID, expected, token, version, doc, schema, label, due, delay,
		commits, ttl, holder, taken, length, first, last}
	return &u
}

// changes reports whether g changes the record that it guards.
func changes(g persist.Guard) bool { return g.Extend > 0 || g.Release || g.TTL > 0 }

// update runs the statement of u and reports whether it changed the row.
func (t *transaction) update(u *update) (changed bool, err error) {
	u.args[0] = t.now.UnixMicro()
	result, err := t.on.ExecContext(background, t.sql.update, u.args...)
	if err != nil {
		return false, t.fail(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, t.fail(err)
	}
	if n == 1 && u.hinted {
		t.hints = append(t.hints, u.hint)
	}
	return n == 1, nil
}
