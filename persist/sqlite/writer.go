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
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Waiting for a lock that another process holds, and sharing the lock. SQLite's own busy handler
// serves processes unfairly, so the store waits by itself. Every waiting process asks again within
// longestPause: a lock that is left free for that long is taken.
const (
	firstPause   = 200 * time.Microsecond
	longestPause = 2 * time.Millisecond
	longTurn     = 100 * time.Millisecond // a process may keep the lock busy for this long,
	shortTurn    = 20 * time.Millisecond  // or this long if others wrote during its last turn
)

// background is the context of statements in a transaction, which no caller may interrupt.
var background = context.Background()

// writer is the one connection that writes. Only the goroutine that has acquired the queue's writer
// uses it.
type writer struct {
	sql     statements
	config  Config
	db      *sql.DB
	own     bool       // the database is the store's own, and may be brought into WAL mode
	changes *hints.Hub // gets a hint of every commit
	home    home       // set by the first call of ready

	conn *sql.Conn // nil after a failure; ready connects again
	on   prepared  // conn with the statements of commits
	busy int       // the connection's own busy timeout in milliseconds, restored by close
	log  openFile  // of conn

	turn        turn
	dataVersion int64 // of conn, see noticeOthers
}

// turn is the time for which this process has kept the lock busy.
type turn struct {
	began  time.Time
	used   time.Time // the end of the last transaction
	others bool      // other connections wrote, as noticed since the turn before ended
}

// The statements that begin and end a transaction.
const (
	textBegin    = "BEGIN IMMEDIATE"
	textCommit   = "COMMIT"
	textRollback = "ROLLBACK"
)

// ready connects if there is no connection: it verifies that commits are durable, migrates, notes
// which files are open, and prepares.
func (w *writer) ready(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	if err := w.home.file.inPlace(); err != nil { // a new connection would open another database
		return err
	}
	err := w.patiently(ctx, time.Now(), func() (err error) {
		if w.conn, err = w.freeConn(ctx); err != nil {
			return err
		}
		w.dataVersion = math.MinInt64 // which it never is: anything may have happened meanwhile
		if err := w.configure(ctx); err != nil {
			w.discard()
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.migrate(ctx); err != nil {
		w.discard()
		return err
	}
	if err := w.locate(ctx); err != nil {
		w.discard()
		return readable(ctx, err)
	}
	w.on, err = prepare(ctx, w.conn, textBegin, textCommit, textRollback, w.sql.load, w.sql.store, w.sql.update,
		w.sql.log.taken, w.sql.log.drop, w.sql.log.append)
	if err != nil {
		w.discard()
		return readable(ctx, err)
	}
	return nil
}

// locate notes the files that conn, which is new, has opened. It returns an error if they are not
// those of the connection before it.
func (w *writer) locate(ctx context.Context) error {
	home, err := homeOf(ctx, w.conn)
	if err != nil {
		return err
	}
	if w.home.library == "" {
		w.home = home
	}
	w.log = openFile{}
	if home.file.info != nil {
		w.log = openedFile(home.file.path + "-wal")
	}
	return w.inPlace()
}

// inPlace returns an error that wraps persist.ErrUnavailable if the database file or its log was
// removed or replaced: a commit would be lost.
func (w *writer) inPlace() error {
	if err := w.home.file.inPlace(); err != nil {
		return err
	}
	return w.log.inPlace()
}

// freeConn returns a connection of the pool. It returns an error that wraps persist.ErrUnavailable
// when the application uses all of them for longer than the busy timeout.
func (w *writer) freeConn(ctx context.Context) (*sql.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, w.config.BusyTimeout)
	defer cancel()
	conn, err := w.db.Conn(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, errNoConnection
	}
	return conn, err
}

// roomy lets the connection cache 16 MiB, so that it need not read what it has written.
const roomy = "PRAGMA cache_size=-16384"

// configure brings a database of the store's own into WAL mode, and sets the cache and the busy
// timeout of the connection. It returns an error if the connection could lose an acknowledged commit
// when the power fails, or the database would sort names by another order than persist.Key.Compare.
func (w *writer) configure(ctx context.Context) error {
	journal := "PRAGMA journal_mode"
	if w.own {
		if _, err := w.conn.ExecContext(ctx, roomy); err != nil {
			return err
		}
		journal += "=WAL"
	}
	var mode string
	if err := w.conn.QueryRowContext(ctx, journal).Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("journal_mode is %q, and must be WAL", mode)
	}
	var encoding string
	if err := w.conn.QueryRowContext(ctx, "PRAGMA encoding").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF-8" {
		return fmt.Errorf("encoding is %s, and must be UTF-8", encoding)
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

// durable returns an error for a setting that can lose an acknowledged commit when the power fails.
func durable(synchronous int) error {
	if synchronous < 2 {
		return fmt.Errorf("synchronous is %d, and must be FULL (2) or EXTRA (3) on every connection: set it in the data source name", synchronous)
	}
	return nil
}

// close gives the connection back as it was.
func (w *writer) close() error {
	if w.conn == nil {
		return nil
	}
	err := w.on.close()
	_, reset := w.conn.ExecContext(background, fmt.Sprintf("PRAGMA busy_timeout=%d", w.busy))
	err = errors.Join(err, reset, w.conn.Close())
	w.conn, w.on = nil, prepared{}
	return err
}

// discard closes a connection whose state is in doubt, and ends its transaction.
func (w *writer) discard() {
	if w.conn == nil {
		return
	}
	_ = w.on.close()
	_ = w.conn.Raw(func(any) error { return errDiscard })
	_ = w.conn.Close()
	w.conn, w.on = nil, prepared{}
}

// begin starts a transaction that holds the write lock. It asks until ctx ends or until the busy
// timeout after since has passed, once at least.
func (w *writer) begin(ctx context.Context, since time.Time) error {
	return w.beginBy(ctx, since, func() error {
		_, err := w.on.ExecContext(background, textBegin)
		return err
	})
}

// beginBy is begin with the transaction started by try.
func (w *writer) beginBy(ctx context.Context, since time.Time, try func() error) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	if err := w.share(ctx); err != nil {
		return err
	}
	err := w.patiently(ctx, since, try)
	if err != nil && ctx.Err() == nil && !errors.Is(err, persist.ErrUnavailable) {
		w.discard()
	}
	return err
}

// share ends the turn of this process when it is over: it leaves the lock free for a moment, in
// which other processes get it. The next turn is short if others have written.
func (w *writer) share(ctx context.Context) error {
	now, t := time.Now(), &w.turn
	if now.Sub(t.used) > longestPause { // others had their chance
		t.began = now
	}
	length := longTurn
	if t.others {
		length = shortTurn
	}
	if now.Sub(t.began) < length {
		return nil
	}
	t.began, t.others = now, false
	if err := w.noticeOthers(); err != nil {
		return readable(ctx, err)
	}
	return pause(ctx, longestPause)
}

// noticeOthers finds out whether other connections have committed since the last call, and sends
// watchers a hint. It asks the connection that writes, on which the store's own commits do not
// count: the number changes when another connection has committed.
func (w *writer) noticeOthers() error {
	var version int64
	if err := w.conn.QueryRowContext(background, "PRAGMA data_version").Scan(&version); err != nil {
		return err
	}
	if version != w.dataVersion {
		w.dataVersion, w.turn.others = version, true
		w.changes.Send(persist.Hint{})
	}
	return nil
}

// patiently tries again while the database is locked, after random pauses, until ctx ends or the
// busy timeout after since has passed. It returns the cause of ctx, or errLocked, then.
func (w *writer) patiently(ctx context.Context, since time.Time, try func() error) error {
	for limit := firstPause; ; limit = min(2*limit, longestPause) {
		err := try()
		if err == nil {
			return nil
		}
		if !isBusy(err) {
			return readable(ctx, err)
		}
		if time.Since(since) >= w.config.BusyTimeout {
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
// answers. If a request cannot be written, nothing is, and each gets a transaction of its own.
func (w *writer) run(requests []*request) {
	err := w.attempt(requests)
	if len(requests) == 1 || !errors.Is(err, errRolledBack) {
		return
	}
	since := time.Now() // for all: together they wait for another process no longer than one would
	for _, r := range requests {
		if err := w.begin(background, since); err != nil {
			r.err = notApplied(err)
			continue
		}
		_ = w.attempt([]*request{r})
	}
}

// attempt does the work of requests, commits, and answers: an answer may depend on another
// request's write. An error that wraps errRolledBack says that nothing was written; after any other
// the transaction may have been committed.
func (w *writer) attempt(requests []*request) error {
	t := newTransaction(w.sql, w.on)
	for _, r := range requests {
		r.at, r.err = t.now, r.work(t)
		if t.failure != nil {
			break
		}
	}
	err := w.end(t)
	w.turn.used = time.Now()
	if err == nil {
		w.changes.Send(t.hints...)
		return nil
	}
	for _, r := range requests {
		if r.err != nil && !errors.Is(err, persist.ErrNotApplied) {
			r.err = notApplied(err) // it wrote nothing, whatever became of the transaction
		} else {
			r.err = err
		}
	}
	return err
}

// end commits t, or rolls it back if it has failed. It returns the errors of attempt.
func (w *writer) end(t *transaction) error {
	if t.failure == nil {
		t.failure = w.inPlace()
	}
	if t.failure != nil {
		w.rollback()
		return nothingWritten(t.failure)
	}
	_, err := w.on.ExecContext(background, textCommit)
	if err == nil {
		return nil
	}
	if w.rollback() && leavesNothing(err) {
		return nothingWritten(err)
	}
	// The last frame may be in the file although it could not be synced.
	w.discard()
	return fmt.Errorf("sqlite: commit: %w", err)
}

// rollback ends the transaction and reports whether that is certain; if not, it closes the
// connection.
func (w *writer) rollback() bool {
	_, err := w.on.ExecContext(background, textRollback)
	if err == nil || resultCode(err) == codeError { // SQLite has rolled back by itself
		return true
	}
	w.discard()
	return false
}
