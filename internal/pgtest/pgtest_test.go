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

// settle returns when all databases that tests have used are emptied, and dropped if drop is set.
func settle(drop bool) {
	process.mu.Lock()
	defer process.mu.Unlock()
	for admin, spares := range process.spares {
		for i, next := range spares {
			db := <-next
			if drop && db.err == nil {
				_ = execute(admin, dropping(db.name))
			}
			spares[i] = prepare(func() (string, error) { return db.name, db.err })
		}
	}
	if drop {
		process.spares = nil
	}
}

func TestDatabaseIsGoneAfterTest(t *testing.T) {
	var url string
	var conn *pgx.Conn
	t.Run("owner", func(inner *testing.T) {
		url = URL(inner)
		conn = Connect(t, url) // stays open after inner ends
	})
	settle(false)
	require.Error(t, conn.Ping(t.Context()), "the connection must be cut")
	_, err := pgx.Connect(t.Context(), url)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "3D000", refused.Code, "the database must not exist")
}

// A database that was used is empty when the next test gets it.
func TestDatabaseIsUsedAgain(t *testing.T) {
	settle(true)
	number := func(t *testing.T) string {
		return ask(t, Connect(t, URL(t)), "SELECT oid::text FROM pg_database WHERE datname = current_database()")
	}
	numbers := map[string]bool{}
	for _, statement := range []string{
		"CREATE TABLE a (n int)", "CREATE SCHEMA s CREATE TABLE b (n serial) CREATE VIEW v AS SELECT 1 AS n",
		"CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "REVOKE ALL ON SCHEMA public FROM PUBLIC", "DROP SCHEMA public",
		"DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$",
	} {
		t.Run("", func(t *testing.T) {
			conn := Connect(t, URL(t))
			numbers[ask(t, conn, "SELECT oid::text FROM pg_database WHERE datname = current_database()")] = true
			require.Equal(t, "0", ask(t, conn, "SELECT count(*)::text FROM pg_class WHERE oid >= 16384"))
			require.Equal(t, "off", ask(t, conn, "SHOW default_transaction_read_only"))
			require.Equal(t, "pg_database_owner {pg_database_owner=UC/pg_database_owner,=U/pg_database_owner}",
				ask(t, conn, "SELECT nspowner::regrole || ' ' || nspacl::text FROM pg_namespace WHERE nspname = 'public'"))
			mustExec(t, conn, statement)
		})
		settle(false)
	}
	require.Len(t, numbers, 2)
	t.Run("what cannot be removed", func(t *testing.T) {
		url := URL(t)
		mustExec(t, Connect(t, url), "CREATE PUBLICATION p")
		numbers[number(t)] = true
	})
	settle(false)
	for range 2 {
		t.Run("", func(t *testing.T) {
			require.Equal(t, "0", ask(t, Connect(t, URL(t)), "SELECT count(*)::text FROM pg_publication"))
		})
		settle(false)
	}
}

func TestNamedServerIsUsed(t *testing.T) {
	s := New(t)
	t.Setenv(Variable, s.URL("postgres"))
	t.Run("owner", func(t *testing.T) {
		require.Equal(t, fmt.Sprint(s.port), ask(t, Connect(t, URL(t)), "SHOW port"))
	})
	settle(true)
	require.Equal(t, "0", ask(t, Connect(t, s.URL("postgres")), "SELECT count(*)::text FROM pg_database WHERE datname LIKE 'pawl%'"))
}

func TestInvalidVariableIsNotPrinted(t *testing.T) {
	t.Setenv(Variable, "host=localhost password=secret")
	message := testkit.Failure(t, func(t testing.TB) { URL(t) })
	require.Contains(t, message, Variable)
	require.NotContains(t, message, "secret")
}
