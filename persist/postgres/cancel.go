package postgres

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// When pgconn gives up a connection, it asks the server to cancel the statement. A server that waits
// until a standby has a commit then stops waiting: the commit becomes visible, and is lost when the
// server fails. So a connection of the store's own pool sends no such request during a commit. The
// request needs a new network connection, which is refused.

// unfinished is the key under which a connection keeps whether a commit is in progress on it.
const unfinished = "pawl: unfinished"

var errUnfinished = errors.New("a commit is in progress, and is not cancelled")

// withoutCancel changes the configuration of one connection.
func withoutCancel(_ context.Context, config *pgx.ConnConfig) error {
	inProgress, dial := new(atomic.Bool), config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if inProgress.Load() {
			return nil, errUnfinished
		}
		return dial(ctx, network, address)
	}
	config.Config.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		conn.CustomData()[unfinished] = inProgress
		return nil
	}
	return nil
}

// committing marks that a commit begins on conn, and returns the function that marks its end. If
// conn was given up, the mark stays, and the server is not waited for.
func committing(conn *pgconn.PgConn) (end func()) {
	inProgress, ok := conn.CustomData()[unfinished].(*atomic.Bool)
	if !ok { // of a pool of the caller
		return func() {}
	}
	inProgress.Store(true)
	return func() {
		if conn.IsClosed() {
			_ = conn.Conn().Close()
			return
		}
		inProgress.Store(false)
	}
}

// commits reports whether s ends a transaction that writes.
func (s *statement) commits() bool { return s == commit || s.prepared != nil && s.prepared.commits }
