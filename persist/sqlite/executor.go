package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// executor runs statements: a pool of connections, one connection, or a transaction.
type executor interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)

	// one reads the one row that a statement gives into dest, as the driver has it, or returns sql.ErrNoRows.
	one(ctx context.Context, text string, dest []any, args ...any) error
}

// closer is an executor with prepared statements.
type closer interface {
	executor
	close() error // closes the statements
}

// common is what *sql.DB, *sql.Conn and *sql.Tx have in common.
type common interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
}

// prepared is an executor of database/sql that has the statements which run all the time prepared, if any.
type prepared struct {
	common
	statements map[string]*sql.Stmt // by their text
}

// prepare returns on with texts prepared.
func prepare(ctx context.Context, on common, texts ...string) (prepared, error) {
	p := prepared{common: on, statements: make(map[string]*sql.Stmt)}
	for _, text := range texts {
		statement, err := on.PrepareContext(ctx, text)
		if err != nil {
			return p, errors.Join(readable(ctx, err), p.close())
		}
		p.statements[text] = statement
	}
	return p, nil
}

func (p prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if statement, ok := p.statements[text]; ok {
		return statement.ExecContext(ctx, args...)
	}
	return p.common.ExecContext(ctx, text, args...)
}

func (p prepared) one(ctx context.Context, text string, dest []any, args ...any) error {
	if statement, ok := p.statements[text]; ok {
		return one(statement.QueryRowContext(ctx, args...), dest)
	}
	return one(p.QueryRowContext(ctx, text, args...), dest)
}

// one reads a row into dest.
func one(row *sql.Row, dest []any) error { return row.Scan(pointers(dest)...) }

// pointers returns pointers to the elements of dest.
func pointers(dest []any) []any {
	to := make([]any, len(dest))
	for i := range dest {
		to[i] = &dest[i]
	}
	return to
}

// close closes the statements.
func (p prepared) close() error {
	var errs []error
	for _, statement := range p.statements {
		errs = append(errs, statement.Close())
	}
	return errors.Join(errs...)
}
