package pawl

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/persist"
)

// Calls of the store that the observer is told of, by EventStoreCalled. Without an observer they cost
// nothing.

// observeCall runs call, which calls the method verb of the store, and reports it to the observer.
func observeCall[R any](ctx context.Context, e *env, verb string, key Key, call func() (R, error)) (R, error) {
	if e.observer == nil {
		return call()
	}
	began := time.Now()
	answer, err := call()
	e.storeCalled(ctx, Event{Verb: verb, Key: key, Took: time.Since(began), Err: err})
	return answer, err
}

// storeCalled reports a call of the store. ErrNotFound counts as success.
func (e *env) storeCalled(ctx context.Context, event Event) {
	event.Type = EventStoreCalled
	if errors.Is(event.Err, persist.ErrNotFound) {
		event.Err = nil
	}
	e.observe(ctx, event)
}

// load is the Load of a store, where an absent record is no error.
func (e *env) load(ctx context.Context, store persist.Store, key Key) (persist.Record, error) {
	r, err := observeCall(ctx, e, "Load", key, func() (persist.Record, error) { return store.Load(ctx, key) })
	if errors.Is(err, persist.ErrNotFound) {
		err = nil
	}
	return r, err
}

// list is the List of the store.
func (rt *Runtime) list(ctx context.Context, q persist.Query) (persist.Page, error) {
	return observeCall(ctx, rt.env, "List", Key{Kind: q.Kind}, func() (persist.Page, error) { return rt.store.List(ctx, q) })
}

// loadAll reads several records, at one instant where the store can.
func (e *env) loadAll(ctx context.Context, store persist.Store, keys []Key) ([]persist.Record, error) {
	if reader, ok := store.(persist.Reader); ok && len(keys) > 1 {
		return observeCall(ctx, e, "LoadAll", keys[0], func() ([]persist.Record, error) { return reader.LoadAll(ctx, keys) })
	}
	var records []persist.Record
	for _, key := range keys {
		r, err := e.load(ctx, store, key)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// observed returns r with its calls reported to the observer, r itself if there is none.
func (e *env) observed(r commit.Route) commit.Route {
	if e.observer == nil {
		return r
	}
	r.Store = observedStore{r.Store, e}
	if send := r.Commit; send != nil {
		r.Commit = func(ctx context.Context, c persist.Commit) (time.Time, error) { return e.commit(ctx, c, send) }
	}
	return r
}

// commit commits c by send, and reports it to the observer.
func (e *env) commit(
	ctx context.Context, c persist.Commit, send func(context.Context, persist.Commit) (time.Time, error),
) (time.Time, error) {
	began := time.Now()
	at, err := send(ctx, c)
	event := Event{Verb: "Commit", Batch: len(c.Writes), Took: time.Since(began), Err: err}
	switch {
	case len(c.Writes) > 0:
		event.Key = c.Writes[0].Key
	case len(c.Guards) > 0:
		event.Key = c.Guards[0].Key
	}
	if _, ok := errors.AsType[*commit.OwnError](err); ok {
		event.Err = persist.ErrNotApplied // the code that failed is not the store's
	}
	e.storeCalled(ctx, event)
	return at, err
}

// observedStore is the store of a commit.Route whose calls are reported to the observer.
type observedStore struct {
	store commit.Store
	env   *env
}

// Load is that of the store.
func (s observedStore) Load(ctx context.Context, key Key) (persist.Record, error) {
	return observeCall(ctx, s.env, "Load", key, func() (persist.Record, error) { return s.store.Load(ctx, key) })
}

// Commit is that of the store.
func (s observedStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	return s.env.commit(ctx, c, s.store.Commit)
}
