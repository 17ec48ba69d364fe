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
	"github.com/pawl-go/pawl/persist/internal/patience"
)

// A record that somebody else has locked holds up its own writers only. Nobody waits for a lock on a
// connection at first: a commit that finds one of its records locked is told so at once, and has
// written nothing. Then, as one of few (see waiters), it waits on a connection, in PostgreSQL's own
// queue for the lock, but only for lockPatience; between two such waits, and when too many wait
// already, it pauses without a connection and tries again. So most connections are always free for
// others, and a lock that is held for long keeps nobody from waiting whose lock is held briefly. It
// goes on until Config.CommitTimeout, or until its caller leaves.
const (
	lockPatience = 250 * time.Millisecond
	firstPause   = time.Millisecond
	longestPause = 32 * time.Millisecond
	shortestWait = 50 * time.Millisecond // for a connection
)

// What a commit may ask for. Beyond that, the server's table of locks could be full for everybody,
// and a record be created that has no room in the index of tombstones.
const (
	maxKeys = 5000
	maxKey  = 2048 // bytes of kind and id
)

// waiters is how many connections of a pool may wait for locks at once: a quarter, and never all.
func waiters(connections int) int {
	if connections < 2 {
		return 0
	}
	return max(1, connections/4)
}

// request is a commit under way. It is pending, then sent to the database; it is pending again when
// the database is known to have written nothing of it, until it is answered. A caller may withdraw
// what is pending, and leave behind what is sent.
type request struct {
	ctx     context.Context // the caller's
	commit  persist.Commit
	keys    []persist.Key
	absent  int // keys that it expects to be absent
	size    int // bytes to be written, about
	arrived time.Time
	patient bool // its caller is the one that commits it
	inTurn  bool // see turn
	state   atomic.Int32
	done    chan struct{} // closed when there is an answer; nil: nobody waits for it
	at      time.Time     // the answer
	err     error

	deadline time.Time // of attempts on its own, from the first that has a connection
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
	r.at, r.err = at, err
	if r.done != nil {
		close(r.done)
	}
}

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when c is malformed or the database rejects it, when it has more than 5000
// keys, or one of more than 2048 bytes, when ctx ended before the commit was sent, or when the
// database could not be reached or written, or stayed locked until Config.CommitTimeout; where waiting may help, that error wraps persist.ErrUnavailable too. Any
// other error leaves the outcome unknown: the connection was lost after the commit was sent, or ctx
// ended then, and the commit goes on without its caller.
//
// A ctx with a method Patient() is that of a caller for whom nobody waits: it has a deadline, and ends no sooner while Commit lasts, and what is
// in c is never changed.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	r, err := newRequest(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	r.inTurn = s.hasTurn(r)
	if r.patient = patience.Has(ctx); r.patient {
		direct, err := s.queue.enterDirectly(r)
		if err != nil {
			return time.Time{}, err
		}
		if direct {
			s.direct(r) // a goroutine, and waking this one again, can take as long as the commit
			return r.at, r.err
		}
		r.patient = false // it may leave
	} else {
		r.commit = c.Clone() // its caller may leave before it is written
	}
	r.done = make(chan struct{})
	direct, err := s.queue.enter(r)
	if err != nil {
		return time.Time{}, err
	}
	if direct {
		go s.direct(r)
	}
	if _, ok := patience.Wait(ctx, &s.waits, r.done); ok {
		return r.at, r.err
	}
	if r.withdraw() {
		return time.Time{}, withdrawn(ctx)
	}
	select {
	case <-r.done:
		return r.at, r.err
	default:
		return time.Time{}, leftBehind(ctx)
	}
}

// newRequest returns the request for c, which is valid, and not copied yet. It returns an error that
// wraps persist.ErrNotApplied if ctx has ended, or PostgreSQL cannot hold c.
func newRequest(ctx context.Context, c persist.Commit) (*request, error) {
	if ctx.Err() != nil {
		return nil, withdrawn(ctx)
	}
	r := &request{ctx: ctx, arrived: time.Now()}
	for i := range c.Writes {
		w := &c.Writes[i]
		if w.Version > math.MaxInt64 {
			return nil, unfit("version %d of %q is too large", w.Version, w.Key)
		}
		if tooManyDigits(w.Doc) {
			return nil, unfit("the numbers of %q have too many digits", w.Key)
		}
		if w.Expected == 0 {
			r.absent++
		}
		r.size += len(w.Doc)
	}
	for _, g := range c.Guards {
		if g.Read && g.Version == 0 {
			r.absent++
		}
	}
	r.commit, r.keys = c, c.Keys()
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

// direct commits r, which counts as direct in the queue until somebody else is found in its way.
func (s *Store) direct(r *request) {
	defer s.queue.end()
	var at time.Time
	var err error
	if r.inTurn {
		at, err = s.inTurn(r)
	} else {
		at, err = s.attempt(r, 0)
	}
	s.queue.leave()
	at, err = s.insist(r, at, err, s.attempt)
	s.hintCommit(r.commit, err)
	r.answer(at, err)
}

// alone commits r after it could not be part of a batch.
func (s *Store) alone(r *request) {
	at, err := s.attempt(r, 0)
	at, err = s.insist(r, at, err, s.attempt)
	s.hintCommit(r.commit, err)
	r.answer(at, err)
}

// insist returns the answer to r, of which an attempt was made, after further attempts if somebody
// else was in its way. The last quarter of the time is left for answers, so that the outcome is known.
func (s *Store) insist(r *request, at time.Time, err error, attempt func(*request, time.Duration) (time.Time, error)) (time.Time, error) {
	latest := r.deadline.Add(-s.config.CommitTimeout / 4)
	waited := false
	for limit := firstPause; inTheWay(err); limit = min(2*limit, longestPause) {
		// A commit of several keys would keep the others locked while it waits for one. That is
		// done once, which is long enough unless somebody has forgotten a lock.
		if !waited || len(r.keys) == 1 {
			select {
			case s.slots <- struct{}{}:
				waited = true
				at, err = attempt(r, min(lockPatience, time.Until(latest)))
				<-s.slots
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

// inTheWay reports whether err says that nothing was written because somebody else was faster.
func inTheWay(err error) bool { return errors.Is(err, persist.ErrNotApplied) && worthRetrying(err) }

// pause waits for d, and reports false if ctx ended first.
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

// attempt commits r on a connection, and waits for locks for as long as patience. The connection is
// waited for in the caller's name; what comes then, not even the caller interrupts.
func (s *Store) attempt(r *request, patience time.Duration) (at time.Time, err error) {
	conn, err := s.acquireAny(r.ctx)
	if err != nil {
		return time.Time{}, unacquired(r.ctx, err)
	}
	defer func() { release(conn, err) }()
	if !r.send() {
		return time.Time{}, withdrawn(r.ctx)
	}
	at, err = s.commitOne(until{s.endOf(r)}, conn.Conn().PgConn(), r, patience)
	err = waitEnded(err, patience)
	if inTheWay(err) {
		r.recall()
	}
	return at, err
}

// endOf returns when the attempt at r that begins now ends at the latest.
func (s *Store) endOf(r *request) time.Time {
	if r.deadline.IsZero() { // its turn has come
		r.deadline = time.Now().Add(s.config.CommitTimeout)
	}
	if given, ok := r.ctx.Deadline(); ok && r.patient && given.Before(r.deadline) {
		return given // its caller is here
	}
	return r.deadline
}

// unacquired is the error of a commit that got no connection because of err.
func unacquired(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return withdrawn(ctx)
	}
	return notApplied(err)
}

// waitEnded makes errBusy of the error of a wait that was longer than all of it may be.
func waitEnded(err error, patience time.Duration) error {
	if patience > 0 && errors.Is(err, persist.ErrNotApplied) && sqlState(err) == codeQueryCanceled {
		return notApplied(errBusy)
	}
	return err
}

// commitOne commits r, by itself, on conn.
func (s *Store) commitOne(ctx context.Context, conn *pgconn.PgConn, r *request, patience time.Duration) (time.Time, error) {
	if isPlain(r.commit) {
		return s.write(ctx, conn, r.commit, patience)
	}
	t := &transaction{store: s, conn: conn, patience: patience}
	t.add(r)
	t.run(ctx)
	if err := t.parts[0].err; sqlState(err) == codeNoSuchStatement && errors.Is(err, persist.ErrNotApplied) {
		return s.commitOne(ctx, conn, r, patience) // by texts from now on
	}
	return t.at, t.parts[0].err
}

// commitWaiting commits what waits in the queue, batch by batch.
func (s *Store) commitWaiting() {
	var batch []*request
	for s.queue.proceed(batch) {
		batch = nil
		s.queue.gather()
		began := time.Now()
		conn, err := s.acquireFor(s.queue.oldest())
		if err != nil {
			arrived := began // the database is down, or was; who came since then is not told what may be over
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

// acquireFor returns a connection in the name of those who wait in the queue, the first of whom
// arrived then: it is given up when that one has waited for long enough. Who waited for others of
// the queue for as long still has a moment to find a connection that is free.
func (s *Store) acquireFor(then time.Time) (*pgxpool.Conn, error) {
	left := max(s.config.AcquireTimeout-time.Since(then), min(s.config.AcquireTimeout, shortestWait))
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	conn, err := s.acquireAny(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, errNoConnection
	}
	return conn, err
}

// commitBatch commits requests, answers them, and returns what went wrong on the connection.
func (s *Store) commitBatch(conn *pgconn.PgConn, batch []*request) error {
	ctx := until{time.Now().Add(s.config.CommitTimeout)}
	batch, err := s.replaceSome(ctx, conn, batch)
	switch len(batch) {
	case 0:
		return err
	case 1:
		r := batch[0]
		at, err := s.commitOne(ctx, conn, r, 0)
		s.conclude(r, at, err)
		return err
	}
	t := &transaction{store: s, conn: conn}
	for _, r := range batch {
		t.add(r)
	}
	t.run(ctx)
	for i, r := range batch {
		s.conclude(r, t.at, t.parts[i].err)
	}
	return t.failure
}

// conclude answers r, or sends it on its own way when somebody else was in its way in a batch, or
// somebody else's document was rejected.
func (s *Store) conclude(r *request, at time.Time, err error) {
	if inTheWay(err) || errors.Is(err, errSibling) {
		r.recall()
		s.queue.underWay.Go(func() { s.alone(r) })
		return
	}
	s.hintCommit(r.commit, err)
	r.answer(at, err)
}
