package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// selection is a query in SQL: conditions, their parameters in statement, and an order.
type selection struct {
	statement *statement
	terms     []string
	order     []string
	reverse   bool
}

// where adds a condition. %d in term stands for the number of the parameter that add adds.
func (s *selection) where(term string, add func(*statement)) {
	if add != nil {
		add(s.statement)
		term = fmt.Sprintf(term, len(s.statement.values))
	}
	s.terms = append(s.terms, term)
}

// conditions returns the conditions and the order, for records named r.
func (s *selection) conditions() string {
	direction := ""
	if s.reverse {
		direction = " DESC"
	}
	return strings.Join(s.terms, " AND ") + " ORDER BY " + strings.Join(s.order, direction+", ") + direction
}

// limit adds the number of rows as a parameter and returns the LIMIT clause.
func (s *selection) limit(n int) string {
	s.statement.int(int64(n))
	return fmt.Sprintf(" LIMIT $%d", len(s.statement.values))
}

// selected returns persist.Query.Match in SQL, with the conditions of the partial indices spelled
// out. It uses the start of the statement as the time, because the planner knows that.
func selected(q persist.Query) (*selection, error) {
	s := &selection{statement: query(""), reverse: q.Reverse}
	if !isText(q.From) || !isText(q.Before) {
		return nil, errors.New("postgres: Query.From or Query.Before is not UTF-8 without U+0000")
	}
	const held = "r.token <> 0 AND r.until > pg_catalog.statement_timestamp()"
	if q.Deleted {
		s.where("r.deleted IS NOT NULL", nil)
	} else {
		s.where("r.deleted IS NULL", nil)
	}
	labels := slices.DeleteFunc(slices.Clone(q.Labels), func(label string) bool { return !isText(label) })
	if !isText(q.Kind) || !isText(q.Prefix) || len(labels) == 0 && len(q.Labels) > 0 {
		s.where("false", nil) // no record has such a name
		q.Kind, q.Prefix = sought(q.Kind), sought(q.Prefix)
	}
	if q.Kind != "" {
		s.where("r.kind = $%d", func(p *statement) { p.string(q.Kind) })
	}
	if from := max(q.Prefix, q.From); from != "" {
		s.where("r.id >= $%d", func(p *statement) { p.string(from) })
	}
	if q.Prefix != "" {
		s.where("r.id < $%d", func(p *statement) { p.string(q.Prefix + lastID) })
	}
	if q.Before != "" {
		s.where("r.id < $%d", func(p *statement) { p.string(q.Before) })
	}
	switch {
	case len(labels) == 1: // the index has these in the order of ids
		s.where("r.label = $%d", func(p *statement) { p.string(labels[0]) })
	case len(labels) > 1:
		s.where("r.label = ANY ($%d)", func(p *statement) { p.strings(labels) })
	}
	if len(labels) > 0 && !slices.Contains(labels, "") {
		s.where("r.label <> ''", nil)
	}
	if q.Age > 0 {
		column := "updated"
		if q.Deleted {
			column = "deleted" // the same time, in an index
		}
		s.where("r."+column+" <= pg_catalog.statement_timestamp() - $%d", func(p *statement) { p.duration(q.Age) })
	}
	if q.Due {
		if q.DueIn > 0 {
			s.where("r.due > pg_catalog.statement_timestamp() AND r.due <= pg_catalog.statement_timestamp() + $%d",
				func(p *statement) { p.duration(q.DueIn) })
		} else {
			s.where("r.due IS NOT NULL AND r.due <= pg_catalog.statement_timestamp()", nil)
		}
		s.order = append(s.order, "r.due")
	}
	if q.Unheld {
		s.where("NOT ("+held+")", nil)
	}
	switch {
	case q.Expired && q.Deleted:
		s.where("false", nil) // a tombstone is not expired, even if it keeps the expiry of its record
	case q.Expired:
		s.where("r.expires IS NOT NULL AND r.expires <= pg_catalog.statement_timestamp() AND NOT ("+held+")", nil)
		if !q.Due {
			s.order = append(s.order, "r.expires") // the order of the index, so that the planner uses it
		}
	case q.Deleted:
		if !q.Due {
			s.order = append(s.order, "r.deleted") // as above
		}
	default:
		s.where("(r.expires IS NULL OR r.expires > pg_catalog.statement_timestamp() OR "+held+")", nil)
	}
	// One kind needs no order by kind: indices with a column between kind and id can then be used.
	if q.Kind == "" {
		s.order = append(s.order, "r.kind")
	}
	s.order = append(s.order, "r.id")
	return s, s.after(q)
}

// after adds the condition for the page that starts at q.After.
func (s *selection) after(q persist.Query) error {
	if q.After == "" {
		return nil
	}
	position, err := cursor.Parse(q)
	if err != nil {
		return err
	}
	var places []string
	for _, column := range s.order {
		switch column {
		case "r.due", "r.expires", "r.deleted":
			s.statement.time(time.UnixMicro(position.Due))
		case "r.kind":
			s.statement.string(position.Kind)
		default:
			s.statement.string(position.ID)
		}
		places = append(places, fmt.Sprintf("$%d", len(s.statement.values)))
	}
	compared := ") > ("
	if s.reverse {
		compared = ") < ("
	}
	s.where("("+strings.Join(s.order, ", ")+compared+strings.Join(places, ", ")+")", nil)
	return nil
}

// place returns the position of r in the list of q.
func place(q persist.Query, r persist.Record) cursor.Position {
	p := cursor.Of(q, r)
	switch {
	case q.Due:
	case q.Expired:
		p.Due = r.Expires.UnixMicro()
	case q.Deleted:
		p.Due = r.Updated.UnixMicro()
	}
	return p
}

// list returns the statement for the first limit records that match q.
func (t statements) list(q persist.Query, limit int) (*statement, error) {
	s, err := selected(q)
	if err != nil {
		return nil, err
	}
	s.statement.text = "SELECT pg_catalog.statement_timestamp(), " + columns + " FROM " + t.records + " r WHERE " + s.conditions() + s.limit(limit)
	return s.statement, nil
}

// ordered reports whether an index has the records of q in the order of the list, so that a page
// need not sort.
func ordered(q persist.Query) bool {
	switch {
	case q.Expired || q.Deleted:
		return q.Expired != q.Deleted && q.Kind != "" && !q.Due && len(q.Labels) == 0
	case q.Kind == "":
		return !q.Due && len(q.Labels) == 0
	case len(q.Labels) == 0:
		return true
	}
	return len(q.Labels) == 1 && q.Labels[0] != "" && !q.Due
}

// inOrder makes the planner read an index in the order of the list, for the rest of the
// transaction. Before a table is first analyzed, the planner takes it for small: it would read and
// sort the whole kind for each page. A few rows that must be sorted still are; the planner then takes
// the statement for expensive, and would compile it.
var inOrder = query(`SELECT pg_catalog.set_config('enable_sort', 'off', true), pg_catalog.set_config('jit', 'off', true),
	pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('enable_bitmapscan', 'off', true)`)

// lastID comes after all ids. Texts are compared byte by byte, which for UTF-8 means by code point.
var lastID = strings.Repeat(string(utf8.MaxRune), maxKey/utf8.UTFMax+1)
