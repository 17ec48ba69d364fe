package postgres

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
)

// A commit goes one of two ways:
//
//   - fast: one statement; see write.go;
//   - the transaction: lock and read, persist.Apply, write and COMMIT; see transaction.go.
//
// A fast commit that was not written, and not proved lost, continues as a transaction.
//
// A locked record delays only its own writers. The first attempt never waits for a lock: a commit
// that finds one of its records locked writes nothing. It then waits for the lock on a connection,
// but only for lockPatience, and only in one of few slots (see waiters). Between two such waits,
// and while no slot is free, it pauses without a connection and tries again. So most connections
// stay free for other commits. Attempts end with Config.CommitTimeout, or when the caller leaves.
const (
	lockPatience = 250 * time.Millisecond
	betweenWaits = time.Second // of a commit of several keys
	firstPause   = time.Millisecond
	longestPause = 32 * time.Millisecond
	shortestWait = 50 * time.Millisecond // for a connection
)

// Limits of a commit. Without them one commit could fill the server's lock table, or create a
// record whose key is too long for the index of tombstones.
const (
	maxKeys = 5000
	maxKey  = 2048 // bytes of kind and id
)

// waiters returns how many connections of a pool may wait for locks at once: a quarter, never all.
func waiters(connections int) int {
	if connections < 2 {
		return 0
	}
	return max(1, connections/4)
}

// request is a commit in progress. Its state changes from pending to sent when the database may see
// it, and back when the database is known to have written nothing. The caller can withdraw a
// pending request; it can only leave a sent one behind.
type request struct {
	ctx     context.Context // the caller's
	commit  persist.Commit
	keys    []persist.Key
	absent  int // keys that must be absent
	size    int // persist.Commit.Size
	arrived time.Time
	state   atomic.Int32
	done    chan struct{} // closed when result is set
	result  result

	tried   bool // the fast way did not decide it
	patient bool // it runs on the goroutine of its caller, which waits until its deadline
	inTurn  bool // see turn

	deadline time.Time // of all attempts; set by the first that has a connection
}

const (
	pending = iota
	sent
	withdrawnByCaller
)

func (r *request) send() bool { return r.state.CompareAndSwap(pending, sent) }

func (r *request) recall() { r.state.CompareAndSwap(sent, pending) }

func (r *request) withdraw() bool { return r.state.CompareAndSwap(pending, withdrawnByCaller) }

func (r *request) answer(at time.Time, err error) {
	r.result = result{at, err}
	close(r.done)
}

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and otherwise:
//
//   - an error that wraps persist.ErrNotApplied when c is malformed, the database rejects it, it
//     has more than 5000 keys or a key of more than 2048 bytes, or ctx ended before the commit was
//     sent;
//   - an error that also wraps persist.ErrUnavailable when the database could not be reached or
//     written, or a record stayed locked until Config.CommitTimeout;
//   - any other error when the outcome is unknown: the connection was lost after the commit was
//     sent, or ctx ended then and the commit continues without its caller.
//
// A caller with a patient context commits on its own goroutine: see persist.Patient.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	r, err := newRequest(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	r.inTurn = s.hasTurn(r)
	direct, err := s.queue.enter(r)
	if err != nil {
		return time.Time{}, err
	}
	if _, patient := ctx.(persist.Patient); direct && patient {
		r.patient = true
		s.direct(r)
		return r.result.at, r.result.err
	}
	if direct {
		go s.direct(r)
	}
	select {
	case <-r.done:
		return r.result.at, r.result.err
	case <-ctx.Done():
	}
	if r.withdraw() {
		return time.Time{}, withdrawn(ctx)
	}
	select {
	case <-r.done:
		return r.result.at, r.result.err
	default:
		return time.Time{}, leftBehind(ctx)
	}
}

// newRequest returns the request for c, which is valid. It returns an error that wraps
// persist.ErrNotApplied if ctx has ended or PostgreSQL cannot store c.
func newRequest(ctx context.Context, c persist.Commit) (*request, error) {
	if ctx.Err() != nil {
		return nil, withdrawn(ctx)
	}
	r := &request{ctx: ctx, commit: c, keys: c.Keys(), size: c.Size(), arrived: time.Now(), done: make(chan struct{})}
	for i := range c.Writes {
		w := &c.Writes[i]
		if w.Version > math.MaxInt64 {
			return nil, unfit("version %d of %q is larger than %d", w.Version, w.Key, int64(math.MaxInt64))
		}
		if tooManyDigits(w.Doc) {
			return nil, unfit("the numbers in the document of %q have too many digits", w.Key)
		}
		if w.Expected == 0 {
			r.absent++
		}
	}
	for _, g := range c.Guards {
		if g.Read && g.Version == 0 {
			r.absent++
		}
	}
	if len(r.keys) > maxKeys {
		return nil, unfit("the commit has %d keys, more than %d", len(r.keys), maxKeys)
	}
	for _, key := range r.keys {
		if len(key.Kind)+len(key.ID) > maxKey {
			return nil, unfit("a key has %d bytes, more than %d", len(key.Kind)+len(key.ID), maxKey)
		}
	}
	return r, nil
}

// direct commits r, which occupies a direct place in the queue until its first attempt ends.
func (s *Store) direct(r *request) {
	defer s.queue.end()
	at, err := s.first(r)
	s.finish(r, at, err)
}

// first makes the first attempt at r, and then gives up its direct place in the queue.
func (s *Store) first(r *request) (time.Time, error) {
	defer s.queue.leave()
	if r.inTurn {
		return s.commitInTurn(r)
	}
	return s.attempt(r, 0)
}

// finish makes further attempts at r if the first one met a lock, and answers r.
func (s *Store) finish(r *request, at time.Time, err error) {
	at, err = s.insist(r, at, err, s.attempt)
	s.hintCommit(r.commit, err)
	r.answer(at, err)
}

// insist returns the outcome of r after further attempts while another transaction is in the way.
// It leaves the last quarter of Config.CommitTimeout for the answer of the last attempt, so that
// the outcome is known.
func (s *Store) insist(r *request, at time.Time, err error, attempt func(*request, time.Duration) (time.Time, error)) (time.Time, error) {
	latest := r.deadline.Add(-s.config.CommitTimeout / 4)
	var waited time.Time // when the last wait ended
	for limit := firstPause; inTheWay(err); limit = min(2*limit, longestPause) {
		// A commit of several keys keeps its other keys locked while it waits for one. It waits
		// again only after a while: a wait is long enough unless a lock was forgotten, or the
		// machine is busy.
		if len(r.keys) == 1 || time.Since(waited) > betweenWaits {
			select {
			case s.slots <- struct{}{}:
				at, err = attempt(r, min(lockPatience, time.Until(latest)))
				<-s.slots
				waited = time.Now()
			default:
			}
		}
		if !inTheWay(err) || time.Until(latest) < limit || !pause(r.ctx, rand.N(limit)) {
			break
		}
		at, err = attempt(r, 0)
	}
	return at, err
}

// inTheWay reports whether nothing was written because of another transaction, and a further
// attempt may succeed.
func inTheWay(err error) bool { return errors.Is(err, persist.ErrNotApplied) && worthRetrying(err) }

// pause waits for d. It reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// attempt commits r on a connection of the pool and waits for locks for at most patience. The
// caller's context bounds only the wait for the connection.
func (s *Store) attempt(r *request, patience time.Duration) (at time.Time, err error) {
	conn, err := s.acquire(r.ctx)
	if err != nil {
		return time.Time{}, notAcquired(r.ctx, err)
	}
	defer func() { release(conn, err) }()
	if !r.send() {
		return time.Time{}, withdrawn(r.ctx)
	}
	ctx, cancel := s.sending(r)
	defer cancel()
	at, err = s.commitOne(ctx, conn.Conn().PgConn(), r, patience)
	err = waitEnded(err, patience)
	if inTheWay(err) {
		r.recall()
	}
	return at, err
}

// sending returns the context of an attempt at r. It ends Config.CommitTimeout after the first
// attempt, or at the deadline of a caller that waits on this goroutine.
func (s *Store) sending(r *request) (context.Context, context.CancelFunc) {
	if r.deadline.IsZero() {
		r.deadline = time.Now().Add(s.config.CommitTimeout)
	}
	end := r.deadline
	if given, ok := r.ctx.Deadline(); ok && r.patient && given.Before(end) {
		end = given
	}
	return until(end)
}

// until returns a context that ends at a time.
func until(end time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(context.Background(), end, errNoAnswer)
}

// notAcquired returns the error of a commit that got no connection, or could not begin, because of err.
func notAcquired(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return withdrawn(ctx)
	}
	return notApplied(err)
}

// waitEnded turns the error of a statement that waited for locks for too long into errBusy.
func waitEnded(err error, patience time.Duration) error {
	if patience > 0 && errors.Is(err, persist.ErrNotApplied) && sqlState(err) == codeQueryCanceled {
		return notApplied(errBusy)
	}
	return err
}

// commitOne commits r on conn, by itself: the fast way if that is possible and was not tried, and
// otherwise as a transaction.
func (s *Store) commitOne(ctx context.Context, conn *pgconn.PgConn, r *request, patience time.Duration) (time.Time, error) {
	if patience == 0 && !r.tried && isFast(&r.commit) {
		r.tried = true
		result, err := s.writeFast(ctx, conn, r)
		if err != nil {
			return time.Time{}, err
		}
		if result.decided() {
			return result.at, result.err
		}
	}
	t := &transaction{store: s, conn: conn, patience: patience}
	return t.runOne(ctx, r)
}

// commitWaiting commits what waits in the queue, batch by batch, until nothing waits.
func (s *Store) commitWaiting() {
	var batch []*request
	for s.queue.proceed(batch) {
		batch = nil
		s.queue.gather()
		began := time.Now()
		conn, err := s.acquireFor(s.queue.oldest())
		if err != nil {
			// Requests that arrived later are not answered with this error: the database may be
			// back.
			arrived := began
			if errors.Is(err, errNoConnection) {
				arrived = time.Now().Add(-s.config.AcquireTimeout)
			}
			for _, r := range s.queue.remove(arrived) {
				r.answer(time.Time{}, notApplied(err))
			}
			continue
		}
		if batch = s.queue.take(); len(batch) == 0 {
			conn.Release()
			return
		}
		release(conn, s.commitBatch(conn.Conn().PgConn(), batch))
	}
}

// acquireFor returns a connection for a batch whose oldest request arrived at a time. It waits
// until that request has waited for Config.AcquireTimeout, and at least for shortestWait.
func (s *Store) acquireFor(arrived time.Time) (*pgxpool.Conn, error) {
	left := max(s.config.AcquireTimeout-time.Since(arrived), min(s.config.AcquireTimeout, shortestWait))
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	conn, err := s.acquire(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, errNoConnection
	}
	return conn, err
}

// commitBatch commits and answers requests, and returns the error of the connection. It goes the
// fast way if all of them can, and continues with one transaction for the rest.
func (s *Store) commitBatch(conn *pgconn.PgConn, batch []*request) error {
	ctx, cancel := until(time.Now().Add(s.config.CommitTimeout))
	defer cancel()
	batch, err := s.writeBatch(ctx, conn, batch)
	if len(batch) == 0 {
		return err
	}
	t := &transaction{store: s, conn: conn}
	for _, r := range batch {
		t.add(r)
	}
	err = t.run(ctx)
	for i, r := range batch {
		s.conclude(r, t.at, t.parts[i].err)
	}
	return err
}

// writeBatch commits a batch the fast way if all of it can go that way, and returns the undecided
// rest.
func (s *Store) writeBatch(ctx context.Context, conn *pgconn.PgConn, batch []*request) (rest []*request, err error) {
	for _, r := range batch {
		if !isFastAlone(r) {
			return batch, nil
		}
	}
	results, err := s.write(ctx, conn, batch)
	if errors.Is(err, persist.ErrNotApplied) {
		return batch, nil // one of them caused it
	}
	for i, r := range batch {
		switch {
		case err != nil:
			s.conclude(r, time.Time{}, err)
		case results[i].decided():
			s.conclude(r, results[i].at, results[i].err)
		default:
			r.tried = true
			rest = append(rest, r)
		}
	}
	return rest, err
}

// conclude answers r, which was part of a batch. If another transaction was in the way, or the server
// refused the batch, perhaps because of another part, r continues on its own.
func (s *Store) conclude(r *request, at time.Time, err error) {
	rejected := errors.Is(err, persist.ErrNotApplied) && sqlState(err) != "" && refused(err)
	if inTheWay(err) || rejected {
		r.recall()
		s.queue.underWay.Go(func() {
			at, err := s.attempt(r, 0)
			s.finish(r, at, err)
		})
		return
	}
	s.hintCommit(r.commit, err)
	r.answer(at, err)
}
