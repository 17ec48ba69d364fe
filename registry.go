package pawl

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// registry finds the container of a key, so that all handles on it share one. It holds containers by weak pointer: whoever has a
// handle, waits or runs keeps them. In-memory containers with state are held strongly as well (pinned), because they
// are the state; of persisted ones some of those last written to are, to spare the next writer reading them again.
type registry struct {
	shards []shard
	seed   maphash.Seed
	ids    atomic.Uint64 // of entries

	// floor is the version that new in-memory scopes start above, so that forgetting a tombstone reuses no version.
	floor atomic.Uint64

	gravesMu sync.Mutex
	graves   []Key // tombstones of in-memory scopes, oldest first

	expiring atomic.Bool // some in-memory state has a TTL

	airing  atomic.Bool   // the next time when persisted containers are let go is set
	airings atomic.Uint64 // how often some were
}

type shard struct {
	mu      sync.Mutex // protects what follows, and strong of its entries
	entries map[Key]*entry
	closed  bool
	airings uint64   // how often persisted containers were let go
	recent  []*entry // persisted containers that are held because they were used since the last airing
	before  []*entry // and those that were between the last two, of which some are in recent, too
}

// entry is the place of one container.
type entry struct {
	id     uint64 // distinguishes it from a later entry of the same key
	weak   ref
	strong resident // pinned, or written to not long ago; nil: not
	used   uint64   // the airing before its last use, of a persisted one that is held
}

// ref is a weak pointer to a container of some type.
type ref interface{ target() resident }

type weakRef[C any, P interface {
	*C
	resident
}] struct{ p weak.Pointer[C] }

func (r weakRef[C, P]) target() resident {
	if c := r.p.Value(); c != nil {
		return P(c)
	}
	return nil
}

// resident is a container of some type.
type resident interface {
	close() <-chan struct{}
	busy() []Running
	// unpin lets go of an in-memory container that has no state any more; exhumed says that its grave is gone.
	unpin(exhumed bool)
}

const (
	runtimeShards = 64
	maxGraves     = 10_000      // tombstones of in-memory scopes kept before the oldest are forgotten behind the floor
	sweepStep     = 4           // pinned containers looked at whenever one is opened
	maxRecent     = 16_384      // persisted containers held after use
	maxHeld       = 4 << 10     // bytes of a document that is held
	airAfter      = time.Minute // persisted containers that were not used for this long are let go, or for twice as long
)

func newRegistry(shards int) *registry {
	r := &registry{shards: make([]shard, shards), seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].entries = map[Key]*entry{}
	}
	return r
}

func (r *registry) shard(key Key) *shard {
	if len(r.shards) == 1 {
		return &r.shards[0]
	}
	return &r.shards[maphash.Comparable(r.seed, key)%uint64(len(r.shards))]
}

// find returns the container of key, made by make if there is none, and nil after close.
func find[C any, P interface {
	*C
	resident
}](r *registry, key Key, make func() P) resident {
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if e := s.entries[key]; e != nil {
		if e.strong != nil {
			return e.strong
		}
		if c := e.weak.target(); c != nil {
			return c
		}
	}
	c := make()
	e := &entry{id: r.ids.Add(1), weak: weakRef[C, P]{weak.Make((*C)(c))}}
	s.entries[key] = e
	runtime.AddCleanup((*C)(c), forget, tomb{weak.Make(r), key, e.id})
	return c
}

// tomb is what remains of a container that nobody holds. It must not reach the container, or the runtime of one who forgot Close.
type tomb struct {
	r   weak.Pointer[registry]
	key Key
	id  uint64
}

// forget removes the entry of a collected container, unless the key has a newer one.
func forget(t tomb) {
	r := t.r.Value()
	if r == nil {
		return
	}
	s := r.shard(t.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[t.key]; e != nil && e.id == t.id {
		delete(s.entries, t.key)
	}
}

// home is where a container is registered.
type home struct {
	registry *registry
	key      Key
}

// pin holds c, which has got state. The caller holds queue.mu of c.
func (h *home) pin(c resident) { h.setStrong(c) }

// unpin lets go of the container, whose last version this is, after making sure that it is not used again. The caller holds its queue.mu.
func (h *home) unpin(version uint64) {
	for {
		floor := h.registry.floor.Load()
		if floor >= version || h.registry.floor.CompareAndSwap(floor, version) {
			break
		}
	}
	h.setStrong(nil)
}

func (h *home) setStrong(c resident) {
	s := h.registry.shard(h.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[h.key]; e != nil && !s.closed {
		e.strong = c
	}
}

// bury remembers that the container has become a tombstone, so that one day it can be forgotten.
func (h *home) bury() {
	r := h.registry
	r.gravesMu.Lock()
	r.graves = append(r.graves, h.key)
	r.gravesMu.Unlock()
}

// hold keeps c, a persisted container at rest with a document of this size, for a while: the next writer need not read it again. since is when
// that was last done; one who is used all the time need not be held each time.
func (h *home) hold(c resident, since *uint64, bytes int) {
	r := h.registry
	airing := r.airings.Load() + 1
	if *since == airing {
		return
	}
	s := r.shard(h.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[h.key]
	if e == nil || s.closed || e.used == s.airings+1 || bytes > maxHeld || len(s.recent) >= maxRecent/len(r.shards) || e.weak.target() != c {
		return
	}
	e.strong, e.used = c, s.airings+1
	s.recent = append(s.recent, e)
	*since = airing
	r.airLater()
}

// airLater makes sure that air is called, unless nobody keeps r.
func (r *registry) airLater() {
	if r.airing.CompareAndSwap(false, true) {
		target := weak.Make(r)
		time.AfterFunc(airAfter, func() {
			if r := target.Value(); r != nil {
				r.air()
			}
		})
	}
}

// air lets go of persisted containers that were not used since the last time.
func (r *registry) air() {
	r.airing.Store(false) // whoever is held from here on sees to the next
	r.airings.Add(1)
	held := false
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.airings++
		for _, e := range s.before {
			if e.used < s.airings { // not since the last time
				e.strong = nil
			}
		}
		s.before, s.recent = s.recent, nil
		held = held || len(s.before) > 0
		s.mu.Unlock()
	}
	if held {
		r.airLater()
	}
}

// sweep forgets some of what in-memory scopes left behind: tombstones beyond maxGraves, and expired state that it comes by. It is
// called whenever a container is opened, so that memory does not grow faster than it is swept.
func (r *registry) sweep(opened Key) {
	var buried, some []resident
	r.gravesMu.Lock()
	for range 2 {
		if len(r.graves) <= maxGraves {
			break
		}
		s := r.shard(r.graves[0])
		s.mu.Lock()
		if e := s.entries[r.graves[0]]; e != nil {
			if c := e.weak.target(); c != nil {
				buried = append(buried, c)
			}
		}
		s.mu.Unlock()
		r.graves = r.graves[1:]
	}
	r.gravesMu.Unlock()
	if r.expiring.Load() {
		s, seen := r.shard(opened), 0
		s.mu.Lock()
		for _, e := range s.entries { // in random order
			if e.strong != nil {
				some = append(some, e.strong)
			}
			if seen++; seen == sweepStep {
				break
			}
		}
		s.mu.Unlock()
	}
	for _, c := range buried {
		c.unpin(true)
	}
	for _, c := range some {
		c.unpin(false)
	}
}

// close refuses new containers and new work in those there are. It returns what is not finished.
func (r *registry) close() []resident {
	var all []resident
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.closed = true
		for _, e := range s.entries {
			if c := e.weak.target(); c != nil {
				all = append(all, c)
			}
		}
		s.entries, s.recent, s.before = nil, nil, nil
		s.mu.Unlock()
	}
	return all
}
