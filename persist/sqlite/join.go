package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// home is where a connection's database is, and what reads it.
type home struct {
	file    os.FileInfo // nil: not in a file
	library string      // which SQLite it is
}

// homeOf asks a connection. It does not touch the database.
func homeOf(ctx context.Context, on common) (home, error) {
	var path, source, options string
	err := on.QueryRowContext(ctx, `SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), sqlite_source_id(),
		(SELECT group_concat(compile_options) FROM pragma_compile_options)`).Scan(&path, &source, &options)
	if err != nil {
		return home{}, err
	}
	h := home{library: source + " " + options}
	if path != "" {
		h.file, _ = os.Stat(path) // it may be no real file, or gone
	}
	return h, nil
}

// Join returns a store that does everything inside tx, which may belong to any *sql.DB: it reads what tx
// has written, and its commits are made, and become durable, when tx is committed. It never ends tx:
// a commit that is refused or fails leaves tx as it was before. Only where SQLite itself has rolled
// tx back, which it does when the disk is full for example, is tx ended, so that what follows is not
// written outside of it. That store is a persist.Reader, persist.Prober and persist.Native, too. Like tx,
// it is not safe for concurrent use. Its Close does nothing to tx; once s is closed it returns
// persist.ErrClosed.
//
// Tx must be on the database of s, through the same copy of SQLite: in one process, two copies
// undo each other's locks. For commits, its connection must have synchronous=FULL or EXTRA. Anything
// else gives an error that wraps persist.ErrUnsupported and persist.ErrNotApplied; the latter do all other failures of Commit but
// *persist.Conflict and *persist.Fenced. The first write waits for SQLite's lock, for
// Config.BusyTimeout or the connection's own busy_timeout, whichever is longer; the error wraps
// persist.ErrUnavailable then, and at once if tx has read before and somebody has written since. In
// that case tx must be rolled back, which a transaction begun with _txlock=immediate avoids. The
// lock is tx's until it ends, and all other writers wait for it: a commit through s from within would wait in vain.
func (s *Store) Join(tx *sql.Tx) persist.Store { return &joined{s: s, tx: tx} }

// joined is a store inside somebody else's transaction.
type joined struct {
	s      *Store
	tx     *sql.Tx
	known  bool // tx is on the right database
	closed bool
}

var (
	_ persist.Reader = (*joined)(nil)
	_ persist.Prober = (*joined)(nil)
	_ persist.Native = (*joined)(nil)
)

// reads returns the reads inside the transaction, once it is known to be on the right database. It
// does not wait for the store: whoever closes that may be waiting for what only tx can release.
func (j *joined) reads(ctx context.Context) (reads, error) {
	if j.closed || j.s.ending.Load() {
		return reads{}, persist.ErrClosed
	}
	if !j.known {
		theirs, err := homeOf(ctx, j.tx)
		if err != nil {
			return reads{}, notApplied(readable(ctx, err))
		}
		ours := j.s.home
		if ours.file == nil || theirs.file == nil || !os.SameFile(ours.file, theirs.file) {
			return reads{}, unfit(errors.New("sqlite: the transaction is not on the database file of the store"))
		}
		if ours.library != theirs.library {
			return reads{}, unfit(errors.New("sqlite: the transaction is of another copy of SQLite than the store: use one driver for both"))
		}
		j.known = true
	}
	return reads{sql: j.s.sql, on: prepared{common: j.tx}}, nil
}

// unfit says that a transaction can never do, whatever is tried with it.
func unfit(why error) error { return notApplied(fmt.Errorf("%w: %w", persist.ErrUnsupported, why)) }

// Load is Store.Load inside the transaction.
func (j *joined) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	r, err := j.reads(ctx)
	if err != nil {
		return persist.Record{}, err
	}
	return r.load(ctx, key)
}

// LoadAll is Store.LoadAll inside the transaction.
func (j *joined) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	r, err := j.reads(ctx)
	if err != nil {
		return nil, err
	}
	return r.loadAll(ctx, keys)
}

// Versions is Store.Versions inside the transaction.
func (j *joined) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	r, err := j.reads(ctx)
	if err != nil {
		return nil, err
	}
	return r.versions(ctx, keys)
}

// List is Store.List inside the transaction.
func (j *joined) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	r, err := j.reads(ctx)
	if err != nil {
		return persist.Page{}, err
	}
	return r.list(ctx, q)
}

// Close ends the joined store, not the transaction.
func (j *joined) Close() error {
	j.closed = true
	return nil
}

// NativeType is *sql.Tx.
func (j *joined) NativeType() reflect.Type { return j.s.NativeType() }

// Commit applies c inside the transaction, see Join.
func (j *joined) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := validate(c); err != nil {
		return time.Time{}, err
	}
	if len(c.Writes) == 0 && !slices.ContainsFunc(c.Guards, changes) {
		return j.confirm(ctx, c)
	}
	return j.CommitWith(ctx, c, func(context.Context, any) error { return nil })
}

// changes reports whether a record that g guards is written to.
func changes(g persist.Guard) bool { return g.Extend > 0 || g.Release || g.TTL > 0 }

// confirm is Commit of what changes nothing, without the write lock: all that the transaction reads is of one moment, and SQLite
// lets it write later only if nobody has written since.
func (j *joined) confirm(ctx context.Context, c persist.Commit) (time.Time, error) {
	if ctx.Err() != nil {
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	if _, err := j.reads(ctx); err != nil {
		return time.Time{}, err
	}
	if err := j.lives(); err != nil {
		return time.Time{}, notApplied(err)
	}
	b := newBatch(j.s.sql, prepared{common: j.tx})
	return b.now, b.apply(c)
}

// CommitWith is Commit with fn, which gets the transaction. When fn fails, what it and c have done
// is undone, and no more. If fn has ended the transaction, the answer is that of Store.CommitWith.
func (j *joined) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if !empty(c) {
		if err := validate(c); err != nil {
			return time.Time{}, err
		}
	}
	if ctx.Err() != nil {
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	if _, err := j.reads(ctx); err != nil {
		return time.Time{}, err
	}
	// From here on no context may interrupt a statement: SQLite would roll the transaction back.
	if err := j.begin(ctx); err != nil {
		return time.Time{}, notApplied(err)
	}
	b := newBatch(j.s.sql, prepared{common: j.tx})
	returned := false
	defer func() {
		if !returned { // fn has panicked, or ended its goroutine
			_ = j.undo()
		}
	}()
	refusal := b.apply(c)
	var failure error
	if refusal == nil {
		j.s.attached.Store(true)
		failure = fn(ctx, j.tx)
	}
	returned = true
	switch {
	case refusal != nil:
		if err := j.undo(); err != nil {
			return time.Time{}, notApplied(fmt.Errorf("sqlite: SQLite has rolled back the transaction: %w", refusal))
		}
		return time.Time{}, refusal
	case failure != nil:
		if j.undo() != nil {
			return j.s.settle(c, b.now, failure)
		}
		return time.Time{}, failure
	}
	if _, err := j.tx.ExecContext(background, textRelease); err != nil {
		_ = j.tx.Rollback()
		return j.s.settle(c, b.now, nil)
	}
	return b.now, nil
}

// begin takes the write lock and makes a savepoint, if the connection is durable and in a
// transaction still.
func (j *joined) begin(ctx context.Context) error {
	var synchronous int
	if err := j.tx.QueryRowContext(background, "PRAGMA main.synchronous").Scan(&synchronous); err != nil {
		return readable(ctx, err)
	}
	if err := durable(synchronous); err != nil {
		return unfit(fmt.Errorf("sqlite: the transaction's connection: %w", err))
	}
	if err := j.lives(); err != nil {
		return err
	}
	err := j.s.writer.patiently(ctx, time.Now(), func() error {
		_, err := j.tx.ExecContext(background, j.s.sql.lock)
		if resultCode(err) == codeBusySnapshot {
			return errStale // waiting would not help
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := j.tx.ExecContext(background, textSavepoint); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// lives returns an error if the transaction is over. Where SQLite has rolled back by itself, database/sql
// does not know, and a savepoint would be a transaction of its own. Only there can another one be begun.
func (j *joined) lives() error {
	_, err := j.tx.ExecContext(background, "BEGIN")
	if err == nil || resultCode(err) != codeError {
		_ = j.tx.Rollback()
		return fmt.Errorf("sqlite: the transaction is over: %w", errors.Join(err, sql.ErrTxDone))
	}
	return nil
}

// undo takes the transaction back to the savepoint. If that is gone, so is the transaction.
func (j *joined) undo() error {
	_, err := j.tx.ExecContext(background, textUndo)
	if err != nil {
		_ = j.tx.Rollback()
	}
	return err
}
