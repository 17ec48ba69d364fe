// Package drain refuses new work and waits for the rest.
//
// Begin and End go around each piece of work. Close makes Begin fail and returns a channel that is
// closed when the last piece has ended. One lock decides between Begin and Close.
package drain

import (
	"maps"
	"slices"
	"sync"
)

// Group is a set of pieces of work. The zero value is empty and open.
type Group[K comparable] struct {
	mu      sync.Mutex // protects the fields below
	live    map[K]struct{}
	closed  bool
	drained chan struct{} // closed once closed and empty; nil: not asked for
}

// Begin adds k, and reports false after Close.
func (g *Group[K]) Begin(k K) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.add(k)
	return true
}

// Continue adds k even after Close: it is for work that belongs to work accepted before.
func (g *Group[K]) Continue(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(k)
}

func (g *Group[K]) add(k K) {
	if g.live == nil {
		g.live = map[K]struct{}{}
	}
	g.live[k] = struct{}{}
}

// End removes k. Calling it twice is safe.
func (g *Group[K]) End(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.live, k)
	if len(g.live) == 0 && g.drained != nil {
		close(g.drained)
		g.drained = nil
	}
}

// Close makes Begin fail. It returns a channel that is closed once the group is empty, nil if it is
// empty now. Calling it again is safe.
func (g *Group[K]) Close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if len(g.live) == 0 {
		return nil
	}
	if g.drained == nil {
		g.drained = make(chan struct{})
	}
	return g.drained
}

// Live returns what has begun and not ended.
func (g *Group[K]) Live() []K {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.live))
}
