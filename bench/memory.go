package main

import (
	"cmp"
	"errors"
	"math"
	"net"
	"runtime"
	"runtime/debug"

	"github.com/pawl-go/pawl"
)

// sampled is load.sample in memory, where a unit costs less than reading the clock.
const sampled = 64

// loop returns a closed loop in memory, of so many milliseconds. With many writers, each does fewer
// units, and more of them are timed.
func (b *bench) loop(writers, full, quick int) load {
	l := load{writers: writers, lasts: b.lasting(full, quick), sample: sampled}
	if writers >= 64 {
		l.sample = 8
	}
	return l
}

// often returns the repetitions of a comparison of single writers. They are many and short, so that
// other load on the machine affects both sides alike.
func (b *bench) often() int { return b.pick(15, 5) }

// m1 compares data verbs of one writer with the same change written by hand.
func m1(b *bench) error {
	const length = 1_000 // messages in a list before the first push; the pushes double it
	verb := comparison{store: "memory", load: b.loop(1, 60, 15), flawless: true, by: nanosPerOp, times: b.often()}
	inc, patch, push := verb, verb, verb
	inc.work, inc.goal = "small struct, IncState", atMost(4)
	inc.ours, inc.peer = dataSide(increments), copySide(increments)
	patch.work, patch.goal = "small struct, PatchState of two fields", atMost(12)
	patch.ours, patch.peer = dataSide(patches), copySide(patches)
	push.work, push.goal = "PushState onto "+thousands(length)+" messages", atMost(8)
	push.load = load{writers: 1, each: b.pick(100*length, 25*length), sample: sampled}
	push.ours, push.peer = doubling(length), doublingByHand(length)
	return b.runComparisons(inc, patch, push)
}

func m3(b *bench) error {
	for _, writers := range []int{64, 1024} {
		l := b.loop(writers, 200, 60)
		err := b.runComparisons(comparison{work: "small struct, AtomicState", store: "memory", load: l, ours: atomicSide(increments), peer: mutexSide(increments),
			goal: atMost(4), flawless: true, by: nanosPerOp, times: b.pick(9, 3)})
		if err != nil {
			return err
		}
	}
	return nil
}

func m4(b *bench) error {
	for _, writers := range []int{64, 1024} {
		d := comparison{work: "small struct, AtomicState", store: "memory", load: b.loop(writers, 200, 60),
			ours: atomicSide(increments), goal: atLeast(2), flawless: true}
		actor, goroutine := d, d
		actor.peer, goroutine.peer = actorSide(increments), goroutineSide(increments)
		if err := b.runComparisons(actor, goroutine); err != nil {
			return err
		}
	}
	return nil
}

// m5 compares a kind with the default budget with a kind that has NoTimeout. (An option per call
// would add a cost of its own.)
func m5(b *bench) error {
	unbounded := inMemory[counter]()
	unbounded.Timeout = pawl.NoTimeout
	const name = "Pawl, NoTimeout"
	pairs := []comparison{
		{work: "small struct, AtomicState", ours: atomicSide(increments), peer: atomicSideOf(name, increments, unbounded)},
		{work: "small struct, IncState", ours: dataSide(increments), peer: pawlSide(name, increments, unbounded, increments.data)},
	}
	for _, d := range pairs {
		for _, writers := range []int{1, 64} {
			d.store, d.flawless = "memory", true
			d.load = b.loop(writers, 60, 15)
			d.by, d.goal, d.times = nanosPerOp, atMost(1.15), b.often()
			if _, err := b.runComparison(d); err != nil {
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
			b.add(r)
		}
	}
	return nil
}

// allocations returns the allocations of one unit of s, rounded to a tenth. It counts on a warm
// instance and turns the garbage collector off, which would empty pools.
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
		m, err := drive(b.ctx, in, l)
		if err == nil {
			err = m.err
		}
		if err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
	}
	per := float64(after.Mallocs-before.Mallocs) / float64(l.each*writers)
	return math.Round(per*10) / 10, nil
}

// m7 measures the processor time of writers that wait for a slow function. The work is fixed and
// takes both sides equally long. The goal is for a process that listens for requests, as a server
// does: a thread of the Go runtime then waits for the network, and each new timer wakes it, on both
// sides. For the record, m7 measures the same without a listener: then only the side with deadlines
// has such a thread.
func m7(b *bench) error {
	if cpuTime() == 0 {
		return errors.New("processor time of this process is not available on this platform")
	}
	d := comparison{
		work: "AtomicState, function sleeps 1 ms", store: "memory", load: load{writers: 64, each: b.pick(16, 4)},
		ours: atomicSide(sleeps), peer: mutexSide(sleeps), by: cpuPerOp, flawless: true, times: b.pick(9, 3),
	}
	alone := d
	alone.work += ", no network"
	d.goal = atMost(1.5)
	stop, err := listen()
	if err != nil {
		return err
	}
	err = b.runComparisons(d)
	return errors.Join(err, stop(), b.runComparisons(alone))
}

// listen waits for connections until stop is called. None arrives.
func listen() (stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Accept()
	}()
	return func() error {
		err := l.Close()
		<-done
		return err
	}, nil
}

func w1(b *bench) error {
	for _, writers := range []int{1, 2, 8, 64, 1024} {
		l := b.loop(writers, 120, 20)
		// All sides push the same number of messages: if the thread is copied, each costs more than
		// the one before.
		grown := b.pick(10_240, 1_024)
		long := load{writers: writers, each: grown / writers, sample: max(1, min(sampled, grown/writers/8))}
		err := errors.Join(
			b.runAgainst(comparison{work: "small struct, AtomicState", load: l, ours: atomicSide(increments)}, copying(increments)...),
			b.runAgainst(comparison{work: "small struct, IncState", load: l, ours: dataSide(increments)}, mutexSide(increments)),
			b.runAgainst(comparison{work: "map of 16, AtomicState", load: l, ours: atomicSide(steps)}, copying(steps)...),
			b.runAgainst(comparison{work: "map of 16, IncState", load: l, ours: dataSide(steps)}, mutexSide(steps)),
			b.runAgainst(comparison{work: "chat thread, PushState", load: long, ours: dataSide(messages), times: 1}, append(copying(messages), copySide(messages))...),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// copying returns the peers that change a copy of the state, so that their readers have snapshots.
func copying[T any](sh shape[T]) []side {
	return []side{mutexSide(sh), channelSide(sh), goroutineSide(sh), actorSide(sh)}
}

// runAgainst compares ours with several peers in the same rounds, without a goal.
func (b *bench) runAgainst(d comparison, peers ...side) error {
	times := cmp.Or(d.times, b.pick(3, 1))
	all, err := b.rounds(d.load, times, append([]side{d.ours}, peers...)...)
	if err != nil {
		return err
	}
	d.store = "memory"
	for n, peer := range peers {
		d.peer = peer
		b.addRows(d, all[0], all[n+1])
	}
	return nil
}
