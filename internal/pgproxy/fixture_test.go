package pgproxy_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, pgtest.Stop) }

// fixture is a database with two rows, a and b, whose n is 0. It has a direct connection and a
// proxy.
type fixture struct {
	*testing.T
	proxy  *pgproxy.Proxy
	direct *pgx.Conn
	server string // URL of the server
	url    string // URL of the proxy
}

func start(t *testing.T, writers ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, server: pgtest.URL(t)}
	f.direct = pgtest.Connect(f, f.server)
	f.exec("CREATE TABLE t (id text PRIMARY KEY, n int NOT NULL); INSERT INTO t VALUES ('a', 0), ('b', 0)")
	return f.with(t, writers...)
}

// with returns a fixture for a subtest, with its own proxy and the rows reset.
func (f *fixture) with(t *testing.T, writers ...string) *fixture {
	t.Helper()
	config, err := pgx.ParseConfig(f.server)
	require.NoError(t, err)
	f.exec("UPDATE t SET n = 0")
	proxy := pgproxy.Start(t, "tcp", fmt.Sprintf("%s:%d", config.Host, config.Port), writers...)
	return &fixture{T: t, server: f.server, direct: f.direct, proxy: proxy, url: proxy.URL(f.server)}
}

// client returns a connection through the proxy.
func (f *fixture) client() *pgx.Conn { return pgtest.Connect(f, f.url) }

// raw returns a connection through the proxy without pgx, which would cancel its statement when the
// connection breaks.
func (f *fixture) raw() *pgproto3.Frontend {
	f.Helper()
	conn, err := f.client().PgConn().Hijack()
	require.NoError(f, err)
	f.Cleanup(func() { _ = conn.Conn.Close() })
	return conn.Frontend
}

// exec runs statements on the direct connection.
func (f *fixture) exec(statements string) {
	f.Helper()
	_, err := f.direct.Exec(f.Context(), statements)
	require.NoError(f, err)
}

// number runs a query for one number on the direct connection.
func (f *fixture) number(question string) (n int) {
	f.Helper()
	require.NoError(f, f.direct.QueryRow(f.Context(), question).Scan(&n))
	return n
}

// alone waits until the direct connection is the only one to the database. Then all other
// transactions have been committed or rolled back.
func (f *fixture) alone() {
	f.Helper()
	testkit.Eventually(f, func() bool {
		return f.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()") == 0
	})
}
