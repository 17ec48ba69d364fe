// Package registry knows which containers are alive: one for each key, found by every handle on it.
//
// A container lives as long as a handle, a waiter or a worker refers to it, because the registry
// holds it by weak pointer. Two kinds of containers are held strongly as well. A pinned one is an
// in-memory container with state: the container is the only copy. A kept one is a persisted
// container that was used not long ago, so that the next writer need not read it again.
//
// An in-memory container that was deleted stays pinned as a tombstone. Beyond a bound, the oldest
// tombstones are forgotten; the version floor is raised above them first, so that a container
// created later under the same key uses no version twice.
//
// The registry knows nothing of queues, stores or state: C is any type that the caller chooses.
//
// Races, and what decides them:
//   - two handles are opened at the same time: the shard's lock; the second finds the container of
//     the first.
//   - a container is collected while its key is opened again: the weak pointer is nil, and the new
//     container replaces the entry. The cleanup of the old one finds a live entry and leaves it.
//   - a tombstone is forgotten while its container gets new state: the container's own lock. The
//     release function of Sweep looks at the state under it, and unpins only if there is none.
//   - a container is kept while an eviction round is under way: it is in the newer list, or is
//     added to it twice; the round that drops it comes at least one interval later either way.
//   - the registry is closed while a container is opened or kept: the shard's lock.
package registry

import (
	"hash/maphash"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/pawl-go/pawl/persist"
)

const (
	// DefaultShards spreads the keys of a whole process over enough locks.
	DefaultShards = 64

	maxTombstones = 10_000      // tombstones before the oldest are forgotten
	forgetStep    = 2           // tombstones forgotten by one Sweep
	expiryStep    = 4           // entries that one Sweep looks at for expired state
	maxKept       = 16_384      // containers kept in one interval
	maxKeptBytes  = 4 << 10     // a container with a larger document is not kept
	evictInterval = time.Minute // an unused container is kept for one to two of these
)

// Registry finds the container of a key. New makes one.
type Registry[C any] struct {
	shards []shard[C]
	seed   maphash.Seed

	floor    atomic.Uint64 // new in-memory containers start above this version
	expiring atomic.Bool   // some pinned container has a state that expires

	generation atomic.Uint32 // eviction rounds, counted from 1
	scheduled  atomic.Bool   // the next eviction round has a timer

	tombstonesMu sync.Mutex               // protects tombstones and Place.tombstone
	tombstones   []weak.Pointer[Place[C]] // oldest first
}

// shard holds the containers of some keys.
type shard[C any] struct {
	mu      sync.Mutex // protects the fields below
	entries map[persist.Key]*entry[C]
	closed  bool
	recent  []*Place[C] // kept, and used since the last eviction round
	before  []*Place[C] // kept, and used between the last two rounds
}

// entry refers to one container. It is an object of its own, because a map keeps the size it once
// had. It holds a pinned container itself, not its place: finding that touches no memory of it.
type entry[C any] struct {
	place     weak.Pointer[Place[C]]
	container C // zero: not pinned
	pinned    bool
}

// Place is what a container knows about its registration. It is part of the container, or refers to
// it and is referred to by it: neither is collected without the other. The zero value belongs to a
// container that is registered nowhere.
type Place[C any] struct {
	registry  *Registry[C]
	key       persist.Key
	container C

	kept      uint32 // generation of the last Keep; protected by the container's lock
	pinned    bool   // protected by the container's lock
	tombstone bool   // in Registry.tombstones; protected by tombstonesMu
}

// New returns an empty registry with this many locks.
func New[C any](shards int) *Registry[C] {
	r := &Registry[C]{shards: make([]shard[C], shards), seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].entries = map[persist.Key]*entry[C]{}
	}
	r.generation.Store(1)
	return r
}

func (r *Registry[C]) shard(key persist.Key) *shard[C] {
	if len(r.shards) == 1 {
		return &r.shards[0]
	}
	return &r.shards[maphash.Comparable(r.seed, key)%uint64(len(r.shards))]
}

// Find returns the container of key. If there is none, it registers the one that create returns, at
// the place that create returns with it. It reports false after Close.
func (r *Registry[C]) Find(key persist.Key, create func() (C, *Place[C])) (c C, open bool) {
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return c, false
	}
	if e := s.entries[key]; e != nil {
		if e.pinned {
			return e.container, true
		}
		if p := e.place.Value(); p != nil {
			return p.container, true
		}
	}
	c, p := create()
	p.registry, p.key, p.container = r, key, c
	s.entries[key] = &entry[C]{place: weak.Make(p)}
	runtime.AddCleanup(p, remove[C], collected[C]{weak.Make(r), key})
	return c, true
}

// collected is all that a cleanup knows. It refers neither to the container nor, strongly, to the
// registry, which a caller may have dropped without Close.
type collected[C any] struct {
	registry weak.Pointer[Registry[C]]
	key      persist.Key
}

// remove deletes the entry of a collected container, unless the key has a live one again.
func remove[C any](gone collected[C]) {
	r := gone.registry.Value()
	if r == nil {
		return
	}
	s := r.shard(gone.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[gone.key]; e != nil && !e.pinned && e.place.Value() == nil {
		delete(s.entries, gone.key)
	}
}

// Sweep forgets some of what in-memory containers left behind. It calls release for the oldest
// tombstones beyond the bound (forgotten), and for some pinned containers whose state may have
// expired. Release unpins the container if it has no state any more. Calling Sweep whenever a
// container is opened keeps memory from growing faster than it is swept.
func (r *Registry[C]) Sweep(opened persist.Key, release func(c C, forgotten bool)) {
	for _, p := range r.forget() {
		release(p.container, true)
	}
	if !r.expiring.Load() {
		return
	}
	for _, c := range r.somePinned(opened) {
		release(c, false)
	}
}

// forget takes the oldest tombstones beyond the bound off the list.
func (r *Registry[C]) forget() (forgotten []*Place[C]) {
	r.tombstonesMu.Lock()
	defer r.tombstonesMu.Unlock()
	for i := 0; i < forgetStep && len(r.tombstones) > maxTombstones; i++ {
		if p := r.tombstones[0].Value(); p != nil {
			p.tombstone = false
			forgotten = append(forgotten, p)
		}
		r.tombstones = r.tombstones[1:]
	}
	return forgotten
}

// somePinned returns pinned containers among a few entries, which the map picks at random, of the
// shard of key.
func (r *Registry[C]) somePinned(key persist.Key) (some []C) {
	s, seen := r.shard(key), 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.pinned {
			some = append(some, e.container)
		}
		if seen++; seen == expiryStep {
			break
		}
	}
	return some
}

// All yields the containers that are alive, with their keys. It holds no lock while it yields one, so
// those that come or go meanwhile may be missing.
func (r *Registry[C]) All() iter.Seq2[persist.Key, C] {
	return func(yield func(persist.Key, C) bool) {
		for i := range r.shards {
			s := &r.shards[i]
			s.mu.Lock()
			alive := s.alive()
			s.mu.Unlock()
			for _, p := range alive {
				if !yield(p.key, p.container) {
					return
				}
			}
		}
	}
}

// alive returns the places of the containers of s that are alive. The caller holds s.mu.
func (s *shard[C]) alive() (alive []*Place[C]) {
	for _, e := range s.entries {
		if p := e.place.Value(); p != nil {
			alive = append(alive, p)
		}
	}
	return alive
}

// Close lets go of all containers and registers no more. It returns those that are alive, on the
// first call only.
func (r *Registry[C]) Close() (alive []C) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.closed = true
		for _, p := range s.alive() {
			alive = append(alive, p.container)
		}
		s.entries, s.recent, s.before = nil, nil, nil
		s.mu.Unlock()
	}
	return alive
}
