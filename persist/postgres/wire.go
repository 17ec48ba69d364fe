package postgres

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pawl-go/pawl/persist"
)

// Values travel in PostgreSQL's binary formats, both ways: they are exact, and neither the
// session's settings (DateStyle, TimeZone and the like) nor the types that a caller has registered
// with its pool change them. Any connection will do, also one that forgets the names of statements; see prepared.

// binaryFormat says that all parameters, or all columns, are binary.
var binaryFormat = []int16{1}

// statement is an SQL text with its parameters.
type statement struct {
	text     string
	prepared *prepared // nil: it is sent anew each time
	values   [][]byte  // nil: NULL
	types    []uint32
}

// query returns a statement without parameters yet. They are $1, $2 and so on in the order in which
// they are added.
func query(text string) *statement { return &statement{text: text} }

func (s *statement) add(oid uint32, value []byte) *statement {
	if s.values == nil {
		const usual = 12
		s.values, s.types = make([][]byte, 0, usual), make([]uint32, 0, usual)
	}
	s.values, s.types = append(s.values, value), append(s.types, oid)
	return s
}

func (s *statement) string(v string) *statement { return s.add(pgtype.TextOID, []byte(v)) }

func (s *statement) int(v int64) *statement { return s.add(pgtype.Int8OID, int8Value(v)) }

func (s *statement) int4(v int32) *statement {
	return s.add(pgtype.Int4OID, binary.BigEndian.AppendUint32(nil, uint32(v)))
}

func (s *statement) bool(v bool) *statement { return s.add(pgtype.BoolOID, boolValue(v)) }

// json adds a document, which NULL stands for when it is nil.
func (s *statement) json(doc json.RawMessage) *statement {
	if doc == nil {
		return s.add(pgtype.JSONBOID, nil)
	}
	const version = 1
	return s.add(pgtype.JSONBOID, append([]byte{version}, doc...))
}

// time adds a time, in whole microseconds, which NULL stands for when it is zero.
func (s *statement) time(v time.Time) *statement { return s.add(pgtype.TimestamptzOID, timeValue(v)) }

// duration adds an interval, in whole microseconds as stores keep time, or NULL.
func (s *statement) duration(v time.Duration, null bool) *statement {
	if null {
		return s.add(pgtype.IntervalOID, nil)
	}
	return s.add(pgtype.IntervalOID, intervalValue(v))
}

// durations adds intervals; NULL stands for 0.
func (s *statement) durations(v []time.Duration) *statement {
	return s.add(pgtype.IntervalArrayOID, arrayOf(pgtype.IntervalOID, v, func(d time.Duration) []byte {
		if d == 0 {
			return nil
		}
		return intervalValue(d)
	}))
}

// intervalValue leaves days and months, which vary in length, 0.
func intervalValue(v time.Duration) []byte {
	return append(int8Value(v.Microseconds()), make([]byte, 8)...)
}

func (s *statement) strings(v []string) *statement {
	return s.add(pgtype.TextArrayOID, arrayOf(pgtype.TextOID, v, func(text string) []byte { return []byte(text) }))
}

func (s *statement) ints(v []int64) *statement {
	return s.add(pgtype.Int8ArrayOID, arrayOf(pgtype.Int8OID, v, int8Value))
}

func (s *statement) bools(v []bool) *statement {
	return s.add(pgtype.BoolArrayOID, arrayOf(pgtype.BoolOID, v, boolValue))
}

func (s *statement) times(v []time.Time) *statement {
	return s.add(pgtype.TimestamptzArrayOID, arrayOf(pgtype.TimestamptzOID, v, timeValue))
}

// jsons adds documents as texts, which PostgreSQL can convert one by one; NULL stands for nil.
func (s *statement) jsons(v []json.RawMessage) *statement {
	return s.add(pgtype.TextArrayOID, arrayOf(pgtype.TextOID, v, func(doc json.RawMessage) []byte { return doc }))
}

// arrayOf returns an array of one dimension; encode returns nil for NULL.
func arrayOf[T any](oid uint32, elements []T, encode func(T) []byte) []byte {
	const dimensions, mayHaveNull, firstIndex = 1, 1, 1
	buf := binary.BigEndian.AppendUint32(nil, dimensions)
	buf = binary.BigEndian.AppendUint32(buf, mayHaveNull)
	buf = binary.BigEndian.AppendUint32(buf, oid)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(elements)))
	buf = binary.BigEndian.AppendUint32(buf, firstIndex)
	for _, element := range elements {
		value := encode(element)
		if value == nil {
			buf = binary.BigEndian.AppendUint32(buf, ^uint32(0)) // -1
			continue
		}
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(value)))
		buf = append(buf, value...)
	}
	return buf
}

func int8Value(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func boolValue(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

// epoch is the zero of PostgreSQL's timestamps, which count microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func timeValue(t time.Time) []byte {
	if t.Truncate(time.Microsecond).IsZero() {
		return nil
	}
	return int8Value(t.UnixMicro() - epoch)
}

// cells are the columns of one row of an answer, read from left to right.
type cells [][]byte

func (c *cells) next() []byte {
	first := (*c)[0]
	*c = (*c)[1:]
	return first
}

func (c *cells) string() string { return string(c.next()) }

// bool returns false for NULL.
func (c *cells) bool() bool {
	value := c.next()
	return len(value) == 1 && value[0] == 1
}

// int returns 0 for NULL.
func (c *cells) int() int64 {
	value := c.next()
	if value == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}

// time returns the zero time for NULL.
func (c *cells) time() time.Time {
	value := c.next()
	if value == nil {
		return time.Time{}
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(value)) + epoch).UTC()
}

// json returns nil for NULL, and otherwise a document without the blanks that PostgreSQL puts into
// one: a limit on its size should mean the same on every store.
func (c *cells) json() json.RawMessage {
	value := c.next()
	if value == nil {
		return nil
	}
	var compact bytes.Buffer
	compact.Grow(len(value))
	if err := json.Compact(&compact, value[1:]); err != nil { // after the version of the format
		return value[1:]
	}
	return compact.Bytes()
}

// columns are those of a whole record, of the table or row called r, in the order of cells.record.
const columns = "r.kind, r.id, r.version, r.born, r.doc, r.schema, r.label, r.due, r.expires, r.updated, r.deleted IS NOT NULL, r.holder, r.token, r.until, pg_catalog.array_to_string(r.commits, E'\\n')"

// record reads columns. It returns the absent record for a row of NULL.
func (c *cells) record(now time.Time) persist.Record {
	r := persist.Record{
		Key:     persist.Key{Kind: c.string(), ID: c.string()},
		Version: uint64(c.int()),
		Born:    uint64(c.int()),
		Doc:     c.json(),
		Schema:  int(c.int()),
		Label:   c.string(),
		Due:     c.time(),
		Expires: c.time(),
		Updated: c.time(),
		Deleted: c.bool(),
		Now:     now,
	}
	lease := persist.Lease{Holder: c.string(), Token: uint64(c.int()), Until: c.time()}
	if lease.Token != 0 {
		r.Lease = lease
	}
	r.Commits = splitCommits(c.string())
	return r
}

// splitCommits reads commit ids, one per line; they have no control characters.
func splitCommits(lines string) []string {
	if lines == "" {
		return nil
	}
	return strings.Split(lines, "\n")
}
