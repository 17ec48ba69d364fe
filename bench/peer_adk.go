package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	gormsqlite "github.com/glebarez/sqlite"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pawl-go/pawl"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/database"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// onADK keeps the session in google.golang.org/adk/v2: in session.InMemoryService, or in its database
// service over GORM. It changes state as ADK prescribes: it gets the session, and appends an event
// with a StateDelta. The database service compares times and refuses a stale session. Its caller has
// to get the session again, compute the change again and append it again. onADK does so as often and
// with the same pauses as Pawl does by default. ADK has no error value for a stale session, only a
// text.
//
// As in ADK's own tests, SQLite is that of github.com/glebarez/sqlite, and GORM prepares its
// statements. In addition the file is in WAL mode, and connections wait for locks and take the write
// lock at the start of a transaction. Without that, calls fail with SQLITE_BUSY. PostgreSQL has its
// defaults. A get asks for the newest event only, which is less work than for all events.
type onADK struct {
	service session.Service
	db      *sql.DB // nil: in memory
}

const adkSQLite = "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"

func openADK(b *bench, store string) (n numbers, err error) {
	a := &onADK{service: session.InMemoryService()}
	if store != "memory" {
		var dialect gorm.Dialector
		if a.db, dialect, err = adkDatabase(b, store); err != nil {
			return nil, err
		}
		if a.service, err = database.NewSessionService(dialect, &gorm.Config{PrepareStmt: true, Logger: logger.Discard}); err == nil {
			err = database.AutoMigrate(a.service)
		}
	}
	if err == nil {
		_, err = a.service.Create(b.ctx, &session.CreateRequest{AppName: "bench", UserID: "user", SessionID: "shared"})
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func adkDatabase(b *bench, store string) (*sql.DB, gorm.Dialector, error) {
	if store == "PostgreSQL" {
		url, err := b.database()
		if err != nil {
			return nil, nil, err
		}
		db, err := openPool("pgx", url)
		return db, postgres.New(postgres.Config{Conn: db}), err
	}
	path, err := b.folder()
	if err != nil {
		return nil, nil, err
	}
	db, err := openPool("sqlite", "file:"+filepath.Join(path, "adk.db")+adkSQLite)
	return db, &gormsqlite.Dialector{Conn: db}, err
}

func (a *onADK) add(ctx context.Context, name string) error {
	return a.change(ctx, func(s session.State) (map[string]any, error) {
		old, err := s.Get(name)
		if errors.Is(err, session.ErrStateKeyNotExist) {
			old, err = int64(0), nil
		}
		return map[string]any{name: number(old) + 1}, err
	})
}

func (a *onADK) set(ctx context.Context, name string) error {
	return a.change(ctx, func(session.State) (map[string]any, error) { return map[string]any{name: int64(1)}, nil })
}

func (a *onADK) change(ctx context.Context, delta func(session.State) (map[string]any, error)) error {
	budget := pawl.DefaultRetry
	for attempt, delay := 1, budget.First; ; attempt, delay = attempt+1, min(2*delay, budget.Max) {
		s, err := a.get(ctx)
		if err != nil {
			return err
		}
		event := session.NewEvent(ctx, "bench")
		event.Author = "user"
		if event.Actions.StateDelta, err = delta(s.State()); err != nil {
			return err
		}
		err = a.service.AppendEvent(ctx, s, event)
		if err == nil || !strings.Contains(err.Error(), "stale session error") || attempt == budget.Attempts {
			return err
		}
		time.Sleep(rand.N(delay))
	}
}

func (a *onADK) get(ctx context.Context) (session.Session, error) {
	r, err := a.service.Get(ctx, &session.GetRequest{AppName: "bench", UserID: "user", SessionID: "shared", NumRecentEvents: 1})
	if err != nil {
		return nil, err
	}
	return r.Session, nil
}

func (a *onADK) all(ctx context.Context) (map[string]int64, error) {
	s, err := a.get(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for name, v := range s.State().All() {
		all[name] = number(v)
	}
	return all, nil
}

func (a *onADK) close() {
	if a.db != nil {
		_ = a.db.Close()
	}
}

// number returns a number of the state. The database service returns numbers as float64.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		return int64(v)
	}
	panic(fmt.Sprintf("bench: a %T in the state", v))
}
