package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// columns lists the columns of the records table in the order of scan and values.
const columns = "kind, id, version, born, doc, schema, label, due, expires, updated, deleted, " +
	"holder, token, until, commits"

// statements holds the SQL texts of a store, with its table names in them.
type statements struct {
	prefix     string // of the table names
	selectFrom string // SELECT columns FROM records WHERE
	load       string // the record, if there is one, and the floor
	loadAll    string // the records and the floor
	versions   string
	lock       string // changes nothing, but SQLite takes the write lock for it
	store      string // writes a whole row
	update     string // the fast way, see update
	raiseFloor string
	remove     string
	log        logStatements
}

func newStatements(prefix string) statements {
	// Without "main." a temporary table could hide ours in a transaction of the application.
	records, meta := `main."`+prefix+`records"`, `main."`+prefix+`meta"`
	log := newLogStatements(prefix)
	var all []string
	names := strings.Split(columns, ", ")
	for _, name := range names[2:] { // without the key
		all = append(all, name+" = excluded."+name)
	}
	selectFrom := "SELECT " + columns + " FROM " + records + " WHERE "
	// One statement reads the record and the version floor, so that both are of one moment. The floor is
	// the version in one more row, with an empty key. Where one row is read, the record comes first.
	floor := " UNION ALL SELECT '', '', value, 0, NULL, 0, '', NULL, NULL, 0, 0, '', 0, NULL, '' FROM " + meta + " WHERE name = 'floor'"
	return statements{
		prefix:     prefix,
		selectFrom: selectFrom,
		load:       selectFrom + "kind = ? AND id = ?" + floor + " ORDER BY 1 DESC",
		loadAll:    selectFrom + keysGiven + floor,
		versions:   "SELECT kind, id, version FROM " + records + " WHERE " + keysGiven,
		lock:       "UPDATE " + meta + " SET value = value WHERE name = ''",
		store: "INSERT INTO " + records + " (" + columns + ") VALUES (" + marks(len(names)) + ")" +
			" ON CONFLICT (kind, id) DO UPDATE SET " + strings.Join(all, ", "),
		update:     "UPDATE " + records + numbered(updateText+log.condition, updateNames),
		raiseFloor: "UPDATE " + meta + " SET value = max(value, ?) WHERE name = 'floor'",
		remove:     "DELETE FROM " + records + " WHERE kind = ? AND id = ?",
		log:        log,
	}
}

// updateText is the fast way of a commit: it tests and changes one record that is alive. Its
// condition is that of persist.Apply, and so are its changes. NULL as :version leaves the document
// alone, as :expected and :token it tests nothing, as :holder and :lease it keeps the lease's. A
// negative :ttl or :length keeps the time, NULL removes it. See logStatements.condition for :first
// and :last.
const updateText = ` SET
	version = coalesce(:version, version),
	doc     = coalesce(:doc, doc),
	schema  = coalesce(:schema, schema),
	label   = coalesce(:label, label),
	due     = CASE WHEN :version IS NULL THEN due ELSE coalesce(:due, :now + :delay) END,
	expires = CASE WHEN :ttl < 0 THEN expires ELSE :now + :ttl END,
	updated = CASE WHEN :version IS NULL THEN updated ELSE :now END,
	holder  = coalesce(:holder, holder),
	token   = coalesce(:lease, token),
	until   = CASE WHEN :length < 0 THEN until ELSE :now + :length END,
	commits = coalesce(:commits, commits)
WHERE kind = :kind AND id = :id AND deleted = 0 AND version = coalesce(:expected, version)
	AND (expires IS NULL OR expires > :now OR token <> 0 AND coalesce(until, 0) > :now)
	AND (:token IS NULL OR token = :token AND coalesce(until, 0) > :now)
	AND (coalesce(:lease, 0) = 0 OR token = 0 OR coalesce(until, 0) <= :now)`

// updateNames lists the parameters of updateText in their order.
var updateNames = []string{
	":now", ":kind", ":id", ":expected", ":token", ":version", ":doc", ":schema", ":label", ":due",
	":delay", ":commits", ":ttl", ":holder", ":lease", ":length", ":first", ":last",
}

// numbered replaces the named parameters in text by numbered ones, which drivers bind faster.
func numbered(text string, names []string) string {
	var pairs []string
	for i, name := range names {
		pairs = append(pairs, name, fmt.Sprintf("?%d", i+1))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// marks returns n placeholders.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// values returns the columns of r.
func values(r persist.Record) []any {
	var doc any
	if !r.Deleted {
		doc = string(r.Doc) // a string is stored as TEXT, which people and json_extract can read
	}
	return []any{
		r.Kind, r.ID, int64(r.Version), int64(r.Born), doc, int64(r.Schema), r.Label,
		micros(r.Due), micros(r.Expires), micros(r.Updated), r.Deleted,
		r.Lease.Holder, int64(r.Lease.Token), micros(r.Lease.Until), strings.Join(r.Commits, "\n"),
	}
}

// micros returns t as a column keeps it: in microseconds, NULL for the zero time.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// scan reads one row, as a record that was read at now, or at its update if it was written after
// now. If it was written while the clock was ahead, the clock counts, as for commits. It returns the
// errors of the row's Scan.
func scan(row interface{ Scan(...any) error }, now time.Time) (persist.Record, error) {
	r := persist.Record{Now: now}
	var version, born, schema, token int64
	var due, expires, updated, until sql.NullInt64
	var doc []byte
	var holder, commits string
	err := row.Scan(&r.Kind, &r.ID, &version, &born, &doc, &schema, &r.Label, &due, &expires,
		&updated, &r.Deleted, &holder, &token, &until, &commits)
	if err != nil {
		return persist.Record{}, err
	}
	r.Version, r.Born, r.Schema = uint64(version), uint64(born), int(schema)
	r.Doc = doc
	r.Due, r.Expires, r.Updated = fromMicros(due), fromMicros(expires), fromMicros(updated)
	if r.Updated.After(now) && !r.Updated.After(hostTime()) {
		r.Now = r.Updated
	}
	if token != 0 {
		r.Lease = persist.Lease{Holder: holder, Token: uint64(token), Until: fromMicros(until)}
	}
	if commits != "" {
		r.Commits = strings.Split(commits, "\n")
	}
	return r, nil
}

func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// queryAll returns what scan makes of each row of a query. It returns a driver's error.
func queryAll[T any](ctx context.Context, on executor, scan func(*sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		all = append(all, one)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

// queryRecords is queryAll for rows of columns, as records that were read at now.
func queryRecords(ctx context.Context, on executor, now time.Time, text string, args ...any) ([]persist.Record, error) {
	return queryAll(ctx, on, func(rows *sql.Rows) (persist.Record, error) { return scan(rows, now) }, text, args...)
}

// executor runs statements: *sql.DB, *sql.Conn, *sql.Tx, or prepared.
type executor interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// prepared is an executor that has the most frequent statements prepared.
type prepared struct {
	executor
	statements map[string]*sql.Stmt // by their text
}

// prepare returns on with texts prepared. It returns a driver's error.
func prepare(ctx context.Context, on interface {
	executor
	PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
}, texts ...string) (prepared, error) {
	p := prepared{executor: on, statements: make(map[string]*sql.Stmt)}
	for _, text := range texts {
		statement, err := on.PrepareContext(ctx, text)
		if err != nil {
			return prepared{}, errors.Join(err, p.close())
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

func (p prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if statement, ok := p.statements[text]; ok {
		return statement.QueryContext(ctx, args...)
	}
	return p.executor.QueryContext(ctx, text, args...)
}

func (p prepared) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	if statement, ok := p.statements[text]; ok {
		return statement.QueryRowContext(ctx, args...)
	}
	return p.executor.QueryRowContext(ctx, text, args...)
}

// close closes the prepared statements.
func (p prepared) close() error {
	var errs []error
	for _, statement := range p.statements {
		errs = append(errs, statement.Close())
	}
	return errors.Join(errs...)
}
