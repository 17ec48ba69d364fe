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

// Values are sent and received in PostgreSQL's binary formats. These are exact, and depend neither
// on settings of the session (DateStyle, TimeZone) nor on types that the caller registered with its
// pool.

// binaryFormat means that all parameters, or all columns, are binary.
var binaryFormat = []int16{1}

// statement is an SQL text with its parameters.
type statement struct {
	text     string
	prepared *prepared // nil: the text is sent each time
	values   [][]byte  // nil: NULL
	types    []uint32
}

// query returns a statement without parameters. Parameters are $1, $2 and so on, in the order in
// which they are added.
func query(text string) *statement { return &statement{text: text} }

// add adds a parameter. encode appends its value to the buffer, and returns nil for NULL.
func add[T any](s *statement, oid uint32, v T, encode func([]byte, T) []byte) *statement {
	s.values, s.types = append(s.values, encode([]byte{}, v)), append(s.types, oid)
	return s
}

// addArray adds an array of one dimension. encode appends one element.
func addArray[T any](s *statement, array, element uint32, v []T, encode func([]byte, T) []byte) *statement {
	return add(s, array, v, func(buf []byte, v []T) []byte {
		const dimensions, mayHaveNull, firstIndex, null = 1, 1, 1, ^uint32(0)
		for _, head := range []uint32{dimensions, mayHaveNull, element, uint32(len(v)), firstIndex} {
			buf = binary.BigEndian.AppendUint32(buf, head)
		}
		for _, e := range v {
			start := len(buf) + 4
			buf = binary.BigEndian.AppendUint32(buf, null)
			if all := encode(buf, e); all != nil {
				buf = all
				binary.BigEndian.PutUint32(buf[start-4:], uint32(len(buf)-start))
			}
		}
		return buf
	})
}

func (s *statement) string(v string) *statement { return add(s, pgtype.TextOID, v, appendText) }

func (s *statement) int(v int64) *statement { return add(s, pgtype.Int8OID, v, appendInt) }

func (s *statement) int4(v int32) *statement {
	return add(s, pgtype.Int4OID, uint32(v), binary.BigEndian.AppendUint32)
}

func (s *statement) bool(v bool) *statement { return add(s, pgtype.BoolOID, v, appendBool) }

// time adds a time in whole microseconds. The zero time becomes NULL.
func (s *statement) time(v time.Time) *statement {
	return add(s, pgtype.TimestamptzOID, v, appendTime)
}

// duration adds an interval in whole microseconds. 0 becomes NULL.
func (s *statement) duration(v time.Duration) *statement {
	return add(s, pgtype.IntervalOID, v, appendInterval)
}

// jsonText adds a document as a text.
func (s *statement) jsonText(doc json.RawMessage) *statement {
	return add(s, pgtype.TextOID, doc, appendDoc)
}

// optionalString adds a text. nil becomes NULL.
func (s *statement) optionalString(v *string) *statement {
	return add(s, pgtype.TextOID, v, appendOptional)
}

// durations adds intervals in whole microseconds. 0 becomes NULL.
func (s *statement) durations(v []time.Duration) *statement {
	return addArray(s, pgtype.IntervalArrayOID, pgtype.IntervalOID, v, appendInterval)
}

func (s *statement) strings(v []string) *statement {
	return addArray(s, pgtype.TextArrayOID, pgtype.TextOID, v, appendText)
}

// optionalStrings adds texts. nil becomes NULL.
func (s *statement) optionalStrings(v []*string) *statement {
	return addArray(s, pgtype.TextArrayOID, pgtype.TextOID, v, appendOptional)
}

func (s *statement) ints(v []int64) *statement {
	return addArray(s, pgtype.Int8ArrayOID, pgtype.Int8OID, v, appendInt)
}

func (s *statement) bools(v []bool) *statement {
	return addArray(s, pgtype.BoolArrayOID, pgtype.BoolOID, v, appendBool)
}

func (s *statement) times(v []time.Time) *statement {
	return addArray(s, pgtype.TimestamptzArrayOID, pgtype.TimestamptzOID, v, appendTime)
}

// jsons adds documents as texts, which SQL converts one by one. nil becomes NULL.
func (s *statement) jsons(v []json.RawMessage) *statement {
	return addArray(s, pgtype.TextArrayOID, pgtype.TextOID, v, appendDoc)
}

func appendDoc(buf []byte, doc json.RawMessage) []byte {
	if doc == nil {
		return nil
	}
	return append(buf, doc...)
}

func appendOptional(buf []byte, v *string) []byte {
	if v == nil {
		return nil
	}
	return append(buf, *v...)
}

func appendText(buf []byte, v string) []byte { return append(buf, v...) }

func appendInt(buf []byte, v int64) []byte { return binary.BigEndian.AppendUint64(buf, uint64(v)) }

func appendBool(buf []byte, v bool) []byte {
	if v {
		return append(buf, 1)
	}
	return append(buf, 0)
}

// appendInterval leaves days and months, which vary in length, 0.
func appendInterval(buf []byte, v time.Duration) []byte {
	if v == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(appendInt(buf, v.Microseconds()), 0)
}

// epoch is the zero of PostgreSQL's timestamps, which count microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func appendTime(buf []byte, t time.Time) []byte {
	if t.Truncate(time.Microsecond).IsZero() {
		return nil
	}
	return appendInt(buf, t.UnixMicro()-epoch)
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

// json returns nil for NULL, and otherwise a document without the spaces that PostgreSQL adds: a
// limit on its size then means the same on every store.
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

// columns are the columns of a whole record, of the table r, in the order of cells.record.
const columns = "r.kind, r.id, " + content

// content is columns without kind and id.
const content = "r.version, r.born, r.doc, r.schema, r.label, r.due, r.expires, r.updated, r.deleted IS NOT NULL, r.holder, r.token, r.until, pg_catalog.array_to_string(r.commits, E'\\n')"

// record reads columns. It returns the absent record for a row of NULL.
func (c *cells) record(now time.Time) persist.Record {
	return c.content(persist.Key{Kind: c.string(), ID: c.string()}, now)
}

// content reads content for the record of key. It returns an absent record for a row of NULL.
func (c *cells) content(key persist.Key, now time.Time) persist.Record {
	r := persist.Record{
		Key:     key,
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
