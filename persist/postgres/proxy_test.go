package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
)

// TestForgetfulSessions: each transaction finds a session that has forgotten everything, as behind
// a proxy that pools connections by transaction.
//
// Proves STORE-10.
func TestForgetfulSessions(t *testing.T) {
	pool := pooled(t, pgtest.URL(t), func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			_, err := conn.Exec(ctx, "DISCARD ALL")
			return true, err
		}
	})
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	defer s.Close()
	exercise(t, s)
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&left))
	require.Zero(t, left, "no lock outlives its transaction")
}

// TestPgBouncer runs behind the proxy itself, where it is installed, with fewer connections to the
// server than the store has to it.
//
// Proves STORE-10.
func TestPgBouncer(t *testing.T) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	server := pgtest.New(t)
	s := openAt(t, connections(t, pgBouncer(t, program, server.URL("postgres")), 10), Config{})
	stop := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(stop) })
	diaries(t, s, stop)
	exercise(t, s)
}

// pgBouncer starts a proxy in front of a server, with more settings, and returns its URL.
func pgBouncer(t *testing.T, program, server string, more ...string) string {
	t.Helper()
	target, err := url.Parse(server)
	require.NoError(t, err)
	password, _ := target.User.Password()
	folder, err := os.MkdirTemp("/tmp", "pawl-pgbouncer-") // readable for all users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Chmod(folder, 0o755))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().(*net.TCPAddr)
	require.NoError(t, free.Close())
	settings := fmt.Sprintf(`[databases]
postgres = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_reset_query = DISCARD ALL
server_reset_query_always = 1
%s
`, target.Hostname(), target.Port(), target.User.Username(), password, address.Port, strings.Join(more, "\n"))
	file := filepath.Join(folder, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(file, []byte(settings), 0o644))

	arguments := []string{file}
	if os.Getuid() == 0 { // which it refuses to run as
		if _, err := user.Lookup("postgres"); err != nil {
			t.Skip("there is no user that pgbouncer can run as")
		}
		arguments = []string{"-u", "postgres", file}
	}
	command := exec.Command(program, arguments...)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	own := url.URL{Scheme: "postgres", User: url.User(target.User.Username()), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(address.Port)), Path: "/postgres", RawQuery: "sslmode=disable"}
	testkit.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", own.Host)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return own.String()
}
