package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pawl-go/pawl"
	durable "github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/persist/postgres"
)

// R1 measures durable runs with one step that does nothing, on PostgreSQL. Both contenders start
// them in this process and work on them in this process, with the same number of workers and
// connections.

// runWorkers is the number of goroutines that start runs, of steps that run at a time, and of
// connections in the pool.
const runWorkers = 16

// runInput is the input of a run: a small document.
type runInput struct {
	Order string `json:"order"`
	Item  int    `json:"item"`
}

func (runInput) Kind() string { return "order" } // for River

// runEngine is a contender that starts runs and works on them.
type runEngine struct {
	pool   *pgxpool.Pool
	worked chan struct{} // has an entry for each step that has begun
	// start starts a run and returns its id.
	start func(ctx context.Context, in runInput) (id string, err error)
	// wait returns when a run is completed.
	wait  func(ctx context.Context, id string) error
	count string // the statement that counts the completed runs
	stop  func()
}

// runSides are the contenders, Pawl first.
var runSides = []struct {
	name string
	open func(ctx context.Context, e *runEngine) error
}{
	{"Pawl", openPawlRuns},
	{"River v0.50.0", openRiver},
}

// maxRuns is the most runs of one repetition.
const maxRuns = 2_000

func openRuns(b *bench, side int) (*runEngine, error) {
	url, err := b.database()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = runWorkers
	e := &runEngine{worked: make(chan struct{}, maxRuns), stop: func() {}}
	if e.pool, err = pgxpool.NewWithConfig(b.ctx, config); err != nil {
		return nil, err
	}
	if err := runSides[side].open(b.ctx, e); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *runEngine) close() {
	e.stop()
	e.pool.Close()
}

// completed returns the number of completed runs in the store.
func (e *runEngine) completed(ctx context.Context) (n int64, err error) {
	err = e.pool.QueryRow(ctx, e.count).Scan(&n)
	return n, err
}

// drain returns when n runs are completed in the store. It asks the store only after the last step
// has begun, and then once per millisecond.
func (e *runEngine) drain(ctx context.Context, n int64) error {
	for range n {
		select {
		case <-e.worked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		done, err := e.completed(ctx)
		if err != nil || done >= n {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func openPawlRuns(ctx context.Context, e *runEngine) error {
	store, err := postgres.New(ctx, e.pool, postgres.Config{})
	if err != nil {
		return err
	}
	e.stop = func() { _ = store.Close() }
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		return err
	}
	engine := durable.NewEngine(rt, durable.Config{Concurrency: runWorkers, Logger: slog.New(slog.DiscardHandler)})
	e.stop = func() {
		_ = engine.Stop(context.Background())
		_ = rt.Close(context.Background())
		_ = store.Close()
	}
	runs := durable.Register(engine, durable.Definition[runInput]{Name: "order", Steps: []durable.Step[runInput]{
		{Name: "work", Do: func(context.Context, *durable.Attempt[runInput]) (durable.Next, error) {
			e.worked <- struct{}{}
			return durable.Continue(), nil
		}},
	}})
	e.start = func(ctx context.Context, in runInput) (string, error) {
		r, _, err := runs.Start(ctx, in)
		return r.ID, err
	}
	e.wait = func(ctx context.Context, id string) error {
		for r, err := range runs.Watch(ctx, id) {
			if err != nil || r.Status == durable.Completed {
				return err
			}
		}
		return ctx.Err()
	}
	e.count = `SELECT count(*) FROM pawl_state WHERE kind = 'run' AND label = 'COMPLETED order'`
	return engine.Start(ctx)
}

// runsPerSecond is the throughput of fixed work, until the last run is completed.
var runsPerSecond = metric{"runs/s", (*measured).perSecond}

// halfWithin is the median latency.
var halfWithin = metric{"us", func(m *measured) float64 { return micros(m.latency.at(0.50)) }}

func r1(b *bench) error {
	throughput := comparison{
		work: "runs with one step, start to last completion", load: load{writers: runWorkers, each: b.pick(100, 25)},
		ours: startsOnly(0), peer: startsOnly(1), goal: atLeast(1), flawless: true, by: runsPerSecond,
	}
	latency := comparison{
		work: "one run at a time, start to completion, median", load: load{writers: 1, each: b.pick(30, 10)},
		ours: oneByOne(0), peer: oneByOne(1), goal: atMost(1), flawless: true, by: halfWithin,
	}
	// River writes completions in batches, up to 250 ms later. So this row has the part before.
	begin := latency
	begin.work, begin.goal = "one run at a time, start to step, median", nil
	begin.ours, begin.peer = toStep(0), toStep(1)
	for _, d := range []comparison{throughput, latency, begin} {
		d.store, d.times = inPostgres, b.pick(3, 1)
		if err := b.runComparisons(d); err != nil {
			return err
		}
	}
	return nil
}

func input(writer, i int) runInput { return runInput{fmt.Sprintf("%d-%d", writer, i), i} }

// startsOnly is a contender whose unit is the start of a run. The work ends when all runs are
// completed.
func startsOnly(n int) side {
	return runSide(n, func(e *runEngine, in *instance) {
		var started atomic.Int64
		in.do = func(ctx context.Context, writer, i int) error {
			_, err := e.start(ctx, input(writer, i))
			if err == nil {
				started.Add(1)
			}
			return err
		}
		in.finish = func(ctx context.Context) error { return e.drain(ctx, started.Load()) }
		in.present = e.completed
	})
}

// oneByOne is a contender whose unit is a run from its start to its completion.
func oneByOne(n int) side {
	return runSide(n, func(e *runEngine, in *instance) {
		in.do = func(ctx context.Context, writer, i int) error {
			id, err := e.start(ctx, input(writer, i))
			if err == nil {
				err = e.wait(ctx, id)
			}
			return err
		}
		in.present = e.completed
	})
}

// toStep is oneByOne, and times a run from its start to the beginning of its step.
func toStep(n int) side {
	return runSide(n, func(e *runEngine, in *instance) {
		in.latency = new(histogram)
		in.do = func(ctx context.Context, writer, i int) error {
			began := time.Now()
			id, err := e.start(ctx, input(writer, i))
			if err != nil {
				return err
			}
			<-e.worked
			in.latency.add(time.Since(began))
			return e.wait(ctx, id)
		}
		in.present = e.completed
	})
}

func runSide(n int, set func(e *runEngine, in *instance)) side {
	return side{runSides[n].name, func(b *bench, _ load) (*instance, error) {
		e, err := openRuns(b, n)
		if err != nil {
			return nil, err
		}
		in := &instance{close: e.close}
		set(e, in)
		return in, nil
	}}
}
