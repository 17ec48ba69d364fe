package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/pawl-go/pawl"
)

// In memory, everything costs nanoseconds: the clock is read for one unit in so many.
const sampled = 64

// loop is a closed loop in memory, of so many milliseconds. Where many writers share them, each gets to do little, and is looked at more often.
func (b *bench) loop(writers, full, quick int) load {
	l := load{writers: writers, lasts: b.lasting(full, quick), sample: sampled}
	if writers >= 64 {
		l.sample = 8
	}
	return l
}

// Comparisons of single writers take many short turns: then whatever else runs on the machine meets both sides alike.
func (b *bench) often() int { return b.pick(15, 5) }

func m1(b *bench) error {
	l := b.loop(1, 60, 15)
	fixed := load{writers: 1, each: b.pick(100_000, 25_000), sample: sampled} // lists of equal length for all
	return b.fights(slices.Concat(verbDuels(b.often(), l, increments), verbDuels(b.often(), l, patches), verbDuels(b.often(), l, records), verbDuels(b.often(), fixed, messages))...)
}

// verbDuels are a data verb against the same merge under a mutex, and, to show what a merge by field names costs, against a statement under one.
func verbDuels[T any](times int, l load, sh shape[T]) []duel {
	work := sh.name + ", " + sh.verb
	byHand := mutexSide(sh)
	if sh.name == messages.name {
		byHand = inPlaceSide(sh) // a copy for each push would be another algorithm
	}
	return []duel{
		{work: work, store: "memory", load: l, ours: dataSide(sh), peer: mergeSide(sh), goal: atMost(1.25), flawless: true, cost: true, times: times},
		{work: work, store: "memory", load: l, ours: dataSide(sh), peer: byHand, cost: true, times: times},
	}
}

func m2(b *bench) error {
	l := b.loop(1, 100, 25)
	work := "small struct, AtomicState"
	return b.fights(
		duel{work: work, store: "memory", load: l, ours: atomicSide(increments), peer: pingPongSide(), goal: atMost(1.2), flawless: true, cost: true, times: b.often()},
		duel{work: work, store: "memory", load: l, ours: atomicSide(increments), peer: channelSide(increments), cost: true, times: b.often()},
	)
}

func m3(b *bench) error {
	for _, writers := range []int{64, 1024} {
		l := b.loop(writers, 200, 60)
		err := b.fights(duel{work: "small struct, AtomicState", store: "memory", load: l, ours: atomicSide(increments), peer: mutexSide(increments),
			goal: atMost(2.2), flawless: true, cost: true, times: b.pick(9, 3)})
		if err != nil {
			return err
		}
	}
	return nil
}

func m4(b *bench) error {
	for _, writers := range []int{64, 1024} {
		d := duel{work: "small struct, AtomicState", store: "memory", load: b.loop(writers, 200, 60),
			ours: atomicSide(increments), flawless: true}
		actor, tail := d, d
		actor.peer, actor.goal = actorSide(increments), atLeast(4)
		tail.peer, tail.goal = tailSide(increments), atLeast(5)
		if err := b.fights(actor, tail); err != nil {
			return err
		}
	}
	return nil
}

// m5 compares the kind as it comes with one that has its budget turned off. (An option per call would do that, too, but costs something itself.)
func m5(b *bench) error {
	unbounded := inMemory[counter]()
	unbounded.Timeout = pawl.NoTimeout
	const name = "Pawl, NoTimeout"
	pairs := []duel{
		{work: "small struct, AtomicState", ours: atomicSide(increments), peer: atomicSideOf(name, increments, unbounded)},
		{work: "small struct, IncState", ours: dataSide(increments), peer: pawlSide(name, increments, unbounded, increments.data)},
	}
	for _, d := range pairs {
		for _, writers := range []int{1, 64} {
			d.store, d.flawless = "memory", true
			d.load = b.loop(writers, 60, 15)
			d.cost, d.goal, d.times = true, atMost(1.15), b.often()
			if _, err := b.fight(d); err != nil {
				return err
			}
			r := Row{ID: b.chapter, Work: d.work + ", allocations", Store: "memory", Writers: writers, PeerName: name, Unit: "allocs/op"}
			var err error
			if r.Ours, err = b.allocations(d.ours, writers); err != nil {
				return err
			}
			if r.Peer, err = b.allocations(d.peer, writers); err != nil {
				return err
			}
			r.Ratio = r.Ours / r.Peer
			r.judge(atMost(1), r.Ratio, false) // not one more
			b.rows = append(b.rows, r)
		}
	}
	return nil
}

// allocations returns how many one unit of s makes, to a tenth. It is counted on a warm instance, without a garbage collector that
// empties pools at a moment of its own.
func (b *bench) allocations(s side, writers int) (float64, error) {
	l := load{writers: writers, each: b.pick(100_000, 20_000) / writers, sample: sampled}
	in, err := s.open(b, l)
	if err != nil {
		return 0, err
	}
	defer in.close()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	for range 2 { // the first warms up
		runtime.ReadMemStats(&before)
		if _, err := drive(b.ctx, in, l); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
	}
	per := float64(after.Mallocs-before.Mallocs) / float64(l.each*writers)
	return math.Round(per*10) / 10, nil
}

func m6(b *bench) error {
	const reads = 1000 // in one unit, so that only they are measured
	l := load{writers: 1, lasts: b.lasting(30, 10)}
	peer := pointerSide(reads)
	var container pawl.Container[counter]
	if _, err := pawl.ApplyMutation(b.ctx, &container, pawl.Options[counter]{}, pawl.Set{State: *newCounter()}); err != nil {
		return err
	}
	reader := func(read func(ctx context.Context, s pawl.Scope[counter]) int64) side {
		return side{name: "Pawl", open: func(b *bench, _ load) (*instance, error) {
			s, closing, err := openScope(b.ctx, inMemory[counter](), newCounter())
			return &instance{close: closing, do: func(ctx context.Context, _, _ int) error {
				sink.Store(read(ctx, s))
				return nil
			}}, err
		}}
	}
	snapshot := reader(func(ctx context.Context, s pawl.Scope[counter]) (n int64) {
		for range reads {
			snap, err := s.Snapshot(ctx)
			if err != nil {
				panic(err)
			}
			n += snap.ReadOnly().Last
		}
		return n
	})
	peek := reader(func(_ context.Context, s pawl.Scope[counter]) (n int64) {
		for range reads {
			n += s.Peek().Last
		}
		return n
	})
	lastSeen := reader(func(_ context.Context, s pawl.Scope[counter]) (n int64) {
		for range reads {
			snap, _ := s.LastSeen()
			n += snap.ReadOnly().Last
		}
		return n
	})
	own := reader(func(context.Context, pawl.Scope[counter]) (n int64) {
		for range reads {
			n += container.Snapshot().ReadOnly().Last
		}
		return n
	})
	return b.fights(
		duel{work: "small struct, Scope.Peek", store: "memory", load: l, ours: peek, peer: peer, goal: atMost(2), cost: true, per: reads, times: b.often()},
		duel{work: "small struct, Scope.Snapshot", store: "memory", load: l, ours: snapshot, peer: peer, cost: true, per: reads, times: b.often()},
		duel{work: "small struct, Scope.LastSeen", store: "memory", load: l, ours: lastSeen, peer: peer, cost: true, per: reads, times: b.often()},
		duel{work: "small struct, Container.Snapshot", store: "memory", load: l, ours: own, peer: peer, cost: true, per: reads, times: b.often()},
	)
}

func w1(b *bench) error {
	for _, writers := range []int{1, 2, 8, 64, 1024} {
		l := b.loop(writers, 120, 20)
		grown := b.pick(10_240, 1_024) // messages; all make as many, because each costs more than the one before where the thread is copied
		long := load{writers: writers, each: grown / writers, sample: max(1, min(sampled, grown/writers/8))}
		err := errors.Join(
			b.crowd(duel{work: "small struct, AtomicState", load: l, ours: atomicSide(increments)}, copying(increments)...),
			b.crowd(duel{work: "small struct, IncState", load: l, ours: dataSide(increments)}, mutexSide(increments)),
			b.crowd(duel{work: "map of 16, AtomicState", load: l, ours: atomicSide(steps)}, copying(steps)...),
			b.crowd(duel{work: "map of 16, IncState", load: l, ours: dataSide(steps)}, mutexSide(steps)),
			b.crowd(duel{work: "chat thread, PushState", load: long, ours: dataSide(messages), times: 1}, append(copying(messages), inPlaceSide(messages))...),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// copying are the peers; all change a copy, so that there are snapshots.
func copying[T any](sh shape[T]) []side {
	return []side{mutexSide(sh), channelSide(sh), tailSide(sh), actorSide(sh)}
}

// crowd is a duel with several peers, all in turns, for the record.
func (b *bench) crowd(d duel, peers ...side) error {
	times := cmp.Or(d.times, b.pick(3, 1))
	all, err := b.rounds(d.load, times, append([]side{d.ours}, peers...)...)
	if err != nil {
		return err
	}
	d.store = "memory"
	for n, peer := range peers {
		d.peer = peer
		b.compare(d, all[0], all[n+1])
	}
	return nil
}
