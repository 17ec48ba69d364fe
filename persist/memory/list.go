package memory

import (
	"context"
	"slices"
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
	matching, err := s.match(q, now())
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

// match returns the records after q.After that match q, in order. The caller holds mu.
func (s *Store) match(q persist.Query, at time.Time) ([]persist.Record, error) {
	var after cursor.Position
	if q.After != "" {
		var err error
		if after, err = cursor.Parse(q.After); err != nil {
			return nil, err
		}
	}
	var matching []persist.Record
	for _, r := range s.records {
		if !q.Match(r, at) || q.After != "" && cursor.Of(q, r).Compare(after) <= 0 {
			continue
		}
		r.Now = at
		matching = append(matching, r)
	}
	slices.SortFunc(matching, func(a, b persist.Record) int {
		return cursor.Of(q, a).Compare(cursor.Of(q, b))
	})
	return matching, nil
}
