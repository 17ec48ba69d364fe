package pawl

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// What other processes do to the store. A hub passes the store's hints on to whoever listens for a scope or a kind, and keeps what is watched
// here up to date. It runs while somebody listens or watches.
//
// A hint may be missing: its sender died, or the store has none to give. So all that is watched is looked at from time to time.
// Hints may also be more than anybody needs: looks at the store are paced.

const (
	lookAgain     = 5 * time.Second        // how often all that is watched is looked at where the store gives hints
	lookAgainDeaf = 250 * time.Millisecond // and where it does not
	lookPause     = 10 * time.Millisecond  // between two looks at the store, at least,
	lookShare     = 10                     // and so many times as long as the last one took
	lookBatch     = 500                    // scopes in one look
	loadBatch     = 32                     // documents in one reading
)

type hub struct {
	rt *Runtime

	mu      sync.Mutex // protects what follows
	scopes  map[Key]listeners
	kinds   map[string]listeners
	watched map[Key]*watched
	closed  bool
	stop    context.CancelFunc // ends what runs; nil: nothing does
	hearing *atomic.Bool       // the store's hints come
	due     *bell              // rings when something is to be looked at
}

type listeners map[*listener]struct{}

type listener struct{ wake func(version uint64) }

// watched is a scope that somebody watches here.
type watched struct {
	cell     *cell
	watchers int
	dirty    bool // it may have changed
	reread   bool // even if its version has not
}

// listen calls wake, which must be quick, whenever the scope may have changed, until unlisten. The version is what it has at least, 0 if that is
// not known.
func (h *hub) listen(key Key, wake func(version uint64)) (unlisten func()) {
	return subscribe(h, func() *map[Key]listeners { return &h.scopes }, key, wake)
}

// listenKind calls wake, which must be quick, whenever any scope of a kind may have changed, until unlisten.
func (h *hub) listenKind(kind string, wake func()) (unlisten func()) {
	return subscribe(h, func() *map[string]listeners { return &h.kinds }, kind, func(uint64) { wake() })
}

func subscribe[K comparable](h *hub, of func() *map[K]listeners, k K, wake func(uint64)) (unsubscribe func()) {
	l := &listener{wake}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := of()
	if *m == nil {
		*m = map[K]listeners{}
	}
	if (*m)[k] == nil {
		(*m)[k] = listeners{}
	}
	(*m)[k][l] = struct{}{}
	h.start()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete((*m)[k], l)
		if len((*m)[k]) == 0 {
			delete(*m, k)
		}
		h.rest()
	}
}

// watch keeps c up to date until unwatch.
func (h *hub) watch(c *cell, key Key) (unwatch func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watched == nil {
		h.watched = map[Key]*watched{}
	}
	w := h.watched[key]
	if w == nil || w.cell != c {
		w = &watched{cell: c}
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

// reread has a watched scope looked at although its version may not have moved.
func (h *hub) reread(key Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watched[key]; w != nil && h.stop != nil {
		w.dirty, w.reread = true, true
		h.due.poke()
	}
}

// hears reports whether the store's hints come.
func (h *hub) hears() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stop != nil && h.hearing.Load()
}

// start makes sure that the hub runs. The caller holds h.mu.
func (h *hub) start() {
	if h.stop != nil || h.closed {
		return
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	h.hearing, h.due = new(atomic.Bool), newBell()
	if w, ok := h.rt.store.(persist.Watcher); ok {
		go h.hear(ctx, w, h.hearing)
	}
	go h.look(ctx, h.hearing, h.due)
}

// rest stops the hub when nobody needs it. The caller holds h.mu.
func (h *hub) rest() {
	if h.stop != nil && (h.closed || len(h.scopes)+len(h.kinds)+len(h.watched) == 0) {
		h.stop()
		h.stop = nil
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.rest()
}

// hear passes on the store's hints until ctx ends.
func (h *hub) hear(ctx context.Context, w persist.Watcher, hearing *atomic.Bool) {
	for failed := 1; ; failed++ {
		var err error
		p := guarded(func() {
			err = w.Watch(ctx, func(hint persist.Hint) {
				failed = 1
				hearing.Store(true)
				h.wake(hint)
			})
		}, func() {})
		hearing.Store(false)
		if p != nil {
			err = p
		}
		if ctx.Err() != nil || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported) {
			return
		}
		if failed == 1 {
			h.rt.env.logger().WarnContext(ctx, "pawl: the store's hints have stopped; changes of other processes are noticed later", "err", err)
		}
		if !sleep(ctx, rand.N(backoff(DefaultRetry, failed))) {
			return
		}
	}
}

// wake tells those whom a hint concerns.
func (h *hub) wake(hint persist.Hint) {
	var concerned []*listener
	h.mu.Lock()
	look := false
	mark := func(w *watched) {
		if d := w.cell.seen.Load(); d == nil || hint.Version == 0 || d.version < hint.Version {
			w.dirty, look = true, true
		}
	}
	collect := func(from listeners) {
		for l := range from {
			concerned = append(concerned, l)
		}
	}
	if hint.Key == (Key{}) {
		for _, w := range h.watched {
			mark(w)
		}
		for _, l := range h.scopes {
			collect(l)
		}
		for _, l := range h.kinds {
			collect(l)
		}
	} else {
		if w := h.watched[hint.Key]; w != nil {
			mark(w)
		}
		collect(h.scopes[hint.Key])
		collect(h.kinds[hint.Kind])
	}
	if look && h.stop != nil {
		h.due.poke()
	}
	h.mu.Unlock()
	for _, l := range concerned {
		l.wake(hint.Version)
	}
}

// suspect has everything that is watched looked at: a hint may have been lost.
func (h *hub) suspect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watched {
		w.dirty = true
	}
	if len(h.watched) > 0 && h.stop != nil {
		h.due.poke()
	}
}

// look keeps what is watched up to date until ctx ends.
func (h *hub) look(ctx context.Context, hearing *atomic.Bool, due *bell) {
	failed := 0
	for last := time.Now(); ; {
		again := lookAgainDeaf
		if hearing.Load() {
			again = lookAgain
		}
		timer := time.NewTimer(time.Until(last.Add(again)))
		select {
		case <-ctx.Done():
		case <-due.wake:
		case <-timer.C:
			last = time.Now()
			h.suspect()
		}
		timer.Stop()
		for ctx.Err() == nil {
			began := time.Now()
			more, err := h.lookOnce(ctx)
			pause := max(lookPause, lookShare*time.Since(began))
			if failed++; err == nil {
				failed = 0
			} else {
				pause = max(pause, rand.N(backoff(DefaultRetry, failed)))
			}
			if !more || !sleep(ctx, pause) {
				break
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// lookOnce asks the store about some of the scopes that may have changed, and reports whether there may be more to ask.
func (h *hub) lookOnce(ctx context.Context) (more bool, err error) {
	var (
		keys  []Key
		cells []*cell
		must  []bool // whatever the version
	)
	h.mu.Lock()
	for key, w := range h.watched {
		if !w.dirty {
			continue
		}
		keys, cells, must = append(keys, key), append(cells, w.cell), append(must, w.reread)
		w.dirty, w.reread = false, false
		if len(keys) == lookBatch {
			break
		}
	}
	h.mu.Unlock()
	if len(keys) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, leastTime)
	defer cancel()
	p := guarded(func() { err = h.refresh(ctx, keys, cells, must) }, func() {})
	if p != nil {
		err = p
	}
	if err != nil {
		h.mu.Lock()
		for i, key := range keys {
			if w := h.watched[key]; w != nil {
				w.dirty, w.reread = true, w.reread || must[i]
			}
		}
		h.mu.Unlock()
	}
	return true, err
}

// refresh reads those scopes that have a version which has not been seen here.
func (h *hub) refresh(ctx context.Context, keys []Key, cells []*cell, must []bool) error {
	if prober, ok := h.rt.store.(persist.Prober); ok && len(keys) > 1 {
		versions, err := prober.Versions(ctx, keys)
		if err != nil {
			return err
		}
		n := 0
		for i, key := range keys {
			d := cells[i].seen.Load()
			if must[i] || d == nil || versions[i] > d.version {
				keys[n], cells[n] = key, cells[i]
				n++
			}
		}
		keys, cells = keys[:n], cells[:n]
	}
	for len(keys) > 0 {
		n := min(len(keys), loadBatch)
		records, err := loadAll(ctx, h.rt.store, keys[:n])
		if err != nil {
			return err
		}
		for i, r := range records {
			cells[i].advance(docOf(r))
		}
		keys, cells = keys[n:], cells[n:]
	}
	return nil
}

// loadAll reads several records, at one moment where the store can.
func loadAll(ctx context.Context, store persist.Store, keys []Key) ([]persist.Record, error) {
	if reader, ok := store.(persist.Reader); ok && len(keys) > 1 {
		return reader.LoadAll(ctx, keys)
	}
	var records []persist.Record
	for _, key := range keys {
		r, err := store.Load(ctx, key)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}
