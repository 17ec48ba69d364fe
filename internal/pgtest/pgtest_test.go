package pgtest_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	pgtest.Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	a, b := connect(t, pgtest.URL(t)), connect(t, pgtest.URL(t))
	for _, conn := range []*pgx.Conn{a, b} {
		_, err := conn.Exec(t.Context(), "CREATE TABLE mine (n int)")
		require.NoError(t, err)
	}
}

func TestAKilledServerStartsAgain(t *testing.T) {
	s := pgtest.New(t, "max_connections=20")
	conn := connect(t, s.URL("postgres"))
	_, err := conn.Exec(t.Context(), "CREATE TABLE kept (n int)")
	require.NoError(t, err)
	s.Kill()
	require.Error(t, conn.Ping(t.Context()))
	_, err = pgx.Connect(t.Context(), s.URL("postgres"))
	require.Error(t, err)
	s.Start()
	s.Restart()
	var limit string
	require.NoError(t, connect(t, s.URL("postgres")).QueryRow(t.Context(), "SELECT current_setting('max_connections') FROM (SELECT count(*) FROM kept) k").Scan(&limit))
	require.Equal(t, "20", limit)
}
