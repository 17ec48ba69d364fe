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

// knowing is a store that tells versions and changes: a memory store that is a persist.Prober and a persist.Watcher as well, and can be made to fail at it.
type knowing struct {
	*stores.Tap
	probes  atomic.Int64
	watches atomic.Int64

	mu     sync.Mutex
	mute   bool                             // hints are lost
	deaf   error                            // what Watch returns
	bad    []persist.Key                    // what cannot be read
	answer *persist.Record                  // of Load, instead of what is there: it was read before
	ears   map[chan persist.Hint]chan error // of those who listen, and what ends that
}

func (s *knowing) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *knowing) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := s.Tap.Commit(ctx, c)
	if err == nil {
		s.set(func() {
			for _, w := range c.Writes {
				for ear := range s.ears {
					if !s.mute {
						ear <- persist.Hint{Key: w.Key, Version: w.Version}
					}
				}
			}
		})
	}
	return at, err
}

func (s *knowing) Watch(ctx context.Context, wake func(persist.Hint)) error {
	ear, end := make(chan persist.Hint, 10_000), make(chan error, 1)
	var deaf error
	s.watches.Add(1)
	s.set(func() {
		if deaf = s.deaf; deaf == nil {
			s.ears[ear] = end
		}
	})
	if deaf != nil {
		return deaf
	}
	defer s.set(func() { delete(s.ears, ear) })
	wake(persist.Hint{})
	for {
		select {
		case hint := <-ear:
			wake(hint)
		case err := <-end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cut ends the watches of the store with err, and those to come.
func (s *knowing) cut(err error) {
	s.set(func() {
		s.deaf = err
		for _, end := range s.ears {
			end <- err
		}
	})
}

// readable tells why keys cannot be read.
func (s *knowing) readable(keys ...persist.Key) (err error) {
	s.set(func() {
		if slices.ContainsFunc(keys, func(key persist.Key) bool { return slices.Contains(s.bad, key) }) {
			err = errUnreadable
		}
	})
	return err
}

func (s *knowing) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := s.readable(key); err != nil {
		return persist.Record{}, err
	}
	var earlier *persist.Record
	if s.set(func() { earlier = s.answer }); earlier != nil {
		return *earlier, nil
	}
	return s.Tap.Load(ctx, key)
}

func (s *knowing) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := s.readable(keys...); err != nil {
		return nil, err
	}
	return s.Tap.LoadAll(ctx, keys)
}

func (s *knowing) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
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

func newKnowing() *knowing {
	return &knowing{Tap: newTap(), ears: map[chan persist.Hint]chan error{}}
}

// inBubble runs test with two runtimes on one store, by a clock of its own.
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

// within asserts that the next change of c arrives after least and before most, by the bubble's clock.
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

func sail(t *testing.T, rt *pawl.Runtime, id string, opts ...pawl.CallOption) {
	t.Helper()
	_, err := ships.Scope(rt, id).IncState(t.Context(), "miles", 1, opts...)
	require.NoError(t, err)
}

// TestWatchHints: another process's change arrives at once where the store tells of it; soon, where it has stopped to; and at last, where a hint was
// lost, whatever else is watched.
//
// Proves SCOPE-13.
func TestWatchHints(t *testing.T) {
	store := newKnowing()
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
		time.Sleep(11 * time.Second) // it has to have noticed; and not just when it would look anyhow
		sail(t, there, "argo")
		require.EqualValues(t, 3, within(t, changes, 0, 300*time.Millisecond).Version)
		store.set(func() { store.deaf = nil })
		time.Sleep(10 * time.Second)
		sail(t, there, "argo")
		require.EqualValues(t, 4, within(t, changes, 0, 20*time.Millisecond).Version)
		require.Less(t, store.watches.Load(), int64(200), "it is asked too often")
		store.cut(persist.ErrUnsupported)
		sail(t, there, "argo")
		require.EqualValues(t, 5, within(t, changes, 0, 6*time.Second).Version)
		sail(t, there, "other")
		require.EqualValues(t, 1, within(t, others, 0, 6*time.Second).Version)
	})
}

// TestWatchHintsBetween: a change that comes between the end of the hints and their return arrives when they do.
//
// Proves SCOPE-13.
func TestWatchHintsBetween(t *testing.T) {
	store := newKnowing()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		changes := ships.Scope(here, "argo").Changes(ctx)
		receive(t, changes)
		for range 50 {
			store.cut(errors.New("connection reset"))
			synctest.Wait()
			sail(t, there, "argo")
			store.set(func() { store.deaf = nil })
			within(t, changes, 0, 600*time.Millisecond)
		}
	})
}

// TestWatchBesideADamagedScope: a scope that cannot be read keeps no other from being watched, and is watched again once it can be.
//
// Proves SCOPE-13.
func TestWatchBesideADamagedScope(t *testing.T) {
	for _, hints := range []bool{true, false} {
		store := newKnowing()
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
			store.set(func() { store.bad = []persist.Key{ships.Scope(here, "damaged").Key()} })
			p := path{store: store.Tap}
			p.put(t, ships.Scope(here, "damaged").Key(), `{"miles":2}`, 0)
			time.Sleep(10 * time.Second)
			for range 5 {
				sail(t, there, "argo")
				within(t, changes, 0, time.Second)
			}
			before := store.Loads.Load()
			time.Sleep(time.Minute)
			require.Less(t, store.Loads.Load()-before, int64(2000), "it is read too often")
			store.set(func() { store.bad = nil })
			require.EqualValues(t, 2, within(t, damaged, 0, 6*time.Second).Version)
		})
	}
}

// TestWatchPurged: a scope that was deleted and purged between two looks is known to be gone, and its return is no flood of missed versions.
//
// Proves SCOPE-13.
func TestWatchPurged(t *testing.T) {
	store := newKnowing()
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		idle := ships.Scope(here, "idle").Changes(ctx)
		receive(t, idle)
		changes := ships.Scope(here, "argo").Changes(ctx)
		receive(t, changes)
		sail(t, there, "argo")
		receive(t, changes)
		store.set(func() { store.mute = true })
		for range 50 {
			sail(t, there, "graveyard")
		}
		require.NoError(t, ships.Scope(there, "graveyard").Delete(ctx))
		require.NoError(t, ships.Scope(there, "argo").Delete(ctx))
		require.Equal(t, 2, purge(t, store))
		gone := within(t, changes, 0, 6*time.Second)
		require.False(t, gone.Exists())
		require.Greater(t, gone.Version, uint64(1))
		require.Zero(t, gone.Missed)
		sail(t, there, "argo")
		anew := within(t, changes, 0, 6*time.Second)
		require.EqualValues(t, 52, anew.Version)
		require.Zero(t, anew.Missed)
		// Its end and its return in one.
		sail(t, there, "argo")
		receive(t, changes)
		require.NoError(t, ships.Scope(there, "argo").Delete(ctx))
		require.Equal(t, 1, purge(t, store))
		for range 3 {
			sail(t, there, "argo")
		}
		anew = within(t, changes, 0, 6*time.Second)
		require.EqualValues(t, 57, anew.Version)
		require.Equal(t, 3, anew.Missed, "its end, and two of the versions since")
		select {
		case change := <-idle:
			t.Fatalf("%v is no news", change)
		default:
		}
	})
}

// TestWakeups: whoever waits for scopes of a kind is woken by changes, those of other runtimes too where the store gives hints.
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
			testkit.Receive(t, wake, "nobody was woken")
		}
	})
}
