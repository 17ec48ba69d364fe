package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// columns are those of the records table, in the order of recordOf and values.
const columns = "kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits"

// columnCount is how many there are, with the number of the row after them.
const columnCount = 15 + 1

// row is a row of columns, and then the row's number, as a driver has it: int64, string or nil.
type row [columnCount]any

func (r *row) int(i int) int64 { n, _ := r[i].(int64); return n }

func (r *row) text(i int) string {
	if bytes, ok := r[i].([]byte); ok { // as some drivers have it
		return string(bytes)
	}
	s, _ := r[i].(string)
	return s
}

// time returns the time in a column of microseconds, or the zero one.
func (r *row) time(i int) time.Time {
	if r[i] == nil {
		return time.Time{}
	}
	return time.UnixMicro(r.int(i)).UTC()
}

// check returns an error if a column has what cannot be in it, so that nothing is read as zero that is not.
func (r *row) check() error {
	for i, v := range r {
		ok := v == nil
		switch i {
		case 0, 1, 4, 6, 11, 14:
			switch v.(type) {
			case string, []byte:
				ok = true
			}
		default:
			_, isInt := v.(int64)
			ok = ok || isInt
		}
		if !ok {
			return fmt.Errorf("sqlite: the driver gives column %d as %T", i, v)
		}
	}
	return nil
}

// readOne reads the row of key, or returns sql.ErrNoRows.
func readOne(ctx context.Context, on executor, load string, key persist.Key) (*row, error) {
	r := new(row)
	if err := on.one(ctx, load, r[:], key.Kind, key.ID); err != nil {
		return nil, err
	}
	return r, r.check()
}

// readFloor reads the version floor.
func readFloor(ctx context.Context, on executor, text string) (uint64, error) {
	var value [1]any
	if err := on.one(ctx, text, value[:]); err != nil {
		return 0, err
	}
	floor, ok := value[0].(int64)
	if !ok {
		return 0, fmt.Errorf("sqlite: the driver gives the floor as %T", value[0])
	}
	return uint64(floor), nil
}

// number returns the row's number in its table.
func (r *row) number() int64 { return r.int(columnCount - 1) }

// record returns the row as a record that was read at now.
func (r *row) record(now time.Time) persist.Record {
	record := persist.Record{
		Key:     persist.Key{Kind: r.text(0), ID: r.text(1)},
		Version: uint64(r.int(2)),
		Born:    uint64(r.int(3)),
		Schema:  int(r.int(5)),
		Label:   r.text(6),
		Due:     r.time(7),
		Expires: r.time(8),
		Updated: r.time(9),
		Deleted: r.int(10) != 0,
		Now:     now,
	}
	if r[4] != nil {
		record.Doc = json.RawMessage(r.text(4))
	}
	if token := r.int(12); token != 0 {
		record.Lease = persist.Lease{Holder: r.text(11), Token: uint64(token), Until: r.time(13)}
	}
	if commits := r.text(14); commits != "" {
		record.Commits = strings.Split(commits, "\n")
	}
	return record
}

// touches reports whether the columns of statements.touch are all in which a row that is there changes.
func touches(before, after persist.Record) bool {
	return !before.Absent() && !before.Deleted && !after.Deleted && before.Born == after.Born && before.Schema == after.Schema &&
		before.Label == after.Label && before.Due.Equal(after.Due) && before.Expires.Equal(after.Expires) && before.Lease == after.Lease
}

// touched are the columns of statements.touch.
func touched(r persist.Record, number int64) []any {
	return []any{int64(r.Version), string(r.Doc), r.Updated.UnixMicro(), strings.Join(r.Commits, "\n"), number, r.Kind, r.ID}
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

// readAll reads and closes rows.
func readAll(rows *sql.Rows, now time.Time) ([]persist.Record, error) {
	var records []persist.Record
	var r row
	to := pointers(r[:])
	for rows.Next() {
		if err := errors.Join(rows.Scan(to...), r.check()); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		records = append(records, r.record(now))
	}
	return records, errors.Join(rows.Err(), rows.Close())
}
