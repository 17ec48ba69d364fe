package pawl_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// startWatchers starts n watchers of s and returns when each has received its first change. The
// function newest counts the watchers that have received a version; stop ends them all.
func startWatchers(ctx context.Context, t testing.TB, s pawl.Scope[ship], n int) (newest func(version uint64) int, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	last := make([]atomic.Uint64, n)
	var started, all sync.WaitGroup
	for i := range n {
		started.Add(1)
		all.Go(func() {
			first := true
			var seen follower[ship]
			for c, err := range s.Watch(ctx) {
				if err == nil {
					err = seen.take(c)
				}
				if err != nil {
					t.Error(err)
				}
				last[i].Store(c.Version)
				if first {
					first = false
					started.Done()
				}
			}
		})
	}
	started.Wait()
	return func(version uint64) (have int) {
			for i := range last {
				if last[i].Load() >= version {
					have++
				}
			}
			return have
		}, func() {
			cancel()
			all.Wait()
		}
}

// Each of ten thousand watchers receives the newest version.
//
// Proves SCOPE-13.
func TestTenThousandWatchers(t *testing.T) {
	const watchers = 10_000
	for _, p := range []path{{name: "in memory", rt: openRuntime(t, pawl.Config{})},
		{name: "memory store", rt: openRuntime(t, pawl.Config{Store: memory.New()}), store: &stores.Tap{}}} {
		t.Run(p.name, func(t *testing.T) {
			s := scopeOf[ship](p, "argo")
			newest, stop := startWatchers(t.Context(), t, s, watchers)
			defer stop()
			for range 3 {
				var snap pawl.Snapshot[ship]
				var err error
				for range 300 {
					snap, err = s.IncState(t.Context(), "miles", 1)
					require.NoError(t, err)
				}
				testkit.EventuallyWithin(t, time.Minute, func() bool { return newest(snap.Version) == watchers })
			}
		})
	}
}

// Polling thousands of scopes takes few calls of the store, and only changed scopes are read.
//
// Proves SCOPE-13.
func TestWatchingManyScopes(t *testing.T) {
	store := newWatchStore()
	store.watchErr = persist.ErrUnsupported
	inBubble(t, store, func(t *testing.T, ctx context.Context, here, there *pawl.Runtime) {
		const scopes = 2000
		var all []<-chan pawl.Change[ship]
		for i := range scopes {
			sail(t, there, string(rune('a'+i%26))+time.Duration(i).String())
			all = append(all, ships.Scope(here, string(rune('a'+i%26))+time.Duration(i).String()).Changes(ctx))
		}
		for _, c := range all {
			receive(t, c)
		}
		time.Sleep(time.Second)
		loads, probes := store.Loads.Load(), store.probes.Load()
		time.Sleep(10 * time.Second)
		polls := (store.probes.Load() - probes) / 4
		require.Zero(t, store.Loads.Load()-loads, "unchanged scopes were read")
		require.GreaterOrEqual(t, polls, int64(20))
		require.LessOrEqual(t, polls, int64(41))
		for i := range 100 {
			sail(t, there, string(rune('a'+i%26))+time.Duration(i).String())
		}
		loads = store.Loads.Load()
		for i := range 100 {
			require.EqualValues(t, 2, receive(t, all[i]).Version)
		}
		require.LessOrEqual(t, store.Loads.Load()-loads, int64(20))
	})
}

// BenchmarkWatchers measures a writer whose scope has no watcher, one, a hundred and ten thousand.
// The variants take turns in small steps, so that the load of the machine affects all of them
// equally.
//
// The metric ratio is the mean time of a write divided by that without watchers. It includes the
// cost of many goroutines for the garbage collector. The metric waking compares with as many
// watchers of a scope that does not change.
func BenchmarkWatchers(b *testing.B) {
	counts := []int{0, 1, 100, 10_000}
	for _, kind := range []string{"in memory", "memory store"} {
		b.Run(kind, func(b *testing.B) {
			p := path{}
			var config pawl.Config
			if kind != "in memory" {
				p.store, config.Store = &stores.Tap{}, memory.New()
			}
			var err error
			p.rt, err = pawl.Open(config)
			require.NoError(b, err)
			defer p.rt.Close(context.Background())
			var took, writes [2][]float64
			for i := range took {
				took[i], writes[i] = make([]float64, len(counts)), make([]float64, len(counts))
			}
			for round := range 4 * len(counts) * 2 {
				i, idle := round%len(counts), round/len(counts)%2
				s := scopeOf[ship](p, fmt.Sprint(i))
				watched := s
				if idle == 1 {
					watched = scopeOf[ship](p, "idle")
				}
				_, stop := startWatchers(b.Context(), b, watched, counts[i])
				runtime.GC()
				began := time.Now()
				for time.Since(began) < 200*time.Millisecond+time.Duration(counts[i])*50*time.Microsecond {
					for range 500 {
						if _, err := s.IncState(b.Context(), "miles", 1); err != nil {
							b.Fatal(err)
						}
					}
					writes[idle][i] += 500
				}
				took[idle][i] += float64(time.Since(began))
				stop()
			}
			for b.Loop() { // measured above
			}
			each := func(idle, i int) float64 { return took[idle][i] / writes[idle][i] }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(each(0, 0), "ns/write")
			for i, n := range counts {
				if n > 0 {
					b.ReportMetric(each(0, i)/each(0, 0), fmt.Sprintf("ratio-%d", n))
					b.ReportMetric(each(0, i)/each(1, i), fmt.Sprintf("waking-%d", n))
				}
			}
		})
	}
}
