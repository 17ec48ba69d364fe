package etcd

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// keyspace is the prefix of all keys of a store.
type keyspace string

// The names of the parts of the keyspace; see the package comment.
const (
	spaceRecord    = "m"
	spaceDocument  = "c"
	spaceLabel     = "l"
	spaceDue       = "d"
	spaceExpires   = "e"
	spaceTombstone = "t"
	spaceTurn      = "w"
)

func (p keyspace) schema() string { return string(p) + "schema" }
func (p keyspace) clock() string  { return string(p) + "clock" }
func (p keyspace) floor() string  { return string(p) + "floor" }

// of returns the key with parts in a space. With a last part of "" it is the start of all keys that
// have the parts before.
func (p keyspace) of(space string, parts ...string) string {
	return string(p) + space + "\x00" + strings.Join(parts, "\x00")
}

func (p keyspace) record(k persist.Key) string   { return p.of(spaceRecord, k.Kind, k.ID) }
func (p keyspace) document(k persist.Key) string { return p.of(spaceDocument, k.Kind, k.ID) }
func (p keyspace) turn(k persist.Key) string     { return p.of(spaceTurn, k.Kind, k.ID) }

// indexes returns the index keys of r.
func (p keyspace) indexes(r persist.Record) (keys []string) {
	switch {
	case r.Absent():
		return nil
	case r.Deleted:
		return []string{p.of(spaceTombstone, r.Kind, r.ID)}
	}
	if r.Label != "" {
		keys = append(keys, p.of(spaceLabel, r.Kind, r.Label, r.ID))
	}
	if !r.Due.IsZero() {
		keys = append(keys, p.of(spaceDue, r.Kind, sortable(r.Due)+r.ID))
	}
	if !r.Expires.IsZero() {
		keys = append(keys, p.of(spaceExpires, r.Kind, sortable(r.Expires)+r.ID))
	}
	return keys
}

// timeSize is the length of a time in a key.
const timeSize = 8

// sortable returns t in microseconds, as bytes that sort as times do.
func sortable(t time.Time) string {
	var b [timeSize]byte
	binary.BigEndian.PutUint64(b[:], uint64(t.UnixMicro())^1<<63)
	return string(b[:])
}

// parseTime returns the time that sortable encoded.
func parseTime(b []byte) (time.Time, error) {
	if len(b) != timeSize {
		return time.Time{}, errors.New("etcd: the clock is damaged")
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(b) ^ 1<<63)).UTC(), nil
}

// keyOf returns the key of the record in what follows the start of a space: the kind, the label in
// the space of labels, the time in an index of times, and the id.
func keyOf(space, rest string) (persist.Key, bool) {
	kind, id, ok := strings.Cut(rest, "\x00")
	switch space {
	case spaceLabel:
		_, id, ok = strings.Cut(id, "\x00")
	case spaceDue, spaceExpires:
		if len(id) < timeSize {
			return persist.Key{}, false
		}
		id = id[timeSize:]
	}
	return persist.Key{Kind: kind, ID: id}, ok
}
