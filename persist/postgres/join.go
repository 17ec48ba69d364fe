package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// Join returns a store that does everything inside tx, the caller's own transaction in the database of
// s, on its connection and no other. It is a persist.Reader and a persist.Native, too. Like tx, it is
// not safe for concurrent use, and is of no use when tx has ended. Close leaves tx alone; after Close
// of s, or its own, calls return persist.ErrClosed.
//
// What it commits is there for others, and durable, when tx is committed, which it never does; until
// then the records stay locked, so commit soon. A commit that fails leaves nothing behind, and tx as it
// was before. It waits for locks until half of Config.CommitTimeout, or three quarters of the time that
// its context has left, are over; as with every use of pgx, a context that ends during a call costs the
// connection, and with that tx. Its errors are *persist.Conflict, *persist.Fenced, persist.ErrClosed,
// and otherwise wrap persist.ErrNotApplied, because tx cannot be committed on a connection that is lost;
// so does a deadlock with another transaction, which the server ends. Errors of reading are those of s.
//
// A transaction that is REPEATABLE READ or SERIALIZABLE cannot commit to a record that was changed,
// created or purged after its snapshot was taken: the error then wraps persist.ErrNotApplied and a
// *pgconn.PgError with code 40001, and the caller has to repeat tx from its beginning. A
// *persist.Conflict in such a transaction is about records that are current.
func (s *Store) Join(tx pgx.Tx) persist.Store { return &joined{store: s, tx: tx} }

// joined is a store in somebody else's transaction.
//
// Each call sets a savepoint first, through tx itself: a pgx.Tx that has ended knows that, and its
// connection may be in somebody else's hands by then.
type joined struct {
	store  *Store
	tx     pgx.Tx
	closed bool
}

var (
	_ persist.Store  = (*joined)(nil)
	_ persist.Reader = (*joined)(nil)
	_ persist.Native = (*joined)(nil)
)

// No savepoint of pgx is called so. Those of calls inside of calls hide each other, as they should.
const setSavepoint = "SAVEPOINT pawl"

var (
	releaseSavepoint = query("RELEASE SAVEPOINT pawl")
	backToSavepoint  = query("ROLLBACK TO SAVEPOINT pawl")
)

// Load is Load of Store, in the transaction.
func (j *joined) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	return reads{&j.store.sql, j.read}.load(ctx, key)
}

// LoadAll is LoadAll of Store, in the transaction.
func (j *joined) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return reads{&j.store.sql, j.read}.loadAll(ctx, keys)
}

// List is List of Store, in the transaction.
func (j *joined) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	return reads{&j.store.sql, j.read}.list(ctx, q)
}

// Commit is Commit of Store, in the transaction; see Join.
func (j *joined) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	return j.commit(ctx, c, nil)
}

// CommitWith is Commit with fn run in the transaction, too, with ctx. An error of fn is returned
// unchanged, and as after any other, nothing is left of c or fn, and the transaction goes on.
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

// begin lets a call in, which must call j.store.queue.end.
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
	s.prepared = nil // a name that is not known would cost a second try
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
	// Somebody else who created the record, or purged and created it anew, is seen the next time.
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

// attempt does all of r, and releases the savepoint if last is set. After an error nothing of it is left.
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
	t.add(r)
	err := t.within(ctx)
	if err == nil {
		return t.at, nil
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

// back goes back to the savepoint. Where that fails, the connection is closed, so that nothing of a
// commit that was refused can be committed.
func (j *joined) back(ctx context.Context) {
	ctx, cancel := j.store.bounded(context.WithoutCancel(ctx))
	defer cancel()
	if _, err := roundTrip(ctx, j.tx.Conn().PgConn(), backToSavepoint, releaseSavepoint); err != nil {
		hangUp(j.tx.Conn().PgConn())
	}
}

// notApplied says that nothing was written. That is certain, whatever err is: what was written could
// be committed only by a COMMIT that follows on the same connection, and there is none on one that is
// lost.
func (j *joined) notApplied(ctx context.Context, err error) error {
	if errors.Is(err, persist.ErrNotApplied) && ctx.Err() == nil && sqlState(err) != codeSerializationFailure {
		return err
	}
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, j.explain(ctx, err))
}

// explain is failed for an error in the transaction.
func (j *joined) explain(ctx context.Context, err error) error {
	var answered *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("postgres: %w", pgx.ErrTxClosed)
	case errors.As(err, &answered) && answered.Code == codeSerializationFailure: // which does not pass by itself here
		return fmt.Errorf("postgres: the transaction must be repeated: %w", answered)
	}
	return failed(ctx, err)
}
