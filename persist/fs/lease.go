package fs

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires records as persist.Leaser says, one after the other, each in a commit of its own.
// It skips damaged files, and records whose locks are not free; it waits for these only if it takes
// nothing else. Its errors are those of Commit, without *DamagedError, *persist.Conflict and
// *persist.Fenced. If it fails after it has taken some records, it returns these and no error,
// unless the outcome for one more is unknown.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, notApplied(err)
	}
	defer end()
	q.Unheld = true
	taken, busy, tentative, err := s.takeFree(ctx, q, a, change)
	for _, key := range busy {
		if err != nil || len(taken) > 0 {
			break
		}
		var r persist.Record
		r, err = s.takeOne(ctx, ctx, key, q, a, change)
		switch {
		case isDamaged(err):
			err = nil
		case err == nil && !r.Absent():
			taken = append(taken, r)
		}
	}
	if len(taken) > 0 && errors.Is(err, persist.ErrNotApplied) {
		return taken, nil
	}
	if err == nil && len(taken) == 0 { // a record that is said to be held must be durable
		if err = s.readAgain(ctx, tentative); err != nil {
			err = notApplied(err)
		}
	}
	return taken, err
}

// takeFree takes the records whose stripes are free. It returns the keys of the other records that
// match, and of the tentative files that it read.
func (s *Store) takeFree(
	ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change,
) (taken []persist.Record, busy, tentative []persist.Key, err error) {
	for r, err := range s.matching(ctx, q, &tentative) {
		if isDamaged(err) {
			continue
		}
		if err != nil {
			return taken, nil, nil, notApplied(err)
		}
		key := r.Key
		r, err = s.takeOne(ctx, atOnce, key, q, a, change)
		switch {
		case isDamaged(err):
		case errors.Is(err, errBusy):
			busy = append(busy, key)
		case err != nil:
			return taken, nil, nil, err
		case !r.Absent():
			taken = append(taken, r)
		}
		if len(taken) == q.PageSize() {
			break
		}
	}
	return taken, busy, tentative, nil
}

// errNoMatch says that a record ceased to match the query of Take while Take waited for a lock.
var errNoMatch = errors.New("fs: record no longer matches the query")

// takeOne acquires the record of key and returns it, or the absent record if it no longer matches q
// or change declines it. It waits for the stripe until waiting ends, and for other locks until ctx ends.
func (s *Store) takeOne(
	ctx, waiting context.Context, key persist.Key, q persist.Query, a persist.Acquire, change persist.Change,
) (persist.Record, error) {
	found, release, err := s.lockAndRead(waiting, wanted{stripeOf(key): exclusive}, key)
	if err != nil {
		return persist.Record{}, notApplied(err)
	}
	defer release()
	r := found[0].Record
	now := hostTime()
	if !q.Match(r, now) {
		return persist.Record{}, nil
	}
	taken, ok := a.Take(r, now, change)
	if !ok {
		return persist.Record{}, nil
	}
	matches := true
	err = s.write(ctx, []persist.Record{taken}, map[persist.Key]stored{key: found[0]}, func() error {
		if matches = q.Match(r, hostTime()); !matches {
			return errNoMatch
		}
		return nil
	})
	if !matches {
		return persist.Record{}, nil
	}
	s.hint(map[persist.Key]persist.Record{key: r}, []persist.Record{taken}, err)
	return taken, err
}
