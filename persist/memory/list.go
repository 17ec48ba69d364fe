package memory

import (
	"context"
	"math"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// List returns one page of the records that match q, ordered by kind and id, or with q.Due by due
// time first; q.Reverse turns that around. It returns persist.ErrClosed after Close, ctx's error, and an error for an unknown
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
	x, low, high := &s.byKey, cursor.Position{}, cursor.Position{Due: math.MaxInt64}
	switch {
	case q.Due:
		x, low.Due, high.Due = &s.byDue, math.MinInt64, at.Add(q.DueIn).UnixMicro()+1
		if q.DueIn > 0 {
			low.Due = at.UnixMicro() + 1
		}
	case q.Kind != "":
		low = cursor.Position{Kind: q.Kind, ID: max(q.Prefix, q.From)}
		high = cursor.Position{Kind: q.Kind + "\x00"} // the end of the kind
		for _, end := range []string{q.Before, cursor.Successor(q.Prefix)} {
			if p := (cursor.Position{Kind: q.Kind, ID: end}); end != "" && p.Compare(high) < 0 {
				high = p
			}
		}
	}
	if q.After != "" {
		after, err := cursor.Parse(q)
		switch {
		case err != nil:
			return nil, err
		case q.Reverse && after.Compare(high) < 0:
			high = after
		case !q.Reverse && after.Compare(low) >= 0:
			after.ID += "\x00" // the next position
			low = after
		}
	}
	positions := x.from(low)
	if q.Reverse {
		positions = x.before(high)
	}
	var matching []persist.Record
	for p := range positions {
		if p.Compare(low) < 0 || p.Compare(high) >= 0 {
			break // nor does any later record match
		}
		r := s.records[persist.Key{Kind: p.Kind, ID: p.ID}]
		if !q.Match(r, at) {
			continue
		}
		r.Now = at
		if matching = append(matching, r); len(matching) == limit {
			break
		}
	}
	return matching, nil
}
