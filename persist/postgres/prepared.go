package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// prepared is a text that runs all the time. A session that keeps it by name spares the server reading and planning it again.
// Sessions that forget names, or a proxy that gives transactions to other sessions, are noticed when a name is not known there; from
// then on the text is sent anew each time. Whoever uses one tries again when that happens, see codeNoSuchStatement: nothing was done.
type prepared struct {
	text       string
	name       string
	parameters int  // how many it has, about
	locks      bool // to read it locks a table that is written to, which may have to be waited for
	forgotten  atomic.Bool
}

func prepare(text string) *prepared {
	sum := sha256.Sum256([]byte(text))
	return &prepared{text: text, name: "pawl_" + hex.EncodeToString(sum[:12]), parameters: strings.Count(text, "$")}
}

// query returns a statement of p without parameters yet.
func (p *prepared) query() *statement { return &statement{text: p.text, prepared: p} }

// on returns what conn knows of p, which has parameters of these types, or nil if the text has to be sent. It prepares p where that is
// missing, but not inside a transaction, which would not survive a failure.
func (p *prepared) on(ctx context.Context, conn *pgconn.PgConn, types []uint32) *pgconn.StatementDescription {
	if p == nil || p.forgotten.Load() {
		return nil
	}
	idle := conn.TxStatus() == 'I'
	if idle {
		replan(ctx, conn)
	}
	if known, ok := conn.CustomData()[p.name].(*pgconn.StatementDescription); ok {
		return known
	}
	if !idle {
		return nil
	}
	if p.locks {
		_ = conn.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '10ms'").Close()
		defer func() { _ = conn.Exec(ctx, "ROLLBACK").Close() }() // which a name outlives
	}
	known, err := conn.Prepare(ctx, p.name, p.text, types)
	if err != nil {
		if code := sqlState(err); code != "" && code != codeLockNotAvailable && !conn.IsClosed() { // such as that another client of a proxy has given this name in the session
			p.forgotten.Store(true)
		}
		return nil
	}
	conn.CustomData()[p.name] = known
	return known
}

// replanAfter is how old the plans of a session become. One that was made when a table was small reads all of it once it is large, until
// PostgreSQL has counted its rows again.
const replanAfter = 10 * time.Second

// replan lets a session forget its plans when they are old. Whether it succeeds does not matter, nor in which session of a proxy.
func replan(ctx context.Context, conn *pgconn.PgConn) {
	const planned = "pawl: planned"
	now := time.Now()
	since, known := conn.CustomData()[planned].(time.Time)
	if known && now.Sub(since) < replanAfter {
		return
	}
	conn.CustomData()[planned] = now
	if known {
		_ = conn.Exec(ctx, "DISCARD PLANS").Close()
	}
}

// forget is called when a session did not know one of the statements.
func forget(statements []*statement) {
	for _, s := range statements {
		if s.prepared != nil {
			s.prepared.forgotten.Store(true)
		}
	}
}
