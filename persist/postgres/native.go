package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
)

// What may go wrong around a function of the user's inside a transaction, and what becomes of it:
//
//   - The commit is refused, or somebody has its records locked: the function has not run. Until it
//     runs, all may be tried again; once it has, nothing is.
//   - It fails, panics, ends its goroutine, or takes too long: the transaction is rolled back.
//   - It leaves the transaction failed, or rows open: COMMIT would roll back, or not be sent at all.
//   - Its context ends before COMMIT is sent: nothing is written. After that COMMIT goes on without
//     the caller.
//   - It has changed synchronous_commit: that is mended together with COMMIT.
//   - It goes on using the transaction when it has returned: that is closed by then.

// errSlow says that a function in a transaction took too long.
var errSlow = fmt.Errorf("%w: the function in the transaction took too long", persist.ErrUnavailable)

// NativeType returns the type pgx.Tx.
func (s *Store) NativeType() reflect.Type { return reflect.TypeFor[pgx.Tx]() }

// CommitWith is Commit with fn, which gets a pgx.Tx, run inside the transaction when all of c is tested
// and written; c may be empty. The transaction is READ COMMITTED and has a connection of its own: fn
// uses that, and does not call the store, which would need a second one. An error of fn rolls
// everything back and is returned unchanged. Commit and Rollback of the pgx.Tx return an error, and do
// nothing else. From its connection on, all has to be done within Config.CommitTimeout; fn's context
// ends when three quarters of that are over, or with ctx.
//
// Other errors are those of Commit. One that wraps persist.ErrNotApplied is also returned when fn has
// returned nil, but too late, after an error of the database that it did not pass on, or with rows
// left open; and when a constraint that is deferred fails.
func (s *Store) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if err := validateNative(c); err != nil {
		return time.Time{}, err
	}
	r, err := newRequest(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	if err := s.queue.begin(); err != nil {
		return time.Time{}, err
	}
	defer s.queue.end()
	n := &native{store: s}
	at, err := n.open(r, 0)
	at, err = s.insist(r, at, err, n.open)
	switch {
	case inTheWay(err) && ctx.Err() != nil:
		return time.Time{}, withdrawn(ctx)
	case err != nil:
		s.hintCommit(r.commit, err) // if it lost to itself
		return time.Time{}, err
	}
	if err := n.finish(r, fn); err != nil {
		return time.Time{}, err
	}
	return at, nil
}

// validateNative is persist.Commit.Validate for a commit that may be empty.
func validateNative(c persist.Commit) error {
	if len(c.Writes) == 0 && len(c.Guards) == 0 {
		c.Guards = []persist.Guard{{Key: persist.Key{Kind: "any", ID: "any"}, Read: true}}
	}
	return c.Validate()
}

// native is a transaction that is shared with a function.
type native struct {
	store *Store
	conn  *pgxpool.Conn
	tx    pgx.Tx
}

// open begins the transaction and does all of r but COMMIT. After an error nothing is open.
func (n *native) open(r *request, patience time.Duration) (at time.Time, err error) {
	s := n.store
	n.conn, err = s.acquire(r.ctx)
	if err != nil {
		if r.ctx.Err() != nil {
			return time.Time{}, withdrawn(r.ctx)
		}
		return time.Time{}, notApplied(err)
	}
	if r.deadline.IsZero() { // its turn has come
		r.deadline = time.Now().Add(s.config.CommitTimeout)
	}
	// Whatever interrupts this, COMMIT was not sent.
	ctx, cancel := context.WithDeadlineCause(r.ctx, r.deadline, errNoAnswer)
	defer cancel()
	n.tx, err = n.conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: begin.text, CommitQuery: s.sql.durable + "; " + commit.text})
	if err != nil {
		release(n.conn, err)
		if r.ctx.Err() != nil {
			return time.Time{}, withdrawn(r.ctx)
		}
		return time.Time{}, notApplied(err)
	}
	t := &transaction{store: s, conn: n.conn.Conn().PgConn(), patience: patience, begun: true}
	t.add(r)
	if err = t.within(ctx); err != nil {
		n.rollback(r, err)
		if r.ctx.Err() != nil && lost(err) == nil {
			return time.Time{}, withdrawn(r.ctx)
		}
		return time.Time{}, waitEnded(err, patience)
	}
	return t.at, nil
}

// finish runs fn and commits, or rolls back.
func (n *native) finish(r *request, fn func(ctx context.Context, tx any) error) (err error) {
	committing := false
	defer func() {
		if !committing { // also when fn panics or ends its goroutine
			n.rollback(r, err)
		}
	}()
	ctx, cancel := context.WithDeadlineCause(r.ctx, r.deadline.Add(-n.store.config.CommitTimeout/4), errSlow)
	defer cancel()
	if err := fn(ctx, handle{n.tx}); err != nil {
		return err
	}
	switch err := spoiled(n.tx); {
	case err != nil:
		n.store.hintCommit(r.commit, err)
		return err
	case r.ctx.Err() != nil:
		return withdrawn(r.ctx)
	case ctx.Err() != nil:
		return notApplied(errSlow)
	}
	committing = true
	return n.commit(r)
}

// spoiled says why a transaction, which a function has used, cannot be committed.
func spoiled(tx pgx.Tx) error {
	conn := tx.Conn().PgConn()
	switch {
	case conn.IsClosed():
		return notApplied(errConnectionLost)
	case conn.IsBusy():
		return unfit("the function in the transaction has left rows or a batch open")
	case conn.TxStatus() == 'E':
		return unfit("a statement of the function in the transaction has failed, which it did not return as its error")
	case conn.TxStatus() == 'I':
		return errors.New("postgres: the outcome is unknown: the function has ended the transaction by a statement")
	}
	return nil
}

// commit sends COMMIT. The caller may leave, and then it goes on in the background, where Close waits
// for it.
func (n *native) commit(r *request) error {
	done := make(chan error, 1)
	n.store.queue.underWay.Go(func() {
		ctx, cancel := context.WithDeadline(context.WithoutCancel(r.ctx), r.deadline)
		defer cancel()
		err := n.tx.Commit(ctx)
		release(n.conn, err)
		err = committed(err)
		n.store.hintCommit(r.commit, err)
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-r.ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return leftBehind(r.ctx)
	}
}

// committed is the error of a COMMIT, sent by itself, that failed with err. An ERROR of the server,
// such as one of a deferred constraint, has rolled back: a transaction that is committed is beyond
// errors, the server would sooner stop.
func committed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return unfit("the transaction had failed, and was rolled back")
	case refused(err):
		return notApplied(err)
	}
	return fmt.Errorf("the outcome is unknown: %w", explain(err))
}

// rollback ends the transaction, and gives its connection back. A connection that it fails on is closed.
func (n *native) rollback(r *request, err error) {
	ctx, cancel := n.store.bounded(context.WithoutCancel(r.ctx))
	defer cancel()
	_ = n.tx.Rollback(ctx)
	release(n.conn, err)
}

// within does its only part in a transaction that is begun, and leaves that open.
func (t *transaction) within(ctx context.Context) error {
	if err := t.lock(ctx); err != nil {
		return notApplied(err)
	}
	if len(t.parts[0].keys) > 0 {
		t.apply(t.parts[0])
	}
	t.finish(ctx)
	return t.parts[0].err
}

// putBack returns the statement that makes settings what they were, which row tells. Those who have
// the transaction from us are not to hold its locks while they do nothing.
func (t *transaction) putBack(row cells) *statement {
	locking, running, idle := row.string(), row.string(), row.string()
	if !t.joined {
		idle = t.store.lifetime()
	}
	return query(t.store.sql.putBack).string(locking).string(running).string(idle)
}

// handle is a transaction for those who do not end it.
type handle struct{ pgx.Tx }

var errNotYours = errors.New("postgres: the transaction is ended by the store: return nil to commit it, or an error to roll it back")

// Commit returns an error.
func (handle) Commit(context.Context) error { return errNotYours }

// Rollback returns an error.
func (handle) Rollback(context.Context) error { return errNotYours }
