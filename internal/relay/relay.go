// Package relay passes the calls of a store on to another store, through a hook. The stores for
// tests are built on it: those of internal/testkit/stores and of pawltest.
package relay

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Call describes one call of a store.
type Call struct {
	// Method is the name of the method, such as "Load".
	Method string
	// Commit is the argument of Commit and CommitWith. It is nil for other methods.
	Commit *persist.Commit
}

// Hook runs in place of each call except Close, Limits and NativeType. It calls next to reach the store,
// and returns the error for the caller.
type Hook func(ctx context.Context, call Call, next func(ctx context.Context) error) error

// Store passes calls on to another store. It has all optional methods. Where the other store lacks
// one, Pawl works as without it:
//   - Versions, ReadLog, ReadOrder and LastPosition use the methods of every store.
//   - LoadAll reads the records until two passes return the same versions. Versions are never used
//     twice, so the records were current together between the passes.
//   - Purge removes nothing, NativeType returns nil, and Limits returns none.
//   - Watch, Take, Restore, RestoreLog and CommitWith return persist.ErrUnsupported.
type Store struct {
	below persist.Store
	logs  persist.Logger // below, or what keeps logs in it
	hook  Hook           // nil: none
}

// New returns a store in front of below. A nil hook passes all calls on.
func New(below persist.Store, hook Hook) *Store {
	return &Store{below: below, logs: persist.Logs(below), hook: hook}
}

// Below returns the store that calls are passed on to.
func (s *Store) Below() persist.Store { return s.below }

// pass runs next, inside the hook if there is one.
func (s *Store) pass(ctx context.Context, call Call, next func(ctx context.Context) error) error {
	if s.hook == nil {
		return next(ctx)
	}
	return s.hook(ctx, call, next)
}

// Load implements persist.Store.
func (s *Store) Load(ctx context.Context, key persist.Key) (r persist.Record, err error) {
	err = s.pass(ctx, Call{Method: "Load"}, func(ctx context.Context) (err error) {
		r, err = s.below.Load(ctx, key)
		return err
	})
	return r, err
}

// Commit implements persist.Store.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (at time.Time, err error) {
	err = s.pass(ctx, Call{Method: "Commit", Commit: &c}, func(ctx context.Context) (err error) {
		at, err = s.logs.Commit(ctx, c)
		return err
	})
	return at, err
}

// List implements persist.Store.
func (s *Store) List(ctx context.Context, q persist.Query) (page persist.Page, err error) {
	err = s.pass(ctx, Call{Method: "List"}, func(ctx context.Context) (err error) {
		page, err = s.below.List(ctx, q)
		return err
	})
	return page, err
}

// Close implements persist.Store.
func (s *Store) Close() error { return s.below.Close() }

// Limits implements persist.Limiter. No hook runs.
func (s *Store) Limits() persist.Limits {
	if limiter, ok := s.below.(persist.Limiter); ok {
		return limiter.Limits()
	}
	return persist.Limits{}
}

// LoadAll implements persist.Reader.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) (records []persist.Record, err error) {
	err = s.pass(ctx, Call{Method: "LoadAll"}, func(ctx context.Context) (err error) {
		if reader, ok := s.below.(persist.Reader); ok {
			records, err = reader.LoadAll(ctx, keys)
		} else {
			records, err = s.collect(ctx, keys)
		}
		return err
	})
	return records, err
}

// collect reads the records one by one until two passes agree.
func (s *Store) collect(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	last, err := s.loadEach(ctx, keys)
	for err == nil {
		var next []persist.Record
		if next, err = s.loadEach(ctx, keys); err != nil {
			break
		}
		if slices.EqualFunc(last, next, func(a, b persist.Record) bool { return a.Version == b.Version && a.Absent() == b.Absent() }) {
			return next, nil
		}
		last = next
	}
	return nil, err
}

// loadEach reads the records one by one. A key without a record gets an absent record.
func (s *Store) loadEach(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	records := make([]persist.Record, len(keys))
	for i, key := range keys {
		r, err := s.below.Load(ctx, key)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return nil, err
		}
		r.Key = key
		records[i] = r
	}
	return records, nil
}

// Versions implements persist.Prober.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) (versions []uint64, err error) {
	err = s.pass(ctx, Call{Method: "Versions"}, func(ctx context.Context) (err error) {
		if prober, ok := s.below.(persist.Prober); ok {
			versions, err = prober.Versions(ctx, keys)
			return err
		}
		records, err := s.loadEach(ctx, keys)
		for _, r := range records {
			if r.Absent() {
				r.Version = 0
			}
			versions = append(versions, r.Version)
		}
		return err
	})
	return versions, err
}

// Take implements persist.Leaser.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) (taken []persist.Record, err error) {
	leaser, ok := s.below.(persist.Leaser)
	if !ok {
		return nil, persist.ErrUnsupported
	}
	err = s.pass(ctx, Call{Method: "Take"}, func(ctx context.Context) (err error) {
		taken, err = leaser.Take(ctx, q, a, change)
		return err
	})
	return taken, err
}

// Purge implements persist.Purger.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	purger, ok := s.below.(persist.Purger)
	if !ok {
		return 0, nil
	}
	err = s.pass(ctx, Call{Method: "Purge"}, func(ctx context.Context) (err error) {
		removed, err = purger.Purge(ctx, q)
		return err
	})
	return removed, err
}

// Watch implements persist.Watcher.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	watcher, ok := s.below.(persist.Watcher)
	if !ok {
		return persist.ErrUnsupported
	}
	return s.pass(ctx, Call{Method: "Watch"}, func(ctx context.Context) error { return watcher.Watch(ctx, wake) })
}

// ReadLog implements persist.Logger.
func (s *Store) ReadLog(ctx context.Context, q persist.LogQuery) (entries []persist.LogEntry, err error) {
	err = s.pass(ctx, Call{Method: "ReadLog"}, func(ctx context.Context) (err error) {
		entries, err = s.logs.ReadLog(ctx, q)
		return err
	})
	return entries, err
}

// ReadOrder implements persist.Logger.
func (s *Store) ReadOrder(ctx context.Context, q persist.OrderQuery) (entries []persist.LogEntry, err error) {
	err = s.pass(ctx, Call{Method: "ReadOrder"}, func(ctx context.Context) (err error) {
		entries, err = s.logs.ReadOrder(ctx, q)
		return err
	})
	return entries, err
}

// LastPosition implements persist.Logger.
func (s *Store) LastPosition(ctx context.Context) (position uint64, err error) {
	err = s.pass(ctx, Call{Method: "LastPosition"}, func(ctx context.Context) (err error) {
		position, err = s.logs.LastPosition(ctx)
		return err
	})
	return position, err
}

// Restore implements persist.Restorer.
func (s *Store) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	restorer, ok := s.below.(persist.Restorer)
	if !ok {
		return persist.ErrUnsupported
	}
	return s.pass(ctx, Call{Method: "Restore"}, func(ctx context.Context) error { return restorer.Restore(ctx, records, floor) })
}

// RestoreLog implements persist.LogRestorer.
func (s *Store) RestoreLog(ctx context.Context, entries []persist.LogEntry, last uint64) error {
	restorer, ok := s.logs.(persist.LogRestorer)
	if !ok {
		return persist.ErrUnsupported
	}
	return s.pass(ctx, Call{Method: "RestoreLog"}, func(ctx context.Context) error { return restorer.RestoreLog(ctx, entries, last) })
}

// CommitWith implements persist.Native.
func (s *Store) CommitWith(ctx context.Context, c persist.Commit, fn func(ctx context.Context, tx any) error) (at time.Time, err error) {
	native, ok := s.below.(persist.Native)
	if !ok {
		return time.Time{}, persist.ErrUnsupported
	}
	err = s.pass(ctx, Call{Method: "CommitWith", Commit: &c}, func(ctx context.Context) (err error) {
		at, err = native.CommitWith(ctx, c, fn)
		return err
	})
	return at, err
}

// NativeType implements persist.Native.
func (s *Store) NativeType() reflect.Type {
	if native, ok := s.below.(persist.Native); ok {
		return native.NativeType()
	}
	return nil
}

var (
	_ persist.Reader      = (*Store)(nil)
	_ persist.Limiter     = (*Store)(nil)
	_ persist.Watcher     = (*Store)(nil)
	_ persist.Prober      = (*Store)(nil)
	_ persist.Leaser      = (*Store)(nil)
	_ persist.Native      = (*Store)(nil)
	_ persist.Purger      = (*Store)(nil)
	_ persist.Restorer    = (*Store)(nil)
	_ persist.LogRestorer = (*Store)(nil)
)
