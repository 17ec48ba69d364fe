// Package notify wakes all watchers of one scope. A writer pays the same for one watcher as for ten
// thousand: it sets one mark, and a goroutine of the group wakes the watchers.
//
// A group does not know what is new. A woken watcher looks at the newest state there is, so that a
// slow one skips versions instead of collecting them.
//
// Races, and what decides them:
//   - a change between a watcher's first look and its registration: the watcher joins first.
//   - a change while the notifier wakes watchers: the mark is taken off before, so that the change
//     sets it again.
//   - a watcher joins while the notifier ends because the last one left: the group's lock.
package notify

import (
	"sync"
	"sync/atomic"
	"time"
)

// After each round the notifier pauses: for pause, and pausePerWatcher for each watcher. Waking one
// costs about 3 µs, so that a notifier uses a twentieth of a core at most.
const (
	pause           = time.Millisecond
	pausePerWatcher = 64 * time.Microsecond
	maxPause        = time.Second
)

// Signal is a channel with one slot that says "look again". Several signals become one.
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set makes one receive from s succeed. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Group is the watchers of one scope.
type Group struct {
	mu       sync.Mutex // protects the fields below
	watchers map[Signal]struct{}
	running  bool // the notifier runs
	closed   bool

	over   chan struct{} // closed by Close
	marked atomic.Bool   // a change was not passed on yet
	news   Signal        // wakes the notifier after a change
	empty  Signal        // wakes the notifier after the last watcher left
}

// NewGroup returns a group without watchers.
func NewGroup() *Group {
	return &Group{watchers: map[Signal]struct{}{}, over: make(chan struct{}), news: NewSignal(), empty: NewSignal()}
}

// Notify wakes the watchers soon. It does not wait. A nil group has none.
func (g *Group) Notify() {
	if g != nil && !g.marked.Load() && g.marked.CompareAndSwap(false, true) {
		g.news.Set()
	}
}

// Join adds a watcher, which is woken by s until Leave. The channel that it returns is closed when
// the group is.
func (g *Group) Join(s Signal) (over <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watchers[s] = struct{}{}
	if !g.running {
		g.running = true
		go g.run()
	}
	return g.over
}

// Leave removes a watcher. The notifier ends after the last one.
func (g *Group) Leave(s Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watchers, s)
	if len(g.watchers) == 0 {
		g.empty.Set()
	}
}

// Len returns the number of watchers, 0 for a nil group.
func (g *Group) Len() int {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.watchers)
}

// Close tells all watchers, also those that join later, that nothing more will come. Closing twice,
// or a nil group, is safe.
func (g *Group) Close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		close(g.over)
	}
}

// run is the notifier. It wakes all watchers after a change, until none is left.
func (g *Group) run() {
	for {
		select {
		case <-g.news:
		case <-g.empty:
		}
		g.marked.Store(false)
		woken := g.wakeAll()
		if woken == 0 {
			return
		}
		timer := time.NewTimer(min(pause+time.Duration(woken)*pausePerWatcher, maxPause))
		select {
		case <-timer.C:
		case <-g.empty:
			g.empty.Set() // seen again at the top
		}
		timer.Stop()
	}
}

// wakeAll returns how many watchers it woke. If there are none, the notifier counts as ended.
func (g *Group) wakeAll() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.watchers {
		s.Set()
	}
	g.running = len(g.watchers) > 0
	return len(g.watchers)
}
