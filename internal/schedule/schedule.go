// Package schedule runs the goroutines of a scenario in an order that a seed decides.
//
// The goroutines run in a bubble of testing/synctest and wait at named points; when all of them
// wait, a scheduler with a seeded random source lets one go on, or lets virtual time pass. Explored
// are the orders in which goroutines leave their points, the moments at which time passes between
// them, and the choices at a point, such as a lost answer. Not explored is what happens between two
// points: the scheduler controls the points, not every instruction.
package schedule

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Seed names the environment variable with the one seed to run.
const Seed = "PAWL_SEED"

const (
	maxSteps = 20_000                 // of one schedule; a longer one does not end
	maxIdle  = 40                     // times that time passes, each twice as long, and no goroutine reaches a point
	tick     = 500 * time.Microsecond // the least time that passes
)

// Schedule is one order of the goroutines of a scenario. Its methods are safe for concurrent use,
// except Random and Run.
type Schedule struct {
	// Random is for the plan that a scenario makes before Run. Goroutines use Choose.
	Random *rand.Rand

	seed     uint64
	test     string          // name of the test
	ctx      context.Context // ends when the schedule has failed
	cancel   context.CancelFunc
	check    func() // at every rest; nil: none
	patience int    // one of this many steps lets time pass
	habit    int    // percent of the steps that stay with the goroutine of the last one
	last     string // goroutine of the last step

	mu      sync.Mutex // protects the fields below
	points  []*point   // where goroutines wait
	running int        // goroutines of Go that have not returned
	over    bool       // points let pass
	trace   []string
	failure string
}

// need says what the code after a point takes.
type need uint8

const (
	locks   need = iota // locks that a goroutine at Locked may hold
	nothing             // no such lock
	locked              // the goroutine holds one
)

// point is a goroutine that waits.
type point struct {
	name    string
	choices int
	need    need
	resume  chan int
}

// goroutine returns the part of the name before the colon.
func (p *point) goroutine() string {
	name, _, _ := strings.Cut(p.name, ":")
	return name
}

// Go starts a goroutine of the scenario. It waits at a point first.
func (s *Schedule) Go(name string, f func()) {
	s.mu.Lock()
	s.running++
	s.mu.Unlock()
	go func() {
		defer func() {
			s.mu.Lock()
			s.running--
			s.mu.Unlock()
		}()
		defer s.Recover()
		s.Point(name + ": start")
		f()
	}()
}

// Point waits until the scheduler lets the goroutine go on. The name is that of the goroutine, a
// colon, and that of the point. While a goroutine waits at Locked, others stay at Point.
func (s *Schedule) Point(name string) { s.wait(name, 1, locks) }

// Choose is Point, and returns a random number below n. Once points let pass it returns n-1, with
// which a scenario must come to its end.
func (s *Schedule) Choose(name string, n int) int { return s.wait(name, n, locks) }

// Free is Point before code that takes no lock which a goroutine at Locked may hold.
func (s *Schedule) Free(name string) { s.wait(name, 1, nothing) }

// Locked is Point for a goroutine that holds a lock. Until it goes on, only goroutines at Free and
// Locked do, and no time passes.
func (s *Schedule) Locked(name string) { s.wait(name, 1, locked) }

func (s *Schedule) wait(name string, n int, needs need) int {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return n - 1
	}
	p := &point{name, n, needs, make(chan int, 1)}
	s.points = append(s.points, p)
	s.mu.Unlock()
	return <-p.resume
}

// Check makes f run at every rest, when all goroutines wait.
func (s *Schedule) Check(f func()) { s.check = f }

// Context ends when the schedule has failed, so that no goroutine waits for ever.
func (s *Schedule) Context() context.Context { return s.ctx }

// Failf notes what is wrong. The first call counts.
func (s *Schedule) Failf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == "" {
		s.failure = fmt.Sprintf(format, args...)
		s.trace = append(s.trace, "FAILED")
	}
}

// Recover prints the seed if the goroutine panics, and lets it panic. A goroutine that the code under
// test started, but that runs code of the scenario, defers it.
func (s *Schedule) Recover() {
	if v := recover(); v != nil { // it may hold a lock, so the schedule cannot go on
		fmt.Fprintln(os.Stderr, s.report(fmt.Sprintf("panic: %v", v)))
		panic(v)
	}
}

// Run lets the goroutines go on until all have returned and none waits at a point, or until one has
// failed. From then on points let pass.
func (s *Schedule) Run() {
	defer s.end()
	idle := 0
	for step := 0; ; step++ {
		synctest.Wait()
		if s.check != nil {
			s.check()
		}
		ready, waiting, running, failed := s.rest()
		switch {
		case failed || running == 0 && waiting == 0:
			return
		case step == maxSteps || idle == maxIdle:
			s.Failf("stuck: %d goroutines have not returned", running)
		case len(ready) == 0:
			s.pass(tick << idle)
			idle++
		case !holdsLock(ready) && s.Random.IntN(s.patience) == 0:
			s.pass(tick * time.Duration(1+s.Random.IntN(24)))
		default:
			idle = 0
			s.resume(s.pick(ready))
		}
	}
}

// rest returns the points that a goroutine may leave, in the order of their names, the number of
// all points and of running goroutines, and whether the schedule has failed.
func (s *Schedule) rest() (ready []*point, waiting, running int, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready = slices.Clone(s.points)
	if holdsLock(ready) {
		ready = slices.DeleteFunc(ready, func(p *point) bool { return p.need == locks })
	}
	slices.SortStableFunc(ready, func(a, b *point) int { return cmp.Compare(a.name, b.name) })
	return ready, len(s.points), s.running, s.failure != ""
}

func holdsLock(points []*point) bool {
	return slices.ContainsFunc(points, func(p *point) bool { return p.need == locked })
}

// pick chooses the point to leave.
func (s *Schedule) pick(ready []*point) *point {
	if stay := s.Random.IntN(100) < s.habit; stay {
		if i := slices.IndexFunc(ready, func(p *point) bool { return p.goroutine() == s.last }); i >= 0 {
			return ready[i]
		}
	}
	return ready[s.Random.IntN(len(ready))]
}

// resume lets a goroutine go on.
func (s *Schedule) resume(p *point) {
	choice, note := 0, p.name
	if p.choices > 1 {
		choice = s.Random.IntN(p.choices)
		note += " " + strconv.Itoa(choice)
	}
	s.last = p.goroutine()
	s.mu.Lock()
	s.points = slices.DeleteFunc(s.points, func(other *point) bool { return other == p })
	s.trace = append(s.trace, note)
	s.mu.Unlock()
	p.resume <- choice
}

// pass lets time pass.
func (s *Schedule) pass(d time.Duration) {
	s.mu.Lock()
	s.trace = append(s.trace, "time: "+d.String())
	s.mu.Unlock()
	time.Sleep(d)
}

// end lets all goroutines go on.
func (s *Schedule) end() {
	s.mu.Lock()
	s.over = true
	points := s.points
	s.points = nil
	failed := s.failure != ""
	s.mu.Unlock()
	if failed {
		s.cancel()
	}
	for _, p := range points {
		p.resume <- p.choices - 1
	}
}

// Totals says what Explore did.
type Totals struct {
	Schedules int // that were run
	Different int // of those, with an order of their own
	Steps     int // points that goroutines left, and times that time passed
}

// Explore runs a scenario under n schedules, with the seeds from 1 to n. It stops at the first that
// fails, and prints its seed and its order. If PAWL_SEED is set, Explore runs only that seed and
// prints its order. A scenario makes its plan, starts its goroutines, calls Run, and looks at what
// they left.
func Explore(t *testing.T, n int, scenario func(*Schedule)) (total Totals) {
	t.Helper()
	first, last := uint64(1), uint64(n)
	only := os.Getenv(Seed)
	if only != "" {
		seed, err := strconv.ParseUint(only, 10, 64)
		if err != nil {
			t.Fatalf("%s must be a number, got %q", Seed, only)
		}
		first, last = seed, seed
	}
	orders := make(map[uint64]bool)
	for seed := first; seed <= last && !t.Failed(); seed++ {
		trace := One(t, seed, scenario)
		if only != "" && !t.Failed() {
			t.Logf("seed %d:\n%s", seed, numbered(trace))
		}
		total.Schedules++
		total.Steps += len(trace)
		hash := fnv.New64a()
		for _, step := range trace {
			fmt.Fprintln(hash, step)
		}
		orders[hash.Sum64()] = true
	}
	total.Different = len(orders)
	return total
}

// One runs a scenario with one seed, and returns the order of its steps.
func One(t *testing.T, seed uint64, scenario func(*Schedule)) (trace []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &Schedule{Random: rand.New(rand.NewPCG(seed, 0)), seed: seed, test: t.Name()}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		defer s.cancel()
		s.patience, s.habit = []int{4, 12, 40}[s.Random.IntN(3)], []int{0, 50, 90}[s.Random.IntN(3)]
		defer func() { // also when Run was not reached
			s.end()
			trace = s.trace
			if s.failure != "" {
				t.Error(s.report(s.failure))
			}
		}()
		scenario(s)
	})
	return trace
}

// report says what is wrong, how to replay it, and what came before.
func (s *Schedule) report(failure string) string {
	return fmt.Sprintf("seed %d: %s\nreplay: %s=%d go test -count=1 -v -run '^%s$' ./internal/schedule\n%s",
		s.seed, failure, Seed, s.seed, strings.ReplaceAll(s.test, "/", "$/^"), numbered(s.trace))
}

// numbered returns the steps as lines with their numbers.
func numbered(trace []string) string {
	var b strings.Builder
	for i, step := range trace {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, step)
	}
	return b.String()
}
