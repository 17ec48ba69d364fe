package fs

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires records as persist.Leaser says, one after the other, each in a commit of its own.
// It passes over files that are damaged, and over records whose locks others have at that
// moment, for which it waits only if there is nothing else to take. Its errors are those of Commit,
// without *DamagedError, *persist.Conflict and *persist.Fenced. If it fails after it has taken some
// records, it returns those and no error, unless the outcome for one more is unknown.
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
	ctx = s.locks.patient(ctx)
	taken, busy, doubtful, err := s.takeFree(ctx, q, a)
	for _, key := range busy {
		if err != nil || len(taken) > 0 {
			break
		}
		var r persist.Record
		r, err = s.takeOne(ctx, key, q, a)
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
	if err == nil && len(taken) == 0 { // by what was there, which is to be durable
		if err = s.settleAll(ctx, doubtful); err != nil {
			err = notApplied(err)
		}
	}
	return taken, err
}

// takeFree takes what can be had without waiting, and returns the keys of what else there is, and of what was tentative when it was looked at.
func (s *Store) takeFree(
	ctx context.Context, q persist.Query, a persist.Acquire,
) (taken []persist.Record, busy, doubtful []persist.Key, err error) {
	for r, err := range s.matching(ctx, q, &doubtful) {
		if isDamaged(err) {
			continue
		}
		if err != nil {
			return taken, nil, nil, notApplied(err)
		}
		key := r.Key
		r, err = s.takeOne(atOnce, key, q, a)
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
	return taken, busy, doubtful, nil
}

// takeOne acquires the record of key, and returns it, or the absent one if it no longer matches q.
func (s *Store) takeOne(
	ctx context.Context, key persist.Key, q persist.Query, a persist.Acquire,
) (persist.Record, error) {
	found, release, err := s.settle(ctx, wanted{stripeOf(key): exclusive}, key)
	if err != nil {
		return persist.Record{}, notApplied(err)
	}
	defer release()
	r := found[0].Record
	now := hostTime()
	if !q.Match(r, now) {
		return persist.Record{}, nil
	}
	taken := a.Take(r, now)
	err = s.write(ctx, []persist.Record{taken}, map[persist.Key]string{key: found[0].checksum})
	s.hint(map[persist.Key]persist.Record{key: r}, []persist.Record{taken}, err)
	return taken, err
}
