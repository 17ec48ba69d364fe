package pawl

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// Who watches a scope. A writer that has something new only marks that (announce); a herald, one goroutine per watched scope, wakes the watchers,
// and they look at the newest there is. So a writer does the same for one watcher as for ten thousand, and a slow watcher
// skips versions instead of collecting them. What other processes write comes through the hub.
//
// Races, and what decides them:
//   - a version between a watcher's first look and its registration: it registers first.
//   - a version while the herald wakes watchers: the mark is taken off before, so that it is set again.
//   - a version read from the store that is older than one committed here meanwhile: cell.advance keeps the newer, and a watcher takes nothing older
//     than what it saw, nor the state of a version that it saw expired (sight.after).

// heraldPause is how long a herald rests after waking everybody: at least this, and so much for each watcher.
const (
	heraldPause     = time.Millisecond
	heraldPauseEach = 64 * time.Microsecond // waking one costs about 3, so that this is a twentieth of a core
	heraldPauseMost = time.Second
)

// Change is a snapshot that a watcher receives. Where the scope has no state, having been deleted or expired, it does not exist (Exists), and Version says since when.
type Change[T any] struct {
	Snapshot[T]
	Missed int   // versions skipped since the last change, because they came too fast or were made in one commit; if the scope was purged meanwhile, at least so many
	Err    error // only from Changes: why it ended
}

// Watch yields the current snapshot and then newer ones, in the order of versions, as they are committed by whomever. A slow watcher skips to the
// newest, which always arrives. It ends when ctx ends, or after yielding one error: ErrClosed, ErrInTx on a scope in a transaction, *UnavailableError
// when the first snapshot cannot be read (later it waits for the store), *SchemaError, and the errors of a scope that cannot work.
func (s Scope[T]) Watch(ctx context.Context) iter.Seq2[Change[T], error] {
	return func(yield func(Change[T], error) bool) {
		w, err := s.attend(ctx)
		if err != nil {
			yield(Change[T]{}, err)
			return
		}
		defer w.leave()
		for w.next(ctx, nil) {
			if w.change.Err != nil {
				yield(Change[T]{}, w.change.Err)
				return
			}
			if !yield(w.change, nil) {
				return
			}
		}
	}
}

// Changes is Watch as a channel, for select loops. It is closed when ctx ends; an error comes as the last Change, also *PanicError, of the store or of T's own
// decoding. Whoever stops receiving has to end ctx.
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
		var err error
		p := guarded(func() {
			w, failed := s.attend(ctx)
			if err = failed; err != nil {
				return
			}
			defer w.leave()
			for w.next(ctx, out) {
			}
		}, func() {})
		if p != nil {
			err = p
		}
		if err != nil {
			select {
			case out <- Change[T]{Err: err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// spectator is one watch.
type spectator[T any] struct {
	scope   Scope[T]
	bell    *bell
	quit    <-chan struct{} // closed with the scope's owner
	leave   func()
	got     sight // what it got last
	ahead   sight // what it is to get
	waiting bool  // ahead was not delivered yet
	change  Change[T]
}

// sight is what a watcher saw.
type sight struct {
	some    bool // it saw something
	version uint64
	life    life
	born    uint64 // persisted: the version that the record was created with
}

// after reports whether now is news for who saw known. A version has state and then, once expired, none; never the other way round. That a record was purged is
// news only for who has not seen its end.
func (now sight) after(known sight) bool {
	switch {
	case !known.some, now.version > known.version && now.life != absent:
		return true
	}
	return now.version >= known.version && known.life == alive && now.life != alive
}

// missed counts the versions between two sights.
func (now sight) missed(got sight) int {
	since, purged := got.version, 0
	if got.life != absent && now.born > got.version { // it is another record
		since = now.born - 1
		if got.life == alive {
			purged = 1 // whatever else it went through, it ended
		}
	}
	if !got.some || now.life == absent || now.version <= since {
		return 0
	}
	return int(now.version-since-1) + purged
}

// attend registers a watch, and only then looks.
func (s Scope[T]) attend(ctx context.Context) (*spectator[T], error) {
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
	c := s.cell
	if s.mem != nil {
		c = &s.mem.cell
	}
	w := &spectator[T]{scope: s, bell: newBell()}
	crowd := c.audience()
	w.quit = crowd.join(w.bell)
	w.leave = func() { crowd.leave(w.bell) }
	stays := false
	defer func() { // also if the store panics
		if !stays {
			w.leave()
		}
	}()
	if s.isClosed() {
		return nil, wrapKey(ErrClosed, s.key)
	}
	if s.mem != nil {
		stays = true
		return w, nil
	}
	unwatch := s.bound.rt.hub.watch(c, s.key)
	w.leave = func() { crowd.leave(w.bell); unwatch() }
	d, err := s.bound.load(ctx, s.key)
	if err != nil {
		if ctx.Err() != nil {
			err = leftBy(ctx, s.key, PhaseQueued)
		}
		return nil, err
	}
	c.advance(d)
	stays = true
	return w, nil
}

// next waits for a change, and, if there is an out, until it is delivered there. It reports false when the watch is over.
func (w *spectator[T]) next(ctx context.Context, out chan<- Change[T]) bool {
	for ctx.Err() == nil {
		left, expires := w.look()
		if w.waiting && out == nil {
			w.deliver()
			return true
		}
		var offer chan<- Change[T] // blocks for ever while there is nothing to offer
		if w.waiting {
			offer = out
		}
		var expiry <-chan time.Time
		stop := func() bool { return true }
		if expires {
			t := time.NewTimer(left)
			expiry, stop = t.C, t.Stop
		}
		select {
		case <-ctx.Done():
		case <-w.quit:
			stop()
			w.change = Change[T]{Err: wrapKey(ErrClosed, w.scope.key)}
			if out == nil {
				return true
			}
			select {
			case out <- w.change:
			case <-ctx.Done():
			}
			return false
		case offer <- w.change:
			stop()
			w.deliver()
			return w.change.Err == nil
		case <-w.bell.wake:
		case <-expiry:
			if w.scope.cell != nil {
				w.scope.bound.rt.hub.reread(w.scope.key)
			}
		}
		stop()
	}
	return false
}

func (w *spectator[T]) deliver() { w.got, w.waiting = w.ahead, false }

// look prepares the newest there is, unless it was delivered, and tells when it expires.
func (w *spectator[T]) look() (left time.Duration, expires bool) {
	s := w.scope
	if s.mem != nil {
		img := s.mem.image.Load()
		if img == nil {
			w.prepare(sight{some: true}, Snapshot[T]{ID: s.key.ID}, nil)
			return 0, false
		}
		now := time.Now().UnixNano()
		l := img.lifeAt(now)
		snap := Snapshot[T]{ID: s.key.ID}
		if l == alive { // by the same clock reading
			snap.Version, snap.state = img.version, &img.state
		}
		if w.got.life == absent {
			w.got.version = s.mem.first - 1 // that versions start higher is nothing that was missed
		}
		w.prepare(sight{some: true, version: img.version, life: l}, snap, nil)
		return time.Duration(img.expires - now), l == alive && img.expires != 0
	}
	d := s.cell.seen.Load()
	if d == nil {
		return 0, false // nobody knows; the hub will
	}
	snap, err := s.seen(d)
	w.prepare(sight{true, d.Version, d.Life, d.Born}, snap, err)
	// By this host's clock, which may be ahead of the store's; and what somebody holds does not expire.
	return max(time.Until(d.Expires), 100*time.Millisecond), d.Life == alive && !d.Expires.IsZero()
}

// prepare makes snap the change to deliver, if it is newer than what was.
func (w *spectator[T]) prepare(now sight, snap Snapshot[T], err error) {
	known := w.got
	if w.waiting {
		known = w.ahead
	}
	if !now.after(known) {
		if now.life == absent && w.got.life == absent {
			w.got.version = max(w.got.version, now.version) // versions start higher now
		}
		return
	}
	w.ahead, w.waiting = now, true
	w.change = Change[T]{Snapshot: snap, Missed: now.missed(w.got), Err: err}
	if now.life != alive && (now.life != absent || w.got.some) {
		w.change.Version = now.version
	}
}

// audience is who watches one scope.
type audience struct {
	mu     sync.Mutex // protects what follows
	bells  map[*bell]struct{}
	herald bool          // one runs
	over   chan struct{} // closed with the scope's owner
	closed bool

	marked atomic.Bool // there is something new that the herald has not announced yet
	news   *bell       // wakes the herald
	alone  *bell       // and tells it that nobody is left
}

// audience returns that of c, which is made if there is none.
func (c *cell) audience() *audience {
	a := c.crowd.Load()
	if a == nil {
		a = &audience{bells: map[*bell]struct{}{}, over: make(chan struct{}), news: newBell(), alone: newBell()}
		if !c.crowd.CompareAndSwap(nil, a) {
			a = c.crowd.Load()
		}
	}
	return a
}

// announce tells the audience, if there is one, that there is something new. It does not wait, and costs the same whatever the number of watchers.
func (c *cell) announce() {
	if a := c.crowd.Load(); a != nil && !a.marked.Load() && a.marked.CompareAndSwap(false, true) {
		a.news.poke()
	}
}

// close makes cell closable: it refuses new work, and ends the watches.
func (c *cell) close() <-chan struct{} {
	if a := c.crowd.Load(); a != nil {
		a.close()
	}
	return c.queue.close()
}

func (a *audience) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		close(a.over)
	}
}

// join adds a watcher, who is woken by b; over is closed when there will be nothing more.
func (a *audience) join(b *bell) (over <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bells[b] = struct{}{}
	if !a.herald {
		a.herald = true
		go a.announce()
	}
	return a.over
}

func (a *audience) leave(b *bell) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.bells, b)
	if len(a.bells) == 0 {
		a.alone.poke()
	}
}

// announce is the herald: it wakes everybody when there is something new, until nobody is left.
func (a *audience) announce() {
	for {
		select {
		case <-a.news.wake:
		case <-a.alone.wake:
		}
		a.marked.Store(false)
		a.mu.Lock()
		if len(a.bells) == 0 {
			a.herald = false
			a.mu.Unlock()
			return
		}
		for b := range a.bells {
			b.poke()
		}
		rest := time.NewTimer(min(heraldPause+time.Duration(len(a.bells))*heraldPauseEach, heraldPauseMost))
		a.mu.Unlock()
		select {
		case <-rest.C:
		case <-a.alone.wake:
			a.alone.poke()
		}
		rest.Stop()
	}
}
