//go:build linux

package soak_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// process is a server process as the test sees it.
type process struct {
	*testkit.Process
	name  string
	until time.Time     // when it is ended
	over  chan struct{} // closed when its output has ended
	kill  bool          // by SIGKILL

	mu      sync.Mutex           // protects the fields below
	series  map[string][]float64 // samples, by the names in allowances, and "resident"
	swept   int
	watched int   // changes that watchers have seen
	err     error // a line that makes no sense
}

// trial is one soak test on one store.
type trial struct {
	t        *testing.T
	location string
	length   time.Duration
	every    time.Duration // between two samples
	ledger   *ledger
	conn     *pgx.Conn // to count connections; nil: the store has none
	slots    [2]*process
	all      []*process
	killed   int
}

// Two server processes use all parts of the library on one store, and are ended and replaced one
// after another. In the end the store has every acknowledged change once, every event is handled
// once, all runs are completed, no lease is left, transfers have conserved their sum, and no process
// has grown.
func TestServers(t *testing.T) {
	length := time.Duration(testkit.Times(8, 8, "PAWL_SOAK")) * time.Second
	for _, s := range []stores.Store{stores.SQLite, stores.Postgres} {
		t.Run(s.Name, func(t *testing.T) {
			stores.Need(t, s.Name)
			t.Parallel()
			location := s.New(t)
			tr := &trial{t: t, location: location, length: length, ledger: newLedger()}
			tr.every = min(max(length/200, 50*time.Millisecond), time.Second)
			if s.Name == "postgres" {
				tr.conn = pgtest.Connect(t, location)
			}
			tr.run()
			tr.check()
		})
	}
}

// lifeOf returns how long a process in a slot lives: in the first slot long, so that slow growth
// shows, and in the second one short.
func (tr *trial) lifeOf(slot int) time.Duration {
	if slot == 0 {
		return min(tr.length*5/8, 5*time.Minute)
	}
	return max(min(tr.length/10, time.Minute), 2*time.Second)
}

// overtime is how long a trial goes on at most until all was seen that it looks for.
const overtime = 2 * time.Minute

// run starts and ends processes until the time is over. On a busy machine it goes on until each verb
// was acknowledged, the sweeper has worked, watchers have seen a change, both signals were sent, and a
// process can be judged. Processes then live on, because a short life was not enough.
func (tr *trial) run() {
	t := tr.t
	for slot := range tr.slots {
		tr.begin(slot)
	}
	ticks := time.NewTicker(tr.every)
	defer ticks.Stop()
	end := time.Now().Add(tr.length)
	for left := tr.length; left > 0 || left > -overtime && len(tr.missing()) > 0; <-ticks.C {
		for slot, p := range tr.slots {
			select {
			case <-p.over:
				p.Wait()
				t.Fatalf("%s has ended by itself\n%s", p.name, p.Stderr())
			default:
			}
			if time.Now().After(p.until) && (left > 0 || !tr.bothSignals()) {
				tr.end(slot)
				tr.begin(slot)
			}
		}
		tr.sample()
		left = time.Until(end)
	}
	for slot, p := range tr.slots {
		p.kill = false
		tr.end(slot)
	}
	if tr.conn != nil {
		testkit.Eventually(t, func() bool { return len(tr.connections()) == 0 }, "connections of ended processes are closed")
	}
}

// missing returns what the trial looks for and has not seen yet.
func (tr *trial) missing() (all []string) {
	swept, watched, judged := 0, 0, false
	for _, p := range tr.all {
		p.mu.Lock()
		swept, watched = swept+p.swept, watched+p.watched
		judged = judged || len(p.series["heap"]) >= leastSamples
		p.mu.Unlock()
	}
	for what, seen := range map[string]bool{
		"a swept document": swept > 0, "a change that was watched": watched > 0, "a process that can be judged": judged,
		"a process that was killed, and one that was stopped": tr.bothSignals(),
	} {
		if !seen {
			all = append(all, what)
		}
	}
	for _, verb := range tr.ledger.missing() {
		all = append(all, "an acknowledged "+verb)
	}
	return all
}

// bothSignals reports whether a process was killed and one was stopped.
func (tr *trial) bothSignals() bool {
	ended := len(tr.all) - len(tr.slots)
	return tr.killed > 0 && ended > tr.killed
}

// begin starts a process in a slot. Every other process of a slot is to be killed.
func (tr *trial) begin(slot int) {
	number := len(tr.all) + 1
	p := &process{name: fmt.Sprint("server-", number), over: make(chan struct{}), series: map[string][]float64{}}
	p.kill = slot == 1
	if before := tr.slots[slot]; before != nil {
		p.kill = !before.kill
	}
	p.Process = testkit.Start(tr.t, "server", stores.Env(locate(tr.location, p.name)),
		fmt.Sprint(envSlot, "=", slot), fmt.Sprint(envNumber, "=", number), fmt.Sprint(envSample, "=", tr.every.Milliseconds()))
	life := tr.lifeOf(slot)
	p.Limit(life + 2*overtime)
	testkit.Ready(p.Process)
	p.until = time.Now().Add(life)
	tr.slots[slot], tr.all = p, append(tr.all, p)
	go p.read(tr.ledger)
}

// crashed matches what a process writes that ends by itself or has a data race.
const crashed = `(?m)^(panic: |fatal error: |WARNING: DATA RACE)`

// end ends the process in a slot.
func (tr *trial) end(slot int) {
	p := tr.slots[slot]
	if p.kill {
		tr.killed++
		p.Signal(syscall.SIGKILL)
		<-p.over
		p.Kill()
		require.NotRegexp(tr.t, crashed, p.Stderr(), "%s has ended by itself", p.name)
	} else {
		p.Signal(syscall.SIGTERM)
		<-p.over
		p.Wait() // with 0: all its parts have stopped, and no goroutine is left
	}
	require.NoError(tr.t, p.err, p.name)
}

// read reads the lines of the process until it ends.
func (p *process) read(l *ledger) {
	defer close(p.over)
	for line, ok := p.Next(); ok; line, ok = p.Next() {
		var goroutines, heap float64
		var swept, watched int
		if _, err := fmt.Sscanf(line, "sample %f %f %d %d", &goroutines, &heap, &swept, &watched); err == nil {
			p.add("goroutines", goroutines)
			p.add("heap", heap)
			p.mu.Lock()
			p.swept, p.watched = swept, watched
			p.mu.Unlock()
		} else if err := l.add(line); err != nil {
			p.err = errors.Join(p.err, err)
		}
	}
}

func (p *process) add(name string, value float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.series[name] = append(p.series[name], value)
}

// sample measures the processes from outside.
func (tr *trial) sample() {
	connections := tr.connections()
	for _, p := range tr.slots {
		folder := fmt.Sprintf("/proc/%d/", p.PID())
		descriptors, err := os.ReadDir(folder + "fd")
		if err != nil {
			continue // it has just ended; run notices
		}
		p.add("descriptors", float64(len(descriptors)))
		if statm, err := os.ReadFile(folder + "statm"); err == nil {
			if fields := bytes.Fields(statm); len(fields) > 1 {
				pages, _ := strconv.ParseFloat(string(fields[1]), 64)
				p.add("resident", pages*float64(os.Getpagesize()))
			}
		}
		if tr.conn != nil {
			p.add("connections", float64(connections[p.name]))
		}
	}
}

// connections returns how many connections each process has to the server.
func (tr *trial) connections() map[string]int {
	if tr.conn == nil {
		return nil
	}
	rows, err := tr.conn.Query(tr.t.Context(),
		"SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'server-%' GROUP BY 1")
	require.NoError(tr.t, err)
	counts, name, n := map[string]int{}, "", 0
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { counts[name] = n; return nil })
	require.NoError(tr.t, err)
	return counts
}

// check lets the runs and the reaction complete what is left, and compares the store with the
// ledger.
func (tr *trial) check() {
	t := tr.t
	store, err := stores.Open(tr.location)
	require.NoError(t, err)
	p, err := openParts(store, "test")
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			require.NoError(t, errors.Join(p.engine.Stop(context.Background()), p.log.Stop(context.Background()), p.sweeper.Stop(context.Background())))
		}
	}
	t.Cleanup(func() {
		stop()
		require.NoError(t, errors.Join(p.rt.Close(context.Background()), store.Close()))
	})
	require.NoError(t, p.start(t.Context()))

	f := found{tallies: map[string]int{}, marks: map[string]int64{}, cells: map[string]string{}}
	tr.collectState(p, f)
	trips := tr.collectRuns(p, f)
	events := tr.collectEvents(p, f)
	tr.releaseTills(p)
	tr.awaitSweep(p)
	stop()
	for r := range tr.records(store, persist.Query{}) {
		require.Zero(t, r.Lease, "lease of %s", r.Key)
	}

	swept := 0
	for _, p := range tr.all {
		swept += p.swept
	}
	calls := tr.ledger.calls()
	testkit.Figures(t, "%v, %d processes, %d killed and %d stopped, %d calls acknowledged, %d refused, %d without an answer, %d runs, %d events, %d documents swept or purged; %s",
		tr.length, len(tr.all), tr.killed, len(tr.all)-tr.killed, calls.acked, calls.refused, calls.sent-calls.acked-calls.refused, trips, events, swept, tr.growths())
	require.Empty(t, tr.missing(), "the trial has not seen all that it looks for")
	tr.ledger.check(t, f)
	tr.judge()
}

// records yields the records of the store that match q.
func (tr *trial) records(store persist.Store, q persist.Query) func(yield func(persist.Record) bool) {
	return func(yield func(persist.Record) bool) {
		for {
			page, err := store.List(tr.t.Context(), q)
			require.NoError(tr.t, err)
			for _, r := range page.Records {
				if !yield(r) {
					return
				}
			}
			if q.After = page.Next; q.After == "" {
				return
			}
		}
	}
}

// put adds to a count, unless it is 0.
func (f found) put(key string, n int64) {
	if n != 0 {
		f.tallies[key] += int(n)
	}
}

// collectState reads sessions, accounts, tills and baskets. The sum of all accounts is 0.
func (tr *trial) collectState(p *parts, f found) {
	t := tr.t
	for s, err := range sessionKind.List(t.Context(), p.rt, pawl.Query{}) {
		require.NoError(t, err)
		state := s.State()
		f.put("inc "+s.ID, state.Count)
		f.put("push "+s.ID, state.Removed+int64(len(state.Notes)))
		f.put("fold "+s.ID, state.Folds)
		for writer, n := range state.Seen {
			f.marks[s.ID+" "+writer] = n
		}
		slices.Sort(state.Notes)
		require.Len(t, slices.Compact(slices.Clone(state.Notes)), len(state.Notes), "notes of session %s: %v", s.ID, state.Notes)
	}
	sum := int64(0)
	for s, err := range accountKind.List(t.Context(), p.rt, pawl.Query{}) {
		require.NoError(t, err)
		sum += s.State().Balance
		f.put("move "+s.ID, s.State().Moves)
	}
	require.Zero(t, sum, "sum of all accounts")
	for s, err := range tillKind.List(t.Context(), p.rt, pawl.Query{}) {
		require.NoError(t, err)
		f.put("hold "+s.ID, s.State().N)
	}
	for s, err := range basketKind.List(t.Context(), p.rt, pawl.Query{}) {
		require.NoError(t, err)
		f.cells[s.ID] = strconv.FormatInt(s.State().Number, 10)
	}
}

// collectRuns waits until all runs are over. Each is completed, with each step once.
func (tr *trial) collectRuns(p *parts, f found) (n int) {
	t := tr.t
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool {
		for _, err := range p.trips.List(t.Context(), run.Filter{Statuses: []run.Status{run.Pending, run.Running, run.Waiting}, Limit: 1}) {
			require.NoError(t, err)
			return false
		}
		return true
	}, "all runs are over")
	for r, err := range p.trips.List(t.Context(), run.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, run.Completed, r.Status, "%s: %s", r.ID, r.Error)
		require.Equal(t, tripLog, r.State.Log, r.ID)
		f.put("run "+r.Key, 1)
		n++
	}
	steps := int64(0)
	for s, err := range stepKind.List(t.Context(), p.rt, pawl.Query{}) {
		require.NoError(t, err)
		steps += s.State().N
	}
	require.EqualValues(t, n*len(tripLog), steps, "steps that were committed")
	return n
}

// collectEvents waits until the reaction has handled all events. Their versions have no gaps, and
// each was handled once, in order.
func (tr *trial) collectEvents(p *parts, f found) (n int) {
	t := tr.t
	sizes := map[string]int64{}
	for e, err := range p.log.ReadAll(t.Context(), stream.AllQuery{Stream: regexp.MustCompile("^s")}) {
		require.NoError(t, err)
		require.Equal(t, sizes[e.Stream], e.Version, e.Stream)
		sizes[e.Stream]++
		f.put("event "+e.Data.(noted).ID, 1)
		n++
	}
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool {
		done := 0
		for at, err := range p.log.Positions(t.Context(), stream.Filter{}) {
			require.NoError(t, err)
			require.False(t, at.Blocked, "%+v", at)
			if at.Next == sizes[at.Stream] && !at.Pending && at.Holder == "" {
				done++
			}
		}
		return done == len(sizes)
	}, "all events are handled")
	for name, size := range sizes {
		state, err := eventKind.Scope(p.rt, name).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, total{N: size, Next: size}, state, name)
	}
	return n
}

// releaseTills takes the lease of each till, which a killed process may have held, and releases it.
func (tr *trial) releaseTills(p *parts) {
	for i := range tills {
		l, err := tillKind.Scope(p.rt, strconv.Itoa(i)).Acquire(tr.t.Context(), pawl.WaitForLease())
		require.NoError(tr.t, err)
		require.NoError(tr.t, l.Release(tr.t.Context()))
	}
}

// awaitSweep waits until the sweeper has cleared all visits and purged all tombstones.
func (tr *trial) awaitSweep(p *parts) {
	testkit.EventuallyWithin(tr.t, time.Minute, func() bool {
		for _, q := range []persist.Query{
			{Kind: visitKind.Name}, {Kind: visitKind.Name, Expired: true}, {Kind: visitKind.Name, Deleted: true}, {Kind: basketKind.Name, Deleted: true},
		} {
			for range tr.records(p.rt.Store(), q) {
				return false
			}
		}
		return true
	}, "expired and deleted documents are purged")
}

// growths describes the process that was measured longest.
func (tr *trial) growths() string {
	longest := slices.MaxFunc(tr.all, func(a, b *process) int { return len(a.series["heap"]) - len(b.series["heap"]) })
	var curve []string // tells a cache that fills from a leak
	for i, heap := range longest.series["heap"] {
		if i%max(len(longest.series["heap"])/20, 1) == 0 {
			curve = append(curve, fmt.Sprintf("%.1f", heap/(1<<20)))
		}
	}
	tr.t.Logf("heap of %s in MiB: %s", longest.name, strings.Join(curve, " "))
	var text []string
	for _, name := range []string{"goroutines", "descriptors", "connections", "heap", "resident"} {
		g, ok := grown(longest.series[name])
		switch {
		case !ok:
		case name == "heap" || name == "resident":
			text = append(text, fmt.Sprintf("%s %.1f to %.1f MiB", name, g.first/(1<<20), g.last/(1<<20)))
		default:
			text = append(text, fmt.Sprintf("%s %.0f to %.0f", name, g.first, g.last))
		}
	}
	return strings.Join(text, ", ")
}

// judge fails the test if a process has grown.
func (tr *trial) judge() {
	for _, p := range tr.all {
		for name, a := range allowances {
			if g, ok := grown(p.series[name]); ok {
				require.NoError(tr.t, a.excess(g), "%s of %s, %d samples", name, p.name, len(p.series[name]))
			}
		}
	}
}
