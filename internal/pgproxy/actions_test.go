package pgproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/testkit"
)

const (
	addToA = "UPDATE t SET n = n + 1 WHERE id = 'a'"
	addTo  = "UPDATE t SET n = n + 1 WHERE id = $1"
)

// ways lists the ways in which pgx commits. Each adds 1 to the given number of rows.
var ways = map[string]struct {
	rows     int
	explicit bool
	commit   func(context.Context, *pgx.Conn) error
}{
	"a simple query": {1, false, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, addToA)
		return err
	}},
	"an unnamed statement": {1, false, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, addTo, pgx.QueryExecModeExec, "a")
		return err
	}},
	"a prepared statement": {1, false, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Prepare(ctx, "add", addTo); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "add", "a")
		return err
	}},
	"a transaction": {2, true, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, addTo, "a")
			if err == nil {
				_, err = tx.Exec(ctx, addTo, "b")
			}
			return err
		})
	}},
	"a batch": {2, false, func(ctx context.Context, conn *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue("SELECT count(*) FROM t")
		batch.Queue(addTo, "a")
		batch.Queue(addTo, "b")
		return conn.SendBatch(ctx, &batch).Close()
	}},
	"a transaction in a batch": {2, true, func(ctx context.Context, conn *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue("BEGIN")
		batch.Queue(addTo, "a")
		batch.Queue(addTo, "b")
		batch.Queue("COMMIT")
		return conn.SendBatch(ctx, &batch).Close()
	}},
}

// each runs test for each way to commit. The script applies action to the first commit and allows
// no other.
func each(t *testing.T, action pgproxy.Action, test func(f *fixture, commit func() error, rows int)) {
	t.Helper()
	database := start(t)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			f := database.with(t)
			f.proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
				require.Equal(t, 1, c.Number)
				require.Equal(t, 1, c.Connection)
				require.Equal(t, way.explicit, c.Explicit)
				return action
			})
			client := f.client()
			test(f, func() error { return way.commit(t.Context(), client) }, way.rows)
		})
	}
}

const sum = "SELECT sum(n) FROM t"

func TestPass(t *testing.T) {
	each(t, pgproxy.Pass, func(f *fixture, commit func() error, rows int) {
		require.NoError(f, commit())
		require.Equal(f, rows, f.number(sum))
		require.Equal(f, pgproxy.Counts{Pass: 1}, f.proxy.Counts())
	})
}

func TestBeforeCommit(t *testing.T) {
	each(t, pgproxy.BeforeCommit, func(f *fixture, commit func() error, _ int) {
		require.Error(f, commit())
		f.alone()
		require.Zero(f, f.number(sum))
		require.Equal(f, pgproxy.Counts{BeforeCommit: 1}, f.proxy.Counts())
	})
}

// When its connection breaks, pgx asks the server to cancel, which may arrive in time.
func TestAfterSend(t *testing.T) {
	each(t, pgproxy.AfterSend, func(f *fixture, commit func() error, rows int) {
		require.Error(f, commit())
		f.alone()
		require.Contains(f, []int{0, rows}, f.number(sum))
		require.Equal(f, pgproxy.Counts{AfterSend: 1}, f.proxy.Counts())
	})
}

// The server receives the commit: a client that does not cancel finds it executed.
func TestAfterSendReachesServer(t *testing.T) {
	f := start(t)
	f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.AfterSend })
	client := f.raw()
	client.SendQuery(&pgproto3.Query{String: addToA})
	require.NoError(t, client.Flush())
	_, err := client.Receive()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	f.alone()
	require.Equal(t, 1, f.number(sum))
}

func TestAfterExecute(t *testing.T) {
	each(t, pgproxy.AfterExecute, func(f *fixture, commit func() error, rows int) {
		require.Error(f, commit())
		require.Equal(f, rows, f.number(sum), "the commit is visible when the connection is cut")
		require.Equal(f, pgproxy.Counts{AfterExecute: 1}, f.proxy.Counts())
	})
}

func TestHold(t *testing.T) {
	database := start(t)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			f := database.with(t)
			released, answered := make(chan struct{}), make(chan error, 1)
			f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(released) })
			client := f.client()
			go func() { answered <- way.commit(t.Context(), client) }()
			testkit.Eventually(t, func() bool { return f.number(sum) == way.rows })
			require.Empty(t, answered, "the commit is done, but its answer is held")
			require.Zero(t, f.proxy.Counts())
			close(released)
			require.NoError(t, <-answered)
			require.NoError(t, client.Ping(t.Context()))
			require.Equal(t, pgproxy.Counts{Hold: 1}, f.proxy.Counts())
		})
	}
}

func TestHoldDuration(t *testing.T) {
	f := start(t)
	const pause = 20 * time.Millisecond
	f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.Hold(pause) })
	client, begin := f.client(), time.Now()
	_, err := client.Exec(t.Context(), addToA)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), pause)
}

// A client that cancels is not held any longer.
func TestHoldEndsWithClient(t *testing.T) {
	f := start(t)
	f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(nil) })
	client := f.client()
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := client.Exec(ctx, addToA)
		answered <- err
	}()
	testkit.Eventually(t, func() bool { return f.number(sum) == 1 })
	cancel()
	require.ErrorIs(t, <-answered, context.Canceled)
	f.alone()
	require.Zero(t, f.proxy.Counts())
}

// Connections are cut alternately by a close and by a reset.
func TestResets(t *testing.T) {
	f := start(t)
	for _, action := range []pgproxy.Action{pgproxy.BeforeCommit, pgproxy.AfterSend, pgproxy.AfterExecute} {
		f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return action })
		for _, want := range []error{io.EOF, syscall.ECONNRESET} {
			config, err := pgx.ParseConfig(f.url)
			require.NoError(t, err)
			ends := make(chan error, 1)
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return endReporter{conn, ends}, err
			}
			client, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			_, err = client.Exec(t.Context(), addToA)
			require.Error(t, err)
			require.ErrorIs(t, <-ends, want)
		}
	}
	require.Equal(t, pgproxy.Counts{BeforeCommit: 2, AfterSend: 2, AfterExecute: 2, Resets: 3}, f.proxy.Counts())
	require.Equal(t, 6, f.proxy.Counts().Cuts())
}

// endReporter reports the error that ended a connection.
type endReporter struct {
	net.Conn
	ends chan<- error
}

func (r endReporter) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case r.ends <- err:
		default: // already reported
		}
	}
	return n, err
}

// Statements before a commit reach the server, and those after a cut do not. Sequence numbers show
// this, because a rollback does not take them back.
func TestStatementsPassedOn(t *testing.T) {
	for name, c := range map[string]struct {
		action pgproxy.Action
		drawn  int
	}{
		"before the commit":    {pgproxy.BeforeCommit, 1},
		"including the commit": {pgproxy.AfterSend, 1},
		"including the answer": {pgproxy.AfterExecute, 1},
		"no cut":               {pgproxy.Pass, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			f.exec("CREATE SEQUENCE drawn")
			f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return c.action })
			client := f.raw()
			execute(client, "SELECT nextval('drawn')")
			execute(client, addToA)
			client.SendSync(&pgproto3.Sync{})
			execute(client, "SELECT nextval('drawn')")
			client.SendSync(&pgproto3.Sync{})
			client.SendQuery(&pgproto3.Query{String: "SELECT pg_terminate_backend(pg_backend_pid())"})
			require.NoError(t, client.Flush())
			for err := error(nil); err == nil; {
				_, err = client.Receive()
			}
			f.alone()
			require.Equal(t, c.drawn, f.number("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM drawn"))
		})
	}
}

// execute sends a statement without requesting the answer.
func execute(client *pgproto3.Frontend, statement string) {
	client.SendParse(&pgproto3.Parse{Query: statement})
	client.SendBind(&pgproto3.Bind{})
	client.SendExecute(&pgproto3.Execute{})
}

// Of two requests sent together, the answer to the first is passed on.
func TestAnswersBeforeCommitArePassedOn(t *testing.T) {
	f := start(t)
	f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.AfterExecute })
	pipeline := f.client().PgConn().StartPipeline(t.Context())
	pipeline.SendQueryParams("SELECT 7::text", nil, nil, nil, nil)
	require.NoError(t, pipeline.Sync())
	pipeline.SendQueryParams(addToA, nil, nil, nil, nil)
	require.NoError(t, pipeline.Sync())
	result, err := pipeline.GetResults()
	require.NoError(t, err)
	require.Equal(t, "7", string(result.(*pgconn.ResultReader).Read().Rows[0][0]))
	result, err = pipeline.GetResults()
	require.NoError(t, err)
	require.IsType(t, &pgconn.PipelineSync{}, result)
	_, err = pipeline.GetResults()
	require.Error(t, err)
	require.Error(t, pipeline.Close())
	require.Equal(t, 1, f.number(sum))
}
