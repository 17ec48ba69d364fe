package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// answer is the rows of one statement.
type answer [][][]byte

// roundTrip sends statements all at once and returns the answers, one for each statement that
// the server completed. After an error the server runs none of the statements behind the one that
// failed. Without a BEGIN among them, they are one transaction, which is committed at the end:
// an error that comes when all are completed is an error of that.
//
// When ctx ends during it the connection is closed, even if the answers were there: pgconn reads in the background while it writes for long,
// as it does in a process that is stopped there, and keeps the error of a time that is over for whoever comes next.
//
// An error that wraps errUnsent says that nothing was sent. pgconn.SafeToRetry does not know that
// here: it calls a connection that breaks while the first answer is awaited safe, too.
func roundTrip(ctx context.Context, conn *pgconn.PgConn, statements ...*statement) ([]answer, error) {
	if conn.IsClosed() || ctx.Err() != nil {
		return nil, unsent(errors.Join(context.Cause(ctx), errConnectionLost))
	}
	t, timed := ctx.(until)
	if timed {
		_ = conn.Conn().SetDeadline(t.Time)
	}
	defer func() {
		if conn.IsClosed() { // while pgconn says farewell it has a deadline of its own
			return
		}
		if timed {
			_ = conn.Conn().SetDeadline(time.Time{})
		}
		if ctx.Err() != nil {
			hangUp(conn)
		}
	}()
	answers, err := exchange(ctx, conn, statements)
	if sqlState(err) == codeNoSuchStatement {
		forget(statements)
	}
	if err != nil && sqlState(err) == "" && !conn.IsClosed() {
		return nil, unsent(err) // a message that cannot be encoded; all else that fails closes the connection
	}
	return answers, err
}

// exchange is roundTrip on a connection that is ready.
func exchange(ctx context.Context, conn *pgconn.PgConn, statements []*statement) ([]answer, error) {
	if len(statements) == 1 {
		return exchangeOne(ctx, conn, statements[0])
	}
	var batch pgconn.Batch
	for _, s := range statements {
		if known := s.prepared.on(ctx, conn, s.types); known != nil {
			batch.ExecStatement(known, s.values, binaryFormat, binaryFormat)
		} else {
			batch.ExecParams(s.text, s.values, s.types, binaryFormat, binaryFormat)
		}
	}
	if conn.IsClosed() { // while a statement was given its name
		return nil, unsent(errConnectionLost)
	}
	reader := conn.ExecBatch(ctx, &batch)
	answers := make([]answer, 0, len(statements))
	for reader.NextResult() {
		rows, _, err := readAll(reader.ResultReader())
		if err != nil {
			break
		}
		answers = append(answers, rows)
	}
	return answers, reader.Close()
}

// exchangeOne is exchange for one statement, for which pgconn has a shorter way.
func exchangeOne(ctx context.Context, conn *pgconn.PgConn, s *statement) ([]answer, error) {
	known := s.prepared.on(ctx, conn, s.types)
	var reader *pgconn.ResultReader
	switch {
	case conn.IsClosed(): // while the statement was given its name
		return nil, unsent(errConnectionLost)
	case known != nil:
		reader = conn.ExecStatement(ctx, known, s.values, binaryFormat, binaryFormat)
	default:
		reader = conn.ExecParams(ctx, s.text, s.values, s.types, binaryFormat, binaryFormat)
	}
	rows, completed, err := readAll(reader)
	if err != nil && !completed {
		return nil, err
	}
	return []answer{rows}, err
}

// readAll reads the rows of a statement, and reports whether the server has completed it: an error after that is one of the end of its transaction.
func readAll(reader *pgconn.ResultReader) (rows answer, completed bool, err error) {
	for reader.NextRow() {
		values := reader.Values() // which are there until the next row is
		row, size := make([][]byte, len(values)), 0
		for _, v := range values {
			size += len(v)
		}
		bytes := make([]byte, 0, size)
		for i, v := range values {
			if v != nil {
				start := len(bytes)
				bytes = append(bytes, v...)
				row[i] = bytes[start:len(bytes):len(bytes)]
			}
		}
		rows = append(rows, row)
	}
	tag, err := reader.Close()
	return rows, tag.String() != "", err
}

// until is a context that ends at a time and does not tell: the connection is given the time instead, which costs less than a timer that
// nobody hears of as a rule.
type until struct{ time.Time }

func (u until) Deadline() (time.Time, bool) { return u.Time, true }

func (u until) Done() <-chan struct{} { return nil }

func (u until) Err() error {
	if time.Now().Before(u.Time) {
		return nil
	}
	return context.DeadlineExceeded
}

func (u until) Value(any) any { return nil }

var (
	begin    = query("BEGIN ISOLATION LEVEL READ COMMITTED")
	commit   = query("COMMIT")
	rollback = query("ROLLBACK")
)

// undo ends a transaction that wrote nothing, or whose statement failed. It does not matter whether
// that succeeds: a connection that is given back in a transaction is closed.
func undo(ctx context.Context, conn *pgconn.PgConn) {
	if !conn.IsClosed() && conn.TxStatus() != 'I' {
		_, _ = roundTrip(ctx, conn, rollback)
	}
}
