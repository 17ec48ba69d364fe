package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// curve is the same work, measured on states of growing size.
type curve struct {
	work, store string // work has a %s for the size
	sizes       []int
	load        load
	times       int
	side        func(size int) side
	goal        *bound // on the exponent; nil: for the record
}

// grow measures a curve, with the sizes in turns. It adds a row for each size, and a row for the
// exponent e of the best fit cost = c * size^e. An exponent of 0 is flat, 1 is proportional. The
// goal is missed if a call fails or an update is lost.
func (b *bench) grow(c curve) error {
	var sides []side
	for _, size := range c.sizes {
		sides = append(sides, c.side(size))
	}
	all, err := b.rounds(c.load, c.times, sides...)
	if err != nil {
		return fmt.Errorf("%s, %s: %w", c.work, c.store, err)
	}
	span := thousands(c.sizes[0]) + " to " + thousands(c.sizes[len(c.sizes)-1])
	fit := Row{ID: b.chapter, Work: fmt.Sprintf(c.work, span), Store: c.store, Writers: c.load.writers, Unit: "exponent"}
	var costs []float64
	for i, size := range c.sizes {
		r := b.addRows(comparison{work: fmt.Sprintf(c.work, thousands(size)), store: c.store, load: c.load, by: nanosPerOp}, all[i], nil)
		costs = append(costs, r.Ours)
		b.sized(size)
		fit.Failures += r.Failures
		fit.Lost += r.Lost
	}
	fit.Ours = exponent(c.sizes, costs)
	fit.judge(c.goal, fit.Ours, true)
	b.add(fit)
	return nil
}

// figure adds a row with a single figure.
func (b *bench) figure(work, store, unit string, v float64, goal *bound) {
	r := Row{ID: b.chapter, Work: work, Store: store, Writers: 1, Unit: unit, Ours: v}
	r.judge(goal, v, false)
	b.add(r)
}

// sized sets the size of the last row.
func (b *bench) sized(n int) { b.rows[len(b.rows)-1].Size = float64(n) }

// exponent is the slope of the line that fits log(cost) over log(size) best.
func exponent(sizes []int, costs []float64) float64 {
	var n, sx, sy, sxx, sxy float64
	for i, size := range sizes {
		x, y := math.Log(float64(size)), math.Log(costs[i])
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// g1 measures a push while a list doubles, so that the copies of a growing list are included. For
// the record, it measures a verb on another field of a state with such a list.
func g1(b *bench) error {
	lengths := []int{10, 1_000, 100_000}
	c := curve{store: "memory", sizes: lengths, times: b.pick(7, 2)}
	push, patch, atomically := c, c, c
	push.work, push.side, push.goal = "PushState to a list of %s", doubling, atMost(0.1)
	push.load = load{writers: 1, each: lengths[len(lengths)-1], sample: sampled}
	patch.work, patch.side = "PatchState beside a list of %s", patching
	patch.load = b.loop(1, 60, 20)
	atomically.work = "AtomicState beside a list of %s" // its function gets a copy of the whole state
	atomically.load = load{writers: 1, each: b.pick(20, 4)}
	atomically.side = func(n int) side {
		return beside(n, func(ctx context.Context, s pawl.Scope[thread], i int) error {
			_, err := s.AtomicState(ctx, func(_ context.Context, t *thread) error { t.Title = title(i); return nil })
			return err
		})
	}
	for _, c := range []curve{push, patch, atomically} {
		if err := b.grow(c); err != nil {
			return err
		}
	}
	return nil
}

// doubling pushes to lists of n items, one after the other, until each has 2n. The number of lists
// follows from the amount of work.
func doubling(n int) side {
	return side{name: "Pawl", open: func(b *bench, l load) (*instance, error) {
		k := inMemory[thread]()
		rt, err := pawl.Open(pawl.Config{Kinds: []pawl.AnyKind{k}})
		if err != nil {
			return nil, err
		}
		scopes := make([]pawl.Scope[thread], l.each/n)
		start := longThread(n)
		for i := range scopes {
			scopes[i] = k.Scope(rt, strconv.Itoa(i))
			if _, err := scopes[i].SetState(b.ctx, *start); err != nil {
				return nil, err
			}
		}
		return &instance{
			do: func(ctx context.Context, _, i int) error {
				_, err := scopes[i/n].PushState(ctx, "messages", hello)
				return err
			},
			present: func(ctx context.Context) (pushed int64, err error) {
				for _, s := range scopes {
					snap, err := s.Snapshot(ctx)
					if err != nil {
						return 0, err
					}
					pushed += int64(len(snap.ReadOnly().Messages) - n)
				}
				return pushed, nil
			},
			close: func() { _ = rt.Close(context.Background()) },
		}, nil
	}}
}

// beside calls do on a thread of n messages.
func beside(n int, do func(ctx context.Context, s pawl.Scope[thread], i int) error) side {
	return side{name: "Pawl", open: func(b *bench, _ load) (*instance, error) {
		s, closing, err := openScope(b.ctx, inMemory[thread](), longThread(n))
		return &instance{do: func(ctx context.Context, _, i int) error { return do(ctx, s, i) }, close: closing}, err
	}}
}

func title(i int) string { return taskNames[i%len(taskNames)] } // always another title than before

func patchTitle(ctx context.Context, s pawl.Scope[thread], i int) error {
	_, err := s.PatchState(ctx, pawl.Patch{"title": title(i)})
	return err
}

func patching(n int) side { return beside(n, patchTitle) }

var (
	// idleBytes bounds the memory of an in-memory scope with a small state.
	idleBytes = atMost(1000)
	// unusedBytes bounds the memory of a scope without a handle that is in a store or has no
	// state. It leaves its slot in the runtime's map of scopes, because Go maps do not shrink. A
	// slot has 48 bytes if the map was at least 7/16 full, and is used again.
	unusedBytes = atMost(128)
)

// g2 measures the memory of scopes that are not in use.
func g2(b *bench) error {
	for _, n := range []int{1, 100, 10_000, b.pick(1_000_000, 20_000)} {
		idle, unused := idleBytes, unusedBytes
		if n < 10_000 {
			idle, unused = nil, nil // memory of the runtime itself, and noise, dominate
		}
		if err := measureIdleInMemory(b, n, idle, unused); err != nil {
			return err
		}
		if err := measureIdleStored(b, n, unused); err != nil {
			return err
		}
	}
	return nil
}

func measureIdleInMemory(b *bench, n int, idle, unused *bound) error {
	k := inMemory[counter]()
	rt, err := pawl.Open(pawl.Config{Kinds: []pawl.AnyKind{k}})
	if err != nil {
		return err
	}
	defer rt.Close(context.Background())
	held := make([]pawl.Scope[counter], n)
	before := heap()
	for i := range n {
		held[i] = k.Scope(rt, "unused"+strconv.Itoa(i))
		if _, err := held[i].Snapshot(b.ctx); err != nil {
			return err
		}
	}
	clear(held)
	after := heap()
	b.figure("scopes that were read, never written, and dropped: "+thousands(n), "memory", "bytes/scope", (after-before)/float64(n), unused)
	b.sized(n)
	before = after
	for i := range n {
		if _, err := k.Scope(rt, strconv.Itoa(i)).SetState(b.ctx, *newCounter()); err != nil {
			return err
		}
	}
	b.figure("idle scopes with a small state: "+thousands(n), "memory", "bytes/scope", (heap()-before)/float64(n), idle)
	b.sized(n)
	l := b.loop(1, 200, 50)
	m, err := drive(b.ctx, &instance{do: func(ctx context.Context, _, _ int) error {
		_, err := k.Scope(rt, strconv.Itoa(rand.IntN(n))).IncState(ctx, "count", 1)
		return err
	}}, l)
	b.addRows(comparison{work: "Kind.Scope and IncState, one of " + thousands(n), store: "memory", load: l, by: nanosPerOp}, []measured{m}, nil)
	b.sized(n)
	runtime.KeepAlive(held)
	return err
}

// measureIdleStored measures the memory of stored scopes. The store has all documents before, so that only
// the memory of the runtime counts.
func measureIdleStored(b *bench, n int, unused *bound) error {
	k := pawl.Kind[counter]{Name: "bench"}
	store := memory.New()
	for i := range n {
		w := persist.Write{Key: persist.Key{Kind: k.Name, ID: strconv.Itoa(i)}, Version: 1, Doc: []byte(`{"name":"visits","owner":"ann","count":1,"last":0,"open":true}`)}
		if _, err := store.Commit(b.ctx, persist.Commit{ID: fmt.Sprintf("ABCDEFGHIJKLM.%d", i), Writes: []persist.Write{w}}); err != nil {
			return err
		}
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{k}})
	if err != nil {
		return err
	}
	defer rt.Close(context.Background())
	held := make([]pawl.Scope[counter], n)
	before := heap()
	for i := range held {
		held[i] = k.Scope(rt, strconv.Itoa(i))
		if _, err := held[i].State(b.ctx); err != nil {
			return err
		}
	}
	b.figure("idle scopes, read once, handle held: "+thousands(n), "memory store", "bytes/scope", (heap()-before)/float64(n), nil)
	b.sized(n)
	clear(held)
	b.figure("scopes, read once, handle dropped: "+thousands(n), "memory store", "bytes/scope", (heap()-before)/float64(n), unused)
	b.sized(n)
	runtime.KeepAlive(held)
	return nil
}

// heap returns the bytes in use after garbage collection. It collects until the number no longer
// falls, because a cleanup frees memory that only the next collection finds. (Outside of the heap,
// the Go runtime keeps about 60 bytes for the weak pointer and the cleanup of a scope.)
func heap() float64 {
	var m runtime.MemStats
	for last, same := math.Inf(1), 0; ; {
		runtime.GC()
		time.Sleep(5 * time.Millisecond) // for the cleanups
		runtime.ReadMemStats(&m)
		now := float64(m.HeapAlloc)
		if now > last*0.999 {
			same++
		} else {
			same = 0
		}
		if last = now; same == 2 {
			return now
		}
	}
}

// w4 measures a small patch of a growing document, and a writer with a growing number of watchers.
func w4(b *bench) error {
	sizes := []int{1_000, 10_000, 100_000, 1_000_000}
	const each = 80 // approximate bytes of a message in JSON
	inMemory := curve{work: "PatchState of one field of %s bytes", store: "memory", sizes: sizes, times: b.pick(5, 2),
		load: b.loop(1, 60, 20), side: func(size int) side { return patching(size / each) }}
	stored := inMemory
	stored.store, stored.load = "SQLite", load{writers: 1, lasts: b.lasting(400, 100)}
	stored.side = func(size int) side { return patchingStored(size / each) }
	for _, c := range []curve{inMemory, stored} {
		if err := b.grow(c); err != nil {
			return err
		}
	}
	watcherCounts := []int{0, 10, 1_000, 10_000}
	l := b.loop(1, 1500, 500) // long enough to wake ten thousand watchers more than once
	var sides []side
	for _, n := range watcherCounts {
		sides = append(sides, watched(n))
	}
	all, err := b.rounds(l, b.pick(3, 1), sides...)
	if err != nil {
		return err
	}
	for i, n := range watcherCounts[1:] {
		b.addRows(comparison{work: "IncState with " + thousands(n) + " watchers", store: "memory", load: l, by: nanosPerOp, peer: side{name: "no watchers"}}, all[i+1], all[0])
		b.sized(n)
	}
	return nil
}

// patchingStored patches a thread of n messages in an SQLite file.
func patchingStored(n int) side {
	return side{name: "Pawl", open: func(b *bench, _ load) (*instance, error) {
		folder, err := b.folder()
		if err != nil {
			return nil, err
		}
		store, err := sqlite.Open(b.ctx, filepath.Join(folder, "bench.db"), sqlite.Config{})
		if err != nil {
			return nil, err
		}
		k := pawl.Kind[thread]{Name: "bench"}
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{k}})
		if err != nil {
			return nil, err
		}
		s := k.Scope(rt, "1")
		_, err = s.SetState(b.ctx, *longThread(n))
		return &instance{
			do: func(ctx context.Context, _, i int) error { return patchTitle(ctx, s, i) },
			close: func() {
				_ = rt.Close(context.Background())
				_ = store.Close()
			},
		}, err
	}}
}

// watched increments a number that has n watchers.
func watched(n int) side {
	return side{name: "Pawl", open: func(b *bench, _ load) (*instance, error) {
		s, closing, err := openScope(b.ctx, inMemory[counter](), newCounter())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(b.ctx)
		var started, all sync.WaitGroup
		for range n {
			started.Add(1)
			all.Go(func() {
				start := sync.OnceFunc(started.Done)
				defer start()
				for range s.Watch(ctx) {
					start()
				}
			})
		}
		started.Wait()
		return &instance{
			do: func(ctx context.Context, w, i int) error { return increments.data(ctx, s, w, i) },
			present: func(ctx context.Context) (int64, error) {
				snap, err := s.Snapshot(ctx)
				return snap.State().Count, err
			},
			close: func() {
				cancel()
				all.Wait()
				closing()
			},
		}, nil
	}}
}
