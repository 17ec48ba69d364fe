package pgproxy_test

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
)

// Wherever connections are cut, acknowledged commits are stored, and only attempted ones. No
// connection is left on either side.
func TestManyCuts(t *testing.T) {
	const cuts, workers = 200, 8
	f := start(t)
	f.proxy.Cut(0.5, 1)
	pool, err := pgxpool.New(t.Context(), f.url)
	require.NoError(t, err)
	defer pool.Close()
	var acknowledged, unknown atomic.Int64
	var work errgroup.Group
	for n := range workers {
		work.Go(func() error {
			for f.proxy.Counts().Cuts() < cuts {
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					return err
				}
				if n%2 == 0 {
					_, err = conn.Exec(t.Context(), addTo, "a")
				} else {
					err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
						_, err := tx.Exec(t.Context(), addTo, "b")
						return err
					})
				}
				conn.Release()
				if err == nil {
					acknowledged.Add(1)
				} else {
					unknown.Add(1)
				}
			}
			return nil
		})
	}
	require.NoError(t, work.Wait())
	pool.Close()
	f.alone()
	counts := f.proxy.Counts()
	t.Logf("%+v", counts)
	require.GreaterOrEqual(t, counts.Cuts(), cuts)
	require.EqualValues(t, counts.Cuts(), unknown.Load())
	require.EqualValues(t, counts.Pass, acknowledged.Load())
	for _, moment := range []int{counts.BeforeCommit, counts.AfterSend, counts.AfterExecute, counts.Resets} {
		require.Positive(t, moment)
	}
	there := f.number(sum)
	require.GreaterOrEqual(t, there, counts.Pass+counts.AfterExecute)
	require.LessOrEqual(t, there, counts.Pass+counts.AfterExecute+counts.AfterSend)
}

func TestRefuse(t *testing.T) {
	f := start(t)
	client := f.client()
	for range 3 {
		f.proxy.Refuse(true)
		f.proxy.Refuse(true)
		require.Error(t, client.Ping(t.Context()))
		_, err := pgx.Connect(t.Context(), f.url)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		f.alone()
		f.proxy.Refuse(false)
		f.proxy.Refuse(false)
		client = f.client()
		require.NoError(t, client.Ping(t.Context()))
	}
	require.Zero(t, f.proxy.Counts().Cuts())
}

func TestClose(t *testing.T) {
	f := start(t)
	idle, held := f.client(), f.client()
	f.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(nil) })
	answered := make(chan error, 1)
	go func() {
		_, err := held.Exec(t.Context(), addToA)
		answered <- err
	}()
	testkit.Eventually(t, func() bool { return f.number(sum) == 1 })
	f.proxy.Close()
	f.proxy.Close()
	require.Error(t, <-answered)
	require.Error(t, idle.Ping(t.Context()))
	f.proxy.Refuse(false)
	_, err := pgx.Connect(t.Context(), f.url)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	f.alone()
}

// A request to cancel, which comes on its own connection, reaches the server.
func TestCancel(t *testing.T) {
	f := start(t)
	config, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), "SELECT pg_sleep(3600)")
		answered <- err
	}()
	const sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
	testkit.Eventually(t, func() bool { return f.number(sleeping) == 1 })
	require.NoError(t, conn.PgConn().CancelRequest(t.Context()))
	require.ErrorContains(t, <-answered, "57014")
	require.NoError(t, conn.Close(t.Context()))
}

// A statement that calls a writing function is a commit if the proxy knows the function.
func TestWriters(t *testing.T) {
	f := start(t, "_write")
	f.exec(`CREATE FUNCTION "my_write"() RETURNS void LANGUAGE sql AS $$ ` + addToA + ` $$; CREATE FUNCTION other() RETURNS int LANGUAGE sql AS 'SELECT 1'`)
	var seen []string
	f.proxy.Script(func(c pgproxy.Commit) pgproxy.Action {
		seen = append(seen, c.Statements...)
		return pgproxy.Pass
	})
	client := f.client()
	for _, statement := range []string{`SELECT other()`, `SELECT * FROM "my_write"()`} {
		_, err := client.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, client.Close(t.Context()))
	f.alone()
	require.Equal(t, []string{`SELECT * FROM "my_write"()`}, seen)
}

// A statement in a failed transaction is no commit, even if the proxy did not expect the failure.
func TestFailedTransactionIsNoCommit(t *testing.T) {
	f := start(t)
	client := f.client()
	_, err := client.Exec(t.Context(), "BEGIN")
	require.NoError(t, err)
	var batch pgx.Batch
	batch.Queue("SELECT 1/0")
	batch.Queue("ROLLBACK") // the server skips it
	require.ErrorContains(t, client.SendBatch(t.Context(), &batch).Close(), "22012")
	_, err = client.Exec(t.Context(), addToA)
	require.ErrorContains(t, err, "25P02")
	require.Zero(t, f.proxy.Counts().Pass)
	_, err = client.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	_, err = client.Exec(t.Context(), addToA)
	require.NoError(t, err)
	require.Equal(t, 1, f.proxy.Counts().Pass)
}

func TestEncryptionIsRefused(t *testing.T) {
	f := start(t)
	_, err := pgx.Connect(t.Context(), strings.Replace(f.url, "sslmode=disable", "sslmode=require", 1))
	require.ErrorContains(t, err, "refused TLS")
	pgtest.Connect(f, strings.Replace(f.url, "sslmode=disable", "sslmode=prefer", 1))
}
