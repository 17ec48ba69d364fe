package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Direct commits wait for nobody for longer than 10 ms, and to tell the server so each time costs as much as a tenth of the commit. A
// connection that does nothing else for a while therefore keeps its lock_timeout. What could go wrong, and what is in the way of that:
//   - a proxy gives the session to others, who would have the setting: it is made only in the session whose number the connection was
//     given when it was made, which proxies that pool by transaction make up, and by one statement;
//   - the application uses the session: none of a pool that it has, and what it is lent (see Native) has the setting taken back before;
//   - a statement that may wait for longer fails: whoever acquires a connection has the setting taken back, except for commits, which say how
//     long they wait, and reads and notifications, which are made again;
//   - connections in turns with other work are set and set back all the time: it is done after briefAfter commits without any.
const briefAfter = 16

// session is what is known of the session behind a connection.
type session struct {
	commits int  // direct ones, since other work was done
	brief   bool // its lock_timeout is that of direct commits
	shared  bool // perhaps: there is a proxy
}

const sessionKey = "pawl: session"

func sessionOf(conn *pgconn.PgConn) *session {
	known, ok := conn.CustomData()[sessionKey].(*session)
	if !ok {
		known = &session{}
		conn.CustomData()[sessionKey] = known
	}
	return known
}

// staysBrief reports whether the session behind conn has the lock_timeout of a direct commit, which it is asked for, and gives it to one that
// has none but those.
func (s *Store) staysBrief(ctx context.Context, conn *pgconn.PgConn) bool {
	of := sessionOf(conn)
	if of.brief || of.shared || !s.owned {
		return of.brief
	}
	if of.commits++; of.commits <= briefAfter {
		return false
	}
	answers, err := roundTrip(ctx, conn, query(s.sql.staysBrief).int4(int32(conn.PID())))
	of.brief = err == nil && len(answers[0]) == 1
	of.shared = !of.brief
	return of.brief
}

// patient makes sure that conn waits for locks as its session does by default. After an error conn is closed.
func (s *Store) patient(ctx context.Context, conn *pgxpool.Conn) error {
	of := sessionOf(conn.Conn().PgConn())
	of.commits = 0
	if !of.brief {
		return nil
	}
	of.brief = false
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := roundTrip(ctx, conn.Conn().PgConn(), query("RESET lock_timeout"))
	if err != nil {
		hangUp(conn.Conn().PgConn())
	}
	return err
}
