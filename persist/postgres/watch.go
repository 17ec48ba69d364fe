package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Hints of other processes arrive as notifications. All Watch calls of a store share one connection
// that listens; see hints.Listening. Changes of this store reach them directly; see hint. A zero hint covers every hint
// that may be missing:
//
//   - A commit before LISTEN is in effect, at first or after the connection was lost: the zero hint
//     is sent when LISTEN is in effect.
//   - A Watch that begins while the connection is lost starts with a zero hint that is too early:
//     it gets another one when the connection listens again.
//   - A peer that disappears silently: after a while without notifications it is asked something.
const (
	heartbeat     = 5 * time.Second // of silence until the server is asked whether this session listens
	firstRetry    = 50 * time.Millisecond
	longestRetry  = 5 * time.Second
	farewell      = time.Second     // to close a connection
	probePatience = 2 * time.Second // for a notification through a proxy
)

// errShared means that notifications do not arrive through a proxy.
var errShared = fmt.Errorf("%w: postgres: notifications do not arrive through a proxy that pools connections by transaction; connect directly", persist.ErrUnsupported)

// Watch calls wake as persist.Watcher says. All Watch calls of a store listen on one connection,
// which is not part of the pool. If it cannot be opened or is lost, the store tries again, and then
// calls wake with the zero hint. Watch returns the error of ctx when that ends, persist.ErrClosed
// when the store closes, and an error that wraps persist.ErrUnsupported behind a proxy, such as
// PgBouncer, that pools connections by transaction.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.listening.Watch(ctx, &s.hub, s.listen, wake)
}

// listen listens until the life of l ends, on one connection after another.
func (s *Store) listen(l *hints.Listener) {
	life := l.Life()
	for limit := firstRetry; life.Err() == nil; limit = min(2*limit, longestRetry) {
		conn, err := s.connectListener(life)
		if errors.Is(err, persist.ErrUnsupported) {
			l.Fail(err)
			return
		}
		if err == nil {
			began := time.Now()
			s.hub.Send(persist.Hint{})
			l.Ready()
			s.hear(life, conn)
			disconnect(conn)
			if time.Since(began) > longestRetry {
				limit = firstRetry
			}
		}
		pause(life, limit/2+mathrand.N(limit/2)) // so that processes do not reconnect at the same moment
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

// beginListening makes conn listen. Behind a proxy that pools by transaction, LISTEN would affect
// the session of another client. Such a proxy announces a process id that is not that of the
// session. In that case a probe tests first whether notifications arrive, on a channel that is not
// used again.
func (s *Store) beginListening(ctx context.Context, conn *pgconn.PgConn) error {
	answers, err := s.ask(conn, query("SELECT pg_catalog.pg_backend_pid()::int8"))
	if err != nil {
		return err
	}
	if uint32(answers[0][0].int()) != conn.PID() {
		if err := s.probe(ctx, conn); err != nil {
			return err
		}
	}
	_, err = s.ask(conn, query("LISTEN "+quote(s.names.channel())))
	return err
}

// probe returns nil if a notification of one connection arrives on another one.
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

// hear receives notifications until ctx ends, or conn is closed or does not listen any more.
func (s *Store) hear(ctx context.Context, conn *pgconn.PgConn) {
	for ctx.Err() == nil && !conn.IsClosed() {
		waiting, cancel := context.WithTimeout(ctx, s.heartbeat)
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

// ask runs a statement on a connection outside the pool. Without an answer in time conn is closed.
func (s *Store) ask(conn *pgconn.PgConn, statement *statement) ([]answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.AcquireTimeout)
	defer cancel()
	return roundTrip(ctx, conn, statement)
}

// connect opens a connection outside the pool, with the pool's settings. A connection hijacked from
// the pool would have to be waited for, and would deliver notifications to the pool's handler.
// connect calls BeforeConnect of the pool, which may set the password, but not AfterConnect, which
// prepares connections for the application.
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

// disconnect closes a connection outside the pool.
func disconnect(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = conn.Close(ctx)
}
