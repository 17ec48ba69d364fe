package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follower checks the changes of one watcher. Versions are in order, only an expiry repeats a
// version, and Missed is exact.
type follower[T any] struct {
	some    bool // a change was received
	last    pawl.Change[T]
	changes int
}

// take checks c against the change before it.
func (f *follower[T]) take(c pawl.Change[T]) error {
	if c.Err != nil {
		return c.Err
	}
	was := f.last
	if f.some && c.Version <= was.Version && (c.Version < was.Version || c.Exists() || !was.Exists()) {
		return fmt.Errorf("version %d (state: %t) after %d (state: %t)", c.Version, c.Exists(), was.Version, was.Exists())
	}
	want := 0
	if f.some && c.Version > was.Version {
		want = int(c.Version - was.Version - 1)
	}
	if c.Missed != want {
		return fmt.Errorf("missed %d between %d and %d", c.Missed, was.Version, c.Version)
	}
	f.some, f.last = true, c
	f.changes++
	return nil
}

// until receives changes until version or a newer one arrives.
func (f *follower[T]) until(t testing.TB, changes <-chan pawl.Change[T], version uint64) {
	t.Helper()
	for !f.some || f.last.Version < version {
		require.NoError(t, f.take(receive(t, changes)))
	}
}

// watching opens a runtime on location and returns the changes of one scope.
func watching[T any](t *testing.T, location, id string) (<-chan pawl.Change[T], *follower[T]) {
	t.Helper()
	return pawl.Session[T](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)}), id).Changes(t.Context()), &follower[T]{}
}

// The commits of other processes arrive in order, up to the last one.
//
// Proves SCOPE-13.
func TestWatchProcesses(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		changes, seen := watching[processTally](t, location, "shared")
		require.NoError(t, seen.take(receive(t, changes)))
		var writers []*testkit.Process
		for range 2 {
			writers = append(writers, testkit.Start(t, "increment", stores.Env(location)))
		}
		testkit.Ready(writers...)
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, w := range writers {
				w.Wait()
			}
		})
		seen.until(t, changes, 2*incrementWriters*incrementsEach)
		wg.Wait()
		require.EqualValues(t, 2*incrementWriters*incrementsEach, seen.last.Version)
		require.EqualValues(t, seen.last.Version, seen.last.ReadOnly().N)
	})
}

// Writers are killed at random moments. Every version that they committed arrives.
//
// Proves SCOPE-13.
func TestWatchKilledWriters(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)})
		var changes [crashScopes]<-chan pawl.Change[crashLedger]
		var seen [crashScopes]follower[crashLedger]
		for i := range changes {
			changes[i] = pawl.Session[crashLedger](rt, crashScope("w", i)).Changes(t.Context())
			require.NoError(t, seen[i].take(receive(t, changes[i])))
		}
		control := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)})
		for n := range 4 {
			killAtWork(t, "crash", location, fmt.Sprint("p", n), 5+rand.IntN(60), processBatch+"=w")
			for i := range changes {
				var snap pawl.Snapshot[crashLedger]
				// A server may still execute a commit of a killed process.
				for again := true; again; again = seen[i].last.Version > snap.Version {
					var err error
					snap, err = pawl.Session[crashLedger](control, crashScope("w", i)).Snapshot(t.Context())
					require.NoError(t, err)
					seen[i].until(t, changes[i], snap.Version)
				}
				require.Equal(t, snap.State(), seen[i].last.State())
			}
		}
	})
}

// A watch survives a kill and restart of the server and delivers the newest version.
//
// Proves SCOPE-13.
func TestWatchServerKilled(t *testing.T) {
	stores.Need(t, "postgres")
	server := pgtest.New(t)
	changes, seen := watching[ship](t, server.URL("postgres"), "argo")
	s := pawl.Session[ship](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, server.URL("postgres"))}), "argo")
	require.NoError(t, seen.take(receive(t, changes)))
	for range 3 {
		for range 10 {
			_, err := s.IncState(t.Context(), "miles", 1)
			require.NoError(t, err)
		}
		server.Kill()
		server.Start()
		var snap pawl.Snapshot[ship]
		testkit.Eventually(t, func() (ok bool) {
			var err error
			snap, err = s.IncState(t.Context(), "miles", 1)
			return err == nil
		})
		seen.until(t, changes, snap.Version)
		require.Equal(t, snap.Version, seen.last.Version)
	}
}

// A watch whose connections are cut and refused delivers the newest version afterwards.
//
// Proves SCOPE-13.
func TestWatchConnectionCut(t *testing.T) {
	proxy, behind, direct := proxied(t)
	changes, seen := watching[ship](t, behind, "argo")
	s := pawl.Session[ship](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, direct)}), "argo")
	require.NoError(t, seen.take(receive(t, changes)))
	for range 5 {
		proxy.Refuse(true)
		var snap pawl.Snapshot[ship]
		for range 1 + rand.IntN(20) {
			var err error
			snap, err = s.IncState(t.Context(), "miles", 1)
			require.NoError(t, err)
		}
		proxy.Refuse(false)
		seen.until(t, changes, snap.Version)
		require.Equal(t, snap.Version, seen.last.Version)
	}
}

// Writers in two processes set, delete and recreate a scope at random while fast and slow watchers
// come and go. No watcher sees versions out of order or uncommitted state, and all see the last
// version.
//
// Proves SCOPE-13.
func TestWatchOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		runtimes := []path{p, p}
		if p.store != nil {
			runtimes[1].rt = p.another(t)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		committed := map[uint64]ship{} // versions with state
		observed := map[uint64]ship{}
		see := func(c pawl.Change[ship]) error {
			mu.Lock()
			defer mu.Unlock()
			if !c.Exists() {
				return nil
			}
			if was, ok := observed[c.Version]; ok && was != c.State() {
				return fmt.Errorf("version %d is %v and %v", c.Version, was, c.State())
			}
			observed[c.Version] = c.State()
			return nil
		}
		var writers, watchers sync.WaitGroup
		for i := range 4 {
			s := scopeOf[ship](runtimes[i%2], "argo")
			writers.Go(func() {
				for n := range 40 {
					var snap pawl.Snapshot[ship]
					var err error
					switch rand.IntN(6) {
					case 0:
						err = s.Delete(ctx)
					case 1, 2:
						snap, err = s.SetState(ctx, ship{fmt.Sprint(i), n}, pawl.IfAbsent())
					default:
						snap, err = s.IncState(ctx, "miles", 1, pawl.IfExists())
					}
					if err == nil && snap.Exists() {
						mu.Lock()
						committed[snap.Version] = snap.State()
						mu.Unlock()
					}
					if err != nil && !errors.Is(err, pawl.ErrDeleted) && !errors.Is(err, pawl.ErrExists) && !errors.Is(err, pawl.ErrNotFound) && !errors.Is(err, pawl.ErrConflict) {
						assert.NoError(t, err)
					}
				}
			})
		}
		for i := range 8 {
			s := scopeOf[ship](runtimes[i%2], "argo")
			watchers.Go(func() {
				for over := false; !over; {
					var seen follower[ship]
					stay := 1 + rand.IntN(20)
					for c, err := range s.Watch(ctx) {
						if !assert.NoError(t, err) || !assert.NoError(t, seen.take(c)) || !assert.NoError(t, see(c)) {
							return
						}
						if i >= 4 {
							time.Sleep(rand.N(time.Millisecond)) // a slow watcher
						}
						if over = c.Exists() && c.ReadOnly().Captain == "last"; over || seen.changes == stay {
							break
						}
					}
					if ctx.Err() != nil {
						return
					}
				}
			})
		}
		writers.Wait()
		_, err := scopeOf[ship](p, "argo").SetState(ctx, ship{Captain: "last"})
		if errors.Is(err, pawl.ErrDeleted) {
			_, err = scopeOf[ship](p, "argo").SetState(ctx, ship{Captain: "last"}, pawl.IfAbsent())
		}
		require.NoError(t, err)
		bound := time.AfterFunc(30*time.Second, cancel)
		watchers.Wait()
		require.True(t, bound.Stop(), "the last version did not arrive")
		for version, state := range observed {
			if was, ok := committed[version]; ok {
				require.Equal(t, was, state, version)
			}
		}
		require.NotEmpty(t, observed)
	})
}
