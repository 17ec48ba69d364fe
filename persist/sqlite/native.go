package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// The races of a function that runs inside a transaction, and how they are met:
//
//   - Its context ends while it runs. The transaction is rolled back at once, by another goroutine,
//     and the lead is handed on, so that a function that does not return holds up nobody. That
//     goroutine starts with the function and is waited for after it: it can end neither a
//     transaction in which the commit is still being written nor one that is being committed.
//   - It ends the transaction, by a method of *sql.Tx or in SQL, and perhaps begins another. A
//     savepoint goes with the transaction in which it was made; if it is not there afterwards, the
//     record shows what became of the commit.
//   - It panics, or ends its goroutine. A deferred function rolls back, then hands on the lead.
//   - It calls the store that waits for it. Its context shows that.

// textSavepoint is made before the function runs, and released after it.
const (
	textSavepoint = "SAVEPOINT pawl_commit"
	textRelease   = "RELEASE pawl_commit"
	textUndo      = "ROLLBACK TO pawl_commit; RELEASE pawl_commit"
)

// insideOf is the context's key that says that a function runs inside a transaction of the store.
type insideOf struct{ s *Store }

var (
	errInside = errors.New("sqlite: a write inside a function that runs in the store's own transaction would wait for itself: write through Join")
	errEnded  = errors.New("sqlite: the transaction was ended by the function that ran inside it")
)

// NativeType is *sql.Tx.
func (s *Store) NativeType() reflect.Type { return reflect.TypeFor[*sql.Tx]() }

// CommitWith is Commit with fn run inside the transaction, which it gets as a *sql.Tx, once all of c
// is tested and written; c may be empty. All other writers wait while fn runs. When ctx ends, the
// transaction is rolled back, and others go on even if fn does not return. Fn must neither end the
// transaction nor change settings of its connection. To write other records in the same
// transaction it uses Join; writing through s with fn's context gives an error at once.
//
// It returns the errors of Commit, or fn's own, unchanged, after which nothing was written. A
// constraint that fails when the transaction is committed gives an error that wraps
// persist.ErrNotApplied. If fn has ended the transaction, it looks whether the commit is there: the
// answer is nil if it is and fn gave no error, and wraps persist.ErrNotApplied, or is fn's error, if
// it is not; any other error leaves it open.
func (s *Store) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if !empty(c) {
		if err := validate(c); err != nil {
			return time.Time{}, err
		}
	}
	r := &request{alone: true}
	if _, err := s.queueUp(ctx, r); err != nil {
		return time.Time{}, err
	}
	resign := sync.OnceFunc(func() {
		s.writer.reignSeen = time.Now()
		s.queue.resign(r, 1)
	})
	defer resign()
	tx, err := s.writer.beginTx(ctx, r.arrived)
	if err != nil {
		return time.Time{}, notApplied(err)
	}
	b := newBatch(s.sql, s.writer.on)
	if err := b.prepareFor(tx, c); err != nil {
		s.writer.undo(tx)
		return time.Time{}, err
	}
	inside := context.WithValue(ctx, insideOf{s}, true)
	rolledBack, failure := s.writer.call(ctx, tx, func() error { return fn(inside, tx) }, resign)
	switch {
	case rolledBack && failure != nil:
		return time.Time{}, failure
	case rolledBack:
		return time.Time{}, notApplied(context.Cause(ctx))
	}
	if _, err := tx.ExecContext(background, textRelease); err != nil {
		s.writer.lose(tx)
		return s.settle(c, b.now, failure)
	}
	if failure != nil {
		s.writer.undo(tx)
		return time.Time{}, failure
	}
	err = tx.Commit()
	switch code := resultCode(err) & 0xff; {
	case err == nil:
		s.changes.Send(b.hints...)
		if s.attached.Swap(false) {
			s.changes.Send(persist.Hint{})
		}
		return b.now, nil
	case isBusy(err) || code == codeFull || code == codeConstraint:
		s.writer.lose(tx)
		return time.Time{}, nothingWritten(err)
	}
	s.writer.lose(tx)
	return time.Time{}, fmt.Errorf("sqlite: commit: %w", err)
}

// prepareFor applies c and makes the savepoint that shows whether tx is still the same.
func (b *batch) prepareFor(tx *sql.Tx, c persist.Commit) error {
	if err := b.apply(c); err != nil {
		return err
	}
	if _, err := tx.ExecContext(background, textSavepoint); err != nil {
		return nothingWritten(err)
	}
	return nil
}

// beginTx is begin for a transaction of database/sql. How that begins is up to the settings of the
// caller's own database, so the lock is asked for inside it.
func (w *writer) beginTx(ctx context.Context, since time.Time) (tx *sql.Tx, err error) {
	err = w.beginBy(ctx, since, func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begun, err := w.conn.BeginTx(background, nil) // which no context may end behind our back
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
	// While the lock is held nobody else commits, but the next look may be long in coming.
	if err := w.noticeOthers(); err != nil {
		w.undo(tx)
		return nil, readable(ctx, err)
	}
	return tx, nil
}

// call runs fn in tx. When ctx ends meanwhile, it rolls tx back and hands on the lead at once; the
// writer is not to be touched any more then. It rolls back, too, when fn does not return.
func (w *writer) call(ctx context.Context, tx *sql.Tx, fn func() error, resign func()) (rolledBack bool, err error) {
	returned := false
	ended := make(chan bool, 1)
	stop := context.AfterFunc(ctx, func() {
		done := tx.Rollback() == nil
		if done {
			resign()
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

// undo rolls tx back, with the connection if need be.
func (w *writer) undo(tx *sql.Tx) {
	if tx.Rollback() != nil {
		w.discard()
	}
}

// lose ends tx, whose state is in doubt, with the connection.
func (w *writer) lose(tx *sql.Tx) {
	_ = tx.Rollback() // discard would wait for it
	w.discard()
}

// settle answers for c, whose transaction was ended by the function that ran inside it and returned
// failure. Fn's error is not wrapped where that could promise too much.
func (s *Store) settle(c persist.Commit, at time.Time, failure error) (time.Time, error) {
	applied, known := s.find(c)
	switch {
	case !known:
		return time.Time{}, fmt.Errorf("%w, and whether it was committed is not known (%v)", errEnded, failure)
	case applied && failure == nil:
		return at, nil
	case applied:
		return time.Time{}, fmt.Errorf("%w, which committed it and then failed: %v", errEnded, failure)
	case failure != nil:
		return time.Time{}, failure
	}
	return time.Time{}, notApplied(errEnded)
}

// find looks whether c was applied, by the records that it writes.
func (s *Store) find(c persist.Commit) (applied, known bool) {
	if len(c.Writes) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(background, s.config.BusyTimeout)
	defer cancel()
	w := c.Writes[0]
	r, err := s.Load(ctx, w.Key)
	switch {
	case errors.Is(err, persist.ErrNotFound):
		return false, true
	case err != nil:
		return false, false
	case slices.Contains(r.Commits, c.ID):
		return true, true
	}
	// Others may have written so often that the id is no longer kept.
	return false, r.Version < w.Version
}
