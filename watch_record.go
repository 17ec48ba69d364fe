package pawl

import (
	"context"
	"errors"
	"iter"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/persist"
)

// WatchRecord yields the record of key as it is stored, and again when it may have changed, in this
// process or in another. It needs no Kind, so it shows documents of any type and schema, leases and
// tombstones. It is for tools; programs use Scope.Watch. A key without a record yields an absent
// record; see [persist.Record.Absent]. A slow caller skips to the newest record. A record may be
// yielded twice, and an expiry or the renewal of a lease yields none.
//
// WatchRecord ends when ctx ends, or after it yields one error: ErrClosed, ErrNoStore, *LimitError
// for a bad key, *ArgumentError for a nil ctx, or *UnavailableError if the record cannot be read.
func (rt *Runtime) WatchRecord(ctx context.Context, key Key) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		if err := rt.watchRecord(ctx, key, func(r persist.Record) bool { return yield(r, nil) }); err != nil {
			yield(persist.Record{}, err)
		}
	}
}

// watchRecord calls yield for each record, and returns the error that ends the watch. It is nil if
// ctx ended or yield returned false.
func (rt *Runtime) watchRecord(ctx context.Context, key Key, yield func(persist.Record) bool) error {
	switch {
	case ctx == nil:
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	case rt.store == nil:
		return wrapKey(ErrNoStore, key)
	}
	if err := errors.Join(checkName(key, "kind", key.Kind, MaxKind), checkName(key, "id", key.ID, MaxID)); err != nil {
		return err
	}
	found, open := rt.stored.Find(key, newStored)
	if !open {
		return wrapKey(ErrClosed, key)
	}
	s, signal := found.(*stored), notify.NewSignal()
	group := watchersOf(&s.group)
	quit := group.Join(signal) // before the first read, so that no change falls between
	defer group.Leave(signal)
	defer rt.hub.Watch(key, watchedScope{s})()
	defer rt.hub.Listen(key, signal.Set)() // also for the end of a lease, which moves no version
	if rt.closed.Load() {                  // Close may not have seen the group
		return wrapKey(ErrClosed, key)
	}
	for {
		r, err := rt.env.load(ctx, rt.store, key)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return unavailable(key, err)
		}
		r.Key = key
		s.advance(document.Of(r))
		if !yield(r) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-quit:
			return wrapKey(ErrClosed, key)
		case <-signal:
			if rt.closed.Load() { // both may be ready
				return wrapKey(ErrClosed, key)
			}
		}
	}
}
