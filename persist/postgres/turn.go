package postgres

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
)

// longestTurn is how long a record stays locked for a writer who was told what won, and makes something of that.
const longestTurn = 20 * time.Millisecond

// turn is a transaction in which a writer who insists has waited for a record, and locked it, only to find another version there. Its caller
// is told of that, and comes back with a commit that follows that version; nobody can be faster then. Where another process makes commit
// after commit, its next one is on its way before the news of the last one are here: without turns, one would lose for ever.
type turn struct {
	conn    *pgxpool.Conn
	version uint64      // of the record
	end     *time.Timer // for a caller who does not come back
}

// turns are those whose callers have not come back yet. Whoever removes one has to end it: who takes it, its own timer, or who has the next
// turn, which means that the connection of this one was lost.
type turns struct {
	mu sync.Mutex
	of map[persist.Key]*turn
}

// take removes and returns the turn at a version of key, or returns nil.
func (ts *turns) take(key persist.Key, version uint64) *turn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.of[key]
	if t == nil || t.version != version {
		return nil
	}
	delete(ts.of, key)
	return t
}

// drop removes t, and reports false if that was done.
func (ts *turns) drop(key persist.Key, t *turn) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.of[key] != t {
		return false
	}
	delete(ts.of, key)
	return true
}

// hasTurn reports whether r, which insists, has a turn, or can wait for one. Others go the way of all.
func (s *Store) hasTurn(r *request) bool {
	if !r.commit.Insist || !isPlain(r.commit) || r.commit.Writes[0].Expected == 0 {
		return false
	}
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	return s.turns.of[r.keys[0]] != nil || len(s.slots) < cap(s.slots)
}

// inTurn is attempt for a request that insists: it waits for the record, and if it is too late, the next turn is its caller's.
func (s *Store) inTurn(r *request) (at time.Time, err error) {
	w := &r.commit.Writes[0]
	if t := s.turns.take(w.Key, w.Expected); t != nil {
		at, err = s.commitIn(t, r)
	} else {
		at, err = s.waitForTurn(r)
	}
	if inTheWay(err) || sqlState(err) == codeNoSuchStatement && errors.Is(err, persist.ErrNotApplied) { // by texts from now on
		r.recall()
		return s.attempt(r, 0)
	}
	return at, err
}

// waitForTurn begins a transaction, and commits r in it unless it is too late.
func (s *Store) waitForTurn(r *request) (at time.Time, err error) {
	select {
	case s.slots <- struct{}{}:
	default: // too many wait
		return time.Time{}, notApplied(errBusy)
	}
	t := &turn{}
	if t.conn, err = s.acquireAny(r.ctx); err != nil {
		<-s.slots
		return time.Time{}, unacquired(r.ctx, err)
	}
	kept := false
	defer func() {
		if !kept {
			s.endTurn(t, err)
		}
	}()
	if !r.send() {
		return time.Time{}, withdrawn(r.ctx)
	}
	idle := strconv.FormatInt((time.Second + s.turnFor).Milliseconds(), 10) // of a client that is frozen
	ctx, conn, w := until{s.endOf(r)}, t.conn.Conn().PgConn(), &r.commit.Writes[0]
	answers, err := roundTrip(ctx, conn, begin, s.bounds(lockPatience), query(s.sql.idle).string(idle), s.writing(r.commit, lockPatience))
	if err != nil { // which the end of the transaction was not sent with
		return time.Time{}, waitEnded(notApplied(err), lockPatience)
	}
	at, err = written(answers[3][0], w)
	if lost, ok := err.(*persist.Conflict); ok && lost.Winners[0].Version > w.Expected && !lost.Winners[0].Absent() && !conn.IsClosed() {
		kept, lost.Held = true, true
		s.keep(t, w.Key, lost.Winners[0].Version)
		return at, err
	}
	if err == nil {
		if _, err = roundTrip(ctx, conn, commit); err != nil {
			err = outcome(err, 0, 0)
		}
	}
	return at, err
}

// keep makes t the turn of whoever follows version, for a while.
func (s *Store) keep(t *turn, key persist.Key, version uint64) {
	s.queue.underWay.Add(1)
	t.version = version
	s.turns.mu.Lock()
	last := s.turns.of[key]
	if s.turns.of == nil {
		s.turns.of = make(map[persist.Key]*turn)
	}
	s.turns.of[key] = t
	t.end = time.AfterFunc(s.turnFor, func() {
		if s.turns.drop(key, t) {
			s.endTurn(t, nil)
			s.queue.end()
		}
	})
	s.turns.mu.Unlock()
	if last != nil {
		last.end.Stop()
		s.endTurn(last, nil)
		s.queue.end()
	}
}

// commitIn commits r in the transaction of t, which then ends.
func (s *Store) commitIn(t *turn, r *request) (at time.Time, err error) {
	t.end.Stop()
	defer func() {
		s.endTurn(t, err)
		s.queue.end()
	}()
	if !r.send() {
		return time.Time{}, withdrawn(r.ctx)
	}
	answers, err := roundTrip(until{s.endOf(r)}, t.conn.Conn().PgConn(), s.bounds(0), s.writing(r.commit, 0), commit)
	if err != nil {
		return time.Time{}, outcome(err, len(answers), 2)
	}
	return written(answers[1][0], &r.commit.Writes[0])
}

// endTurn ends the transaction of t, if it has not ended, and err was the last that came of it.
func (s *Store) endTurn(t *turn, err error) {
	undo(until{time.Now().Add(s.config.CommitTimeout)}, t.conn.Conn().PgConn())
	release(t.conn, err)
	<-s.slots
}
