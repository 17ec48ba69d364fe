//go:build linux

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// How many scopes of each kind there are.
const (
	sessions = 2000
	hot      = 20 // sessions that get half of the calls and watchers
	accounts = 50
	tills    = 12
	totals   = 16
	streams  = 40
	carts    = 50
)

// Lives of leases, documents and tombstones. All are short, so that each ends many times.
const (
	leaseFor   = 2 * time.Second
	visitTTL   = time.Second
	tombstones = 2 * time.Second
	sweepEvery = 500 * time.Millisecond
)

// notesKept is the number of notes from which on AtomicState removes them.
const notesKept = 20

// session is changed by the data verbs and AtomicState. Each of its fields counts one verb.
type session struct {
	Count   int64            `json:"count"`   // by IncState
	Seen    map[string]int64 `json:"seen"`    // the last number of each writer, by PatchState
	Notes   []string         `json:"notes"`   // by PushState
	Removed int64            `json:"removed"` // notes that AtomicState removed
	Folds   int64            `json:"folds"`   // by AtomicState
}

// account is changed by transfers.
type account struct {
	Balance int64 `json:"balance"`
	Moves   int64 `json:"moves"`
}

// counter counts changes.
type counter struct {
	N int64 `json:"n"`
}

// basket is created and deleted.
type basket struct {
	Number int64 `json:"number"`
}

// total counts the effects of a reaction, or of the steps of runs.
type total struct {
	N    int64 `json:"n"`
	Next int64 `json:"next"` // the version of the event that comes next
}

// trip is the state of a run.
type trip struct {
	Log []string `json:"log,omitempty"`
}

// noted is an event.
type noted struct {
	ID string `json:"id"`
}

var (
	sessionKind = pawl.Kind[session]{Name: "session"}
	accountKind = pawl.Kind[account]{Name: "account"}
	tillKind    = pawl.Kind[counter]{Name: "till"}
	basketKind  = pawl.Kind[basket]{Name: "basket"}
	visitKind   = pawl.Kind[counter]{Name: "visit", TTL: visitTTL}
	cartKind    = pawl.Kind[counter]{Name: "cart", InMemory: true}
	stepKind    = pawl.Kind[total]{Name: "steps"}
	eventKind   = pawl.Kind[total]{Name: "handled"}
)

// tripLog is the log of a completed run.
var tripLog = []string{"begin", "rest", "wait", "end"}

// parts are the parts of the library that a process uses.
type parts struct {
	rt      *pawl.Runtime
	engine  *run.Engine
	trips   *run.Runs[trip]
	log     *stream.Log
	sweeper *pawl.Sweeper
}

// openParts opens all parts on a store.
func openParts(store persist.Store, name string) (p *parts, err error) {
	p = &parts{}
	p.rt, err = pawl.Open(pawl.Config{
		Store: store, Holder: name, Logger: quiet, Retry: pawl.Retry{Attempts: 1000, Within: time.Minute},
		Kinds: []pawl.AnyKind{sessionKind, accountKind, tillKind, basketKind, visitKind, cartKind, stepKind, eventKind},
	})
	if err != nil {
		return nil, err
	}
	p.engine = run.NewEngine(p.rt, run.Config{Concurrency: 4, Lease: leaseFor, Poll: 200 * time.Millisecond, Logger: quiet})
	p.trips = run.Register(p.engine, run.Definition[trip]{Name: "trip", Steps: tripSteps()})
	p.log, err = stream.New(p.rt, stream.Config{
		Events: []stream.Type{stream.Of[noted]("noted")}, Lease: leaseFor, Poll: 200 * time.Millisecond, Concurrency: 4, Logger: quiet,
	})
	if err != nil {
		return nil, err
	}
	if err := p.log.React(countEvents()); err != nil {
		return nil, err
	}
	p.sweeper, err = pawl.NewSweeper(p.rt, pawl.SweeperConfig{Interval: sweepEvery, Tombstones: tombstones})
	return p, err
}

// start starts the workers.
func (p *parts) start(ctx context.Context) error {
	return errors.Join(p.engine.Start(ctx), p.log.Start(ctx), p.sweeper.Start(ctx))
}

// stop stops the workers and closes the runtime and its store.
func (p *parts) stop(ctx context.Context) error {
	return errors.Join(p.engine.Stop(ctx), p.log.Stop(ctx), p.sweeper.Stop(ctx), p.rt.Close(ctx), p.rt.Store().Close())
}

// tripSteps returns steps that commit at once, sleep, wait for a signal, and fail at times. Each
// writes its name to the log once and counts itself, in the commit that ends it.
func tripSteps() []run.Step[trip] {
	type attempt = run.Attempt[trip]
	step := func(name string, do func(a *attempt) (next run.Next, over bool, err error)) run.Step[trip] {
		return run.Step[trip]{
			Name:  name,
			Retry: pawl.Retry{Attempts: 1000, First: 10 * time.Millisecond, Max: 50 * time.Millisecond},
			Do: func(_ context.Context, a *attempt) (run.Next, error) {
				next, over, err := do(a)
				if err != nil || !over {
					return next, err
				}
				a.State.Log = append(a.State.Log, name)
				a.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
					id := fmt.Sprint(crc32.ChecksumIEEE([]byte(a.RunID)) % totals)
					_, err := stepKind.Scope(tx, id).IncState(ctx, "n", 1)
					return err
				})
				return next, nil
			},
		}
	}
	return []run.Step[trip]{
		step("begin", func(*attempt) (run.Next, bool, error) { return run.Continue(), true, nil }),
		step("rest", func(a *attempt) (run.Next, bool, error) {
			if !a.Resumed {
				return run.Sleep(rand.N(100 * time.Millisecond)), false, nil
			}
			return run.Continue(), true, nil
		}),
		// A process may be killed before it sends the signal, so the step does not wait for ever.
		step("wait", func(a *attempt) (run.Next, bool, error) {
			if !a.Resumed {
				return run.Await("go", time.Second), false, nil
			}
			return run.Continue(), true, nil
		}),
		step("end", func(*attempt) (run.Next, bool, error) {
			if rand.N(4) == 0 {
				return run.Next{}, false, errors.New("not yet")
			}
			return run.Continue(), true, nil
		}),
	}
}

// countEvents returns a reaction that counts the events of each stream, and blocks the stream if
// they do not come in order.
func countEvents() stream.Reaction {
	return stream.Reaction{
		Name: "count", Source: regexp.MustCompile("^s"), Batch: 20, RetryForever: true, MaxLost: 1000,
		Backoff: pawl.Retry{First: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		Handle: func(_ context.Context, d *stream.Delivery) error {
			d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
				_, err := eventKind.Scope(tx, d.Stream).AtomicState(ctx, func(_ context.Context, t *total) error {
					if t.Next != d.Version {
						return pawl.NonRetryable(fmt.Errorf("event %d of %s is handled after %d", d.Version, d.Stream, t.Next-1))
					}
					t.Next++
					t.N++
					return nil
				})
				return err
			})
			return nil
		},
	}
}

// locate returns the location of a store for one process: on PostgreSQL, its connections have the
// name of the process, and there are at most poolSize of them, besides those for hints.
func locate(location, name string) string {
	if stores.Name(location) != "postgres" {
		return location
	}
	return fmt.Sprintf("%s&application_name=%s&pool_max_conns=%d", location, name, poolSize)
}

const poolSize = 8
