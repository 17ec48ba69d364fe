package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// answer is the rows of one statement.
type answer []cells

var (
	begin    = query("BEGIN ISOLATION LEVEL READ COMMITTED")
	commit   = query("COMMIT")
	rollback = query("ROLLBACK")
)

// roundTrip sends statements together and returns their answers, one for each statement that the
// server completed. After an error the server skips the remaining statements. Without BEGIN, the
// statements are one transaction that the server commits at the end; an error after all were
// completed is an error of that commit.
//
// If ctx ends meanwhile, the connection is closed even if the answers have arrived: pgconn may have
// a pending read with the expired deadline, whose error the next user of the connection would get.
//
// If the session does not know a prepared statement, nothing was done: roundTrip sends the texts
// instead. It cannot do so inside a transaction, where statements have to be sent as texts; see
// asTexts. Statements that come after a COMMIT only read.
//
// An error that wraps errUnsent means that nothing was sent, or that what was sent is undone.
// pgconn.SafeToRetry does not prove this: it is also true for a connection that breaks while the first
// answer is awaited.
func roundTrip(ctx context.Context, conn *pgconn.PgConn, statements ...*statement) ([]answer, error) {
	if conn.IsClosed() || ctx.Err() != nil {
		return nil, unsent(errors.Join(context.Cause(ctx), errConnectionLost))
	}
	defer func() {
		if ctx.Err() != nil && !conn.IsClosed() {
			hangUp(conn)
		}
	}()
	if slices.ContainsFunc(statements, (*statement).commits) {
		defer committing(conn)()
	}
	idle := conn.TxStatus() == 'I'
	answers, err := exchange(ctx, conn, statements)
	if idle && sqlState(err) == codeNoSuchStatement {
		undo(ctx, conn)
		forget(statements)
		answers, err = exchange(ctx, conn, statements)
	}
	if err != nil && sqlState(err) == "" && !conn.IsClosed() {
		return nil, unsent(err) // a message could not be encoded; other failures close the connection
	}
	return answers, err
}

// sendCommit is roundTrip for statements that commit, with COMMIT as the last one or without. Its
// error says whether they can have been applied; see outcome.
func sendCommit(ctx context.Context, conn *pgconn.PgConn, statements ...*statement) ([]answer, error) {
	answers, err := roundTrip(ctx, conn, statements...)
	if err == nil {
		return answers, nil
	}
	before := len(statements)
	if statements[before-1] == commit {
		before--
	}
	return answers, outcome(err, len(answers), before)
}

// exchange is roundTrip on an open connection.
func exchange(ctx context.Context, conn *pgconn.PgConn, statements []*statement) ([]answer, error) {
	var batch pgconn.Batch
	for _, s := range statements {
		if known := s.prepared.on(ctx, conn, s.types); known != nil {
			batch.ExecStatement(known, s.values, binaryFormat, binaryFormat)
		} else {
			batch.ExecParams(s.text, s.values, s.types, binaryFormat, binaryFormat)
		}
	}
	if conn.IsClosed() { // while a statement was prepared
		return nil, unsent(errConnectionLost)
	}
	reader := conn.ExecBatch(ctx, &batch)
	answers := make([]answer, 0, len(statements))
	for reader.NextResult() {
		rows, err := readAll(reader.ResultReader())
		if err != nil {
			break
		}
		answers = append(answers, rows)
	}
	return answers, reader.Close()
}

// readAll returns copies of the rows of a statement.
func readAll(reader *pgconn.ResultReader) (rows answer, err error) {
	for reader.NextRow() {
		row := slices.Clone(reader.Values())
		for i, value := range row { // valid until the next row
			row[i] = bytes.Clone(value)
		}
		rows = append(rows, row)
	}
	_, err = reader.Close()
	return rows, err
}

// undo rolls back a transaction that wrote nothing or has failed. If that fails, the pool closes
// the connection, because it is still in a transaction.
func undo(ctx context.Context, conn *pgconn.PgConn) {
	if !conn.IsClosed() && conn.TxStatus() != 'I' {
		_, _ = roundTrip(ctx, conn, rollback)
	}
}

// prepared is a statement that runs often. Each session keeps it under a name and does not parse
// and plan it again. Sessions that forget names, or a proxy that passes transactions to other
// sessions, answer with codeNoSuchStatement and do nothing; from then on the store sends the text.
type prepared struct {
	text      string
	name      string
	commits   bool // it is a commit by itself; preparing it may wait for the lock of a table
	forgotten atomic.Bool
}

func prepare(text string) *prepared {
	sum := sha256.Sum256([]byte(text))
	return &prepared{text: text, name: "pawl_" + hex.EncodeToString(sum[:12])}
}

// prepareCommit is prepare for a statement that is a commit by itself.
func prepareCommit(text string) *prepared {
	p := prepare(text)
	p.commits = true
	return p
}

// query returns a statement without values for its parameters.
func (p *prepared) query() *statement { return &statement{text: p.text, prepared: p} }

// on returns the description of p, whose parameters have these types, on conn. It returns nil if
// the text has to be sent. It prepares p if conn does not know it, but not in a transaction, which
// would not survive a failure.
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
	if p.commits {
		_ = conn.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '10ms'").Close()
		defer func() { _ = conn.Exec(ctx, "ROLLBACK").Close() }() // the statement stays prepared
	}
	known, err := conn.Prepare(ctx, p.name, p.text, types)
	if err != nil {
		if code := sqlState(err); code != "" && !passes(err) && !conn.IsClosed() { // the name is taken, behind a proxy
			p.forgotten.Store(true)
		}
		return nil
	}
	conn.CustomData()[p.name] = known
	return known
}

// forget is called when a session did not know one of the statements.
func forget(statements []*statement) {
	for _, s := range statements {
		if s.prepared != nil {
			s.prepared.forgotten.Store(true)
		}
	}
}

// replanAfter is the longest age of the plans of a session. A plan that was made for a small table
// reads all of it when it is large, until PostgreSQL analyzes the table. The functions of the store
// are planned for large tables; this is for the statements that read.
const replanAfter = 10 * time.Second

// replan discards the plans of a session if they are old. Errors do not matter.
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
