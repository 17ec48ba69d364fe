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
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
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
	spares map[string]<-chan created // the next database of each server, by its URL
	drops  sync.WaitGroup            // running drops of databases
}

// created is the result of creating a database.
type created struct {
	name string
	err  error
}

// URL returns the URL of a fresh, empty database for t. It is dropped when t has ended, even if
// connections are open. The first call of a process starts the server. Creating and dropping a
// database take longer than most tests, so the next database is created while t runs, and no test
// waits for a drop.
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
	t.Cleanup(func() { dropLater(admin, db.name) })
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

// takeSpare returns the next database, and starts to create the one after it.
func takeSpare(admin string) <-chan created {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.spares == nil {
		process.spares = make(map[string]<-chan created)
	}
	next := process.spares[admin]
	if next == nil {
		next = createDatabase(admin)
	}
	process.spares[admin] = createDatabase(admin)
	return next
}

// createDatabase starts to create a database.
func createDatabase(admin string) <-chan created {
	done := make(chan created, 1)
	go func() {
		name := "pawl_" + strings.ToLower(rand.Text()[:16])
		// template0 accepts no connections, so the copy never waits for one to end.
		done <- created{name, execute(admin, "CREATE DATABASE "+name+" TEMPLATE template0")}
	}()
	return done
}

// dropLater starts to drop a database. On an error the database is left to the server.
func dropLater(admin, name string) {
	process.drops.Go(func() { _ = execute(admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
}

// Stop drops the databases that are left. It ends the server that URL has started, if any, and
// removes its folder. TestMain calls it after the tests. Without it the server still ends with the
// process.
func Stop() {
	process.mu.Lock()
	defer process.mu.Unlock()
	dropAll()
	if process.server != nil {
		process.server.remove()
		process.server = nil
	}
}

// dropAll drops the spare databases and waits for all drops. The caller holds process.mu.
func dropAll() {
	for admin, spare := range process.spares {
		if db := <-spare; db.err == nil {
			dropLater(admin, db.name)
		}
	}
	process.spares = nil
	process.drops.Wait()
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

// execute runs one statement on a connection of its own.
func execute(url, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
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
