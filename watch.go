package pawl

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/hints"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/persist"
)

// Watchers of a scope. A writer only signals that there is a new version (notify.Group). That
// wakes the watchers, which look at the newest version. Versions of other
// processes come through internal/hints.
//
// Races, and what decides them:
//   - a version committed between a watcher's first look and its registration: it registers first.
//   - a version read from the store that is older than one committed here meanwhile: stored.advance
//     keeps the newer one. A watcher takes no version older than the one it saw, and no state of a
//     version that it saw expired (observation.after).

// Change is a snapshot that a watcher receives. If the scope was deleted or has expired, Exists
// reports false, and Version is the version without state.
type Change[T any] struct {
	Snapshot[T]
	// Missed counts the versions skipped since the last change, because the watcher was slow or one
	// commit made several. If the scope was purged meanwhile, it is a lower bound.
	Missed int
	// Err says why a channel of Changes ended. Watch leaves it nil.
	Err error
}

// Watch yields the current snapshot and then newer ones, in the order of versions, of all
// processes. A slow watcher skips to the newest version, which always arrives, also if this process
// committed it just before Close; what Close itself waits for is not yielded.
//
// Watch ends when ctx ends, or after it yields one error: ErrClosed, ErrInTx on a scope in a
// transaction, ErrOutsideTx inside one, *ArgumentError, *SchemaError, or the error of an invalid
// scope. If the first snapshot cannot be read, that is *UnavailableError, or *CanceledError or
// *LeaseLostError if ctx ends meanwhile. Later Watch waits for the store.
func (s Scope[T]) Watch(ctx context.Context) iter.Seq2[Change[T], error] {
	return func(yield func(Change[T], error) bool) {
		w, err := s.startWatch(ctx)
		if err != nil {
			yield(Change[T]{}, err)
			return
		}
		defer w.leave()
		for w.next(ctx) {
			if w.news.err != nil {
				yield(Change[T]{}, w.news.err)
				return
			}
			if !yield(changeOf[T](w.news), nil) {
				return
			}
		}
	}
}

// Changes is Watch as a channel, for select loops. A receiver that was away gets the change that waited
// for it, and then the newest. The channel is closed when ctx ends. An error is the last Change,
// including *PanicError for a panic or runtime.Goexit in the store or in T's own decoding. A receiver
// that stops receiving must end ctx.
func (s Scope[T]) Changes(ctx context.Context) <-chan Change[T] {
	out := make(chan Change[T])
	if ctx == nil {
		out = make(chan Change[T], 1)
		out <- Change[T]{Err: &ArgumentError{Argument: "ctx", Reason: "nil"}}
		close(out)
		return out
	}
	go func() {
		defer close(out)
		send := func(c Change[T]) bool {
			select {
			case out <- c:
				return true
			case <-ctx.Done():
				return false
			}
		}
		p := guarded(func() {
			for c, err := range s.Watch(ctx) {
				if c.Err = err; !send(c) {
					return
				}
			}
		}, func() { send(Change[T]{Err: &PanicError{Value: "runtime.Goexit was called"}}) })
		if p != nil {
			send(Change[T]{Err: p})
		}
	}()
	return out
}

// news is a Change without its type.
type news struct {
	snapshot
	missed int
	err    error
}

func changeOf[T any](n news) Change[T] {
	return Change[T]{Snapshot: snapshotOf[T](n.snapshot), Missed: n.missed}
}

// watcher is one watch.
type watcher struct {
	scope  *handle
	signal notify.Signal
	quit   <-chan struct{} // closed with the scope's owner
	leave  func()
	got    observation // the last one that was news
	news   news        // its change
}

// observation is a version that a watcher saw. Its zero value means that it saw none.
type observation struct {
	some    bool // it saw a version, or that there is none
	version uint64
	life    life
	born    uint64 // persisted: the version that the record was created with
}

// after reports whether now is news for a watcher that saw known. A version has state and then,
// once expired, none; never the other way round. That a record was purged is news only for a
// watcher that has not seen it end.
func (now observation) after(known observation) bool {
	switch {
	case !known.some, now.version > known.version && now.life != absent:
		return true
	}
	return now.version >= known.version && known.life == alive && now.life != alive
}

// missed counts the versions between two observations.
func (now observation) missed(got observation) int {
	since, purged := got.version, 0
	if got.life != absent && now.born > got.version { // it is another record
		since = now.born - 1
		if got.life == alive {
			purged = 1 // the end of the old record, at least
		}
	}
	if !got.some || now.life == absent || now.version <= since {
		return 0
	}
	return int(now.version-since-1) + purged
}

// startWatch registers a watch, and only then reads the scope.
func (s *handle) startWatch(ctx context.Context) (*watcher, error) {
	switch {
	case s.fault() != nil:
		return nil, s.fault()
	case ctx == nil:
		return nil, &ArgumentError{Argument: "ctx", Reason: "nil"}
	case s.tx != nil:
		return nil, wrapKey(ErrInTx, s.key)
	case frameOf(ctx).outerTx() != nil:
		return nil, wrapKey(ErrOutsideTx, s.key)
	}
	w := &watcher{scope: s, signal: notify.NewSignal()}
	var group *notify.Group
	if s.memory != nil {
		group = watchersOf(&s.memory.group)
	} else {
		group = watchersOf(&s.stored.group)
	}
	w.quit = group.Join(w.signal)
	w.leave = func() { group.Leave(w.signal) }
	stays := false
	defer func() { // also if the store panics
		if !stays {
			w.leave()
		}
	}()
	if s.isClosed() {
		return nil, wrapKey(ErrClosed, s.key)
	}
	if s.stored != nil {
		unwatch := s.bound.rt.hub.Watch(s.key, watchedScope{s.stored})
		w.leave = func() { group.Leave(w.signal); unwatch() }
		d, err := s.bound.load(ctx, s.key)
		if err != nil {
			if ctx.Err() != nil {
				err = leftBy(ctx, s.key, PhaseQueued)
			}
			return nil, err
		}
		s.stored.advance(d)
	}
	stays = true
	w.observeStart(ctx)
	return w, nil
}

// observeStart reports the start of the watch, and its end when it leaves.
func (w *watcher) observeStart(ctx context.Context) {
	w.observe(ctx, EventWatchStarted, 0)
	leave := w.leave
	w.leave = func() { leave(); w.observe(ctx, EventWatchEnded, 0) }
}

// observe reports an event of the watch.
func (w *watcher) observe(ctx context.Context, t EventType, missed int) {
	w.scope.bound.rt.env.observe(ctx, Event{Type: t, Key: w.scope.key, Verb: "Watch", Version: w.got.version, Batch: missed})
}

// next waits for a change, w.news. It reports false when ctx has ended.
func (w *watcher) next(ctx context.Context) bool {
	for closed := false; ctx.Err() == nil; {
		found, left := w.look()
		if found {
			if w.news.missed > 0 {
				w.observe(ctx, EventWatchMissed, w.news.missed)
			}
			return true
		}
		if closed { // before the last look, so nothing that was committed before is missing
			w.news = news{err: wrapKey(ErrClosed, w.scope.key)}
			return true
		}
		var expiry <-chan time.Time // nil, which blocks for ever, while the scope does not expire
		if left > 0 {
			expiry = time.After(left)
		}
		select {
		case <-ctx.Done():
		case <-w.quit:
			closed = true
		case <-w.signal:
		case <-expiry:
			if w.scope.stored != nil {
				w.scope.bound.rt.hub.Reread(w.scope.key)
			}
		}
	}
	return false
}

// look reports whether the newest version is news. Otherwise left is the time until it expires, 0 if
// it does not.
func (w *watcher) look() (found bool, left time.Duration) {
	s := w.scope
	if s.memory != nil {
		img := s.memory.image.Load()
		if img == nil {
			return w.note(observation{some: true}, snapshot{id: s.key.ID}, nil), 0
		}
		now := time.Now().UnixNano()
		l := img.lifeAt(now)
		snap := snapshot{id: s.key.ID}
		if l == alive { // by the same clock reading
			snap.version, snap.state = img.version, img.state
		}
		if l == alive && img.expires != 0 {
			left = time.Duration(img.expires - now)
		}
		if w.got.life == absent {
			w.got.version = s.memory.first - 1 // versions below the first were not missed
		}
		return w.note(observation{some: true, version: img.version, life: l}, snap, nil), left
	}
	d := s.stored.seen.Load()
	if d == nil {
		return false, 0 // not read yet; the hub will wake this watcher
	}
	if d.Life == alive && !d.Expires.IsZero() {
		// This host's clock may be ahead of the store's, and a leased scope does not expire: so look
		// again after a while.
		left = max(time.Until(d.Expires), 100*time.Millisecond)
	}
	snap, err := s.seen(d)
	return w.note(observation{true, d.Version, d.Life, d.Born}, snap, err), left
}

// note reports whether now is newer than the last observation. It then replaces it, and snap becomes
// its change.
func (w *watcher) note(now observation, snap snapshot, err error) bool {
	if !now.after(w.got) {
		if now.life == absent && w.got.life == absent {
			w.got.version = max(w.got.version, now.version) // versions start higher now
		}
		return false
	}
	w.news = news{snapshot: snap, missed: now.missed(w.got), err: err}
	if now.life != alive && (now.life != absent || w.got.some) {
		w.news.version = now.version
	}
	w.got = now
	return true
}

// watchersOf returns the group in p, which is made if there is none.
func watchersOf(p *atomic.Pointer[notify.Group]) *notify.Group {
	g := p.Load()
	if g == nil {
		g = notify.NewGroup()
		if !p.CompareAndSwap(nil, g) {
			g = p.Load()
		}
	}
	return g
}

// watchedScope makes a stored container a hints.Scope.
type watchedScope struct{ *stored }

// Seen returns the newest version that this process saw.
func (w watchedScope) Seen() (version uint64, gone, known bool) {
	d := w.seen.Load()
	if d == nil {
		return 0, false, false
	}
	return d.Version, d.Life == absent, true
}

// Adopt takes over a record that was read, unless a newer version was seen.
func (w watchedScope) Adopt(r persist.Record) { w.advance(document.Of(r)) }

// newHub returns the hub of a runtime.
func newHub(rt *Runtime) *hints.Hub {
	store, env := rt.store, rt.env
	return hints.New(hints.Config{
		Store:   store,
		Load:    func(ctx context.Context, keys []Key) ([]persist.Record, error) { return env.loadAll(ctx, store, keys) },
		Timeout: storeTimeout,
		Backoff: func(failures int) time.Duration { return rand.N(backoff(DefaultRetry, failures)) },
		Logger:  env.logger,
	})
}
