package pawl_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An in-memory scope keeps its state when no handle to it is left. Proves SCOPE-19.
func TestMemoryOutlivesItsHandles(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	const scopes = 500
	for i := range scopes {
		require.NoError(t, increment(pawl.Memory[board](rt, fmt.Sprint(i))))
		require.NoError(t, increment(pawl.Sequencer[board](rt, fmt.Sprint(i))))
	}
	for range 5 {
		collect()
	}
	for i := range scopes {
		for _, s := range []pawl.Scope[board]{pawl.Memory[board](rt, fmt.Sprint(i)), pawl.Sequencer[board](rt, fmt.Sprint(i))} {
			snap, err := s.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
			require.EqualValues(t, 2, snap.Version)
			require.EqualValues(t, 2, snap.State().Count)
		}
	}
}

// An in-memory scope has one type, and a handle of another type gets *KindError. Proves SCOPE-19.
func TestInMemoryScopeHasOneType(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[board](rt, "a")
	require.NoError(t, increment(s))
	other := pawl.Memory[pawl.Doc](rt, "a")
	_, err := other.IncState(t.Context(), "count", 1)
	var e *pawl.KindError
	require.ErrorAs(t, err, &e)
	require.Equal(t, pawl.KindMemory, e.Kind)
	_, err = other.State(t.Context())
	require.ErrorAs(t, err, &e)
	require.ErrorAs(t, other.Delete(t.Context()), &e)
	got, err := s.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, board{Count: 1}, got)
	require.NoError(t, func() error { _, err := pawl.Memory[pawl.Doc](rt, "b").IncState(t.Context(), "count", 1); return err }(), "another id may have another type")
}

// Handles of two types on one persisted key share a queue, and their waiters share a commit.
// Proves SCOPE-19.
func TestTwoTypesShareTheQueue(t *testing.T) {
	type left struct {
		L int `json:"l"`
	}
	type right struct {
		R int `json:"r"`
	}
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openRuntime(t, pawl.Config{Store: store})
		l, r := pawl.Org[left](rt, "a"), pawl.Org[right](rt, "a")
		entered, release := store.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, err := l.IncState(t.Context(), "l", 1); assert.NoError(t, err) })
		<-entered
		for range 5 {
			wg.Go(func() { _, err := l.IncState(t.Context(), "l", 1); assert.NoError(t, err) })
			wg.Go(func() { _, err := r.IncState(t.Context(), "r", 1); assert.NoError(t, err) })
		}
		synctest.Wait()
		require.EqualValues(t, 1, store.Commits.Load(), "they wait for the first commit")
		release()
		wg.Wait()
		require.EqualValues(t, 2, store.Commits.Load(), "all waiters share a commit")
		snap, err := pawl.Org[pawl.Doc](rt, "a").Snapshot(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 11, snap.Version)
		require.Equal(t, pawl.Doc{"l": int64(6), "r": int64(5)}, snap.State())
	})
}

// The in-memory scopes of a Local are private to it and end with it. Its persisted scopes belong to
// the runtime. Proves SCOPE-19.
func TestLocal(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: memory.New()})
	one, two := pawl.NewLocal(rt), pawl.NewLocal(rt)
	open := map[string]func(pawl.Owner) pawl.Scope[board]{
		"sequencer": func(o pawl.Owner) pawl.Scope[board] { return pawl.Sequencer[board](o, "a") },
		"target":    func(o pawl.Owner) pawl.Scope[board] { return pawl.Target[board](o, "a") },
		"memory":    func(o pawl.Owner) pawl.Scope[board] { return pawl.Memory[board](o, "a") },
	}
	held := map[string]pawl.Scope[board]{}
	for name, f := range open {
		for range 3 {
			require.NoError(t, increment(f(one)))
		}
		collect() // the scope stays without a handle
		require.NoError(t, increment(f(two)))
		require.NoError(t, increment(f(rt)))
		held[name] = f(one)
		for owner, want := range map[pawl.Owner]int64{one: 3, two: 1, rt: 1} {
			got, err := f(owner).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, got.Count, name)
		}
	}
	require.NoError(t, increment(pawl.Session[board](one, "a")))
	one.Close()
	one.Close()
	for name, f := range open {
		for _, s := range []pawl.Scope[board]{held[name], f(one)} {
			require.ErrorIs(t, increment(s), pawl.ErrClosed)
			_, err := s.AtomicState(t.Context(), func(context.Context, *board) error { t.Error("the function ran"); return nil })
			require.ErrorIs(t, err, pawl.ErrClosed)
			_, err = s.State(t.Context())
			require.ErrorIs(t, err, pawl.ErrClosed)
		}
		require.NoError(t, increment(f(two)), "the other Local is open")
		require.NoError(t, increment(f(rt)))
	}
	got, err := pawl.Session[board](one, "a").State(t.Context())
	require.NoError(t, err, "a persisted scope belongs to the runtime")
	require.EqualValues(t, 1, got.Count)
}

// The scopes of a Local are freed when it is closed, or when it is no longer referenced.
// Proves SCOPE-19.
func TestLocalIsFreed(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	for _, forgotten := range []bool{false, true} {
		var gone atomic.Int64
		const locals = 20
		for range locals {
			local := pawl.NewLocal(rt)
			for i := range 10 {
				_, err := pawl.Sequencer[board](local, fmt.Sprint(i)).PatchState(t.Context(), pawl.Patch{"title": "t"})
				require.NoError(t, err)
			}
			snap, err := pawl.Sequencer[board](local, "0").Snapshot(t.Context())
			require.NoError(t, err)
			runtime.AddCleanup(snap.ReadOnly(), func(n *atomic.Int64) { n.Add(1) }, &gone)
			if !forgotten {
				local.Close()
			}
		}
		testkit.Eventually(t, func() bool { collect(); return gone.Load() == locals })
	}
}

// A function with a long budget does not keep the state of a closed Local once it has returned, not
// even if a caller behind it timed out. Proves SCOPE-19.
func TestBudgetKeepsNoState(t *testing.T) {
	for name, behind := range map[string]bool{"alone": false, "a caller behind it timed out": true} {
		t.Run(name, func(t *testing.T) {
			rt := openRuntime(t, pawl.Config{Timeout: time.Hour})
			var gone atomic.Int64
			const locals = 20
			for range locals {
				local := pawl.NewLocal(rt)
				s := pawl.Sequencer[board](local, "a")
				runs, left := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(left)
					<-runs
					if behind {
						_, err := s.IncState(t.Context(), "count", 1, pawl.WithTimeout(time.Millisecond))
						assert.ErrorIs(t, err, pawl.ErrTimeout)
					}
				}()
				snap, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
					close(runs)
					<-left
					b.Title = "t"
					return nil
				})
				require.NoError(t, err)
				runtime.AddCleanup(snap.ReadOnly(), func(n *atomic.Int64) { n.Add(1) }, &gone)
				local.Close()
			}
			testkit.Eventually(t, func() bool {
				pawl.NewLocal(rt).Close() // the runtime forgets Locals that have finished since
				collect()
				return gone.Load() >= locals-2 // a stack may still have the last of them
			})
		})
	}
}

// The options of NewLocal are the defaults of its scopes. Proves SCOPE-19.
func TestLocalOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := openRuntime(t, pawl.Config{})
		local := pawl.NewLocal(rt, pawl.WithTTL(time.Minute))
		s := pawl.Sequencer[board](local, "a")
		require.NoError(t, increment(s))
		time.Sleep(time.Minute)
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.False(t, snap.Exists())
		_, err = pawl.Sequencer[board](pawl.NewLocal(rt, nil), "a").IncState(t.Context(), "count", 1)
		var e *pawl.ArgumentError
		require.ErrorAs(t, err, &e)
	})
}

// A context of a function that is kept after its return does not keep the runtime in memory, closed
// or not.
func TestContextDoesNotRetainTheRuntime(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		var gone atomic.Bool
		kept := func() (kept context.Context) {
			rt, err := pawl.Open(pawl.Config{})
			require.NoError(t, err)
			runtime.AddCleanup(rt, func(gone *atomic.Bool) { gone.Store(true) }, &gone)
			_, err = pawl.Memory[board](rt, "a").AtomicState(t.Context(), func(ctx context.Context, b *board) error {
				kept, b.Title = ctx, "t"
				return nil
			})
			require.NoError(t, err)
			if !forgotten {
				require.NoError(t, rt.Close(t.Context()))
			}
			return kept
		}()
		testkit.Eventually(t, func() bool { collect(); return gone.Load() })
		runtime.KeepAlive(kept)
	}
}

// discardStore accepts every commit and keeps nothing, so only the memory of the runtime is
// measured.
type discardStore struct{ commits atomic.Int64 }

func (s *discardStore) Load(context.Context, persist.Key) (persist.Record, error) {
	return persist.Record{}, persist.ErrNotFound
}

func (s *discardStore) Commit(context.Context, persist.Commit) (time.Time, error) {
	s.commits.Add(1)
	return time.Unix(1, 0), nil
}

func (s *discardStore) List(context.Context, persist.Query) (persist.Page, error) {
	return persist.Page{}, nil
}
func (s *discardStore) Close() error { return nil }

// A million sessions, each used once, leave no memory in use. Proves SCOPE-19.
func TestIdleSessionsAreFreed(t *testing.T) {
	sessions, most := 1_000_000, int64(64<<20)
	if testkit.Race || testing.Short() {
		sessions, most = 20_000, 8<<20 // if kept, they would take about 20 MiB; the registry's maps keep their size
	}
	synctest.Test(t, func(t *testing.T) { // recently used scopes are kept for a while
		store := &discardStore{}
		rt := openRuntime(t, pawl.Config{Store: store})
		heap := func() int64 {
			collect()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before, ctx := heap(), context.Background()
		var wg sync.WaitGroup
		const writers = 4
		for w := range writers {
			wg.Go(func() {
				for i := w; i < sessions; i += writers {
					s := pawl.Session[board](rt, fmt.Sprintf("session-%d", i))
					if _, err := s.SetState(ctx, board{Title: "some state of some length"}); !assert.NoError(t, err) {
						return
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, sessions, store.commits.Load())
		time.Sleep(2 * time.Minute)
		// Cleanups run after the collection that finds their containers, so look until they have.
		grown := heap() - before
		for range 200 {
			t.Logf("the heap has grown by %d KiB", grown>>10)
			if grown < most {
				break
			}
			time.Sleep(time.Second)
			grown = heap() - before
		}
		require.Less(t, grown, most)
		runtime.KeepAlive(rt)
	})
}

// A recently written scope stays cached without a handle, and is freed after a while without use.
// Proves SCOPE-19.
func TestRecentlyWrittenScopesStayCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		write := func() {
			_, err := pawl.Session[board](rt, "one").SetState(t.Context(), board{Title: rand.Text()})
			require.NoError(t, err)
			synctest.Wait() // until the queue is idle
		}
		write()
		first := store.Loads.Load()
		for range 3 {
			collect()
			write()
			time.Sleep(59 * time.Second)
		}
		require.Equal(t, first, store.Loads.Load())
		time.Sleep(2 * time.Minute)
		collect()
		write()
		require.Equal(t, first+1, store.Loads.Load())
		require.NoError(t, rt.Close(t.Context()))
	})
}
