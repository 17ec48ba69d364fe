// Package pgtest gives tests a PostgreSQL: a fresh database each, on a server that the test process
// starts when it needs one and that never outlives it.
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
// user when the tests run as root. [Variable] names a running server to use instead. Where there is
// neither, a test that asks is skipped or fails, as package need says.
//
// A process that a test starts gets its URL from the test: it never calls this package.
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

// Variable names the environment variable with the URL of a running server in which URL makes its
// databases. The user in it must be allowed to create databases.
const Variable = "PAWL_TEST_POSTGRES"

// patience is how long a server may take for anything before the test fails.
const patience = time.Minute

// process is the server that the tests of this process share.
var process struct {
	mu     sync.Mutex             // protects what follows
	server *Server                // nil: not started
	spares map[string]<-chan made // on each server, by its URL
	drops  sync.WaitGroup         // of databases, under way
}

// made is a database that was made, or could not be.
type made struct {
	name string
	err  error
}

// URL returns the URL of a fresh, empty database of t's own, which is dropped when t has ended,
// whoever is still connected. The first call of a process starts the server. To make a database and to drop one take
// longer than most tests, so the next one is made while t runs, and nobody waits until the last is dropped.
func URL(t testing.TB) string {
	t.Helper()
	admin := os.Getenv(Variable)
	if admin == "" {
		admin = shared(t).URL("postgres")
	}
	withDatabase(t, admin, "") // to see that it is a URL
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

// takeSpare returns the next database, and begins to make the one after that.
func takeSpare(admin string) <-chan made {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.spares == nil {
		process.spares = make(map[string]<-chan made)
	}
	next := process.spares[admin]
	if next == nil {
		next = makeDatabase(admin)
	}
	process.spares[admin] = makeDatabase(admin)
	return next
}

// makeDatabase begins to make a database.
func makeDatabase(admin string) <-chan made {
	done := make(chan made, 1)
	go func() {
		name := "pawl_" + strings.ToLower(rand.Text()[:16])
		// Nobody can connect to template0, so that the copy never has to wait for somebody to leave.
		done <- made{name, execute(admin, "CREATE DATABASE "+name+" TEMPLATE template0")}
	}()
	return done
}

// dropLater begins to drop a database. What cannot be dropped goes with its server.
func dropLater(admin, name string) {
	process.drops.Go(func() { _ = execute(admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
}

// Stop ends the server that URL has started, if any, and removes its folder; of a running one it removes what is left. TestMain calls it
// after the tests; a process that ends without it takes its server along all the same.
func Stop() {
	process.mu.Lock()
	defer process.mu.Unlock()
	dropAll()
	if process.server != nil {
		process.server.remove()
		process.server = nil
	}
}

// dropAll returns when all databases are dropped that nobody uses. The caller holds process.mu.
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// withDatabase returns a URL with another database in it.
func withDatabase(t testing.TB, server, database string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil || u.Host == "" && u.Query().Get("host") == "" {
		t.Fatalf("pgtest: %s is not a URL such as postgres://user:password@host:5432/postgres", Variable)
	}
	u.Path = "/" + database
	return u.String()
}
