package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// columns are those of the records table, in the order of row.targets and values.
const columns = "kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits"

// row is a row of the records table.
type row struct {
	kind, id, label, holder, commits string
	doc                              []byte
	version, born                    int64
	schema, updated, token           int64
	due, expires, until              sql.NullInt64
	deleted                          bool
}

// targets are the variables that a row is scanned into.
func (r *row) targets() []any {
	return []any{
		&r.kind, &r.id, &r.version, &r.born, &r.doc, &r.schema, &r.label, &r.due, &r.expires, &r.updated,
		&r.deleted, &r.holder, &r.token, &r.until, &r.commits,
	}
}

// record returns the row as a record that was read at now.
func (r *row) record(now time.Time) persist.Record {
	record := persist.Record{
		Key:     persist.Key{Kind: r.kind, ID: r.id},
		Version: uint64(r.version),
		Born:    uint64(r.born),
		Doc:     json.RawMessage(r.doc),
		Schema:  int(r.schema),
		Label:   r.label,
		Due:     fromMicros(r.due),
		Expires: fromMicros(r.expires),
		Updated: time.UnixMicro(r.updated).UTC(),
		Deleted: r.deleted,
		Now:     now,
	}
	if r.token != 0 {
		record.Lease = persist.Lease{Holder: r.holder, Token: uint64(r.token), Until: fromMicros(r.until)}
	}
	if r.commits != "" {
		record.Commits = strings.Split(r.commits, "\n")
	}
	return record
}

// values are the columns of r.
func values(r persist.Record) []any {
	var doc any
	if !r.Deleted {
		doc = string(r.Doc) // a string is stored as TEXT, which people and json_extract can read
	}
	return []any{
		r.Kind, r.ID, int64(r.Version), int64(r.Born), doc, int64(r.Schema), r.Label, toMicros(r.Due), toMicros(r.Expires),
		r.Updated.UnixMicro(), r.Deleted, r.Lease.Holder, int64(r.Lease.Token), toMicros(r.Lease.Until),
		strings.Join(r.Commits, "\n"),
	}
}

func toMicros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func fromMicros(micros sql.NullInt64) time.Time {
	if !micros.Valid {
		return time.Time{}
	}
	return time.UnixMicro(micros.Int64).UTC()
}

// readAll reads and closes rows.
func readAll(rows *sql.Rows, now time.Time) ([]persist.Record, error) {
	var records []persist.Record
	for rows.Next() {
		var r row
		if err := rows.Scan(r.targets()...); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		records = append(records, r.record(now))
	}
	return records, errors.Join(rows.Err(), rows.Close())
}
