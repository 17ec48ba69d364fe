package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// bench is one run of the suite.
type bench struct {
	ctx     context.Context
	quick   bool
	chapter string // that runs
	rows    []Row
	busy    []*child // the load beside the run; nil: the run is quiet
	closing []func()
	server  *pgtest.Server // nil: not started yet

	// What the persisted chapters have open, and keep open: see documents.go.
	kept   map[string]*contender
	tables map[string]table // of the peers, who share them
	filled map[string]bool  // places and documents
}

func newBench(ctx context.Context, quick bool) *bench { return &bench{ctx: ctx, quick: quick} }

// cleanup is called when the run is over, the last first.
func (b *bench) cleanup(f func()) { b.closing = append(b.closing, f) }

func (b *bench) close() {
	for _, f := range slices.Backward(b.closing) {
		f()
	}
}

// add appends a row. Beside a load the goal is told and not judged.
func (b *bench) add(r Row) {
	if r.Busy = len(b.busy); r.Busy > 0 {
		r.Met = nil
	}
	b.rows = append(b.rows, r)
}

// side is one contender: Pawl, or a peer. What it keeps is opened anew for every repetition.
type side struct {
	name string
	open func(b *bench, l load) (*instance, error)
}

// instance is a contender at work.
type instance struct {
	do      func(ctx context.Context, writer, i int) error // one unit of work, the i-th of this writer; nil: it is acknowledged
	present func(ctx context.Context) (int64, error)       // how many units are there now; nil: the work adds nothing that could be counted
	close   func()                                         // may be nil

	ending    func()       // for load.cut: called when the time is over; may be nil
	conflicts func() int64 // how many tries lost to another writer and were made again; nil: there are none
	remote    string       // for load.twice: what a second process opens, a name in remotes,
	place     string       // and where it finds the same
}

// load is how a contender is driven.
type load struct {
	writers int
	lasts   time.Duration // a closed loop for so long, or else
	each    int           // fixed work: so many units by each writer
	sample  int           // the time of one unit in so many is taken; 0: of every one. For work that costs less than reading the clock
	cut     bool          // whoever sleeps between tries when the time is over ends there, with errCut; else the last units are waited for
	twice   bool          // run half of the writers in a second process (see process.go)
}

// errCut is what a unit returns that was given up because the time is over. It is neither acknowledged nor failed; the time that it took so far
// counts.
var errCut = errors.New("the time is over")

// measured is what one repetition of one side came to.
type measured struct {
	acknowledged, failed, lost int64
	late                       int64 // of the acknowledged: after the time was over
	conflicts                  int64
	optimistic                 bool          // it can have conflicts
	elapsed                    time.Duration // until the time was over, or the work done
	cpu                        time.Duration // that this process used meanwhile, user and system
	err                        error         // of one that failed
	latency                    histogram
}

func (m *measured) inTime() float64        { return float64(m.acknowledged - m.late) }
func (m *measured) perSecond() float64     { return m.inTime() / m.elapsed.Seconds() }
func (m *measured) nanos() float64         { return float64(m.elapsed.Nanoseconds()) / m.inTime() }
func (m *measured) conflictsEach() float64 { return float64(m.conflicts) / float64(m.acknowledged) }

// metric is the figure by which two sides are compared.
type metric struct {
	unit string
	of   func(m *measured) float64
}

var (
	opsPerSecond  = metric{"ops/s", (*measured).perSecond}
	nanosPerOp    = metric{"ns/op", (*measured).nanos}
	jobsPerSecond = metric{"jobs/s", func(m *measured) float64 { return 1 / m.elapsed.Seconds() }} // the fixed work as a whole
	cpuPerOp      = metric{"cpu us/op", func(m *measured) float64 { return micros(m.cpu) / m.inTime() }}
)

// drive lets the writers of l work on in.
func drive(ctx context.Context, in *instance, l load) (m measured, err error) {
	var (
		stop    atomic.Bool
		ready   sync.WaitGroup
		done    sync.WaitGroup
		start   = make(chan struct{})
		results = make([]measured, l.writers)
	)
	for w := range l.writers {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			results[w].work(ctx, in.do, w, l, &stop)
		})
	}
	ready.Wait()
	began, cpu := time.Now(), cpuTime()
	close(start)
	if l.each == 0 {
		select {
		case <-time.After(l.lasts):
		case <-ctx.Done():
		}
		stop.Store(true)
		m.elapsed, m.cpu = time.Since(began), cpuTime()-cpu
		if l.cut && in.ending != nil {
			in.ending()
		}
	}
	done.Wait()
	if l.each != 0 {
		m.elapsed, m.cpu = time.Since(began), cpuTime()-cpu
	}
	for i := range results {
		m.acknowledged += results[i].acknowledged
		m.failed += results[i].failed
		m.late += results[i].late
		if results[i].err != nil {
			m.err = results[i].err
		}
		m.latency.merge(&results[i].latency)
	}
	return m, ctx.Err()
}

// work is what one writer does. What it needs for every unit is on its stack: where a thousand writers take turns, each further page of memory that it touches takes longer to
// fetch than the unit itself does.
func (m *measured) work(ctx context.Context, do func(ctx context.Context, writer, i int) error, w int, l load, stop *atomic.Bool) {
	var acknowledged, failed int64
	var err error
	i := 0
	for ; l.each == 0 && !stop.Load() || i < l.each; i++ {
		var began time.Time
		timed := l.sample <= 1 || i%l.sample == 0
		if timed {
			began = time.Now()
		}
		if err = do(ctx, w, i); err == nil {
			acknowledged++
		} else if err != errCut {
			failed++
			m.err = err
		}
		if timed {
			m.latency.add(time.Since(began))
		}
	}
	m.acknowledged, m.failed = acknowledged, failed
	if l.each == 0 && i > 0 && err == nil {
		m.late = 1 // its last unit was under way when the time was over
	}
}

// once opens s, drives it, counts what is there and closes it.
func (b *bench) once(s side, l load) (m measured, err error) {
	in, err := s.open(b, l)
	if err != nil {
		return m, fmt.Errorf("%s: %w", s.name, err)
	}
	if in.close != nil {
		defer in.close()
	}
	runtime.GC()
	if l.twice {
		m, err = b.driveTwice(in, l)
	} else {
		m, err = drive(b.ctx, in, l)
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", s.name, err)
	}
	if m.inTime() == 0 {
		return m, fmt.Errorf("%s: nothing was acknowledged, %d calls failed, the last with: %w", s.name, m.failed, m.err)
	}
	if in.present != nil {
		n, err := in.present(b.ctx)
		if err != nil {
			return m, fmt.Errorf("%s: counting: %w", s.name, err)
		}
		m.lost = m.acknowledged - n
	}
	if in.conflicts != nil {
		m.optimistic, m.conflicts = true, in.conflicts()
	}
	return m, nil
}

// duel is a comparison of ours with a peer.
type duel struct {
	work, store string
	load        load
	ours, peer  side
	also        []side // further peers, who take turns with these two: for the record
	goal        *bound // on the ratio; nil: for the record
	flawless    bool   // nothing of ours may fail or be lost
	by          metric // what is compared; zero: opsPerSecond
	conflicts   bool   // tell of conflicts per acknowledged unit, in rows of their own
	times       int    // repetitions; 0: as the run has it
	tail        *bound // on the ratio of the 99th percentiles, as a row of its own; nil: none
}

// fight measures a duel: pairs of repetitions, ours and theirs taking turns in being first. The ratio is the median over the pairs, so
// that whatever else the machine does meets both.
func (b *bench) fight(d duel) (*Row, error) {
	all, err := b.rounds(d.load, d.times, append([]side{d.ours, d.peer}, d.also...)...)
	if err != nil {
		return nil, err
	}
	for i := range all[0] {
		if m := &all[0][i]; m.failed > 0 {
			fmt.Fprintf(os.Stderr, "%s, %s: %d calls of ours failed, one with: %v\n", d.work, d.store, m.failed, m.err)
		}
	}
	r := b.compare(d, all[0], all[1])
	for i, s := range d.also {
		record := d
		record.peer, record.goal, record.tail = s, nil, nil
		b.compare(record, all[0], all[2+i])
	}
	return r, nil
}

// rounds measures several sides under the same load; in each round another is first. It returns the repetitions of each.
func (b *bench) rounds(l load, times int, sides ...side) (all [][]measured, err error) {
	if times == 0 {
		times = b.pick(5, 2)
	}
	all = make([][]measured, len(sides))
	for i := range times {
		for turn := range sides {
			n := (i + turn) % len(sides)
			m, err := b.once(sides[n], l)
			if err != nil {
				return nil, err
			}
			all[n] = append(all[n], m)
		}
	}
	return all, nil
}

// compare adds the row of a duel that was measured; without a peer (its name is empty) that of ours alone, whose goal is on the figure itself.
func (b *bench) compare(d duel, ours, theirs []measured) *Row {
	if d.by.of == nil {
		d.by = opsPerSecond
	}
	r := Row{ID: b.chapter, Work: d.work, Store: d.store, Writers: d.load.writers, PeerName: d.peer.name, Unit: d.by.unit}
	figures := func(all []measured, failed, lost *int64) (figure, p50, p99 float64) {
		var fs, p50s, p99s []float64
		for i := range all {
			m := &all[i]
			fs = append(fs, d.by.of(m))
			p50s = append(p50s, micros(m.latency.at(0.50)))
			p99s = append(p99s, micros(m.latency.at(0.99)))
			*failed += m.failed
			*lost += m.lost
		}
		return median(fs), median(p50s), median(p99s)
	}
	r.Ours, r.P50, r.P99 = figures(ours, &r.Failures, &r.Lost)
	if d.peer.name == "" {
		r.judge(d.goal, r.Ours, d.flawless)
		b.add(r)
		return &r
	}
	r.Peer, r.PeerP50, r.PeerP99 = figures(theirs, &r.PeerFailures, &r.PeerLost)
	var ratios, tails []float64
	for i := range ours {
		ratios = append(ratios, d.by.of(&ours[i])/d.by.of(&theirs[i]))
		tails = append(tails, float64(ours[i].latency.at(0.99))/float64(theirs[i].latency.at(0.99)))
	}
	r.Ratio = median(ratios)
	bare := r // without a verdict
	r.judge(d.goal, r.Ratio, d.flawless)
	b.add(r)
	if d.tail != nil {
		t := bare
		t.Work, t.Unit, t.Ours, t.Peer, t.Ratio = d.work+", 99th percentile", "us", r.P99, r.PeerP99, median(tails)
		t.judge(d.tail, t.Ratio, d.flawless)
		b.add(t)
	}
	if d.conflicts && theirs[0].optimistic {
		t := bare
		t.Unit, t.Ratio = "conflicts/op", 0
		for figure, all := range map[*float64][]measured{&t.Ours: ours, &t.Peer: theirs} {
			var each []float64
			for i := range all {
				each = append(each, all[i].conflictsEach())
			}
			*figure = median(each)
		}
		if t.Peer > 0 {
			t.Ratio = t.Ours / t.Peer
		}
		b.add(t)
	}
	return &r
}

// fights measures several duels.
func (b *bench) fights(all ...duel) error {
	for _, d := range all {
		if _, err := b.fight(d); err != nil {
			return fmt.Errorf("%s, %s: %w", d.work, d.store, err)
		}
	}
	return nil
}

// pick returns what the full or the quick run takes.
func (b *bench) pick(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

// lasting is pick for durations, in milliseconds. They are doubled beside a load, which takes half
// of the processors' time.
func (b *bench) lasting(full, quick int) time.Duration {
	d := time.Duration(b.pick(full, quick)) * time.Millisecond
	if len(b.busy) > 0 {
		d *= 2
	}
	return d
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
