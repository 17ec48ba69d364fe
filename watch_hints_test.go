package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// watchStore is a memory store that is also a persist.Prober and a persist.Watcher. Tests can make
// both fail.
type watchStore struct {
	*stores.Tap
	probes  atomic.Int64
	watches atomic.Int64

	mu        sync.Mutex                       // protects the fields below
	mute      bool                             // hints are dropped
	watchErr  error                            // returned by Watch; nil: Watch works
	damaged   []persist.Key                    // keys that cannot be read
	stale     *persist.Record                  // returned by Load instead of the current record
	listeners map[chan persist.Hint]chan error // an error sent to the value ends its Watch
}

func (s *watchStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *watchStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := s.Tap.Commit(ctx, c)
	if err == nil {
		s.set(func() {
			for _, w := range c.Writes {
				for listener := range s.listeners {
					if !s.mute {
						listener <- persist.Hint{Key: w.Key, Version: w.Version}
					}
				}
			}
		})
	}
	return at, err
}

func (s *watchStore) Watch(ctx context.Context, wake func(persist.Hint)) error {
	listener, end := make(chan persist.Hint, 10_000), make(chan error, 1)
	var failed error
	s.watches.Add(1)
	s.set(func() {
		if failed = s.watchErr; failed == nil {
			s.listeners[listener] = end
		}
	})
	if failed != nil {
		return failed
	}
	defer s.set(func() { delete(s.listeners, listener) })
	wake(persist.Hint{})
	for {
		select {
		case hint := <-listener:
			wake(hint)
		case err := <-end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cut ends all present and future calls of Watch with err.
func (s *watchStore) cut(err error) {
	s.set(func() {
		s.watchErr = err
		for _, end := range s.listeners {
			end <- err
		}
	})
}

// readable returns errUnreadable if one of keys is damaged.
func (s *watchStore) readable(keys ...persist.Key) (err error) {
	s.set(func() {
		if slices.ContainsFunc(keys, func(key persist.Key) bool { return slices.Contains(s.damaged, key) }) {
			err = errUnreadable
		}
	})
	return err
}

func (s *watchStore) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := s.readable(key); err != nil {
		return persist.Record{}, err
	}
	var stale *persist.Record
	if s.set(func() { stale = s.stale }); stale != nil {
		return *stale, nil
	}
	return s.Tap.Load(ctx, key)
}

func (s *watchStore) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := s.readable(keys...); err != nil {
		return nil, err
	}
	return s.Tap.LoadAll(ctx, keys)
}

func (s *watchStore) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	s.probes.Add(1)
	if err := s.readable(keys...); err != nil {
		return nil, err
	}
	records, err := s.Tap.Store.(persist.Reader).LoadAll(ctx, keys)
	versions := make([]uint64, len(records))
	for i, r := range records {
		if !r.Absent() {
			versions[i] = r.Version
		}
	}
	return versions, err
}

var errUnreadable = errors.New("the record is damaged")

func newWatchStore() *watchStore {
	return &watchStore{Tap: newTap(), listeners: map[chan persist.Hint]chan error{}}
}

// inBubble runs test in a synctest bubble, with two runtimes on one store.
func inBubble(t *testing.T, store persist.Store, test func(t *testing.T, ctx context.Context, here, there *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		here, there := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store})
		test(t, ctx, here, there)
		cancel()
		synctest.Wait()
	})
}

// within asserts that the next change of c takes at least least and at most most, by the bubble's
// clock.
func within[T any](t *testing.T, c <-chan pawl.Change[T], least, most time.Duration) pawl.Change[T] {
	t.Helper()
	began := time.Now()
	change, ok := <-c
	require.True(t, ok)
	require.NoError(t, change.Err)
	require.GreaterOrEqual(t, time.Since(began), least)
	require.LessOrEqual(t, time.Since(began), most)
	return change
}

// sail writes a new version of a ship.
func sail(t *testing.T, rt *pawl.Runtime, id string, opts ...pawl.CallOption) {
	t.Helper()
	_, err := ships.Scope(rt, id).IncState(t.Context(), "miles", 1, opts...)
	require.NoError(t, err)
}

// A change of another process arrives at once with hints, and soon after hints failed. If a hint is
// lost or unsupported, the next poll delivers the change.
//
// Proves SCOPE-13.
func TestWatchHints(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		changes := ships.Scope(here, "argo").Changes(ctx)
		others := ships.Scope(here, "other").Changes(ctx)
		require.False(t, receive(t, changes).Exists())
		require.False(t, receive(t, others).Exists())
		sail(t, there, "argo")
		require.EqualValues(t, 1, within(t, changes, 0, 20*time.Millisecond).Version)
		store.set(func() { store.mute = true })
		sail(t, there, "argo")
		require.EqualValues(t, 2, within(t, changes, 0, 6*time.Second).Version)
		store.set(func() { store.mute = false })
		store.cut(errors.New("connection reset"))
		time.Sleep(11 * time.Second) // the runtime has noticed, and its slow poll is not due
		sail(t, there, "argo")
		require.EqualValues(t, 3, within(t, changes, 0, 300*time.Millisecond).Version)
		store.set(func() { store.watchErr = nil })
		time.Sleep(10 * time.Second)
		sail(t, there, "argo")
		require.EqualValues(t, 4, within(t, changes, 0, 20*time.Millisecond).Version)
		require.Less(t, store.watches.Load(), int64(200), "Watch is called too often")
		store.cut(persist.ErrUnsupported)
		sail(t, there, "argo")
		require.EqualValues(t, 5, within(t, changes, 0, 6*time.Second).Version)
		sail(t, there, "other")
		require.EqualValues(t, 1, within(t, others, 0, 6*time.Second).Version)
	})
}

// A change committed while hints are interrupted arrives when they resume.
//
// Proves SCOPE-13.
func TestWatchChangeWhileHintsAreInterrupted(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		changes := ships.Scope(here, "argo").Changes(ctx)
		receive(t, changes)
		for range 50 {
			store.cut(errors.New("connection reset"))
			synctest.Wait()
			sail(t, there, "argo")
			store.set(func() { store.watchErr = nil })
			within(t, changes, 0, 600*time.Millisecond)
		}
	})
}

// A scope that cannot be read does not delay the watches of other scopes. Its own watch continues
// when it can be read again.
//
// Proves SCOPE-13.
func TestWatchBesideADamagedScope(t *testing.T) {
	for _, hints := range []bool{true, false} {
		store := newWatchStore()
		inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
			if !hints {
				store.cut(persist.ErrUnsupported)
			}
			damaged := ships.Scope(here, "damaged").Changes(ctx)
			receive(t, damaged)
			changes := ships.Scope(here, "argo").Changes(ctx)
			receive(t, changes)
			sail(t, there, "damaged")
			receive(t, damaged)
			store.set(func() { store.damaged = []persist.Key{ships.Scope(here, "damaged").Key()} })
			p := path{store: store.Tap}
			p.put(t, ships.Scope(here, "damaged").Key(), `{"miles":2}`, 0)
			time.Sleep(10 * time.Second)
			for range 5 {
				sail(t, there, "argo")
				within(t, changes, 0, time.Second)
			}
			before := store.Loads.Load()
			time.Sleep(time.Minute)
			require.Less(t, store.Loads.Load()-before, int64(2000), "the damaged scope is read too often")
			store.set(func() { store.damaged = nil })
			require.EqualValues(t, 2, within(t, damaged, 0, 6*time.Second).Version)
		})
	}
}

// A scope that is deleted and purged between two polls is reported as deleted. Its new versions do
// not count the skipped floor as missed.
//
// Proves SCOPE-13.
func TestWatchPurged(t *testing.T) {
	store := newWatchStore()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		idle := ships.Scope(here, "idle").Changes(ctx)
		receive(t, idle)
		changes := ships.Scope(here, "argo").Changes(ctx)
		receive(t, changes)
		sail(t, there, "argo")
		receive(t, changes)
		store.set(func() { store.mute = true })
		for range 50 {
			sail(t, there, "purged")
		}
		require.NoError(t, ships.Scope(there, "purged").Delete(ctx))
		require.NoError(t, ships.Scope(there, "argo").Delete(ctx))
		require.Equal(t, 2, purge(t, store))
		gone := within(t, changes, 0, 6*time.Second)
		require.False(t, gone.Exists())
		require.Greater(t, gone.Version, uint64(1))
		require.Zero(t, gone.Missed)
		sail(t, there, "argo")
		recreated := within(t, changes, 0, 6*time.Second)
		require.EqualValues(t, 52, recreated.Version)
		require.Zero(t, recreated.Missed)
		// One change reports both the deletion and the new versions.
		sail(t, there, "argo")
		receive(t, changes)
		require.NoError(t, ships.Scope(there, "argo").Delete(ctx))
		require.Equal(t, 1, purge(t, store))
		for range 3 {
			sail(t, there, "argo")
		}
		recreated = within(t, changes, 0, 6*time.Second)
		require.EqualValues(t, 57, recreated.Version)
		require.Equal(t, 3, recreated.Missed, "the deletion and two of the versions after it")
		select {
		case change := <-idle:
			t.Fatalf("change of an unchanged scope: %v", change)
		default:
		}
	})
}

// A caller that waits for scopes of a kind is woken by a change of another runtime.
//
// Proves SCOPE-13.
func TestWakeups(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake := errands.Wakeups(ctx, p.rt)
		for i := range 3 {
			_, err := errands.Scope(p.another(t), fmt.Sprint(i)).SetState(ctx, errand{})
			require.NoError(t, err)
			testkit.Receive(t, wake, "no wake-up after a change")
		}
	})
}
