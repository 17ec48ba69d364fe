// Package hints passes the store's news on to listeners, and keeps watched scopes current.
//
// A store that can (persist.Watcher) hints at records that changed in any process. A Hub wakes the
// listeners of the record's key and kind, and reads the record if its scope is watched here and has
// not seen the version. It works while there are listeners or watched scopes, and some seconds longer.
//
// A hint may be missing: its sender died, or the store gives none. So all watched scopes are checked
// at intervals, which are shorter where no hints arrive. A check asks for versions, where the store
// can tell them (persist.Prober), and reads only what moved. Hints may also come faster than
// anything needs them, so that the reads are paced.
//
// The package knows neither documents nor queues: a watched scope is a Scope.
//
// Races, and what decides them:
//   - a change between a scope's first read and Watch: the caller watches before it reads.
//   - a change while a scope is read: the hint marks it dirty again, and it is read once more.
//   - a record that was read before another one was committed here: Scope.Adopt keeps the newer.
//   - the last listener leaves while another comes: the hub's lock. Each start has a context and
//     signals of its own, so that goroutines of the one before do no harm.
package hints

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/persist"
)

// Scope is a scope that is watched: the part of the record that this process has seen.
type Scope interface {
	// Seen returns the version that this process saw last, and whether the record was absent then.
	// It reports false for known if this process has seen none.
	Seen() (version uint64, absent, known bool)
	// Adopt takes a record that was read, unless a newer version was seen.
	Adopt(persist.Record)
}

// Config says what a Hub works with. All fields are needed.
type Config struct {
	// Store gives hints if it is a persist.Watcher, and versions if it is a persist.Prober.
	Store persist.Store
	// Load returns the records of keys, in their order, absent ones included.
	Load func(ctx context.Context, keys []persist.Key) ([]persist.Record, error)
	// Timeout bounds one call of the store.
	Timeout time.Duration
	// Backoff returns how long to wait after this many failures in a row.
	Backoff func(failures int) time.Duration
	// Logger gets a warning when the hints stop.
	Logger func() *slog.Logger
}

// restAfter is how long a hub works without a listener: as a rule, the next one comes soon.
const restAfter = 5 * time.Second

// Hub passes hints on. New makes one.
type Hub struct {
	config Config

	mu      sync.Mutex // protects the fields below
	scopes  map[persist.Key]listeners
	kinds   map[string]listeners
	watched map[persist.Key]*watched
	closed  bool
	stop    context.CancelFunc // ends the goroutines; nil: none run
	idle    *time.Timer        // ends them when there was no listener for a while; nil: there is one
	hearing *atomic.Bool       // the store's hints arrive
	due     notify.Signal      // set when a watched scope is dirty
}

type listeners map[*listener]struct{}

type listener struct{ wake func() }

// watched is a scope that is kept current.
type watched struct {
	scope    Scope
	watchers int
	dirty    bool // it may have changed
	reread   bool // read it even if its version has not moved
}

// New returns a hub that rests.
func New(c Config) *Hub {
	return &Hub{
		config: c,
		scopes: map[persist.Key]listeners{}, kinds: map[string]listeners{}, watched: map[persist.Key]*watched{},
	}
}

// Listen calls wake, which must be quick, whenever the record of key may have changed, until stop.
func (h *Hub) Listen(key persist.Key, wake func()) (stop func()) {
	return listen(h, h.scopes, key, wake)
}

// ListenKind calls wake, which must be quick, whenever a record of kind may have changed, until stop.
func (h *Hub) ListenKind(kind string, wake func()) (stop func()) {
	return listen(h, h.kinds, kind, wake)
}

func listen[K comparable](h *Hub, all map[K]listeners, k K, wake func()) (stop func()) {
	l := &listener{wake}
	h.mu.Lock()
	defer h.mu.Unlock()
	if all[k] == nil {
		all[k] = listeners{}
	}
	all[k][l] = struct{}{}
	h.start()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(all[k], l)
		if len(all[k]) == 0 {
			delete(all, k)
		}
		h.rest()
	}
}

// Watch keeps s, the scope of key, current until stop, which is called once.
func (h *Hub) Watch(key persist.Key, s Scope) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.watched[key]
	if w == nil || w.scope != s {
		w = &watched{scope: s}
		h.watched[key] = w
	}
	w.watchers++
	h.start()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if w.watchers--; w.watchers == 0 && h.watched[key] == w {
			delete(h.watched, key)
		}
		h.rest()
	}
}

// Reread reads a watched scope soon, although its version may not have moved.
func (h *Hub) Reread(key persist.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watched[key]; w != nil && h.stop != nil {
		w.dirty, w.reread = true, true
		h.due.Set()
	}
}

// Hears reports whether the store's hints arrive.
func (h *Hub) Hears() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stop != nil && h.hearing.Load()
}

// Close ends the hub: it wakes no listener any more and keeps no scope current. Closing twice is safe.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.end()
}

// start makes sure that the goroutines run. The caller holds h.mu.
func (h *Hub) start() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop != nil || h.closed {
		return
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	h.hearing, h.due = new(atomic.Bool), notify.NewSignal()
	if w, ok := h.config.Store.(persist.Watcher); ok {
		go h.hear(ctx, w, h.hearing)
	}
	go h.check(ctx, h.hearing, h.due)
}

// rest ends the goroutines when there was no listener for a while: to hear hints again costs a
// connection. The caller holds h.mu.
func (h *Hub) rest() {
	if h.stop == nil || h.idle != nil || len(h.scopes)+len(h.kinds)+len(h.watched) > 0 {
		return
	}
	var idle *time.Timer
	idle = time.AfterFunc(restAfter, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.idle == idle { // else there is a listener again
			h.end()
		}
	})
	h.idle = idle
}

// end ends the goroutines. The caller holds h.mu.
func (h *Hub) end() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// hear passes on the store's hints until ctx ends.
func (h *Hub) hear(ctx context.Context, w persist.Watcher, hearing *atomic.Bool) {
	for failures := 1; ; failures++ {
		err := caught(func() error {
			return w.Watch(ctx, func(hint persist.Hint) {
				failures = 1
				hearing.Store(true)
				h.pass(hint)
			})
		})
		hearing.Store(false)
		if ctx.Err() != nil || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported) {
			return
		}
		if failures == 1 {
			h.config.Logger().WarnContext(ctx, "pawl: the store's hints have stopped; changes of other processes are noticed later", "err", err)
		}
		if !commit.Sleep(ctx, h.config.Backoff(failures)) {
			return
		}
	}
}

// pass wakes the listeners that a hint is for, and marks the watched scopes.
func (h *Hub) pass(hint persist.Hint) {
	for _, l := range h.concerned(hint) {
		l.wake()
	}
}

func (h *Hub) concerned(hint persist.Hint) (all []*listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	add := func(some listeners) {
		for l := range some {
			all = append(all, l)
		}
	}
	if hint.Key != (persist.Key{}) {
		h.mark(h.watched[hint.Key], hint.Version)
		add(h.scopes[hint.Key])
		add(h.kinds[hint.Kind])
		return all
	}
	for _, w := range h.watched {
		h.mark(w, hint.Version)
	}
	for _, l := range h.scopes {
		add(l)
	}
	for _, l := range h.kinds {
		add(l)
	}
	return all
}

// mark makes w dirty, if it is watched and has not seen the version; 0 is any. The caller holds h.mu.
func (h *Hub) mark(w *watched, version uint64) {
	if w == nil || h.stop == nil {
		return
	}
	if seen, _, known := w.scope.Seen(); known && version != 0 && seen >= version {
		return
	}
	w.dirty = true
	h.due.Set()
}
