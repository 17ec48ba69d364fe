package pawl

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
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
	lookWhole     = time.Minute            // how often what is watched is read although its version has not moved: its expiry may have
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

// candidate is a watched scope that is looked at.
type candidate struct {
	key    Key
	cell   *cell
	reread bool
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
		if !commit.Sleep(ctx, rand.N(backoff(DefaultRetry, failed))) {
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
		if d := w.cell.seen.Load(); d == nil || hint.Version == 0 || d.Version < hint.Version {
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

// suspect has everything that is watched looked at: a hint may have been lost. If whole, it is read, whatever its version.
func (h *hub) suspect(whole bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watched {
		w.dirty, w.reread = true, w.reread || whole
	}
	if len(h.watched) > 0 && h.stop != nil {
		h.due.poke()
	}
}

// look keeps what is watched up to date until ctx ends.
func (h *hub) look(ctx context.Context, hearing *atomic.Bool, due *bell) {
	failed := 0
	for last, whole := time.Now(), time.Now(); ; {
		again := lookAgainDeaf
		if hearing.Load() {
			again = lookAgain
		}
		if wait := time.Until(last.Add(again)); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-due.wake:
			case <-timer.C:
			}
			timer.Stop()
		}
		if time.Since(last) >= again { // whatever else there is to do: what fails again and again must not keep the rest from being looked at
			last = time.Now()
			all := last.Sub(whole) >= lookWhole
			if all {
				whole = last
			}
			h.suspect(all)
		}
		began := time.Now()
		more, err := h.lookOnce(ctx)
		pause := max(lookPause, lookShare*time.Since(began))
		if failed++; err == nil {
			failed = 0
		} else {
			pause = max(pause, rand.N(backoff(DefaultRetry, failed)))
		}
		if !more {
			continue
		}
		if !commit.Sleep(ctx, pause) {
			return
		}
		due.poke()
	}
}

// lookOnce asks the store about some of the scopes that may have changed, and reports whether there may be more to ask.
func (h *hub) lookOnce(ctx context.Context) (more bool, err error) {
	var some []candidate
	h.mu.Lock()
	for key, w := range h.watched {
		if !w.dirty {
			continue
		}
		some = append(some, candidate{key, w.cell, w.reread})
		w.dirty, w.reread = false, false
		if len(some) == lookBatch {
			break
		}
	}
	h.mu.Unlock()
	if len(some) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, leastTime)
	defer cancel()
	left := some
	p := guarded(func() { left, err = h.refresh(ctx, some) }, func() {})
	if p != nil {
		err = p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range left {
		if w := h.watched[s.key]; w != nil {
			w.dirty, w.reread = true, w.reread || s.reread
		}
	}
	return true, err
}

// refresh reads those scopes that have a version which has not been seen here, and returns those that could not be read, with an error.
func (h *hub) refresh(ctx context.Context, some []candidate) (left []candidate, err error) {
	for some = h.changed(ctx, some); len(some) > 0; {
		batch := some[:min(len(some), loadBatch)]
		some = some[len(batch):]
		failed, why := h.read(ctx, batch)
		if left = append(left, failed...); why != nil {
			err = why
		}
		if len(failed) == len(batch) { // it is the store
			return append(left, some...), err
		}
	}
	return left, err
}

// changed returns those of some that have to be read, as far as the store can tell.
func (h *hub) changed(ctx context.Context, some []candidate) []candidate {
	prober, ok := h.rt.store.(persist.Prober)
	if !ok || len(some) == 1 {
		return some
	}
	versions, err := prober.Versions(ctx, keysOf(some))
	if err != nil {
		return some // reading will show whose fault it is
	}
	var out []candidate
	for i, s := range some {
		d := s.cell.seen.Load()
		if s.reread || d == nil || versions[i] > d.Version || versions[i] == 0 && d.Life != absent {
			out = append(out, s)
		}
	}
	return out
}

// read reads all of some, and returns those that could not be read, with an error. One that cannot is not to keep the others from being read.
func (h *hub) read(ctx context.Context, some []candidate) (failed []candidate, err error) {
	records, err := loadAll(ctx, h.rt.store, keysOf(some))
	if err == nil {
		for i, r := range records {
			some[i].cell.advance(document.Of(r))
		}
		return nil, nil
	}
	if len(some) == 1 {
		return some, err
	}
	for i := range some {
		one, _ := h.read(ctx, some[i:i+1])
		failed = append(failed, one...)
	}
	return failed, err
}

func keysOf(some []candidate) []Key {
	keys := make([]Key, len(some))
	for i, s := range some {
		keys[i] = s.key
	}
	return keys
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
