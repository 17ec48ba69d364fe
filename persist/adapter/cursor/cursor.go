// Package cursor encodes the position between two pages of a list, for adapters. Stores write it
// into persist.Page.Next.
package cursor

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"github.com/pawl-go/pawl/persist"
)

// ErrMalformed is returned by Parse for a text that is not the Next of a page of the list.
var ErrMalformed = errors.New("persist: Query.After is not the Next of a page")

// Position is the position of a record in a list, which is ordered by kind and id. A list with
// Query.Due is ordered by due time first.
type Position struct {
	Due  int64  `json:"d,omitzero"` // Unix time in microseconds; 0 without Query.Due
	Kind string `json:"k"`
	ID   string `json:"i"`
}

// Of returns the position of r in the list of q.
func Of(q persist.Query, r persist.Record) Position {
	p := Position{Kind: r.Kind, ID: r.ID}
	if q.Due {
		p.Due = r.Due.UnixMicro()
	}
	return p
}

// Compare orders positions in the order of the list.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Due, o.Due), strings.Compare(p.Kind, o.Kind), strings.Compare(p.ID, o.ID))
}

// Order returns the order of the list of q.
func Order(q persist.Query) func(a, b Position) int {
	if q.Reverse {
		return func(a, b Position) int { return b.Compare(a) }
	}
	return Position.Compare
}

// Successor returns the first text after all texts that start with prefix, "" if there is none.
// Texts are compared byte by byte.
func Successor(prefix string) string {
	next := []byte(prefix)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i] < 0xff {
			next[i]++
			return string(next[:i+1])
		}
	}
	return ""
}

// String encodes p for Page.Next.
func (p Position) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number always marshal
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// Parse decodes q.After, which is not empty. It returns ErrMalformed for a text that Position.String did
// not return, and for the position of a record of another kind than q.Kind.
func Parse(q persist.Query) (Position, error) {
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err != nil {
		return Position{}, ErrMalformed
	}
	var p Position
	if err := json.Unmarshal(text, &p); err != nil || q.Kind != "" && p.Kind != q.Kind {
		return Position{}, ErrMalformed
	}
	return p, nil
}
