// Package pgtest gives each test a fresh PostgreSQL database, on a server that the test process
// starts when it needs one. The server never outlives the process.
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		pgtest.Stop()
//		...
//	}
//
//	func TestSomething(t *testing.T) {
//		pool, err := pgxpool.New(t.Context(), pgtest.URL(t))
//
// The server comes from the newest PostgreSQL on this machine. It is as durable as in production
// (fsync, synchronous_commit), small, reached over TCP on 127.0.0.1, and runs as an unprivileged
// user when the tests run as root. [Variable] names a running server to use instead. Without
// either, a test that calls this package is skipped or fails, by package need.
//
// A child process of a test gets its URL from the test and never calls this package.
package pgtest

import (
	"context"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Variable names the environment variable with the URL of a running server to create databases in.
// The user in it must be allowed to create databases.
const Variable = "PAWL_TEST_POSTGRES"

// timeout bounds every wait for a server.
const timeout = time.Minute

// process holds the state that the tests of this process share.
var process struct {
	mu     sync.Mutex                // protects the fields below
	server *Server                   // nil: not started
	spares map[string][]<-chan spare // the next databases of each server, by its URL
}

// URL returns the URL of a fresh, empty database for t. It is gone when t has ended, even if
// connections are open. The first call of a process starts the server.
func URL(t testing.TB) string {
	t.Helper()
	admin := os.Getenv(Variable)
	if admin == "" {
		admin = shared(t).URL("postgres")
	}
	withDatabase(t, admin, "") // fails unless it is a URL
	db := <-takeSpare(admin)
	if db.err != nil {
		t.Fatalf("pgtest: %v", db.err)
	}
	t.Cleanup(func() { giveBack(admin, db.name) })
	return withDatabase(t, admin, db.name)
}

// Connect connects to a database, past every store, until t ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Stop ends the server that URL has started, if any, and removes its folder. On a server that was named
// by [Variable] it drops the databases that are left. TestMain calls it after the tests. Without it the
// server still ends with the process.
func Stop() {
	process.mu.Lock()
	defer process.mu.Unlock()
	dropSpares()
	if process.server != nil {
		process.server.remove()
		process.server = nil
	}
}

// shared returns the server of this process.
func shared(t testing.TB) *Server {
	t.Helper()
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.server == nil {
		process.server = create(t, nil)
	}
	return process.server
}

// withDatabase returns the URL of another database of the same server.
func withDatabase(t testing.TB, server, database string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil || u.Host == "" && u.Query().Get("host") == "" {
		t.Fatalf("pgtest: %s is not a URL such as postgres://user:password@host:5432/postgres", Variable)
	}
	u.Path = "/" + database
	return u.String()
}
