package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// How often a lock that others hold is asked for, and how it is shared. SQLite's own busy handler
// serves processes unfairly, so waiting is done here. Whoever waits asks again within longestPause,
// so a lock that is left free for that long is taken.
const (
	firstPause     = 200 * time.Microsecond
	longestPause   = 2 * time.Millisecond
	reign          = 100 * time.Millisecond // how long this process keeps the lock busy at a stretch
	contendedReign = 20 * time.Millisecond  // the same when others have written meanwhile
)

// background is for statements of a transaction, which no caller's context may interrupt.
var background = context.Background()

// writer is the one connection that writes. It belongs to the leader of the queue.
type writer struct {
	sql       statements
	config    Config
	db        *sql.DB
	configure func(context.Context, *writer) error // makes or finds the connection durable
	changes   *hints.Hub                           // learns what was committed

	conn *sql.Conn // nil after a failure; ready connects again
	busy int       // the busy timeout that the connection had, in milliseconds
	on   closer    // conn with the statements of commits

	// The lock was held time and again from reignSince to reignSeen; at reignAsked it was asked
	// whether others write too.
	reignSince, reignSeen, reignAsked time.Time
	contended                         bool  // others have written since that was last looked at
	dataVersion                       int64 // of conn, see noticeOthers
}

// The statements of a transaction of our own.
const (
	textBegin    = "BEGIN IMMEDIATE"
	textCommit   = "COMMIT"
	textRollback = "ROLLBACK"
)

func newWriter(statements statements, config Config, db *sql.DB, configure func(context.Context, *writer) error, changes *hints.Hub) *writer {
	return &writer{sql: statements, config: config, db: db, configure: configure, changes: changes}
}

// connect opens the connection and makes sure that what it commits is durable.
func (w *writer) connect(ctx context.Context) error {
	return w.patiently(ctx, time.Now(), func() error {
		conn, err := w.freeConn(ctx)
		if err != nil {
			return err
		}
		w.conn = conn
		w.dataVersion = math.MinInt64 // which it never is: who knows what happened meanwhile
		if err := w.configure(ctx, w); err != nil {
			w.conn = nil
			return errors.Join(err, conn.Close())
		}
		return nil
	})
}

// freeConn returns a connection of the pool, which somebody else may have used up.
func (w *writer) freeConn(ctx context.Context) (*sql.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, w.config.BusyTimeout)
	defer cancel()
	conn, err := w.db.Conn(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, errNoConnection
	}
	return conn, err
}

// roomy gives the connection that writes 16 MiB, so that it need not read what it has written, and lets the log grow to 8 MiB before its pages are
// written back: many commits change the same pages, each of which is written back once.
const roomy = "PRAGMA cache_size=-16384; PRAGMA wal_autocheckpoint=2000"

// useWAL brings a database of our own into WAL mode.
func useWAL(ctx context.Context, w *writer) error {
	var mode string
	if err := w.conn.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
		return err
	}
	if _, err := w.conn.ExecContext(ctx, roomy); err != nil {
		return err
	}
	return requireWAL(ctx, w)
}

// requireWAL refuses a connection that would lose an acknowledged commit when the power fails.
func requireWAL(ctx context.Context, w *writer) error {
	var mode string
	if err := w.conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("journal_mode is %q, and must be WAL", mode)
	}
	var synchronous int
	if err := w.conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return err
	}
	if err := durable(synchronous); err != nil {
		return err
	}
	if err := w.conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&w.busy); err != nil {
		return err
	}
	_, err := w.conn.ExecContext(ctx, "PRAGMA busy_timeout=0") // patiently waits instead
	return err
}

// durable returns an error for a setting that would lose an acknowledged commit when the power fails.
func durable(synchronous int) error {
	if synchronous < 2 {
		return fmt.Errorf("synchronous is %d, and must be FULL (2) or EXTRA (3) on every connection: set it in the data source name", synchronous)
	}
	return nil
}

// prepare prepares the statements of commits.
func (w *writer) prepare(ctx context.Context) error {
	var err error
	w.on, err = prepareConn(ctx, w.conn, textBegin, textCommit, textRollback, w.sql.load, w.sql.floor, w.sql.store, w.sql.touch, w.sql.next, w.sql.nextAlone)
	return err
}

// close gives the connection back as it was.
func (w *writer) close() error {
	if w.conn == nil {
		return nil
	}
	var errs []error
	if w.on != nil { // it got as far as that
		errs = append(errs, w.on.close())
	}
	_, err := w.conn.ExecContext(background, fmt.Sprintf("PRAGMA busy_timeout=%d", w.busy))
	errs = append(errs, err, w.conn.Close())
	w.conn, w.on = nil, nil
	return errors.Join(errs...)
}

// discard closes a connection whose state is in doubt; with it ends whatever transaction it had.
func (w *writer) discard() {
	if w.conn == nil {
		return
	}
	if w.on != nil {
		_ = w.on.close()
	}
	_ = w.conn.Raw(func(any) error { return errDiscard })
	_ = w.conn.Close()
	w.conn, w.on = nil, nil
}

// ready makes sure that there is a connection.
func (w *writer) ready(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	if err := w.connect(ctx); err != nil {
		return err
	}
	if err := w.prepare(ctx); err != nil {
		w.discard()
		return err
	}
	return nil
}

// begin starts a transaction that holds the write lock. It asks until ctx ends or until the busy
// timeout since then has passed, once at least.
func (w *writer) begin(ctx context.Context, since time.Time) error {
	return w.beginBy(ctx, since, func() error {
		_, err := w.on.ExecContext(background, textBegin)
		return err
	})
}

// beginBy is begin with the transaction started by try.
func (w *writer) beginBy(ctx context.Context, since time.Time, try func() error) error {
	if err := w.yield(ctx); err != nil {
		return err
	}
	if err := w.ready(ctx); err != nil {
		return err
	}
	err := w.patiently(ctx, since, try)
	if err != nil && ctx.Err() == nil && !isUnavailable(err) {
		w.discard()
	}
	return err
}

// yield leaves the lock free for a moment when this process has kept it busy for long, for other
// processes have no other chance to get it.
func (w *writer) yield(ctx context.Context) error {
	now := time.Now()
	if w.conn == nil || !w.mayHaveToYield(now) {
		return nil
	}
	w.reignAsked = now
	if err := w.noticeOthers(); err != nil {
		return readable(ctx, err)
	}
	contended := w.contended
	w.contended = false
	if !contended && now.Sub(w.reignSince) < reign {
		return nil
	}
	w.reignSince = now
	return pause(ctx, longestPause)
}

// mayHaveToYield reports whether it is time to ask that.
func (w *writer) mayHaveToYield(now time.Time) bool {
	if now.Sub(w.reignSeen) > longestPause {
		w.reignSince, w.reignAsked = now, now
	}
	return now.Sub(w.reignAsked) >= contendedReign
}

// noticeOthers finds out whether other connections have committed since it was last asked, and
// tells those who watch. It must be asked on one and the same connection: the number that it reads
// is the connection's own count of the times that it found the database changed by others, and means
// nothing beside that of another connection. As it is the connection that writes, what this
// store commits does not count.
func (w *writer) noticeOthers() error {
	var version int64
	if err := w.conn.QueryRowContext(background, "PRAGMA data_version").Scan(&version); err != nil {
		return err
	}
	if version != w.dataVersion {
		w.dataVersion, w.contended = version, true
		w.changes.Send(persist.Hint{})
	}
	return nil
}

// patiently tries again with full jitter while the database is locked, until ctx ends or the busy
// timeout since then has passed. It returns an error that wraps persist.ErrUnavailable then.
func (w *writer) patiently(ctx context.Context, since time.Time, try func() error) error {
	return patiently(ctx, since, w.config.BusyTimeout, try)
}

func patiently(ctx context.Context, since time.Time, timeout time.Duration, try func() error) error {
	for limit := firstPause; ; limit = min(2*limit, longestPause) {
		err := try()
		if err == nil {
			return nil
		}
		if !isBusy(err) {
			return readable(ctx, err)
		}
		if time.Since(since) >= timeout {
			return errLocked
		}
		if err := pause(ctx, rand.N(limit)); err != nil {
			return err
		}
	}
}

// pause returns after d, or earlier with ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// run does the work of all requests in the transaction that has begun, ends it, and fills in the
// answers. None is given before the end: each may rest on what a sibling wrote.
func (w *writer) run(requests []*request) {
	err := w.attempt(requests)
	w.reignSeen = time.Now()
	if err == nil || len(requests) == 1 {
		answerAll(requests, err)
		return
	}
	// One of them cannot be written. Nothing is, so each gets a transaction of its own.
	if !errors.Is(err, errNothingWritten) {
		answerAll(requests, err)
		return
	}
	for _, r := range requests {
		if err := w.begin(background, time.Now()); err != nil {
			r.err = notApplied(err)
			continue
		}
		answerAll([]*request{r}, w.attempt([]*request{r}))
	}
}

// single commits r, which has a next and shares with nobody, in the transaction that SQLite makes of a statement by itself. It reports
// false if nothing was written and it is to be tried the usual way, which knows what to do.
func (w *writer) single(r *request) bool {
	if w.conn == nil || w.mayHaveToYield(time.Now()) {
		return false
	}
	b := newBatch(w.sql, w.on)
	done, err := b.putNext(r.commit, r.next)
	w.reignSeen = time.Now()
	switch {
	case done:
		r.at = b.now
		w.changes.Send(b.hints...)
		return true
	case err == nil:
		r.next = nil // so that it is not tried once more
		return false
	case isBusy(err):
		return false
	}
	switch resultCode(err) & 0xff {
	case codeError, codeReadOnly, codeFull, codeTooBig, codeConstraint: // before the last frame, which would have made the others count
		return false
	}
	// As after COMMIT, of which this is a part: the last frame may be in the file although it could not be synced.
	w.discard()
	r.err = fmt.Errorf("sqlite: commit: %w", err)
	return true
}

// answerAll gives every request that has no failure of its own the failure of the transaction.
func answerAll(requests []*request, failure error) {
	if failure == nil {
		return
	}
	for _, r := range requests {
		if r.err != nil && !errors.Is(failure, persist.ErrNotApplied) {
			// Its answer may rest on what a sibling failed to write, but it wrote nothing itself.
			r.err = notApplied(failure)
			continue
		}
		r.err = failure
	}
}

// attempt runs the requests and commits. An error that wraps errNothingWritten says that the
// transaction was rolled back; after any other, it may have happened.
func (w *writer) attempt(requests []*request) error {
	b := newBatch(w.sql, w.on)
	for _, r := range requests {
		r.at, r.err = b.now, r.do(b)
		if b.failure != nil {
			break
		}
	}
	if b.failure == nil {
		b.flush()
	}
	if b.failure != nil {
		w.rollback()
		return nothingWritten(b.failure)
	}
	_, err := w.on.ExecContext(background, textCommit)
	if err == nil {
		w.changes.Send(b.hints...)
		return nil
	}
	rolledBack := w.rollback()
	if code := resultCode(err) & 0xff; rolledBack && (isBusy(err) || code == codeFull) {
		// The lock was not had, or there was no room for the last frame, which is the one that
		// would have made the others count.
		return nothingWritten(err)
	}
	// The last frame may be in the file although it could not be synced.
	w.discard()
	return fmt.Errorf("sqlite: commit: %w", err)
}

// rollback ends the transaction and reports whether that is certain; if not, the connection goes
// with it.
func (w *writer) rollback() bool {
	_, err := w.on.ExecContext(background, textRollback)
	if err == nil || resultCode(err) == codeError { // SQLite had rolled back by itself
		return true
	}
	w.discard()
	return false
}
