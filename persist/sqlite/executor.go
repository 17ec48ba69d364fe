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
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// preparer is an executor that can prepare statements.
type preparer interface {
	executor
	PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
}

// prepared is an executor that has the statements which run all the time prepared.
type prepared struct {
	executor
	statements map[string]*sql.Stmt // by their text
}

// prepare returns on with texts prepared.
func prepare(ctx context.Context, on preparer, texts ...string) (prepared, error) {
	p := prepared{executor: on, statements: make(map[string]*sql.Stmt)}
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
	return p.executor.ExecContext(ctx, text, args...)
}

func (p prepared) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	if statement, ok := p.statements[text]; ok {
		return statement.QueryRowContext(ctx, args...)
	}
	return p.executor.QueryRowContext(ctx, text, args...)
}

// close closes the statements.
func (p prepared) close() error {
	var errs []error
	for _, statement := range p.statements {
		errs = append(errs, statement.Close())
	}
	return errors.Join(errs...)
}
