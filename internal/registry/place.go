package registry

import (
	"time"
	"weak"
)

// Registered reports whether the container is registered anywhere. The methods below except
// Floor are for registered containers.
func (p *Place[C]) Registered() bool { return p.registry != nil }

// Floor returns the version that a container without a version starts above.
func (p *Place[C]) Floor() uint64 {
	if p.registry == nil {
		return 0
	}
	return p.registry.floor.Load()
}

// Pin holds the container, which has state, until Unpin. The caller holds the container's lock.
func (p *Place[C]) Pin() {
	if p.pinned {
		return
	}
	p.pinned = true
	p.update(p.container, true)
}

// Unpin undoes Pin for a container whose state is gone, after it has raised the floor to the
// container's last version. The caller holds the container's lock.
func (p *Place[C]) Unpin(version uint64) {
	if !p.pinned {
		return
	}
	p.pinned = false
	p.registry.raiseFloor(version)
	var none C
	p.update(none, false)
}

func (p *Place[C]) update(container C, pinned bool) {
	s := p.registry.shard(p.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[p.key]; e != nil {
		e.container, e.pinned = container, pinned
	}
}

func (r *Registry[C]) raiseFloor(version uint64) {
	for {
		floor := r.floor.Load()
		if floor >= version || r.floor.CompareAndSwap(floor, version) {
			return
		}
	}
}

// AddTombstone lists the container, which is pinned and was deleted, so that Sweep forgets it one
// day. A container is listed once, however often it is deleted and created again.
func (p *Place[C]) AddTombstone() {
	r := p.registry
	r.tombstonesMu.Lock()
	defer r.tombstonesMu.Unlock()
	if p.tombstone {
		return
	}
	p.tombstone = true
	r.tombstones = append(r.tombstones, weak.Make(p))
}

// Expires says that the container's state will expire: Sweep looks for such from now on.
func (p *Place[C]) Expires() {
	if !p.registry.expiring.Load() {
		p.registry.expiring.Store(true)
	}
}

// Keep holds the container for one to two eviction intervals after this use. It does nothing for a
// document of more than maxKeptBytes, or when enough containers are kept. The caller holds the
// container's lock.
func (p *Place[C]) Keep(bytes int) {
	r := p.registry
	generation := r.generation.Load()
	if p.kept == generation || bytes > maxKeptBytes {
		return
	}
	p.kept = generation
	s := r.shard(p.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.recent) >= maxKept/len(r.shards) {
		return
	}
	s.recent = append(s.recent, p)
	r.scheduleEviction()
}

// scheduleEviction makes sure that evict is called, unless the registry is collected before.
func (r *Registry[C]) scheduleEviction() {
	if !r.scheduled.CompareAndSwap(false, true) {
		return
	}
	target := weak.Make(r)
	time.AfterFunc(evictInterval, func() {
		if r := target.Value(); r != nil {
			r.evict()
		}
	})
}

// evict is an eviction round: it lets go of the containers that were not kept again since the last
// round. The generation moves after the lists, so that a container kept meanwhile is listed in the
// newer list, perhaps twice, and never only in the older one.
func (r *Registry[C]) evict() {
	r.scheduled.Store(false) // a container kept from here on schedules the next round
	more := false
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.before, s.recent = s.recent, nil
		more = more || len(s.before) > 0
		s.mu.Unlock()
	}
	r.generation.Add(1)
	if more {
		r.scheduleEviction()
	}
}
