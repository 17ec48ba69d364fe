// Scale simulates many sessions on several processes that share one database, so that one can see when
// the database is full and what callers feel before that. It measures nothing: the times of a commit
// come from flags, whose defaults are close to the rows P4 and P5 of docs/performance.md.
//
//	go run ./bench/scale
//	go run ./bench/scale -sessions 200000 -rate 4 -slots 8
//
// The model is small. Sessions ask for commits at random moments. A process commits at once if it has a
// connection free, and otherwise collects what waits into the next commit, as Pawl does. A commit takes
// a fixed time and a time for each record, on one of the slots of the database, in the order of arrival.
package main

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// model says what is simulated.
type model struct {
	sessions    int
	rate        float64 // commits per session and minute
	processes   int
	connections int           // of each process: commits that it has under way at most
	slots       int           // commits that the database works on at the same time
	trip        time.Duration // the fixed part of a commit
	record      time.Duration // the part of each record
	length      time.Duration
}

// result is what callers feel.
type result struct {
	asked, done int     // commits that were asked for and that were answered in time
	busy        float64 // part of the slots' time in use
	batch       float64 // records in a commit
	p50, p99    time.Duration
}

func main() {
	m := model{}
	flag.IntVar(&m.sessions, "sessions", 0, "number of sessions; 0: a table from 10,000 to 1,000,000")
	flag.Float64Var(&m.rate, "rate", 2, "commits per session and minute")
	flag.IntVar(&m.processes, "processes", 4, "number of processes")
	flag.IntVar(&m.connections, "connections", 4, "commits that a process has under way at most")
	flag.IntVar(&m.slots, "slots", 2, "commits that the database works on at the same time")
	flag.DurationVar(&m.trip, "trip", 100*time.Microsecond, "fixed part of a commit")
	flag.DurationVar(&m.record, "record", 50*time.Microsecond, "part of each record in a commit")
	flag.DurationVar(&m.length, "for", 5*time.Second, "simulated time")
	flag.Parse()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "sessions\tcommits/s\tanswered/s\tdatabase busy\trecords per commit\tp50\tp99\t")
	sizes := []int{10_000, 100_000, 300_000, 600_000, 900_000, 1_000_000, 1_200_000}
	if m.sessions > 0 {
		sizes = []int{m.sessions}
	}
	for _, m.sessions = range sizes {
		r := m.run(1)
		fmt.Fprintf(table, "%d\t%.0f\t%.0f\t%.0f %%\t%.1f\t%v\t%v\t\n", m.sessions, float64(r.asked)/m.length.Seconds(),
			float64(r.done)/m.length.Seconds(), 100*r.busy, r.batch, r.p50.Round(10*time.Microsecond), r.p99.Round(10*time.Microsecond))
	}
	table.Flush()
}

// event is something that happens at a moment: a session asks for a commit, or a commit ends.
type event struct {
	at      time.Duration
	process int
	batch   []time.Duration // when the records of an ended commit were asked for; nil: a session asks
}

// events is a heap of events, the earliest first.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// run simulates the model. The same seed gives the same result.
func (m model) run(seed uint64) (r result) {
	rng := rand.New(rand.NewPCG(seed, 0))
	perSecond := float64(m.sessions) * m.rate / 60 / float64(m.processes) // of each process
	next := func(at time.Duration) time.Duration { return at + time.Duration(rng.ExpFloat64()/perSecond*1e9) }

	type process struct {
		waiting  []time.Duration // when they were asked for
		underWay int
	}
	processes := make([]process, m.processes)
	free := make([]time.Duration, m.slots) // when each slot is free
	var queue events
	for p := range processes {
		heap.Push(&queue, event{at: next(0), process: p})
	}
	var took []time.Duration
	var busy time.Duration
	commits := 0
	for queue.Len() > 0 {
		e := heap.Pop(&queue).(event)
		if e.at > m.length {
			break
		}
		p := &processes[e.process]
		if e.batch == nil {
			r.asked++
			p.waiting = append(p.waiting, e.at)
			heap.Push(&queue, event{at: next(e.at), process: e.process})
		} else {
			p.underWay--
			r.done += len(e.batch)
			for _, asked := range e.batch {
				took = append(took, e.at-asked)
			}
		}
		if p.underWay == m.connections || len(p.waiting) == 0 {
			continue
		}
		commits++
		slot := slices.Index(free, slices.Min(free))
		needs := m.trip + time.Duration(len(p.waiting))*m.record
		free[slot] = max(free[slot], e.at) + needs
		busy += needs
		heap.Push(&queue, event{at: free[slot], process: e.process, batch: p.waiting})
		p.waiting, p.underWay = nil, p.underWay+1
	}
	slices.Sort(took)
	if len(took) > 0 {
		r.p50, r.p99 = took[len(took)/2], took[len(took)*99/100]
		r.batch = float64(r.done) / float64(max(commits, 1))
	}
	r.busy = min(busy.Seconds()/m.length.Seconds()/float64(m.slots), 1)
	return r
}
