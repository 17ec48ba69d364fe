package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// The races of a function that runs inside a transaction, and what decides each:
//
//   - Its context ends while it runs. Another goroutine rolls the transaction back at once and
//     passes the writer on, so that a function that hangs blocks no other caller. That goroutine
//     starts with the function and is waited for after it: it ends neither a transaction that is
//     still being written nor one that is being committed.
//   - It ends the transaction, by a method of *sql.Tx or in SQL, and perhaps begins another. A
//     savepoint goes with its transaction; if it is gone afterwards, the record shows the outcome.
//   - It panics, or ends its goroutine. A deferred function rolls back, then passes the writer on.
//   - It calls the store that waits for it. Its context shows that.

// The savepoint is made before the function runs, and released after it.
const (
	textSavepoint = "SAVEPOINT pawl_commit"
	textRelease   = "RELEASE pawl_commit"
	textUndo      = "ROLLBACK TO pawl_commit; RELEASE pawl_commit"
)

// insideOf is the context key of functions that run inside a transaction of s.
type insideOf struct{ s *Store }

var (
	errInside = errors.New("sqlite: a write inside a function that runs in the store's own transaction would wait for itself: write through Join")
	errEnded  = errors.New("sqlite: the function ended the transaction that it ran in")
)

// NativeType is *sql.Tx.
func (s *Store) NativeType() reflect.Type { return reflect.TypeFor[*sql.Tx]() }

// CommitWith is Commit with fn run inside the transaction, as a *sql.Tx, once all of c is tested
// and written; c may be empty. All other writers wait while fn runs. When ctx ends, the transaction
// is rolled back, and others continue even if fn does not return. Fn must neither end the
// transaction nor change settings of its connection. To write other records in the same transaction
// it uses Join; writing through s with fn's context gives an error at once.
//
// It returns the errors of Commit, or fn's own, unchanged, after which nothing was written. A
// constraint that fails when the transaction is committed gives an error that wraps
// persist.ErrNotApplied. If fn has ended the transaction, CommitWith looks for the commit. It
// returns nil if that is there and fn returned nil. If it is not there, it returns fn's error or an
// error that wraps persist.ErrNotApplied. Any other error leaves the outcome unknown.
func (s *Store) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if err := validateWith(c); err != nil {
		return time.Time{}, err
	}
	if err := s.enter(ctx); err != nil {
		return time.Time{}, err
	}
	arrived := time.Now()
	if err := s.queue.acquire(ctx); err != nil {
		s.calls.leave()
		return time.Time{}, err
	}
	release := sync.OnceFunc(func() {
		s.writer.turn.used = time.Now()
		s.queue.release()
		s.calls.leave()
	})
	defer release()
	tx, err := s.writer.beginTx(ctx, arrived)
	if err != nil {
		return time.Time{}, notApplied(err)
	}
	t := newTransaction(s.sql, s.writer.on)
	if err := t.applyBefore(tx, c); err != nil {
		s.writer.undo(tx)
		return time.Time{}, err
	}
	inside := context.WithValue(ctx, insideOf{s}, true)
	rolledBack, failure := s.writer.call(ctx, tx, func() error { return fn(inside, tx) }, release)
	switch {
	case rolledBack && failure != nil:
		return time.Time{}, failure
	case rolledBack:
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	if _, err := tx.ExecContext(background, textRelease); err != nil {
		s.writer.lose(tx)
		return s.settle(c, t.now, failure)
	}
	if failure != nil {
		s.writer.undo(tx)
		return time.Time{}, failure
	}
	if err := s.writer.inPlace(); err != nil {
		s.writer.undo(tx)
		return time.Time{}, nothingWritten(err)
	}
	if err := tx.Commit(); err != nil {
		s.writer.lose(tx)
		if leavesNothing(err) {
			return time.Time{}, nothingWritten(err)
		}
		return time.Time{}, fmt.Errorf("sqlite: commit: %w", err)
	}
	s.changes.Send(t.hints...)
	if s.joined.Swap(false) {
		s.changes.Send(persist.Hint{})
	}
	return t.now, nil
}

// validateWith is validate for a commit that may be empty.
func validateWith(c persist.Commit) error {
	if empty(c) {
		return nil
	}
	return validate(c)
}

// empty reports whether c tests and writes nothing.
func empty(c persist.Commit) bool { return len(c.Writes) == 0 && len(c.Guards) == 0 }

// apply applies c, which may be empty. After an error the transaction must be rolled back.
func (t *transaction) apply(c persist.Commit) error {
	if empty(c) {
		return nil
	}
	err := t.commit(c, updateOf(c))
	if t.failure != nil {
		return nothingWritten(t.failure)
	}
	return err
}

// applyBefore applies c, and makes the savepoint that shows afterwards whether tx was ended.
func (t *transaction) applyBefore(tx *sql.Tx, c persist.Commit) error {
	if err := t.apply(c); err != nil {
		return err
	}
	if _, err := tx.ExecContext(background, textSavepoint); err != nil {
		return nothingWritten(err)
	}
	return nil
}

// beginTx is begin for a transaction of database/sql. The application's own database may begin
// transactions without the lock, so the transaction asks for it.
func (w *writer) beginTx(ctx context.Context, since time.Time) (tx *sql.Tx, err error) {
	err = w.beginBy(ctx, since, func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begun, err := w.conn.BeginTx(background, nil) // no context may end it unnoticed
		if err != nil {
			return err
		}
		if _, err := begun.ExecContext(background, w.sql.lock); err != nil {
			return errors.Join(err, begun.Rollback())
		}
		tx = begun
		return nil
	})
	if err != nil {
		return nil, err
	}
	// While the lock is held no other connection commits, but polling has to wait.
	if err := w.noticeOthers(); err != nil {
		w.undo(tx)
		return nil, readable(ctx, err)
	}
	return tx, nil
}

// call runs fn in tx. When ctx ends meanwhile, it rolls tx back and releases the writer at once;
// the writer belongs to another goroutine then. It also rolls back when fn does not return.
func (w *writer) call(ctx context.Context, tx *sql.Tx, fn func() error, release func()) (rolledBack bool, err error) {
	returned := false
	ended := make(chan bool, 1)
	stop := context.AfterFunc(ctx, func() {
		done := tx.Rollback() == nil
		if done {
			release()
		}
		ended <- done
	})
	defer func() {
		if !stop() {
			rolledBack = <-ended
		}
		if !returned && !rolledBack {
			w.undo(tx)
		}
	}()
	err = fn()
	returned = true
	return false, err
}

// undo rolls tx back, by closing the connection if that fails.
func (w *writer) undo(tx *sql.Tx) {
	if tx.Rollback() != nil {
		w.discard()
	}
}

// lose ends tx, whose state is in doubt, and closes the connection.
func (w *writer) lose(tx *sql.Tx) {
	_ = tx.Rollback() // discard would wait for it
	w.discard()
}

// settle answers for c, whose transaction was ended by the function that ran inside it and returned
// failure. It does not wrap failure if something may have been written.
func (s *Store) settle(c persist.Commit, at time.Time, failure error) (time.Time, error) {
	applied, known := s.find(c)
	switch {
	case !known:
		return time.Time{}, fmt.Errorf("%w, and the outcome is unknown (error of the function: %v)", errEnded, failure)
	case applied && failure == nil:
		return at, nil
	case applied:
		return time.Time{}, fmt.Errorf("%w by a commit, and then failed: %v", errEnded, failure)
	case failure != nil:
		return time.Time{}, failure
	}
	return time.Time{}, notApplied(errEnded)
}

// find looks for c in the record that it writes first.
func (s *Store) find(c persist.Commit) (applied, known bool) {
	if len(c.Writes) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(background, s.config.BusyTimeout)
	defer cancel()
	w := c.Writes[0]
	r, err := s.load(ctx, s.ready, w.Key)
	switch {
	case errors.Is(err, persist.ErrNotFound):
		return false, true
	case err != nil:
		return false, false
	case slices.Contains(r.Commits, c.ID):
		return true, true
	}
	// Other writers may have pushed the id out of the record.
	return false, r.Version < w.Version
}

// Join returns a store that works inside tx, which may belong to any *sql.DB. It reads what tx has
// written, and its commits become durable when tx is committed. It never ends tx: a commit that is
// refused or fails leaves tx as it was before. SQLite itself may roll tx back, when the disk is
// full for example. Then tx is ended, so that later statements are not executed outside of it. The
// returned store is a persist.Reader, persist.Prober, persist.Native and persist.Logger too. Like
// tx, it is not safe for concurrent use. Its Close does nothing to tx; once s is closed, it returns
// persist.ErrClosed.
//
// Tx must be on the database of s, through the same copy of SQLite: in one process, two copies
// release each other's locks. For commits, its connection must have synchronous=FULL or EXTRA.
// Anything else gives an error that wraps persist.ErrUnsupported and persist.ErrNotApplied. All
// other failures of Commit wrap persist.ErrNotApplied, but for *persist.Conflict and
// *persist.Fenced.
//
// The first write waits for SQLite's lock, for Config.BusyTimeout or the connection's own
// busy_timeout, whichever is longer, and then returns an error that wraps persist.ErrUnavailable.
// It returns that at once if tx has read data that changed since. Then tx must be rolled back,
// which a transaction begun with _txlock=immediate avoids. Tx keeps the lock until it ends, and all
// other writers wait for it: a commit through s by the same goroutine would wait in vain.
func (s *Store) Join(tx *sql.Tx) persist.Store {
	j := &joined{s: s, tx: tx}
	j.reads = reads{sql: s.sql, open: j.open}
	return j
}

// joined is a store inside a transaction of the application.
type joined struct {
	reads    // inside the transaction
	s        *Store
	tx       *sql.Tx
	verified bool // tx is on the database of s
	closed   bool
}

var (
	_ persist.Reader = (*joined)(nil)
	_ persist.Prober = (*joined)(nil)
	_ persist.Native = (*joined)(nil)
	_ persist.Logger = (*joined)(nil)
)

// home identifies the database of a connection, and the copy of SQLite that reads it.
type home struct {
	file    openFile
	library string
}

// homeOf asks a connection. It does not touch the database.
func homeOf(ctx context.Context, on executor) (home, error) {
	var path, source, options string
	err := on.QueryRowContext(ctx, `SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), sqlite_source_id(),
		(SELECT group_concat(compile_options) FROM pragma_compile_options)`).Scan(&path, &source, &options)
	if err != nil {
		return home{}, err
	}
	return home{file: openedFile(path), library: source + " " + options}, nil
}

// open begins a read inside the transaction, after it has verified that tx is on the store's
// database. It does not count as a call of the store: Close may wait for what only tx releases.
func (j *joined) open(ctx context.Context) (on executor, end func(), err error) {
	if j.closed || j.s.calls.ended() {
		return nil, nil, persist.ErrClosed
	}
	if !j.verified {
		theirs, err := homeOf(ctx, j.tx)
		if err != nil {
			return nil, nil, notApplied(readable(ctx, err))
		}
		ours := j.s.writer.home
		if ours.file.info == nil || theirs.file.info == nil || !os.SameFile(ours.file.info, theirs.file.info) {
			return nil, nil, unfit(errors.New("sqlite: the transaction is not on the database file of the store"))
		}
		if ours.library != theirs.library {
			return nil, nil, unfit(errors.New("sqlite: the transaction uses another copy of SQLite than the store: use one driver for both"))
		}
		j.verified = true
	}
	return j.tx, func() {}, nil
}

// unfit says that no commit can ever use the transaction, because of err.
func unfit(err error) error { return notApplied(fmt.Errorf("%w: %w", persist.ErrUnsupported, err)) }

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

// confirm is Commit of a c that changes nothing, without the write lock: the transaction reads one
// state of the database, and can only write later if that is still current.
func (j *joined) confirm(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := j.usable(ctx); err != nil {
		return time.Time{}, err
	}
	if err := j.alive(); err != nil {
		return time.Time{}, notApplied(err)
	}
	t := newTransaction(j.s.sql, j.tx)
	return t.now, t.apply(c)
}

// usable returns an error if ctx has ended or the transaction is not on the store's database.
func (j *joined) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return notApplied(context.Cause(ctx))
	}
	_, _, err := j.open(ctx)
	return err
}

// CommitWith is Commit with fn, which gets the transaction. When fn fails, its work and c are
// undone, and nothing else. If fn has ended the transaction, the answer is that of
// Store.CommitWith.
func (j *joined) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if err := validateWith(c); err != nil {
		return time.Time{}, err
	}
	if err := j.usable(ctx); err != nil {
		return time.Time{}, err
	}
	// From here on no context may interrupt a statement: SQLite would roll the transaction back.
	if err := j.begin(ctx); err != nil {
		return time.Time{}, notApplied(err)
	}
	t := newTransaction(j.s.sql, j.tx)
	returned := false
	defer func() {
		if !returned { // fn panicked or ended its goroutine
			_ = j.undo()
		}
	}()
	refusal := t.apply(c)
	var failure error
	if refusal == nil {
		j.s.joined.Store(true)
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
			return j.s.settle(c, t.now, failure)
		}
		return time.Time{}, failure
	}
	if _, err := j.tx.ExecContext(background, textRelease); err != nil {
		_ = j.tx.Rollback()
		return j.s.settle(c, t.now, nil)
	}
	return t.now, nil
}

// begin takes the write lock and makes the savepoint. It returns an error if the connection is not
// durable or the transaction is over.
func (j *joined) begin(ctx context.Context) error {
	var synchronous int
	if err := j.tx.QueryRowContext(background, "PRAGMA main.synchronous").Scan(&synchronous); err != nil {
		return readable(ctx, err)
	}
	if err := durable(synchronous); err != nil {
		return unfit(fmt.Errorf("sqlite: the transaction's connection: %w", err))
	}
	if err := j.alive(); err != nil {
		return err
	}
	err := j.s.writer.patiently(ctx, time.Now(), func() error {
		_, err := j.tx.ExecContext(background, j.s.sql.lock)
		if resultCode(err) == codeBusySnapshot {
			return errStale // waiting does not help
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

// alive returns an error if the transaction is over. Database/sql does not know when SQLite has
// rolled back by itself, and a savepoint would then be a transaction of its own. BEGIN fails inside
// a transaction only.
func (j *joined) alive() error {
	_, err := j.tx.ExecContext(background, "BEGIN")
	if err == nil || resultCode(err) != codeError {
		_ = j.tx.Rollback()
		return fmt.Errorf("sqlite: the transaction is over: %w", errors.Join(err, sql.ErrTxDone))
	}
	return nil
}

// undo takes the transaction back to the savepoint. If that is gone, it ends the transaction.
func (j *joined) undo() error {
	_, err := j.tx.ExecContext(background, textUndo)
	if err != nil {
		_ = j.tx.Rollback()
	}
	return err
}
