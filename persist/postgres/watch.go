package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// Hints travel as notifications. All Watch calls of a store share one connection that listens; what
// this store itself changes they are told directly, see hint. Nothing is missed without a zero hint:
//
//   - A commit before LISTEN is in effect, at first or after the connection was lost, is not heard.
//     The zero hint is sent when LISTEN is in effect.
//   - A Watch that begins while the connection is lost begins with the zero hint, too early; it gets
//     another one with everybody else.
//   - A peer that vanishes without a word is noticed by asking it something when nothing was heard for
//     a while.
//   - The last Watch leaves while another one begins: each has a listener that it was counted for.
//   - Close comes while a Watch begins: one of the two sees the other, under the lock of listening.
const (
	heartbeat     = 5 * time.Second // of silence, until the server is asked whether we still listen
	firstRetry    = 50 * time.Millisecond
	longestRetry  = 5 * time.Second
	farewell      = time.Second     // to end a connection
	probePatience = 2 * time.Second // for a notification through a proxy
)

// errShared says that a proxy is in the way of notifications.
var errShared = fmt.Errorf("%w: postgres: a proxy pools connections by transaction, so that no notification would arrive: watch through a direct connection", persist.ErrUnsupported)

// listening is what the Watch calls of a store share.
type listening struct {
	heartbeat time.Duration
	running   sync.WaitGroup // listeners

	mu      sync.Mutex // protects what follows
	closed  bool
	current *listener // nil: nobody watches
}

// listener is a connection that listens, or is about to.
type listener struct {
	life     context.Context // ends with the last watcher, with the store, and when listening is impossible: that is its cause
	end      context.CancelCauseFunc
	ready    chan struct{} // closed when LISTEN is in effect for the first time
	watchers int           // protected by listening.mu
}

// Watch calls wake as persist.Watcher says. It listens on a connection of its own, which all Watch
// calls of the store share and which does not count as one of the pool; when that cannot be made or
// is lost, it tries again until it succeeds, and then calls wake with the zero hint. It returns ctx's
// error when ctx ends, persist.ErrClosed when the store closes, and an error that wraps
// persist.ErrUnsupported when there is a proxy in between, such as PgBouncer, that pools connections by
// transaction.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	subscription := s.hub.Subscribe()
	defer subscription.End()
	l, err := s.listener()
	if err != nil {
		return err
	}
	defer s.listening.leave(l)
	select {
	case <-l.ready:
	case <-l.life.Done():
		return context.Cause(l.life)
	case <-ctx.Done():
		return ctx.Err()
	}
	watching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })()
	err = subscription.Deliver(watching, wake)
	if ctx.Err() == nil && l.life.Err() != nil {
		return context.Cause(l.life)
	}
	return err
}

// listener returns the listener of all who watch, for one more of them, who calls leave.
func (s *Store) listener() (*listener, error) {
	s.listening.mu.Lock()
	defer s.listening.mu.Unlock()
	if s.listening.closed {
		return nil, persist.ErrClosed
	}
	l := s.listening.current
	if l == nil || l.life.Err() != nil {
		l = &listener{ready: make(chan struct{})}
		l.life, l.end = context.WithCancelCause(context.Background())
		s.listening.current = l
		s.listening.running.Go(func() { s.listen(l) })
	}
	l.watchers++
	return l, nil
}

// leave counts one watcher less. The last one ends the listener, and does not wait for that.
func (g *listening) leave(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.watchers--
	if l.watchers > 0 {
		return
	}
	l.end(nil)
	if g.current == l {
		g.current = nil
	}
}

// close ends every Watch with persist.ErrClosed, and waits until no connection listens.
func (g *listening) close() {
	g.mu.Lock()
	g.closed = true
	if g.current != nil {
		g.current.end(persist.ErrClosed)
	}
	g.mu.Unlock()
	g.running.Wait()
}

// listen listens until the life of l ends, on one connection after the other.
func (s *Store) listen(l *listener) {
	heard := false
	for limit := firstRetry; l.life.Err() == nil; limit = min(2*limit, longestRetry) {
		conn, err := s.connectListener(l.life)
		if errors.Is(err, persist.ErrUnsupported) {
			l.end(err)
			return
		}
		if err == nil {
			began := time.Now()
			s.hub.Send(persist.Hint{})
			if !heard {
				heard = true
				close(l.ready)
			}
			s.hear(l.life, conn)
			disconnect(conn)
			if time.Since(began) > longestRetry {
				limit = firstRetry
			}
		}
		pause(l.life, limit/2+mathrand.N(limit/2)) // not all processes at once
	}
}

// connectListener returns a connection on which LISTEN is in effect.
func (s *Store) connectListener(ctx context.Context) (*pgconn.PgConn, error) {
	conn, err := s.connect(ctx, func(_ *pgconn.PgConn, n *pgconn.Notification) { s.notified(n) })
	if err != nil {
		return nil, err
	}
	if err := s.beginListening(ctx, conn); err != nil {
		disconnect(conn)
		return nil, err
	}
	return conn, nil
}

// beginListening makes conn listen. A proxy that gives each transaction to any session would make
// another's session listen, and tell nobody. It is known by the number of the session, which is not
// the one that it was announced with; then whether notifications arrive is tried first, on a channel
// that is never used again, because a session that listens for nobody stays as it is.
func (s *Store) beginListening(ctx context.Context, conn *pgconn.PgConn) error {
	answers, err := s.ask(conn, query("SELECT pg_catalog.pg_backend_pid()::int8"))
	if err != nil {
		return err
	}
	if row := cells(answers[0][0]); uint32(row.int()) != conn.PID() {
		if err := s.probe(ctx, conn); err != nil {
			return err
		}
	}
	_, err = s.ask(conn, query("LISTEN "+quote(s.names.channel())))
	return err
}

// probe returns nil if what one connection sends arrives on another one.
func (s *Store) probe(ctx context.Context, sending *pgconn.PgConn) error {
	channel, arrived := "pawl_probe_"+rand.Text(), false
	listening, err := s.connect(ctx, func(_ *pgconn.PgConn, n *pgconn.Notification) { arrived = arrived || n.Channel == channel })
	if err != nil {
		return err
	}
	defer disconnect(listening)
	if _, err := s.ask(listening, query("LISTEN "+quote(channel))); err != nil {
		return err
	}
	if _, err := s.ask(sending, query(s.sql.notify.text).string(channel).strings([]string{""})); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	for !arrived {
		if err := listening.WaitForNotification(waiting); err != nil {
			if listening.IsClosed() || ctx.Err() != nil {
				return err
			}
			return errShared
		}
	}
	return nil
}

// hear returns when ctx ends or nothing more will be heard on conn.
func (s *Store) hear(ctx context.Context, conn *pgconn.PgConn) {
	for ctx.Err() == nil && !conn.IsClosed() {
		waiting, cancel := context.WithTimeout(ctx, s.listening.heartbeat)
		err := conn.WaitForNotification(waiting)
		cancel()
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			continue
		}
		answers, err := s.ask(conn, query("SELECT FROM pg_catalog.pg_listening_channels() AS c (name) WHERE name = $1").string(s.names.channel()))
		if err != nil || len(answers[0]) == 0 {
			return
		}
	}
}

// ask runs a statement on a connection of our own, which is given up if it does not answer in time.
func (s *Store) ask(conn *pgconn.PgConn, statement *statement) ([]answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.AcquireTimeout)
	defer cancel()
	return roundTrip(ctx, conn, statement)
}

// connect makes a connection that does not belong to the pool, with the pool's settings. One that is
// hijacked from the pool would have to be waited for, which in a pool of one is for as long as
// somebody uses it, and its notifications go where the pool has said. Pool.BeforeConnect is called, as
// it may know the password; AfterConnect prepares connections for queries of the application, and is not.
func (s *Store) connect(ctx context.Context, notified pgconn.NotificationHandler) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.AcquireTimeout)
	defer cancel()
	config := s.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	config.ConnConfig.OnNotification = notified
	return pgconn.ConnectConfig(ctx, &config.ConnConfig.Config)
}

// disconnect closes a connection that does not belong to the pool.
func disconnect(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = conn.Close(ctx)
}
