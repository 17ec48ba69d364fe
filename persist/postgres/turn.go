package postgres

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
)

// A turn keeps a writer from losing forever to another process that commits without a pause: that
// process sends its next commit before this one has heard of the last.
//
//	caller            store                               PostgreSQL
//	Commit, Insist -> BEGIN, wait for the row lock    ->  locked
//	                  write                           ->  the version has moved
//	Conflict, Held <- the transaction stays open
//	Commit, Insist -> write, COMMIT in it             ->  written: no other writer has the lock
//
// The transaction ends without a commit if the caller does not return within longestTurn; if the
// process is frozen, PostgreSQL ends it after one second more. A turn occupies a slot like any
// commit that waits for a lock, so turns cannot use up the connections.

// longestTurn is how long a turn waits for its caller.
const longestTurn = 20 * time.Millisecond

// turn is an open transaction with the lock of one record, for the commit that follows version. It
// is in Store.turns. The goroutine that removes it there ends it: the commit that takes it, its
// timer, or the next turn of the key, which proves that the connection of this one was lost.
type turn struct {
	conn    *pgxpool.Conn
	version uint64      // of the record
	end     *time.Timer // ends the turn if the caller does not return
}

// hasTurn reports whether r insists and has a turn, or could wait for one.
func (s *Store) hasTurn(r *request) bool {
	if !r.commit.Insist || !isFastAlone(r) || r.commit.Writes[0].Expected == 0 {
		return false
	}
	_, open := s.turns.Load(r.keys[0])
	return open || len(s.slots) < cap(s.slots)
}

// commitInTurn is the first attempt at a request that insists. What it cannot decide, the ordinary
// attempt does.
func (s *Store) commitInTurn(r *request) (at time.Time, err error) {
	w := &r.commit.Writes[0]
	open, _ := s.turns.Load(w.Key)
	if t, _ := open.(*turn); t != nil && t.version == w.Expected && s.turns.CompareAndDelete(w.Key, t) {
		at, err = s.useTurn(t, r)
	} else {
		at, err = s.waitForTurn(r)
	}
	if inTheWay(err) {
		r.recall()
		return s.attempt(r, 0)
	}
	return at, err
}

// waitForTurn waits for the lock of the record and commits r, or keeps the lock if the version has
// moved.
func (s *Store) waitForTurn(r *request) (at time.Time, err error) {
	select {
	case s.slots <- struct{}{}:
	default:
		return time.Time{}, notApplied(errBusy)
	}
	t := &turn{}
	if t.conn, err = s.acquire(r.ctx); err != nil {
		<-s.slots
		return time.Time{}, notAcquired(r.ctx, err)
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
	ctx, cancel := s.sending(r)
	defer cancel()
	conn := t.conn.Conn().PgConn()
	locks := &transaction{store: s, conn: conn, patience: lockPatience}
	locks.add(r)
	_, absences := locks.absences()
	frozen := strconv.FormatInt((time.Second + s.turnFor).Milliseconds(), 10)
	statements := append([]*statement{begin, s.bounds(lockPatience), query(s.sql.idle).string(frozen), absences}, locks.lockRecords()...)
	answers, err := roundTrip(ctx, conn, append(statements, s.writingAll([]*request{r}))...)
	if err != nil { // COMMIT was not sent
		return time.Time{}, waitEnded(notApplied(err), lockPatience)
	}
	result := written([]*request{r}, answers[len(statements)])[0]
	var lost *persist.Conflict
	switch {
	case !result.decided():
		return time.Time{}, notApplied(errBusy)
	case result.err == nil:
		_, err = sendCommit(ctx, conn, commit)
		return result.at, err
	case errors.As(result.err, &lost) && !lost.Winners[0].Absent() && !conn.IsClosed():
		kept, lost.Held = true, true
		s.keep(t, r.keys[0], lost.Winners[0].Version)
	}
	return time.Time{}, result.err
}

// keep opens the turn t for the commit that follows version.
func (s *Store) keep(t *turn, key persist.Key, version uint64) {
	s.queue.underWay.Add(1)
	t.version = version
	t.end = time.AfterFunc(math.MaxInt64, func() {
		if s.turns.CompareAndDelete(key, t) {
			s.endTurn(t, nil)
			s.queue.end()
		}
	})
	last, _ := s.turns.Swap(key, t)
	t.end.Reset(s.turnFor) // if t was taken meanwhile, its end does nothing
	if last, ok := last.(*turn); ok {
		last.end.Stop()
		s.endTurn(last, nil)
		s.queue.end()
	}
}

// useTurn commits r in the transaction of t and ends that.
func (s *Store) useTurn(t *turn, r *request) (at time.Time, err error) {
	t.end.Stop()
	defer func() {
		s.endTurn(t, err)
		s.queue.end()
	}()
	if !r.send() {
		return time.Time{}, withdrawn(r.ctx)
	}
	ctx, cancel := s.sending(r)
	defer cancel()
	write := s.writingAll([]*request{r})
	asTexts([]*statement{write})
	answers, err := sendCommit(ctx, t.conn.Conn().PgConn(), s.bounds(0), write, commit)
	if err != nil {
		return time.Time{}, err
	}
	result := written([]*request{r}, answers[1])[0]
	if !result.decided() {
		return time.Time{}, notApplied(errBusy)
	}
	return result.at, result.err
}

// endTurn rolls the transaction of t back, unless it has ended, and returns its connection and
// slot. err is the last error of the connection.
func (s *Store) endTurn(t *turn, err error) {
	ctx, cancel := until(time.Now().Add(s.config.CommitTimeout))
	defer cancel()
	undo(ctx, t.conn.Conn().PgConn())
	release(t.conn, err)
	<-s.slots
}
