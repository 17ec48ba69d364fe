package pgtest

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, Stop, Stop) }

func mustExec(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

func ask(t *testing.T, conn *pgx.Conn, question string) (answer string) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), question).Scan(&answer))
	return answer
}

func TestURLPerDatabase(t *testing.T) {
	for range 2 {
		mustExec(t, Connect(t, URL(t)), "CREATE TABLE mine (n int)")
	}
}

// settle returns when all unused databases are dropped.
func settle() {
	process.mu.Lock()
	defer process.mu.Unlock()
	dropAll()
}

func TestDatabaseIsDroppedAfterTest(t *testing.T) {
	var url string
	var conn *pgx.Conn
	t.Run("owner", func(inner *testing.T) {
		url = URL(inner)
		conn = Connect(t, url) // stays open after inner ends
	})
	settle()
	require.Error(t, conn.Ping(t.Context()), "the connection must be cut")
	_, err := pgx.Connect(t.Context(), url)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "3D000", refused.Code, "the database must not exist")
}

func TestNamedServerIsUsed(t *testing.T) {
	s := New(t)
	t.Setenv(Variable, s.URL("postgres"))
	t.Run("owner", func(t *testing.T) {
		require.Equal(t, fmt.Sprint(s.port), ask(t, Connect(t, URL(t)), "SHOW port"))
	})
	settle()
	require.Equal(t, "0", ask(t, Connect(t, s.URL("postgres")), "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'pawl%'"))
}

func TestInvalidVariableIsNotPrinted(t *testing.T) {
	t.Setenv(Variable, "host=localhost password=secret")
	message := testkit.Failure(t, func(t testing.TB) { URL(t) })
	require.Contains(t, message, Variable)
	require.NotContains(t, message, "secret")
}
