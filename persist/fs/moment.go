package fs

import (
	"context"

	"github.com/pawl-go/pawl/persist"
)

var _ persist.Reader = (*Store)(nil)

// LoadAll returns the records of keys as they are at one moment, in which it keeps commits to them
// out. It returns *DamagedError if one of their files is damaged, persist.ErrClosed after Close,
// ctx's error, and an error that wraps persist.ErrUnavailable as Load does.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	want := make(wanted)
	for _, key := range keys {
		want.add(stripeOf(key), shared)
	}
	found, release, err := s.settle(s.locks.patient(ctx), want, keys...)
	if err != nil {
		return nil, explain(err)
	}
	defer release()
	records, now := make([]persist.Record, len(keys)), hostTime()
	for i := range found {
		records[i] = found[i].Record
		records[i].Now = now
	}
	return records, nil
}
