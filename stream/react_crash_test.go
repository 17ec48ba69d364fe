package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/stream"
)

func init() {
	testkit.Child("react-victim", func() error { return reactWorkAll(reactLease) })
	// Its many leases are renewed seldom, so that it can be stopped between two renewals.
	testkit.Child("react-sleeper", func() error { return reactWorkAll(2 * reactLease) })
}

// reactEnvVisits names the environment variable with the visits of a child, as JSON.
const reactEnvVisits = "PAWL_TEST_VISITS"

// reactLease is the lease of processes that the tests kill or pause. It survives a short pause of a
// busy machine.
var reactLease = 1500 * time.Millisecond

func init() {
	if testkit.Race {
		reactLease *= 2 // everything is slower
	}
}

// reactVisit is a moment: a log reaches a point for the nth time. Each visit has a log of its own,
// with the streams s0 and s1.
type reactVisit struct {
	Point string
	Nth   int
}

func (v reactVisit) id() string { return fmt.Sprintf("%s-%d", v.Point, v.Nth) }

const (
	reactStreams = 2
	reactEach    = 3 // events of a stream
)

// reactWork returns the log of a visit. Its handler appends, writes, and fails once in the middle of
// s1. Its hook is called at each point.
func reactWork(rt *pawl.Runtime, v reactVisit, lease time.Duration, hook func(point string)) (*stream.Log, error) {
	c := reactConfig()
	// One stream at a time, so that each run goes through the same points.
	c.Name, c.Lease, c.Concurrency = v.id(), lease, 1
	l, err := stream.New(rt, c)
	if err != nil {
		return nil, err
	}
	l.ReactHook(func(point, _ string) { hook(point) })
	return l, l.React(stream.Reaction{
		Name: "r", Source: regexp.MustCompile("^s"), Batch: 2, Backoff: reactAtOnce,
		Handle: func(ctx context.Context, d *stream.Delivery) error {
			d.OnCommit(reactCounts(v.id() + "/" + d.ID))
			d.OnCommit(reactCounts(v.id() + "/all"))
			for i := range 2 {
				if _, err := l.Append(ctx, "echo-"+d.Stream, stream.Any, reactEcho{fmt.Sprint(d.Version), i}); err != nil {
					return err
				}
				if d.Stream == "s1" && d.Version == 1 && d.Attempt == 1 {
					return errReact
				}
			}
			return nil
		},
	})
}

// reactPrepare appends the events of a visit.
func reactPrepare(t testing.TB, rt *pawl.Runtime, v reactVisit) {
	t.Helper()
	l, err := reactWork(rt, v, 0, func(string) {})
	require.NoError(t, err)
	for i := range reactStreams {
		reactAppend(t, l, fmt.Sprint("s", i), reactEach)
	}
}

// reactOutcome is the end of the work of a visit.
type reactOutcome struct {
	Positions []stream.Position
	Counts    []int    // of the writes, by event
	All       int      // the sum of them
	Echoes    []string // of all streams
}

func reactOutcomeOf(t testing.TB, rt *pawl.Runtime, v reactVisit) (o reactOutcome) {
	t.Helper()
	l, err := reactWork(rt, v, 0, func(string) {})
	require.NoError(t, err)
	o.Positions = reactPositions(t, l, stream.Filter{})
	for i := range reactStreams {
		name := fmt.Sprint("s", i)
		for _, e := range reactRead(t, l, name) {
			o.Counts = append(o.Counts, reactCount(t, rt, v.id()+"/"+e.ID))
		}
		o.Echoes = append(o.Echoes, reactEchoes(t, l, "echo-"+name)...)
	}
	o.All = reactCount(t, rt, v.id()+"/all")
	return o
}

// reactWant is the outcome without a crash.
func reactWant() (o reactOutcome) {
	for i := range reactStreams {
		o.Positions = append(o.Positions, reactDone(fmt.Sprint("s", i), reactEach))
		for n := range reactEach {
			o.Counts = append(o.Counts, 1)
			o.Echoes = append(o.Echoes, fmt.Sprint(n, "/", 0), fmt.Sprint(n, "/", 1))
		}
	}
	o.All = reactStreams * reactEach
	return o
}

// reactVisits runs the work in memory and returns the visits: each point that it reaches, and each
// time that it does so if all is true.
func reactVisits(t testing.TB, all bool) (visits []reactVisit) {
	t.Helper()
	location := stores.Memory.New(t)
	rt := reactOpen(t, stores.OpenFor(t, location), "host")
	seen := map[string]int{}
	none := reactVisit{"none", 0}
	reactPrepare(t, rt, none)
	l, err := reactWork(rt, none, 0, func(point string) {
		if seen[point]++; all || seen[point] == 1 {
			visits = append(visits, reactVisit{point, seen[point]})
		}
	})
	require.NoError(t, err)
	reactDrain(t, l)
	require.Equal(t, reactWant(), reactOutcomeOf(t, rt, none))
	return visits
}

// reactWorkAll works on the logs of the visits, in a child, and blocks each at its point. It goes on
// when it is told to, and ends when all work has ended.
func reactWorkAll(lease time.Duration) error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	var visits []reactVisit
	if err := json.Unmarshal([]byte(os.Getenv(reactEnvVisits)), &visits); err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Logger: reactQuiet})
	if err != nil {
		return err
	}
	goOn := make(chan struct{})
	errs := make([]error, len(visits))
	var all sync.WaitGroup
	for i, v := range visits {
		n := 0
		l, err := reactWork(rt, v, lease, func(point string) {
			if point != v.Point {
				return
			}
			if n++; n == v.Nth {
				testkit.Say("%s", v.id())
				<-goOn
			}
		})
		if err != nil {
			return err
		}
		all.Go(func() { _, errs[i] = l.Drain(context.Background()) })
	}
	testkit.Begin()
	close(goOn)
	all.Wait()
	return errors.Join(append(errs, rt.Close(context.Background()), store.Close())...)
}

// reactBlock starts a process that works on the logs of the visits, and returns when each of them is
// blocked at its point.
func reactBlock(t testing.TB, role, location string, visits []reactVisit) *testkit.Process {
	t.Helper()
	list, err := json.Marshal(visits)
	require.NoError(t, err)
	p := testkit.Start(t, role, stores.Env(location), reactEnvVisits+"="+string(list))
	missing := map[string]bool{"ready": true}
	for _, v := range visits {
		missing[v.id()] = true
	}
	for len(missing) > 0 {
		line, ok := p.Next()
		require.True(t, ok, "the child has ended before %v: %s", missing, p.Stderr())
		require.True(t, missing[line], line)
		delete(missing, line)
	}
	return p
}

// reactFinish works on the logs of the visits until all is handled, and compares the outcomes.
func reactFinish(t testing.TB, rt *pawl.Runtime, visits []reactVisit) {
	t.Helper()
	open := slices.Clone(visits)
	testkit.EventuallyWithin(t, time.Minute, func() bool { // the leases have to run out
		open = slices.DeleteFunc(open, func(v reactVisit) bool {
			l, err := reactWork(rt, v, 0, func(string) {})
			require.NoError(t, err)
			reactDrain(t, l)
			for _, p := range reactPositions(t, l, stream.Filter{}) {
				require.False(t, p.Blocked, "%s: %+v", v.id(), p)
				if p.Pending || p.Holder != "" {
					return false
				}
			}
			return true
		})
		return len(open) == 0
	}, "all events are handled")
	for _, v := range visits {
		require.Equal(t, reactWant(), reactOutcomeOf(t, rt, v), v.id())
	}
}

// A process is killed at each point of the work of a reaction. Another one finishes it: every event is
// handled, the writes and appends of the handlers are made once, and no lease is left. PAWL_SHORT
// leaves the first visit to each point. Proves LEASE-2, LEASE-5, STREAM-5.
func TestReactionKilledAtEveryPoint(t *testing.T) {
	t.Parallel() // it mostly waits
	visits := reactVisits(t, !testkit.Short)
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel()
		rt := reactOpen(t, stores.OpenFor(t, location), "host")
		for _, v := range visits {
			reactPrepare(t, rt, v)
		}
		reactBlock(t, "react-victim", location, visits).Kill()
		reactFinish(t, rt, visits)
	})
	testkit.Figures(t, "%d kills, at every visit of every point", len(visits))
}
