package notify

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func isSet(s Signal) bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

func TestSignal(t *testing.T) {
	s := NewSignal()
	require.False(t, isSet(s))
	s.Set()
	s.Set()
	require.True(t, isSet(s))
	require.False(t, isSet(s))
}

// Each change wakes every watcher, even a change during the notifier's pause. Proves SCOPE-13.
func TestNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup()
		g.Notify() // without watchers
		var all []Signal
		for range 100 {
			s := NewSignal()
			g.Join(s)
			all = append(all, s)
		}
		time.Sleep(maxPause)
		for range 3 {
			for _, s := range all {
				isSet(s)
			}
			g.Notify()
			synctest.Wait()
			for _, s := range all {
				require.True(t, isSet(s))
			}
			g.Notify() // during the pause
			g.Notify()
			synctest.Wait()
			require.False(t, isSet(all[0]), "paced")
			time.Sleep(maxPause)
			for _, s := range all {
				require.True(t, isSet(s))
				g.Leave(s)
			}
			synctest.Wait() // the notifier has ended and starts again
			for _, s := range all {
				g.Join(s)
			}
		}
		require.Equal(t, 100, g.Len())
		for _, s := range all {
			g.Leave(s)
		}
		require.Zero(t, g.Len())
	})
}

// A pausing notifier ends as soon as the last watcher leaves.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup()
		s := NewSignal()
		for range 3 {
			g.Join(s)
			g.Notify()
			synctest.Wait()
			began := time.Now()
			g.Leave(s)
			synctest.Wait()
			require.Zero(t, time.Since(began))
			g.mu.Lock()
			require.False(t, g.running)
			g.mu.Unlock()
		}
	})
}

// Closing a group ends the watches. Proves SCOPE-13.
func TestClosedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup()
		early, late := NewSignal(), NewSignal()
		over := g.Join(early)
		select {
		case <-over:
			t.Fatal("over")
		default:
		}
		g.Close()
		g.Close()
		<-over
		<-g.Join(late)
		g.Leave(early)
		g.Leave(late)
	})
}

// Watchers that join and leave concurrently miss no change: each sees the last one.
func TestConcurrentWatchers(t *testing.T) {
	g := NewGroup()
	var mu sync.Mutex
	version := 0
	const last = 2000
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seen := 0; seen < last; {
				s := NewSignal()
				g.Join(s)
				for range 5 {
					mu.Lock()
					seen = version
					mu.Unlock()
					if seen == last {
						break
					}
					<-s
				}
				g.Leave(s)
			}
		})
	}
	for range last {
		mu.Lock()
		version++
		mu.Unlock()
		g.Notify()
	}
	wg.Wait()
}

// The cost of Notify does not depend on the number of watchers.
func BenchmarkNotify(b *testing.B) {
	for name, n := range map[string]int{"1 watcher": 1, "10000 watchers": 10_000} {
		b.Run(name, func(b *testing.B) {
			g := NewGroup()
			for range n {
				s := NewSignal()
				g.Join(s)
				defer g.Leave(s)
			}
			for b.Loop() {
				g.Notify()
			}
		})
	}
}
