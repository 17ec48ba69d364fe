package schedule_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/schedule"
	"github.com/pawl-go/pawl/internal/testkit"
)

// Functions that return late, callers that leave, Abandon, and data verbs in place and in turn, on a
// scope in memory: functions run one at a time, an acknowledged change is there once, a refused,
// withdrawn or abandoned one is not, a function that was left commits, and versions count the
// changes. Proves LOCK-1, LOCK-6, LOCK-7, LOCK-8 and LOCK-11.
func TestMemorySchedules(t *testing.T) {
	n := testkit.Times(2000, 2000, "PAWL_SCHEDULES")
	total := schedule.Explore(t, n, memoryScenario)
	testkit.Figures(t, "%d schedules of a scope in memory, %d of them different, %d steps", total.Schedules, total.Different, total.Steps)
}

var inMemory = pawl.Kind[tally]{Name: "tally", InMemory: true}

func memoryScenario(s *schedule.Schedule) {
	w := &world{s: s}
	rt := w.open("memory", pawl.Config{Timeout: pawl.NoTimeout})
	scope := inMemory.Scope(rt, "a")
	for c := range 2 + s.Random.IntN(3) {
		name := fmt.Sprintf("caller %d", c+1)
		var plan []*op
		for i := range 1 + s.Random.IntN(2) {
			plan = append(plan, w.addMemory(scope, fmt.Sprintf("op %d.%d", c+1, i+1)))
		}
		s.Go(name, func() { w.call(name, plan) })
	}
	if s.Random.IntN(2) == 0 {
		s.Go("abandoner", func() { scope.Abandon() })
	}
	s.Run()
	snap, err := scope.Snapshot(s.Context())
	if err != nil && !errors.Is(err, pawl.ErrNotFound) && s.Context().Err() == nil {
		s.Failf("snapshot: %v", err)
	}
	state := snap.State()
	w.judge(func(o *op) int64 { return state.Counts[o.name] })
	w.judgeMemory(state, snap.Version)
	w.close(rt)
}

// addMemory plans an operation on a scope in memory.
func (w *world) addMemory(scope pawl.Scope[tally], name string) *op {
	var opts []pawl.CallOption
	if w.s.Random.IntN(3) == 0 {
		opts = append(opts, pawl.WithTimeout(time.Duration(1+w.s.Random.IntN(20_000))*time.Microsecond))
	}
	data := w.s.Random.IntN(3) == 0
	o := w.add(name, func(o *op) (err error) {
		w.mu.Lock()
		before := w.highest
		w.mu.Unlock()
		var snap pawl.Snapshot[tally]
		if data {
			snap, err = scope.IncState(o.ctx, counts.At(o.name), 1, opts...)
		} else {
			run := w.alone(o, w.function(o))
			snap, err = scope.AtomicState(o.ctx, run, opts...)
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if snap.Version <= before || snap.State().Counts[o.name] != 1 {
			w.s.Failf("%s has version %d after version %d, and count %d", o.name, snap.Version, before, snap.State().Counts[o.name])
		}
		w.highest = max(w.highest, snap.Version)
		return nil
	})
	o.timed = len(opts) > 0
	return o
}

// judgeMemory looks for what only scopes in memory promise.
func (w *world) judgeMemory(state tally, version uint64) {
	sum := uint64(0)
	for _, n := range state.Counts {
		sum += uint64(n)
	}
	if sum != version {
		w.s.Failf("%d changes made version %d", sum, version)
	}
	for _, o := range w.ops {
		n := state.Counts[o.name]
		switch {
		case o.err != nil && !pawl.OutcomeUnknown(o.err) && o.runs > 0 && !errors.Is(o.err, errOwn) && !errors.Is(o.err, pawl.ErrAbandoned):
			w.s.Failf("the function of %s ran, its answer was %v", o.name, o.err)
		case errors.Is(o.err, pawl.ErrAbandoned) && !o.abandoned:
			w.s.Failf("%s was not abandoned, its answer was %v", o.name, o.err)
		case pawl.OutcomeUnknown(o.err) && !o.abandoned && !o.fails && n != 1:
			w.s.Failf("%s is not there, its answer was %v", o.name, o.err)
		case o.abandoned && n != 0:
			w.s.Failf("%s is there, and was abandoned", o.name)
		}
	}
}
