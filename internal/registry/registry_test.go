package registry

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// box is a container that embeds its place.
type box struct {
	place   Place[*box]
	mu      sync.Mutex // protects the fields below, and is held for Pin, Unpin and Keep of place
	version uint64     // 0 if there is no state
	dead    bool       // version is a tombstone
}

func newBox() (*box, *Place[*box]) {
	b := &box{}
	return b, &b.place
}

func key(id any) persist.Key { return persist.Key{Kind: "box", ID: fmt.Sprint(id)} }

func open(t *testing.T, r *Registry[*box], id any) *box {
	t.Helper()
	b, ok := r.Find(key(id), newBox)
	require.True(t, ok)
	return b
}

// write makes a new version of b, as an in-memory scope does.
func (b *box) write(deletes bool) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version == 0 {
		b.version = b.place.Floor()
	}
	b.version++
	b.dead = deletes
	b.place.Pin()
	if deletes {
		b.place.AddTombstone()
	}
	return b.version
}

// release unpins a forgotten tombstone.
func (b *box) release(forgotten bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead && forgotten {
		b.place.Unpin(b.version)
	}
}

func (b *box) keep(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.place.Keep(bytes)
}

func (r *Registry[C]) size() (n int) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n += len(s.entries)
		s.mu.Unlock()
	}
	return n
}

// listed counts the kept containers.
func (r *Registry[C]) listed() (recent, before int) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		recent += len(s.recent)
		before += len(s.before)
		s.mu.Unlock()
	}
	return recent, before
}

// collect runs garbage collections until done returns true. Cleanups run some time after the
// collection that finds their object.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if done() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the container was not collected")
}

// survives reports whether the box of id still exists after garbage collections.
func survives(r *Registry[*box], id any) bool {
	for range 3 {
		runtime.GC()
	}
	s := r.shard(key(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key(id)]
	return e != nil && e.place.Value() != nil
}

// All yields every container that is alive, and the caller may use the registry meanwhile.
func TestAll(t *testing.T) {
	r := New[*box](DefaultShards)
	var boxes []*box
	for i := range 100 {
		boxes = append(boxes, open(t, r, i))
	}
	var all []*box
	for k, b := range r.All() {
		require.Same(t, b, open(t, r, k.ID))
		all = append(all, b)
	}
	require.ElementsMatch(t, boxes, all)
	for range r.All() {
		break
	}
	r.Close()
	for range r.All() {
		t.Fatal("closed")
	}
}

func TestFind(t *testing.T) {
	for _, shards := range []int{1, DefaultShards} {
		r := New[*box](shards)
		one := open(t, r, "one")
		require.Same(t, one, open(t, r, "one"))
		require.NotSame(t, one, open(t, r, "two"))
		require.True(t, one.place.Registered())
		require.Equal(t, key("one"), one.place.key)
	}
	var own box
	require.False(t, own.place.Registered())
	require.Zero(t, own.place.Floor())
}

// A Place separates a container's queue from its neighbour in memory.
func TestPlaceFillsACacheLine(t *testing.T) {
	require.EqualValues(t, 64, reflect.TypeFor[Place[any]]().Size())
}

// Goroutines that open one key at the same time share a container, while others are collected and
// opened again.
func TestFindConcurrently(t *testing.T) {
	r := New[*box](DefaultShards)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				first, _ := r.Find(key(i%10), newBox)
				second, _ := r.Find(key(i%10), newBox)
				if first != second {
					t.Error("two containers of one key")
				}
				if i%200 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	collect(t, func() bool { return r.size() == 0 })
}

// A container without a handle is collected, and its entry is removed. Proves SCOPE-19.
func TestUnusedContainersAreCollected(t *testing.T) {
	r := New[*box](DefaultShards)
	for i := range 1000 {
		open(t, r, i)
	}
	held := open(t, r, "held")
	collect(t, func() bool { return r.size() == 1 })
	require.Same(t, held, open(t, r, "held"))
	require.NotNil(t, open(t, r, 0))
	runtime.KeepAlive(held)
}

// The place may be a separate object if the container and the place refer to each other.
func TestSeparatePlace(t *testing.T) {
	type part struct{ place *Place[any] }
	r := New[any](1)
	create := func() (any, *Place[any]) {
		p := &part{&Place[any]{}}
		return p, p.place
	}
	held, _ := r.Find(key("held"), create)
	_, _ = r.Find(key("dropped"), create)
	collect(t, func() bool { return r.size() == 1 })
	again, _ := r.Find(key("held"), create)
	require.Same(t, held, again)
}

// A registry dropped without Close is collected, with its pinned and kept containers.
func TestForgottenRegistryIsCollected(t *testing.T) {
	var gone atomic.Bool
	func() {
		r := New[*box](DefaultShards)
		runtime.AddCleanup(r, func(gone *atomic.Bool) { gone.Store(true) }, &gone)
		open(t, r, "pinned").write(false)
		open(t, r, "kept").keep(1)
	}()
	collect(t, gone.Load)
}

func TestPin(t *testing.T) {
	r := New[*box](DefaultShards)
	open(t, r, "a").write(false)
	open(t, r, "a").write(false) // pinned already
	require.True(t, survives(r, "a"))
	require.EqualValues(t, 2, open(t, r, "a").version)

	b := open(t, r, "a")
	b.place.Unpin(2)
	b.place.Unpin(100) // not pinned: no effect
	require.EqualValues(t, 2, b.place.Floor())
	b = nil
	collect(t, func() bool { return r.size() == 0 })
	require.EqualValues(t, 3, open(t, r, "a").write(false), "version 1 was used before")
}

// The floor never falls.
func TestFloor(t *testing.T) {
	r := New[*box](1)
	for _, c := range []struct{ version, floor uint64 }{{5, 5}, {3, 5}, {7, 7}} {
		b := open(t, r, c.version)
		b.place.Pin()
		b.place.Unpin(c.version)
		require.Equal(t, c.floor, b.place.Floor())
	}
}

// A container that is deleted and created again many times is listed as one tombstone.
// Proves SCOPE-10.
func TestOneTombstonePerContainer(t *testing.T) {
	r := New[*box](1)
	b := open(t, r, "a")
	for range 1000 {
		b.write(false)
		b.write(true)
	}
	require.Len(t, r.tombstones, 1)
}

// Beyond the limit the oldest tombstones are forgotten, and the floor rises above them. Containers
// with state or a handle are not affected. Proves SCOPE-10.
func TestTombstonesAreForgotten(t *testing.T) {
	const more = 200
	r := New[*box](DefaultShards)
	for range 5 {
		open(t, r, 0).write(false)
	}
	for i := range maxTombstones {
		open(t, r, i).write(true)
	}
	alive := open(t, r, 1) // was deleted, and has state again
	alive.write(false)
	r.Sweep(key("x"), (*box).release)
	require.True(t, survives(r, 0), "the limit is not exceeded yet")
	for i := range more {
		open(t, r, maxTombstones+i).write(true)
		r.Sweep(key("x"), (*box).release)
	}
	require.Len(t, r.tombstones, maxTombstones)
	collect(t, func() bool { return r.size() == maxTombstones+1 })
	require.True(t, survives(r, more))
	require.Same(t, alive, open(t, r, 1))
	require.EqualValues(t, 2, alive.version)
	require.EqualValues(t, 7, open(t, r, 0).write(false), "six versions were used before")
	alive.write(true)
	require.Len(t, r.tombstones, maxTombstones+1, "a container deleted again is listed again")
}

// Forgetting the tombstone of a collected container is skipped.
func TestTombstoneOfCollectedContainer(t *testing.T) {
	r := New[*box](1)
	open(t, r, "gone").write(true)
	open(t, r, "gone").place.Unpin(1)
	collect(t, func() bool { return r.size() == 0 })
	for i := range maxTombstones + 1 {
		open(t, r, i).write(true)
	}
	released := 0
	r.Sweep(key("x"), func(*box, bool) { released++ })
	require.Equal(t, 1, released)
	require.Len(t, r.tombstones, maxTombstones)
}

// Once some state has expired, opening a container checks the pinned ones of its shard.
func TestSweepFindsExpiredState(t *testing.T) {
	r := New[*box](1)
	for i := range 10 {
		open(t, r, i).write(false)
	}
	unpin := func(b *box, forgotten bool) {
		require.False(t, forgotten)
		b.place.Unpin(b.version)
	}
	r.Sweep(key("x"), unpin)
	for i := range 10 {
		require.True(t, survives(r, i))
	}
	open(t, r, 0).place.Expires()
	collect(t, func() bool { r.Sweep(key("x"), unpin); return r.size() == 0 })
}

func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New[*box](DefaultShards)
		open(t, r, "large").keep(maxKeptBytes + 1)
		open(t, r, "idle").keep(maxKeptBytes)
		for range 5 {
			open(t, r, "used").keep(1)
			require.True(t, survives(r, "used"))
			time.Sleep(evictInterval - time.Second)
		}
		require.False(t, survives(r, "large"))
		require.False(t, survives(r, "idle"))
		require.True(t, survives(r, "used"))
		time.Sleep(2 * evictInterval)
		synctest.Wait()
		require.False(t, survives(r, "used"))
		require.False(t, r.scheduled.Load(), "no timer is left when nothing is kept")
		open(t, r, "used").keep(1)
		time.Sleep(evictInterval - time.Second)
		require.True(t, survives(r, "used"), "kept for at least one interval")
	})
}

// A container in constant use is listed once per eviction round, and at most the limit of
// containers is kept.
func TestKeepIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New[*box](1)
		b := open(t, r, "a")
		for range 100 {
			b.keep(1)
		}
		recent, _ := r.listed()
		require.Equal(t, 1, recent)
		for i := range maxKept {
			open(t, r, i).keep(1)
		}
		recent, _ = r.listed()
		require.Equal(t, maxKept, recent)
		require.False(t, survives(r, maxKept-1))
		time.Sleep(2 * evictInterval)
		synctest.Wait()
		recent, before := r.listed()
		require.Zero(t, recent+before)
		runtime.KeepAlive(b)
	})
}

// A container used after an eviction round survives the next one, even if it was kept during the
// first. Proves SCOPE-19.
func TestKeepWhileEvicting(t *testing.T) {
	r := New[*box](2)
	id := 0
	for r.shard(key(id)) == &r.shards[0] {
		id++
	}
	b := open(t, r, id)
	for range 10 {
		r.scheduled.Store(true)
		r.shards[0].mu.Lock() // the round stops before it has seen b
		done := make(chan struct{})
		go func() { r.evict(); close(done) }()
		for r.scheduled.Load() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		b.keep(1)
		r.shards[0].mu.Unlock()
		<-done
		b.keep(1)
		r.evict()
		recent, before := r.listed()
		require.Positive(t, recent+before, "a container in use was dropped by the next round")
	}
}

func TestClose(t *testing.T) {
	r := New[*box](DefaultShards)
	pinned, held := open(t, r, "pinned"), open(t, r, "held")
	pinned.write(false)
	held.keep(1)
	require.ElementsMatch(t, []*box{pinned, held}, r.Close())
	require.Empty(t, r.Close())
	_, ok := r.Find(key("pinned"), newBox)
	require.False(t, ok)
	_, ok = r.Find(key("new"), newBox)
	require.False(t, ok)
	pinned.write(true) // work accepted before Close may end later
	pinned.place.Unpin(2)
	held.place.kept = 0
	held.keep(1)
	require.Zero(t, r.size())

	var gone atomic.Bool
	runtime.AddCleanup(pinned, func(gone *atomic.Bool) { gone.Store(true) }, &gone)
	pinned, held = nil, nil
	collect(t, gone.Load)
	runtime.KeepAlive(r)
}
