package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	gormsqlite "github.com/glebarez/sqlite"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/database"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// connections is the number of connections to a database, for every service.
const connections = 16

const sqliteOptions = "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"

// places makes databases for one test.
type places struct {
	t      *testing.T
	server *pgtest.Server // nil: not started yet
}

// start starts the server of PostgreSQL, once.
func (p *places) start() *pgtest.Server {
	if p.server == nil {
		p.server = pgtest.New(p.t, "max_connections=300", "shared_buffers=128MB", "max_wal_size=1GB")
	}
	return p.server
}

// database returns the URL of a new database of PostgreSQL.
func (p *places) database() string {
	p.start()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, p.server.URL("postgres"))
	require.NoError(p.t, err)
	defer conn.Close(ctx)
	name := "bench_" + strings.ToLower(rand.Text())
	_, err = conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0")
	require.NoError(p.t, err)
	return p.server.URL(name)
}

// service is a session service to compare.
type service struct {
	name string
	open func(p *places, store string) session.Service // nil: not on this store
}

var (
	adkService = service{"ADK", openADK}
	pawlWhole  = service{"Pawl", openPawl(adk.Config{})}
	pawlByKey  = service{"Pawl, ByKey", openPawl(adk.Config{Policy: adk.ByKey})}
)

func openADK(p *places, store string) session.Service {
	var db *sql.DB
	var dialect gorm.Dialector
	var err error
	switch store {
	case "memory":
		return session.InMemoryService()
	case "SQLite":
		db, err = sql.Open("sqlite", "file:"+filepath.Join(p.t.TempDir(), "adk.db")+sqliteOptions)
		dialect = &gormsqlite.Dialector{Conn: db}
	case "PostgreSQL":
		db, err = sql.Open("pgx", p.database())
		dialect = gormpostgres.New(gormpostgres.Config{Conn: db})
	default:
		return nil
	}
	require.NoError(p.t, err)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	p.t.Cleanup(func() { _ = db.Close() })
	s, err := database.NewSessionService(dialect, &gorm.Config{PrepareStmt: true, Logger: logger.Discard})
	require.NoError(p.t, err)
	require.NoError(p.t, database.AutoMigrate(s))
	return s
}

func openPawl(c adk.Config) func(p *places, store string) session.Service {
	return func(p *places, store string) session.Service {
		ctx := context.Background()
		var s persist.Store
		var err error
		switch store {
		case "memory":
			s = memory.New()
		case "files":
			s, err = fs.Open(ctx, filepath.Join(p.t.TempDir(), "state"), fs.Config{})
		case "SQLite":
			s, err = sqlite.Open(ctx, filepath.Join(p.t.TempDir(), "state.db"), sqlite.Config{})
		case "PostgreSQL":
			s, err = postgres.Open(ctx, p.database(), postgres.Config{})
		}
		require.NoError(p.t, err)
		p.t.Cleanup(func() { _ = s.Close() })
		rt, err := pawl.Open(pawl.Config{Store: s, Kinds: adk.Kinds()})
		require.NoError(p.t, err)
		p.t.Cleanup(func() { _ = rt.Close(ctx) })
		service, err := adk.New(rt, c)
		require.NoError(p.t, err)
		return service
	}
}
