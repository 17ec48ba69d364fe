package fs

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires records as persist.Leaser says, one after the other, each in a commit of its own.
// It passes over files that are damaged. Its errors are those of Commit, without
// *persist.Conflict and *persist.Fenced; what it had taken before a failure, it returns without one.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire) ([]persist.Record, error) {
	if ctx.Err() != nil {
		return nil, notApplied(context.Cause(ctx))
	}
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	q.Unheld = true
	var taken []persist.Record
	var seen stripeSet
	for r, err := range s.matching(ctx, q, &seen) {
		if isDamaged(err) {
			continue
		}
		if err == nil {
			r, err = s.takeOne(ctx, r.Key, q, a)
		} else {
			err = notApplied(err)
		}
		switch {
		case err == nil && !r.Absent():
			taken = append(taken, r)
		case errors.Is(err, persist.ErrNotApplied) && len(taken) > 0:
			return taken, nil
		case err != nil:
			return nil, err
		}
		if len(taken) == q.PageSize() {
			break
		}
	}
	return taken, nil
}

// takeOne acquires the record of key, and returns it, or the absent record if it no longer matches q.
func (s *Store) takeOne(ctx context.Context, key persist.Key, q persist.Query, a persist.Acquire) (persist.Record, error) {
	release, err := s.settle(ctx, wanted{stripeOf(key): exclusive})
	if err != nil {
		return persist.Record{}, notApplied(err)
	}
	defer release()
	r, checksum, err := s.read(key)
	if err != nil {
		return persist.Record{}, notApplied(err)
	}
	now := hostTime()
	if !q.Match(r, now) {
		return persist.Record{}, nil
	}
	r = a.Take(r, now)
	return r, s.write(ctx, []persist.Record{r}, map[persist.Key]string{key: checksum})
}
