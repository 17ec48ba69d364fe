package pgtest

import (
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
)

func TestSettings(t *testing.T) {
	s := New(t, "max_connections=20", "commit_delay=2000")
	conn := Connect(t, s.URL("postgres"))
	for setting, want := range map[string]string{
		"max_connections":    "20",
		"commit_delay":       "2000",
		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",
	} {
		require.Equal(t, want, ask(t, conn, "SHOW "+setting), setting)
	}
	network, address := s.Addr()
	reached, err := net.Dial(network, address)
	require.NoError(t, err)
	require.NoError(t, reached.Close())
}

func TestKilledServerKeepsItsData(t *testing.T) {
	s := New(t)
	url := s.URL("postgres")
	conn := Connect(t, url)
	mustExec(t, conn, "CREATE TABLE kept (n int)")
	s.Kill()
	s.Kill()
	require.Error(t, conn.Ping(t.Context()))
	_, err := pgx.Connect(t.Context(), url)
	require.Error(t, err)
	s.Start()
	s.Start()
	mustExec(t, Connect(t, url), "INSERT INTO kept VALUES (1)")
	s.Restart()
	require.Equal(t, "1", ask(t, Connect(t, url), "SELECT count(*)::text FROM kept"))
}

func TestPasswordIsRequired(t *testing.T) {
	s := New(t)
	for _, host := range []string{"127.0.0.1", s.folder} {
		_, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=%s dbname=postgres password=wrong", host, s.port, superuser))
		require.ErrorContains(t, err, "28P01", host)
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	picked := 0
	pickPort = func() (int, error) {
		if picked++; picked == 1 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	}
	defer func() { pickPort = freePort }()
	Connect(t, New(t).URL("postgres"))
	require.Equal(t, 2, picked)
}

func TestStartFailureShowsLog(t *testing.T) {
	find(t)
	message := testkit.Failure(t, func(t testing.TB) { New(t, "no_such_setting=1") })
	require.Contains(t, message, `unrecognized configuration parameter "no_such_setting"`)
}

func TestWithoutPostgres(t *testing.T) {
	defer func(before []string) { installed = before }(installed)
	installed = nil
	t.Setenv("PATH", "")
	t.Setenv(Variable, "")
	t.Setenv(need.Variable, "postgres")
	require.Contains(t, testkit.Failure(t, func(t testing.TB) { New(t) }), "make need-postgres")
}

func TestMajorVersion(t *testing.T) {
	require.Equal(t, 9, majorVersion("/usr/lib/postgresql/9.6/bin"))
	require.Equal(t, 17, majorVersion("/usr/lib/postgresql/17/bin"))
	require.Equal(t, 16, majorVersion("/usr/pgsql-16/bin"))
}
