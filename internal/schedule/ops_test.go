package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/schedule"
)

// tally is the state of a scope: each operation adds one to a count of its own.
type tally struct {
	Counts map[string]int64 `json:"counts"`
}

const counts = pawl.Field("counts")

// errOwn is the error of a function that refuses its own change.
var errOwn = errors.New("refused by the function")

// op is one operation of a caller.
type op struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc // ends ctx while the operation is under way; nil: it does not end
	timed  bool               // its caller leaves at a deadline
	late   bool               // its function waits at a point after its change
	fails  bool               // its function returns errOwn
	do     func(*op) error

	err       error
	ended     bool
	runs      int // of its function
	returned  int // of those, that have returned
	abandoned bool
}

type opKey struct{}

// world is what the operations of a scenario share.
type world struct {
	s *schedule.Schedule

	mu      sync.Mutex // protects the fields below and those of the operations
	ops     []*op
	inside  *op    // whose function runs in the queue of an in-memory scope; nil: none
	highest uint64 // version that an operation in memory was acknowledged with
}

// add plans an operation. Some of its callers leave when their context ends.
func (w *world) add(name string, do func(*op) error) *op {
	o := &op{name: name, late: w.s.Random.IntN(2) == 0, fails: w.s.Random.IntN(8) == 0, do: do}
	ctx := w.s.Context()
	if w.s.Random.IntN(3) == 0 {
		ctx, o.cancel = context.WithCancel(ctx)
	}
	o.ctx = context.WithValue(ctx, opKey{}, o)
	w.ops = append(w.ops, o)
	return o
}

// call makes the operations one after the other.
func (w *world) call(name string, ops []*op) {
	for _, o := range ops {
		w.s.Point(name + ": calls " + o.name)
		if o.cancel != nil { // once it is under way: there is no point between Push and Await
			w.s.Go("cancel "+o.name, o.cancel)
		}
		err := o.do(o)
		w.mu.Lock()
		o.err, o.ended = err, true
		w.mu.Unlock()
	}
}

// function returns the function of o, for AtomicState.
func (w *world) function(o *op) func(context.Context, *tally) error {
	return func(_ context.Context, state *tally) error {
		w.enter(o)
		w.s.Point(o.name + ": runs")
		if state.Counts == nil {
			state.Counts = map[string]int64{}
		}
		state.Counts[o.name]++
		if o.late {
			w.s.Point(o.name + ": returns late")
		}
		w.leave(o)
		if o.fails {
			return errOwn
		}
		return nil
	}
}

func (w *world) enter(o *op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.runs++
}

func (w *world) leave(o *op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.returned++
}

// observer makes every event a point, except those of the store, which has its own. It is called
// without locks of the library. The queue gets no waiter whose caller is about to leave: whether the
// worker or the caller comes first would be up to the Go scheduler.
func (w *world) observer(runtime string) pawl.Observer {
	return pawl.ObserverFunc(func(ctx context.Context, e pawl.Event) {
		o, _ := ctx.Value(opKey{}).(*op)
		switch {
		case o == nil || e.Type == pawl.EventStoreCalled:
			return
		case e.Type == pawl.EventQueued && (o.timed || o.cancel != nil):
			return
		case e.Type == pawl.EventAbandoned:
			w.mu.Lock()
			o.abandoned = true
			w.mu.Unlock()
		}
		w.s.Point(fmt.Sprintf("%s %s: %s", runtime, o.name, e.Type))
	})
}

// open returns a runtime whose events are points.
func (w *world) open(name string, c pawl.Config) *pawl.Runtime {
	c.Observer, c.Logger = w.observer(name), slog.New(slog.DiscardHandler)
	rt, err := pawl.Open(c)
	if err != nil {
		panic(err)
	}
	return rt
}

// close closes a runtime, which is not busy.
func (w *world) close(rt *pawl.Runtime) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := rt.Close(ctx); err != nil {
		w.s.Failf("close: %v", err)
	}
}

// judge compares the answer of each operation with the count that it left.
func (w *world) judge(count func(*op) int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.ops {
		n := count(o)
		switch {
		case !o.ended:
			w.s.Failf("%s did not end", o.name)
		case n > 1:
			w.s.Failf("%s is there %d times, its answer was %v", o.name, n, o.err)
		case o.err == nil && n != 1:
			w.s.Failf("%s was acknowledged, and is not there", o.name)
		case o.err != nil && !pawl.OutcomeUnknown(o.err) && n != 0:
			w.s.Failf("%s is there, its answer was %v", o.name, o.err)
		case !known(o.err):
			w.s.Failf("%s ended with %v", o.name, o.err)
		case o.fails && o.runs > 0 && o.err == nil:
			w.s.Failf("%s was acknowledged, its function failed", o.name)
		}
	}
}

// known reports whether an operation of these scenarios may end with err.
func known(err error) bool {
	var (
		timeout     *pawl.ScopeMutationTimeoutError
		canceled    *pawl.CanceledError
		conflict    *pawl.ConcurrentModificationError
		unavailable *pawl.UnavailableError
		unknown     *pawl.UnknownOutcomeError
	)
	return err == nil || errors.Is(err, errOwn) || errors.Is(err, pawl.ErrAbandoned) || errors.As(err, &timeout) || errors.As(err, &canceled) ||
		errors.As(err, &conflict) || errors.As(err, &unavailable) || errors.As(err, &unknown)
}

// alone returns fn, which must not run beside another function, unless one of them was abandoned.
func (w *world) alone(o *op, fn func(context.Context, *tally) error) func(context.Context, *tally) error {
	return func(ctx context.Context, state *tally) error {
		w.mu.Lock()
		if !o.abandoned {
			if other := w.inside; other != nil && !other.abandoned {
				w.s.Failf("the functions of %s and %s run at the same time", other.name, o.name)
			}
			w.inside = o
		}
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.inside == o {
				w.inside = nil
			}
		}()
		return fn(ctx, state)
	}
}
