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
	chapter string // the id of the chapter that runs
	rows    []Row
	busy    []*child // the processes of the load; nil: the run is quiet
	closing []func()
	server  *pgtest.Server // nil: not started yet

	// What the persisted chapters keep open until the end of the run: see documents.go.
	kept   map[string]*contender
	tables map[string]table // the tables that the peers share
	filled map[string]bool  // the places that have their documents
}

func newBench(ctx context.Context, quick bool) *bench { return &bench{ctx: ctx, quick: quick} }

// cleanup registers f to be called at the end of the run. The function registered last runs first.
func (b *bench) cleanup(f func()) { b.closing = append(b.closing, f) }

func (b *bench) close() {
	for _, f := range slices.Backward(b.closing) {
		f()
	}
}

// add appends a row. Beside a load the row keeps its goal and gets no verdict.
func (b *bench) add(r Row) {
	if r.Busy = len(b.busy); r.Busy > 0 {
		r.Met = nil
	}
	b.rows = append(b.rows, r)
}

// side is one contender: Pawl, or a peer. It is opened anew for every repetition.
type side struct {
	name string
	open func(b *bench, l load) (*instance, error)
}

// instance is an open contender.
type instance struct {
	// do does one unit of work, the i-th of this writer. Nil means that the unit is acknowledged.
	do func(ctx context.Context, writer, i int) error
	// present returns the number of units in the state; nil: the work adds nothing to count.
	present func(ctx context.Context) (int64, error)
	// finish waits for work that units left behind, as part of the time of fixed work; nil: none.
	finish func(ctx context.Context) error
	// close releases the instance; nil: nothing to release.
	close func()

	// ending is called when the time is over, for load.cut; nil: nothing to do.
	ending func()
	// latency has the times of units that do does not time by itself; nil: the time of do counts. It
	// is for one writer.
	latency *histogram
	// conflicts returns how many tries lost to another writer; nil: the contender has none.
	conflicts func() int64
	// remote is the name in remotes that a second process opens, for load.twice.
	remote string
	// place is where the second process finds the same state.
	place string
}

// load says how many writers work on a contender, and for how long.
type load struct {
	writers int
	// lasts is the length of a closed loop. It is not used if each is set.
	lasts time.Duration
	// each is the number of units per writer, as fixed work; 0: a closed loop.
	each int
	// sample says that one unit in so many is timed; 0: every unit is. It is for work that costs
	// less than reading the clock.
	sample int
	// cut ends a writer that sleeps between tries when the time is over, with errCut. Otherwise
	// the run waits for the last units.
	cut bool
	// twice runs half of the writers in a second process (see process.go).
	twice bool
}

// errCut is returned by a unit that was given up because the time is over. Such a unit is neither
// acknowledged nor failed. The time that it took so far counts.
var errCut = errors.New("the time is over")

// measured is the result of one repetition of one side.
type measured struct {
	acknowledged, failed, lost int64
	late                       int64 // acknowledged units that ended after the time was over
	conflicts                  int64
	optimistic                 bool          // the side can have conflicts
	elapsed                    time.Duration // until the time was over, or the work was done
	cpu                        time.Duration // processor time of this process, user and system
	err                        error         // the error of one failed unit
	latency                    histogram
}

func (m *measured) inTime() float64        { return float64(m.acknowledged - m.late) }
func (m *measured) perSecond() float64     { return m.inTime() / m.elapsed.Seconds() }
func (m *measured) nanos() float64         { return float64(m.elapsed.Nanoseconds()) / m.inTime() }
func (m *measured) conflictsEach() float64 { return float64(m.conflicts) / float64(m.acknowledged) }

// metric is a figure that compares two sides.
type metric struct {
	unit string
	of   func(m *measured) float64
}

var (
	opsPerSecond  = metric{"ops/s", (*measured).perSecond}
	nanosPerOp    = metric{"ns/op", (*measured).nanos}
	jobsPerSecond = metric{"jobs/s", func(m *measured) float64 { return 1 / m.elapsed.Seconds() }} // of the whole fixed work
	cpuPerOp      = metric{"cpu us/op", func(m *measured) float64 { return micros(m.cpu) / m.inTime() }}
)

// drive runs the writers of l on in, and returns the result once all writers have ended.
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
	if l.each != 0 && in.finish != nil {
		if err := in.finish(ctx); err != nil {
			return m, err
		}
	}
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

// work runs one writer. It keeps the counts on its stack: with a thousand writers, fetching another
// page of memory takes longer than the unit itself.
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
		m.late = 1 // its last unit ended after the time was over
	}
}

// once opens s, drives it, counts the units that are present, and closes it.
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
		return m, fmt.Errorf("%s: no unit acknowledged, %d calls failed, one with: %w", s.name, m.failed, m.err)
	}
	if in.present != nil {
		n, err := in.present(b.ctx)
		if err != nil {
			return m, fmt.Errorf("%s: counting: %w", s.name, err)
		}
		m.lost = m.acknowledged - n
	}
	if in.latency != nil {
		m.latency = *in.latency
	}
	if in.conflicts != nil {
		m.optimistic, m.conflicts = true, in.conflicts()
	}
	return m, nil
}

// comparison compares Pawl with a peer.
type comparison struct {
	work, store string
	load        load
	ours, peer  side
	also        []side // further peers without a goal, measured in the same rounds
	goal        *bound // on the ratio; nil: none
	flawless    bool   // the goal is missed if a call of ours fails or an update of ours is lost
	by          metric // the figure that is compared; zero: opsPerSecond
	conflicts   bool   // add a row with the conflicts per acknowledged unit
	times       int    // repetitions; 0: the default of the run
	tail        *bound // on the ratio of the 99th percentiles, in a separate row; nil: no such row
}

// runComparison measures d in pairs of repetitions. The two sides take turns in being first. The ratio
// is the median over the pairs, so that other load on the machine affects both sides alike.
func (b *bench) runComparison(d comparison) (*Row, error) {
	all, err := b.rounds(d.load, d.times, append([]side{d.ours, d.peer}, d.also...)...)
	if err != nil {
		return nil, err
	}
	for i := range all[0] {
		if m := &all[0][i]; m.failed > 0 {
			fmt.Fprintf(os.Stderr, "%s, %s: %d calls of ours failed, one with: %v\n", d.work, d.store, m.failed, m.err)
		}
	}
	r := b.addRows(d, all[0], all[1])
	for i, s := range d.also {
		record := d
		record.peer, record.goal, record.tail = s, nil, nil
		b.addRows(record, all[0], all[2+i])
	}
	return r, nil
}

// rounds measures several sides under the same load. Each round starts with another side. It returns
// the repetitions of each side.
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

// addRows adds the rows of a comparison that was measured. Without a peer (its name is empty) the row has
// our figure alone, and the goal is a bound on that figure.
func (b *bench) addRows(d comparison, ours, theirs []measured) *Row {
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

// runComparisons measures several comparisons.
func (b *bench) runComparisons(all ...comparison) error {
	for _, d := range all {
		if _, err := b.runComparison(d); err != nil {
			return fmt.Errorf("%s, %s: %w", d.work, d.store, err)
		}
	}
	return nil
}

// pick returns the number for a full or for a quick run.
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
