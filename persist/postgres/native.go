package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
)

// A function of the user runs inside a transaction. What can go wrong:
//
//   - The commit is refused, or its records are locked: the function has not run. The commit is
//     tried again until the function runs; after that nothing is repeated.
//   - It fails, panics, ends its goroutine, or takes too long: the transaction is rolled back.
//   - It leaves the transaction failed, or rows open: the commit is refused.
//   - Its context ends before COMMIT is sent: nothing is written. After that COMMIT continues
//     without the caller.
//   - It has changed synchronous_commit: durable corrects that together with COMMIT.
//   - It uses the transaction after it returned: the transaction is closed.

// errSlow means that the function in a transaction took longer than three quarters of
// CommitTimeout.
var errSlow = fmt.Errorf("%w: the function in the transaction took too long", persist.ErrUnavailable)

// NativeType returns the type pgx.Tx.
func (s *Store) NativeType() reflect.Type { return reflect.TypeFor[pgx.Tx]() }

// CommitWith is Commit that runs fn with a pgx.Tx inside the transaction, after all of c is tested
// and written; c may be empty. The transaction is READ COMMITTED. fn uses its connection, and does
// not call the store, which would need a second one. An error of fn rolls everything back and is
// returned unchanged. Commit and Rollback of the pgx.Tx only return an error. The whole call takes
// at most Config.CommitTimeout from its connection on; the context of fn ends with ctx, or after
// three quarters of that time.
//
// Other errors are those of Commit. An error that wraps persist.ErrNotApplied is also returned if
// fn returned nil too late, after an error of the database that it did not return, or with rows
// left open, and if a deferred constraint fails.
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

// native is a transaction of the store with a function of the caller.
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
		return time.Time{}, notAcquired(r.ctx, err)
	}
	if r.deadline.IsZero() {
		r.deadline = time.Now().Add(s.config.CommitTimeout)
	}
	// The context may interrupt this: COMMIT was not sent.
	ctx, cancel := context.WithDeadlineCause(r.ctx, r.deadline, errNoAnswer)
	defer cancel()
	n.tx, err = n.conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: begin.text, CommitQuery: s.sql.durable + "; " + commit.text})
	if err != nil {
		release(n.conn, err)
		return time.Time{}, notAcquired(r.ctx, err)
	}
	t := &transaction{store: s, conn: n.conn.Conn().PgConn(), patience: patience, begun: true}
	if at, err = t.runOne(ctx, r); err != nil {
		n.rollback(r, err)
		if r.ctx.Err() != nil && lost(err) == nil {
			return time.Time{}, withdrawn(r.ctx)
		}
		return time.Time{}, waitEnded(err, patience)
	}
	return at, nil
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

// spoiled returns the reason why a transaction cannot be committed after a function used it.
func spoiled(tx pgx.Tx) error {
	conn := tx.Conn().PgConn()
	switch {
	case conn.IsClosed():
		return notApplied(errConnectionLost)
	case conn.IsBusy():
		return unfit("the function in the transaction left rows or a batch open")
	case conn.TxStatus() == 'E':
		return unfit("a statement failed in the transaction, and the function did not return the error")
	case conn.TxStatus() == 'I':
		return errors.New("postgres: the outcome is unknown: the function ended the transaction with a statement")
	}
	return nil
}

// commit sends COMMIT. If the caller leaves, it continues in the background; Close waits for it.
func (n *native) commit(r *request) error {
	done := make(chan error, 1)
	n.store.queue.underWay.Go(func() {
		ctx, cancel := context.WithDeadline(context.WithoutCancel(r.ctx), r.deadline)
		defer cancel()
		end := committing(n.conn.Conn().PgConn())
		err := n.tx.Commit(ctx)
		end()
		release(n.conn, err)
		err = committed(err)
		n.store.hintCommit(r.commit, err)
		done <- err
	})
	return outcomeOf(r.ctx, done)
}

// committed returns the error of a COMMIT that failed with err.
func committed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return unfit("the transaction had failed and was rolled back")
	}
	return outcome(err, 0, 0)
}

// rollback ends the transaction and releases its connection.
func (n *native) rollback(r *request, err error) {
	ctx, cancel := n.store.bounded(context.WithoutCancel(r.ctx))
	defer cancel()
	_ = n.tx.Rollback(ctx)
	release(n.conn, err)
}

// putBack returns the statement that restores the settings in row. A transaction of the store keeps
// the limit on idle time, so that a function does not hold locks without end.
func (t *transaction) putBack(row cells) *statement {
	locking, running, idle := row.string(), row.string(), row.string()
	if !t.joined {
		idle = t.store.lifetime()
	}
	return query(t.store.sql.putBack).string(locking).string(running).string(idle)
}

// handle is a transaction that its user cannot end.
type handle struct{ pgx.Tx }

var errNotYours = errors.New("postgres: the store ends the transaction: return nil to commit it, or an error to roll it back")

// Commit returns an error.
func (handle) Commit(context.Context) error { return errNotYours }

// Rollback returns an error.
func (handle) Rollback(context.Context) error { return errNotYours }

// Join returns a store that works inside tx, the caller's own transaction in the database of s, and
// uses only its connection. It is also a persist.Reader, a persist.Native and a persist.Logger. Like tx, it is not
// safe for concurrent use, and it ends with tx. Its Close does not end tx; after that, and after
// Close of s, calls return persist.ErrClosed.
//
// Its commits become visible and durable when the caller commits tx. Until then the records stay
// locked, so commit soon. A commit that fails leaves nothing behind in tx. It waits for locks for
// half of Config.CommitTimeout, or three quarters of the time left in its context. As with every
// use of pgx, a context that ends during a call closes the connection, and with it tx. Errors are
// *persist.Conflict, *persist.Fenced and persist.ErrClosed; all others wrap persist.ErrNotApplied,
// because tx cannot be committed after its connection was lost. So does a deadlock, which the
// server ends. Errors of reading are those of s.
//
// A REPEATABLE READ or SERIALIZABLE transaction cannot commit to a record that was changed, created
// or purged after its snapshot was taken. The error wraps persist.ErrNotApplied and a
// *pgconn.PgError with code 40001; the caller has to repeat tx. A *persist.Conflict in such a
// transaction contains current records.
func (s *Store) Join(tx pgx.Tx) persist.Store {
	j := &joined{store: s, tx: tx}
	j.reads = reads{&s.sql, j.read}
	return j
}

// joined is a store inside a transaction of the caller.
//
// Each call first sets a savepoint through tx: an ended pgx.Tx returns an error, while its
// connection may already be in use elsewhere.
type joined struct {
	reads
	store  *Store
	tx     pgx.Tx
	closed bool
}

var (
	_ persist.Store  = (*joined)(nil)
	_ persist.Reader = (*joined)(nil)
	_ persist.Native = (*joined)(nil)
	_ persist.Logger = (*joined)(nil)
)

// pgx does not use this name. Savepoints of nested calls hide each other.
const setSavepoint = "SAVEPOINT pawl"

var (
	releaseSavepoint = query("RELEASE SAVEPOINT pawl")
	backToSavepoint  = query("ROLLBACK TO SAVEPOINT pawl")
)

// Commit is Commit of Store, in the transaction; see Join.
func (j *joined) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	return j.commit(ctx, c, nil)
}

// CommitWith is Commit that also runs fn in the transaction. An error of fn is returned unchanged;
// c and the statements of fn are undone, and the transaction continues.
func (j *joined) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (time.Time, error) {
	if err := validateNative(c); err != nil {
		return time.Time{}, err
	}
	return j.commit(ctx, c, fn)
}

// NativeType returns the type pgx.Tx.
func (j *joined) NativeType() reflect.Type { return j.store.NativeType() }

// Close makes later calls return persist.ErrClosed, and returns nil.
func (j *joined) Close() error {
	j.closed = true
	return nil
}

// begin counts a call until it calls j.store.queue.end.
func (j *joined) begin() error {
	if j.closed {
		return persist.ErrClosed
	}
	return j.store.queue.begin()
}

// read runs one statement that changes nothing.
func (j *joined) read(ctx context.Context, s *statement) (answer, error) {
	if err := j.begin(); err != nil {
		return nil, err
	}
	defer j.store.queue.end()
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	bounded, cancel := j.store.bounded(ctx)
	defer cancel()
	if _, err := j.tx.Exec(bounded, setSavepoint); err != nil {
		return nil, j.explain(ctx, err)
	}
	s.prepared = nil // an unknown name would fail
	answers, err := roundTrip(bounded, j.tx.Conn().PgConn(), s, releaseSavepoint)
	if err != nil {
		j.back(ctx)
		return nil, j.explain(ctx, err)
	}
	return answers[0], nil
}

// commit commits c, and runs fn unless it is nil.
func (j *joined) commit(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (at time.Time, err error) {
	r, err := newRequest(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	if err := j.begin(); err != nil {
		return time.Time{}, err
	}
	defer j.store.queue.end()
	patience := j.store.config.CommitTimeout / 2
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)*3/4)
	}
	r.deadline = time.Now().Add(patience)
	at, err = j.attempt(r, fn == nil)
	// A record that another transaction created, or purged and created again, is visible to the
	// next attempt.
	for inTheWay(err) && (errors.Is(err, errBusy) || sqlState(err) == codeUniqueViolation) &&
		time.Until(r.deadline) > firstPause && pause(ctx, firstPause) {
		at, err = j.attempt(r, fn == nil)
	}
	if err != nil {
		return time.Time{}, err
	}
	if fn != nil {
		err = j.with(ctx, fn)
	}
	if err != nil {
		return time.Time{}, err
	}
	j.store.hintLater(c)
	return at, nil
}

// attempt commits r, and releases the savepoint if last is set. After an error nothing of r is
// left.
func (j *joined) attempt(r *request, last bool) (time.Time, error) {
	patience := max(time.Until(r.deadline), firstPause)
	ctx, cancel := j.store.bounded(r.ctx)
	defer cancel()
	if _, err := j.tx.Exec(ctx, setSavepoint); err != nil {
		return time.Time{}, j.notApplied(r.ctx, err)
	}
	t := &transaction{store: j.store, conn: j.tx.Conn().PgConn(), patience: patience, begun: true, joined: true}
	if last {
		t.ending = []*statement{releaseSavepoint}
	}
	at, err := t.runOne(ctx, r)
	if err == nil {
		return at, nil
	}
	j.back(ctx)
	if lost(err) != nil {
		return time.Time{}, err
	}
	return time.Time{}, j.notApplied(r.ctx, waitEnded(err, patience))
}

// with runs fn and releases the savepoint, or goes back to it.
func (j *joined) with(ctx context.Context, fn func(ctx context.Context, tx any) error) error {
	kept := false
	defer func() {
		if !kept { // also when fn panics or ends its goroutine
			j.back(ctx)
		}
	}()
	if err := fn(ctx, handle{j.tx}); err != nil {
		return err
	}
	if err := spoiled(j.tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return withdrawn(ctx)
	}
	bounded, cancel := j.store.bounded(ctx)
	defer cancel()
	if _, err := roundTrip(bounded, j.tx.Conn().PgConn(), releaseSavepoint); err != nil {
		return j.notApplied(ctx, err)
	}
	kept = true
	return nil
}

// back rolls back to the savepoint. If that fails it closes the connection, so that nothing of a
// refused commit can be committed.
func (j *joined) back(ctx context.Context) {
	ctx, cancel := j.store.bounded(context.WithoutCancel(ctx))
	defer cancel()
	if _, err := roundTrip(ctx, j.tx.Conn().PgConn(), backToSavepoint, releaseSavepoint); err != nil {
		hangUp(j.tx.Conn().PgConn())
	}
}

// notApplied returns an error that wraps persist.ErrNotApplied. This is certain for any err: only a
// COMMIT on the same connection could apply the commit, and a lost connection has none.
func (j *joined) notApplied(ctx context.Context, err error) error {
	if errors.Is(err, persist.ErrNotApplied) && ctx.Err() == nil && sqlState(err) != codeSerializationFailure {
		return err
	}
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, j.explain(ctx, err))
}

// explain is failed for an error in a transaction of the caller.
func (j *joined) explain(ctx context.Context, err error) error {
	var answered *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("postgres: %w", pgx.ErrTxClosed)
	case errors.As(err, &answered) && answered.Code == codeSerializationFailure: // does not end by itself here
		return fmt.Errorf("postgres: the transaction must be repeated: %w", answered)
	}
	return failed(ctx, err)
}
