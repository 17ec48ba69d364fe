package sqlite

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first; q.Reverse turns that around. It returns persist.ErrClosed after Close, ctx's error, an error
// for an unknown q.After, and an error that wraps persist.ErrUnavailable when the database stayed
// locked.
func (r reads) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return persist.Page{}, err
	}
	defer end()
	now, size := hostTime(), q.PageSize()
	text, args, err := r.sql.list(q, now, size+1) // one more shows whether there is a next page
	if err != nil {
		return persist.Page{}, err
	}
	records, err := queryRecords(ctx, on, now, text, args...)
	if err != nil {
		return persist.Page{}, readable(ctx, err)
	}
	page := persist.Page{Records: records}
	if len(records) > size {
		page.Records = records[:size]
		page.Next = cursor.Of(q, records[size-1]).String()
	}
	return page, nil
}

// list returns the statement for the first limit records that match q at now. It says
// persist.Query.Match in SQL. The conditions of the partial indices are spelt out, because SQLite
// uses such an index only for a statement that contains its condition.
func (s statements) list(q persist.Query, now time.Time, limit int) (text string, args []any, err error) {
	var terms []string
	where := func(term string, values ...any) {
		terms = append(terms, term)
		args = append(args, values...)
	}
	at := now.UnixMicro()
	where("deleted = " + map[bool]string{false: "0", true: "1"}[q.Deleted])
	if q.Kind != "" {
		where("kind = ?", q.Kind)
	}
	if from := max(q.Prefix, q.From); from != "" {
		where("id >= ?", from)
	}
	if end := cursor.Successor(q.Prefix); end != "" {
		where("id < ?", end)
	}
	if q.Before != "" {
		where("id < ?", q.Before)
	}
	if len(q.Labels) > 0 {
		var labels []any
		for _, label := range q.Labels {
			labels = append(labels, label)
		}
		where("label IN ("+marks(len(labels))+")", labels...)
		if !slices.Contains(q.Labels, "") {
			where("label <> ''")
		}
	}
	if q.Age > 0 {
		where("updated <= ?", now.Add(-q.Age).UnixMicro())
	}
	if q.Due {
		where("due IS NOT NULL AND due <= ?", now.Add(q.DueIn).UnixMicro())
		if q.DueIn > 0 {
			where("due > ?", at)
		}
	}
	if q.Unheld {
		where("(token = 0 OR until <= ?)", at)
	}
	switch {
	case q.Deleted && q.Expired:
		where("0") // a tombstone is never expired
	case q.Deleted: // tombstones of deleted records, and of records that expired and were swept
	case q.Expired:
		where("expires IS NOT NULL AND expires <= ? AND (token = 0 OR until <= ?)", at, at)
	default:
		where("(expires IS NULL OR expires > ? OR token <> 0 AND until > ?)", at, at)
	}
	// Where an index was made for these records, few of their kind match. A plus sign keeps SQLite
	// from reading the whole kind in the order of the key instead, to save sorting or to go on there.
	sorting := ""
	if q.Expired || q.Deleted || len(q.Labels) > 1 && !q.Due {
		sorting = "+"
	}
	order, compared, direction := orderOf(q), ") > (", ""
	if q.Reverse {
		compared, direction = ") < (", " DESC"
	}
	if q.After != "" {
		after, err := cursor.Parse(q)
		if err != nil {
			return "", nil, err
		}
		where("("+sorting+strings.Join(order, ", "+sorting)+compared+marks(len(order))+")", valuesOf(order, after)...)
	}
	text = s.selectFrom + strings.Join(terms, " AND ") +
		" ORDER BY " + sorting + strings.Join(order, direction+", "+sorting) + direction + " LIMIT ?"
	return text, append(args, limit), nil
}

// orderOf returns the columns that q is listed by. A single kind is left out, so that an index
// with another column between kind and id can be read in this order.
func orderOf(q persist.Query) []string {
	var order []string
	if q.Due {
		order = append(order, "due")
	}
	if q.Kind == "" {
		order = append(order, "kind")
	}
	return append(order, "id")
}

// valuesOf returns the values of the columns of order at p.
func valuesOf(order []string, p cursor.Position) []any {
	var values []any
	for _, column := range order {
		values = append(values, map[string]any{"due": p.Due, "kind": p.Kind, "id": p.ID}[column])
	}
	return values
}
