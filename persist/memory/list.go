package memory

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// List returns one page of the records that match q, ordered by kind and id, or with q.Due by due
// time first. It returns persist.ErrClosed after Close, ctx's error, and an error for an unknown
// q.After.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if err := ctx.Err(); err != nil {
		return persist.Page{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return persist.Page{}, persist.ErrClosed
	}
	matching, err := s.match(q, now(), q.PageSize()+1)
	if err != nil {
		return persist.Page{}, err
	}
	var page persist.Page
	if size := q.PageSize(); len(matching) > size {
		matching = matching[:size]
		page.Next = cursor.Of(q, matching[size-1]).String()
	}
	for _, r := range matching {
		page.Records = append(page.Records, r.Clone())
	}
	return page, nil
}

// match returns the first records after q.After that match q, in order, at most limit of them
// unless that is 0. It looks at no record before q.After. The caller holds mu.
func (s *Store) match(q persist.Query, at time.Time, limit int) ([]persist.Record, error) {
	x, start := &s.byKey, cursor.Position{Kind: q.Kind, ID: q.Prefix}
	if q.Due {
		x, start = &s.byDue, cursor.Position{Due: math.MinInt64}
	}
	var after cursor.Position
	if q.After != "" {
		var err error
		if after, err = cursor.Parse(q.After); err != nil {
			return nil, err
		}
		if after.Compare(start) > 0 {
			start = after
		}
	}
	var matching []persist.Record
	for p := range x.from(start) {
		if q.Due && p.Due > at.Add(q.DueIn).UnixMicro() || !q.Due && q.Kind != "" && (p.Kind != q.Kind || !strings.HasPrefix(p.ID, q.Prefix)) {
			break // nor does any later record match
		}
		r := s.records[persist.Key{Kind: p.Kind, ID: p.ID}]
		if q.After != "" && p.Compare(after) <= 0 || !q.Match(r, at) {
			continue
		}
		r.Now = at
		if matching = append(matching, r); len(matching) == limit {
			break
		}
	}
	return matching, nil
}
