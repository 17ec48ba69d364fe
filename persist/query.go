package persist

import (
	"slices"
	"strings"
	"time"
)

// DefaultLimit is the size of a page when Query.Limit is 0.
const DefaultLimit = 100

// Match reports whether q selects r at the store's time now. It ignores After, Limit and Reverse. Adapters
// without an index use it as their filter. No record is both expired and a tombstone, so a query
// with both Expired and Deleted selects no record.
func (q Query) Match(r Record, now time.Time) bool {
	switch {
	case r.Absent():
		return false
	case q.Kind != "" && r.Kind != q.Kind:
		return false
	case !strings.HasPrefix(r.ID, q.Prefix):
		return false
	case r.ID < q.From || q.Before != "" && r.ID >= q.Before:
		return false
	case len(q.Labels) > 0 && !slices.Contains(q.Labels, r.Label):
		return false
	case q.Age > 0 && r.Updated.After(now.Add(-q.Age)):
		return false
	case q.Due && (r.Due.IsZero() || r.Due.After(now.Add(q.DueIn)) || q.DueIn > 0 && !r.Due.After(now)):
		return false
	case q.Unheld && r.Held(now):
		return false
	}
	return r.Deleted == q.Deleted && r.Expired(now) == q.Expired
}

// PageSize returns q.Limit, or DefaultLimit if that is not set.
func (q Query) PageSize() int {
	if q.Limit <= 0 {
		return DefaultLimit
	}
	return q.Limit
}
