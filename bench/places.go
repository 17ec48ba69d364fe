package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pawl-go/pawl/internal/pgtest"
)

// The places of the contenders: databases of this run's own PostgreSQL server, and folders.

// The names of the stores in rows.
const (
	inPostgres     = "PostgreSQL"
	inSlowPostgres = "PostgreSQL, 2 ms commits"
	inSQLite       = "SQLite"
	inFiles        = "files"
)

// placeIn returns a new place in a store: the URL of a database, the path of a database file, or a
// folder with a trailing slash.
func (b *bench) placeIn(store string) (string, error) {
	switch store {
	case inPostgres:
		return b.database()
	case inSlowPostgres:
		return b.database(slowCommits...)
	}
	folder, err := b.folder()
	if err != nil {
		return "", err
	}
	if store == inSQLite {
		return filepath.Join(folder, "documents.db"), nil
	}
	return folder + "/", nil
}

// folder returns a new folder, which is removed at the end of the run.
func (b *bench) folder() (string, error) {
	path, err := os.MkdirTemp("", "pawl-bench-")
	if err == nil {
		b.cleanup(func() { os.RemoveAll(path) })
	}
	return path, err
}

// slowCommits are settings with which a commit takes 2 ms, as on a slow disk or network.
var slowCommits = []string{"commit_delay = 2000", "commit_siblings = 0"}

// database returns the URL of a new, empty database with these settings, such as slowCommits. The
// first call starts the server. It has the default durability of PostgreSQL, and enough connections
// for the pools of all contenders.
func (b *bench) database(settings ...string) (url string, err error) {
	if b.server == nil {
		if b.server, err = startPostgres(b); err != nil {
			return "", err
		}
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, b.server.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	name := "bench_" + strings.ToLower(rand.Text()[:12])
	statements := []string{"CREATE DATABASE " + name + " TEMPLATE template0"}
	for _, s := range settings {
		statements = append(statements, "ALTER DATABASE "+name+" SET "+s)
	}
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return "", err
		}
	}
	return b.server.URL(name), nil
}

func startPostgres(b *bench) (s *pgtest.Server, err error) {
	defer func() {
		if v := recover(); v != nil {
			f, ok := v.(failure)
			if !ok {
				panic(v)
			}
			err = f.error
		}
	}()
	return pgtest.New(harness{b: b}, "max_connections=300", "shared_buffers=128MB", "max_wal_size=1GB"), nil
}

// harness is the testing.TB of a server that is started outside of a test.
type harness struct {
	testing.TB
	b *bench
}

type failure struct{ error }

func (h harness) Helper()                   {}
func (h harness) Name() string              { return "bench" }
func (h harness) Cleanup(f func())          { h.b.cleanup(f) }
func (h harness) Skip(args ...any)          { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (h harness) Fatalf(f string, a ...any) { panic(failure{fmt.Errorf(f, a...)}) }
func (h harness) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
