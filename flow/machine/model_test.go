package machine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// The model runs a random program over one parcel and three processes, in fake time and with the
// default settings. A process can be cut off from the store, which looks like a pause to the
// others.
//
// Time passes in minutes. So it is always certain whether a lease (30 s) has expired and whether a
// janitor (5 minutes) may act.
const modelProcesses = 3

type modelStep struct {
	what    string // fire, end, cut, heal, sleep, sweep, edit
	process int
	how     string // end: done, fail, error, panic
	minutes int
}

func (s modelStep) String() string {
	return fmt.Sprintf("%s %d %s %d", s.what, s.process, s.how, s.minutes)
}

func drawProgram(t *rapid.T) []modelStep {
	step := rapid.Custom(func(t *rapid.T) modelStep {
		return modelStep{
			what:    rapid.SampledFrom([]string{"fire", "fire", "end", "end", "cut", "heal", "sleep", "sleep", "sweep", "edit"}).Draw(t, "what"),
			process: rapid.IntRange(0, modelProcesses-1).Draw(t, "process"),
			how:     rapid.SampledFrom([]string{"done", "fail", "error", "panic"}).Draw(t, "how"),
			minutes: rapid.IntRange(1, 7).Draw(t, "minutes"),
		}
	})
	return rapid.SliceOfN(step, 1, 20).Draw(t, "program")
}

// cuttable is a store that a process can be cut off from.
type cuttable struct {
	persist.Store
	cut atomic.Bool
}

var errCut = fmt.Errorf("%w: cut off", persist.ErrUnavailable)

func (c *cuttable) Commit(ctx context.Context, commit persist.Commit) (time.Time, error) {
	if c.cut.Load() {
		return time.Time{}, errCut
	}
	return c.Store.Commit(ctx, commit)
}

func (c *cuttable) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if c.cut.Load() {
		return persist.Record{}, errCut
	}
	return c.Store.Load(ctx, key)
}

func (c *cuttable) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if c.cut.Load() {
		return persist.Page{}, errCut
	}
	return c.Store.List(ctx, q)
}

// modelRun is a body that runs, or a body that has ended and is about to commit.
type modelRun struct {
	name    string
	ended   bool
	how     string
	holds   bool // its lease is live in the model
	verdict chan string
	answer  chan string // receives the result of Fire
}

// model is the expected state.
type model struct {
	status    string
	log       []string
	runs      [modelProcesses]*modelRun
	cut       [modelProcesses]bool
	cutSince  [modelProcesses]time.Time
	owner     *modelRun // holder of the claim; nil if there is none or it is gone
	overSince time.Time // about when the claim's lease expired, at most 30 s late; zero while it is live
}

// Claims, releases, reverts and takeovers in random order match a simple model. A body that lost
// its claim never writes anything. Proves CLAIM-4, CLAIM-6, CLAIM-8, CLAIM-9.
func TestModelOfClaims(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		program := drawProgram(rt)
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = runProgram(t, program) })
		if failure != "" {
			rt.Fatalf("%v\n%s", program, failure)
		}
	})
}

// runProgram returns a description of the first failure, or an empty string.
func runProgram(t *testing.T, program []modelStep) (failure string) {
	store := memory.New()
	var (
		depots [modelProcesses]*depot
		ways   [modelProcesses]*cuttable
		m      = model{status: "packed"}
		bodies atomic.Int32
	)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	for i := range depots {
		ways[i] = &cuttable{Store: store}
		d, err := build(ways[i], settings{
			config:  machine.Config{Logger: quiet, Poll: time.Hour},
			janitor: machine.JanitorConfig{Interval: 1000 * time.Hour, Age: 5 * time.Minute},
			runtime: pawl.Config{Logger: quiet},
		})
		require.NoError(t, err)
		require.NoError(t, d.e.Start(context.Background()))
		depots[i] = d
	}
	ctx := context.Background()
	_, err := depots[0].m.Create(ctx, "1", parcel{})
	require.NoError(t, err)
	defer func() {
		for i, r := range m.runs {
			ways[i].cut.Store(false)
			if r != nil && !r.ended {
				close(r.verdict)
			}
		}
		for _, d := range depots {
			if err := d.stop(); err != nil && failure == "" {
				failure = err.Error()
			}
		}
		_ = store.Close()
	}()
	wrong := func(n int, format string, args ...any) string {
		return fmt.Sprintf("step %d, %v: ", n, program[n]) + fmt.Sprintf(format, args...)
	}
	for n, s := range program {
		d, way := depots[s.process], ways[s.process]
		switch s.what {
		case "fire":
			if m.runs[s.process] != nil || m.cut[s.process] {
				continue // one run per process; without a store it would only wait
			}
			r := &modelRun{name: fmt.Sprint("run-", n), verdict: make(chan string), answer: make(chan string, 1)}
			started := make(chan struct{}, 1)
			d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
				bodies.Add(1)
				started <- struct{}{}
				switch <-r.verdict {
				case "fail":
					return machine.Fail("as told")
				case "error":
					return errBody
				case "panic":
					panic(errBody)
				}
				return book(ctx, a, in)
			})
			go func() {
				defer func() {
					if recover() != nil {
						r.answer <- "panic"
					}
				}()
				out, err := d.fire(ctx, "1", r.name)
				switch {
				case errors.Is(err, errBody):
					r.answer <- "error"
				case errors.Is(err, pawl.ErrLeaseLost):
					r.answer <- "lost"
				case err != nil:
					r.answer <- err.Error()
				default:
					r.answer <- out.Result.String()
				}
			}()
			time.Sleep(time.Second) // a process that just had the claim lets others go first
			synctest.Wait()
			m.runs[s.process] = r
			select {
			case <-started:
				if m.status != "packed" {
					return wrong(n, "a body runs although the status is %s", m.status)
				}
				m.status, m.owner, m.overSince, r.holds = "shipping", r, time.Time{}, true
			case got := <-r.answer:
				m.runs[s.process] = nil
				want := map[string]string{"packed": "a body", "shipping": "claim_failed", "shipped": "wrong_status"}[m.status]
				if got != want {
					return wrong(n, "Fire returned %s, want %s", got, want)
				}
			default:
				return wrong(n, "Fire does not return")
			}
		case "end":
			r := m.runs[s.process]
			if r == nil || r.ended {
				continue
			}
			r.ended, r.how = true, s.how
			r.verdict <- s.how
			synctest.Wait()
		case "cut":
			if !m.cut[s.process] {
				m.cut[s.process], m.cutSince[s.process] = true, time.Now()
				way.cut.Store(true)
			}
		case "heal":
			if m.cut[s.process] {
				m.cut[s.process] = false
				way.cut.Store(false)
				time.Sleep(time.Second) // pending retries run
				synctest.Wait()
			}
		case "sleep":
			time.Sleep(time.Duration(s.minutes) * time.Minute)
			synctest.Wait()
			for i, r := range m.runs {
				if r != nil && r.holds && m.cut[i] { // the lease could not be renewed
					r.holds = false
					if m.owner == r {
						m.owner, m.overSince = nil, m.cutSince[i]
					}
				}
			}
		case "edit":
			if m.cut[s.process] {
				continue
			}
			if _, err := parcels.Scope(d.rt, "1").PatchState(ctx, pawl.Patch{"note": fmt.Sprint(n)}); err != nil {
				return wrong(n, "%v", err)
			}
		case "sweep":
			if m.cut[s.process] {
				continue
			}
			reverts, err := d.janitor.Sweep(ctx)
			if err != nil {
				return wrong(n, "%v", err)
			}
			want := 0
			if m.status == "shipping" && m.owner == nil && time.Since(m.overSince) >= 6*time.Minute {
				want = 1
				m.status = "packed"
			}
			if len(reverts) != want {
				return wrong(n, "%d reverts, want %d", len(reverts), want)
			}
		}
		// Check the runs that have ended by now, and their effects.
		for i, r := range m.runs {
			if r == nil || !r.ended || m.cut[i] && r.holds {
				continue // without a store it retries until its lease expires
			}
			synctest.Wait()
			var got string
			select {
			case got = <-r.answer:
			default:
				if m.cut[i] {
					continue // it may still wait for the store
				}
				return wrong(n, "%s has no result", r.name)
			}
			m.runs[i] = nil
			want := map[string]string{"done": "done", "fail": "failed", "error": "error", "panic": "panic"}[r.how]
			if !r.holds && r.how == "done" {
				want = "lost"
			}
			if got != want && !(want == "lost" && m.cut[i]) {
				return wrong(n, "%s ended as %s, want %s", r.name, got, want)
			}
			if r.holds {
				m.owner = nil
				m.status = "packed"
				if r.how == "done" {
					m.status, m.log = "shipped", append(m.log, r.name)
				}
			}
		}
		r, err := store.Load(ctx, pawl.Key{Kind: "parcel", ID: "1"})
		if err != nil {
			return wrong(n, "%v", err)
		}
		if pendingRelease(&m) {
			continue
		}
		if r.Label != m.status {
			return wrong(n, "status %s, want %s", r.Label, m.status)
		}
	}
	return checkBooks(store, &m, int(bodies.Load()))
}

// pendingRelease reports whether the holder of the claim has ended but cannot release it yet.
func pendingRelease(m *model) bool {
	for i, r := range m.runs {
		if r != nil && r.ended && r.holds && m.cut[i] {
			return true
		}
	}
	return false
}

// checkBooks compares the stored writes with the commits of the model.
func checkBooks(store persist.Store, m *model, bodies int) string {
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		return err.Error()
	}
	defer rt.Close(context.Background())
	p, err := parcels.Scope(rt, "1").State(context.Background())
	l, err2 := ledgers.Scope(rt, "all").State(context.Background())
	switch {
	case err != nil || err2 != nil:
		return fmt.Sprint(err, err2)
	case fmt.Sprint(p.Log) != fmt.Sprint(m.log):
		return fmt.Sprintf("written: %v, committed: %v", p.Log, m.log)
	case int(l.Shipped) != len(m.log):
		return fmt.Sprintf("the ledger says %d, committed: %v", l.Shipped, m.log)
	case len(m.log) > bodies:
		return fmt.Sprintf("%d bodies wrote %v", bodies, m.log)
	}
	return ""
}
