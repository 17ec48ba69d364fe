package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
)

// direct is a connection whose prepared statements run without database/sql in between: its locks,
// checks and conversions cost more than the small statements of a commit. It belongs to one
// goroutine at a time, and no context interrupts these statements.
type direct struct {
	*sql.Conn
	texts      []string
	statements []statement         // of texts
	args       []driver.NamedValue // of the statement that runs
	values     []driver.Value      // of the row that is read
}

// statement is what both drivers prepare.
type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// errIndirect is no error to anybody: the driver wants database/sql.
var errIndirect = errors.New("a driver with statements of another sort")

// prepareConn returns conn with texts prepared.
func prepareConn(ctx context.Context, conn *sql.Conn, texts ...string) (on closer, err error) {
	d := &direct{Conn: conn}
	err = conn.Raw(func(c any) error {
		preparer, ok := c.(driver.ConnPrepareContext)
		if !ok {
			return errIndirect
		}
		for _, text := range texts {
			stmt, err := preparer.PrepareContext(ctx, text)
			if err != nil {
				return err
			}
			s, ok := stmt.(statement)
			if !ok {
				return errors.Join(errIndirect, stmt.Close())
			}
			d.texts, d.statements = append(d.texts, text), append(d.statements, s)
		}
		return nil
	})
	switch {
	case err == nil:
		return d, nil
	case errors.Is(err, errIndirect):
		if err := d.close(); err != nil {
			return nil, readable(ctx, err)
		}
		return prepare(ctx, conn, texts...)
	}
	return nil, errors.Join(readable(ctx, err), d.close())
}

// statement returns the prepared statement of text, or nil. These are few and their texts long: to compare one with itself is quicker than to hash it.
func (d *direct) statement(text string) statement {
	if i := slices.Index(d.texts, text); i >= 0 {
		return d.statements[i]
	}
	return nil
}

func (d *direct) ExecContext(ctx context.Context, text string, args ...any) (result sql.Result, err error) {
	s := d.statement(text)
	if s == nil {
		return d.Conn.ExecContext(ctx, text, args...)
	}
	err = d.Raw(func(any) error {
		result, err = s.ExecContext(background, d.named(args))
		return err
	})
	return result, err
}

func (d *direct) one(ctx context.Context, text string, dest []any, args ...any) error {
	s := d.statement(text)
	if s == nil {
		return one(d.QueryRowContext(ctx, text, args...), dest)
	}
	return d.Raw(func(any) error {
		rows, err := s.QueryContext(background, d.named(args))
		if err != nil {
			return err
		}
		d.values = slices.Grow(d.values[:0], len(dest))[:len(dest)]
		err = rows.Next(d.values)
		for i, v := range d.values {
			dest[i] = v
		}
		clear(d.values)
		if errors.Is(err, io.EOF) {
			err = sql.ErrNoRows
		}
		return errors.Join(err, rows.Close())
	})
}

// named returns args, which are what drivers take, as they want them.
func (d *direct) named(args []any) []driver.NamedValue {
	clear(d.args) // of what they point to
	d.args = d.args[:0]
	for i, arg := range args {
		d.args = append(d.args, driver.NamedValue{Ordinal: i + 1, Value: arg})
	}
	return d.args
}

// close closes the statements.
func (d *direct) close() error {
	return d.Raw(func(any) error {
		var errs []error
		for _, s := range d.statements {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	})
}
