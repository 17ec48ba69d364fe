package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/internal/schedule"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Two runtimes mutate the same stored scopes, alone and in transactions; callers leave, commits are
// refused, lost, late, or land without an answer. An acknowledged change is there once, a refused or
// withdrawn one is not, a transaction is there as a whole, and a caller that left during the commit
// had a function that returned. Proves CAS-7, CAS-8, CAS-9 and TX-1.
func TestStoredSchedules(t *testing.T) {
	n := testkit.Times(2000, 2000, "PAWL_SCHEDULES")
	total := schedule.Explore(t, n, storedScenario)
	testkit.Figures(t, "%d schedules of stored scopes, %d of them different, %d steps", total.Schedules, total.Different, total.Steps)
}

var stored = pawl.Kind[tally]{Name: "tally"}

func storedScenario(s *schedule.Schedule) {
	w := &world{s: s}
	below := memory.New()
	faults := s.Random.IntN(4)
	var runtimes []*pawl.Runtime
	for r := range 2 {
		name := fmt.Sprintf("runtime %d", r+1)
		rt := w.open(name, pawl.Config{Store: relay.New(below, w.hook(name, &faults))})
		runtimes = append(runtimes, rt)
		for c := range 1 + s.Random.IntN(2) {
			caller := fmt.Sprintf("caller %d.%d", r+1, c+1)
			var plan []*op
			for i := range 1 + s.Random.IntN(2) {
				plan = append(plan, w.addStored(rt, fmt.Sprintf("op %d.%d.%d", r+1, c+1, i+1)))
			}
			s.Go(caller, func() { w.call(caller, plan) })
		}
		if s.Random.IntN(4) == 0 {
			s.Go("abandoner "+name, func() { stored.Scope(rt, "a").Abandon() })
		}
	}
	s.Run()
	w.judgeStored(below)
	for _, rt := range runtimes {
		w.close(rt)
	}
}

// errLost leaves the outcome of a commit open.
var errLost = fmt.Errorf("%w: answer lost", persist.ErrUnavailable)

// hook has a point before and after each call of the store. At most as many commits as faults says
// are refused or lost, or land later.
func (w *world) hook(name string, faults *int) relay.Hook {
	return func(ctx context.Context, call relay.Call, next func(context.Context) error) error {
		point := name + " store: " + call.Method
		if call.Commit == nil || len(call.Commit.Writes) == 0 {
			w.s.Point(point)
			err := next(ctx)
			w.s.Point(point + " answers")
			return err
		}
		fault := w.s.Choose(point, 10)
		if w.mu.Lock(); *faults == 0 {
			fault = 9
		} else if fault < 4 {
			*faults--
		}
		w.mu.Unlock()
		switch fault {
		case 0:
			return fmt.Errorf("%w: %w", persist.ErrUnavailable, persist.ErrNotApplied)
		case 1: // the commit is lost on its way
			return errLost
		case 2: // it arrives later
			w.s.Go(name+" late commit", func() { _ = next(context.Background()) })
			return errLost
		}
		err := next(ctx)
		w.s.Point(point + " answers")
		if fault == 3 && err == nil || ctx.Err() != nil {
			return errLost
		}
		return err
	}
}

// addStored plans an operation on the scopes a and b.
func (w *world) addStored(rt *pawl.Runtime, name string) *op {
	o := w.planStored(rt, name)
	o.timed = true
	return o
}

// retry returns a random policy. Its pauses of one nanosecond are none: a longer one would be random.
func (w *world) retry() pawl.CallOption {
	budget := time.Duration(20_000+w.s.Random.IntN(200_000)) * time.Microsecond
	return pawl.WithRetry(pawl.Retry{Attempts: 2 + w.s.Random.IntN(6), First: 1, Max: 1, Within: budget})
}

func (w *world) planStored(rt *pawl.Runtime, name string) *op {
	retry := w.retry()
	a := stored.Scope(rt, "a")
	check := func(o *op, snap pawl.Snapshot[tally], err error) error {
		if err == nil && snap.State().Counts[o.name] != 1 {
			w.s.Failf("%s was acknowledged with count %d", o.name, snap.State().Counts[o.name])
		}
		return err
	}
	switch w.s.Random.IntN(5) {
	case 0, 1:
		return w.add(name+" atomic", func(o *op) error {
			snap, err := a.AtomicState(o.ctx, w.function(o), retry)
			return check(o, snap, err)
		})
	case 2, 3:
		return w.add(name+" inc", func(o *op) error {
			snap, err := a.IncState(o.ctx, counts.At(o.name), 1, retry)
			return check(o, snap, err)
		})
	}
	return w.planTx(rt, name, retry)
}

// planTx plans a transaction that changes the scopes a and b.
func (w *world) planTx(rt *pawl.Runtime, name string, retry pawl.CallOption) *op {
	a, b := stored.Scope(rt, "a"), stored.Scope(rt, "b")
	return w.add(name+" tx", func(o *op) error {
		return pawl.Transact(o.ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			w.enter(o)
			if _, err := b.In(tx).IncState(ctx, counts.At(o.name), 1); err != nil {
				return err
			}
			w.s.Point(o.name + ": runs")
			_, err := a.In(tx).IncState(ctx, counts.At(o.name), 1)
			if err == nil && o.late {
				_, err = a.In(tx).State(ctx)
			}
			w.leave(o)
			if err == nil && o.fails {
				err = errOwn
			}
			return err
		}, retry)
	})
}

// judgeStored reads the scopes as another process.
func (w *world) judgeStored(below persist.Store) {
	rt, err := pawl.Open(pawl.Config{Store: below})
	if err != nil {
		panic(err)
	}
	defer w.close(rt)
	var states [2]tally
	for i, id := range []string{"a", "b"} {
		states[i], err = stored.Scope(rt, id).State(context.Background())
		if err != nil && !errors.Is(err, pawl.ErrNotFound) {
			w.s.Failf("state: %v", err)
		}
	}
	w.judge(func(o *op) int64 { return states[0].Counts[o.name] })
	for _, o := range w.ops {
		n, isTx := states[0].Counts[o.name], o.name[len(o.name)-2:] == "tx"
		if isTx && states[1].Counts[o.name] != n {
			w.s.Failf("%s is there in part: %d and %d", o.name, n, states[1].Counts[o.name])
		}
		hasFunction := o.name[len(o.name)-3:] != "inc"
		if pawl.OutcomeUnknown(o.err) && hasFunction && o.returned == 0 {
			w.s.Failf("the function of %s has not returned, its answer was %v", o.name, o.err)
		}
		if errors.Is(o.err, pawl.ErrAbandoned) && !o.abandoned {
			w.s.Failf("%s was not abandoned, its answer was %v", o.name, o.err)
		}
	}
}
