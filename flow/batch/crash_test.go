package batch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	// It is idle while it is blocked, so that it can be paused without a lock of its store.
	testkit.Child("victim", func() error { return beginAll(givenLease(), 10*time.Second) })
	// Its many leases are renewed seldom, so that it can be stopped between two renewals.
	testkit.Child("sleeper", func() error { return beginAll(4*givenLease(), 10*time.Second) })
}

// Variables of the child.
const (
	envVisits = "PAWL_TEST_VISITS" // the visits to block at, as JSON
	envFolder = "PAWL_TEST_FOLDER" // of the images
	envLease  = "PAWL_TEST_LEASE"
)

// shortLease is the least lease of processes that the tests kill or pause. It survives a short pause of
// a busy machine.
var shortLease = 1500 * time.Millisecond

func init() {
	if testkit.Race {
		shortLease *= 2 // everything is slower
	}
}

// givenLease returns the lease that the parent gives to a child.
func givenLease() time.Duration {
	lease, err := time.ParseDuration(os.Getenv(envLease))
	if err != nil {
		panic(err)
	}
	return lease
}

// visit is a moment of the matrix: an operation reaches a point for the nth time. It has a job.
type visit struct {
	Operation, Point string
	Nth              int
}

func (v visit) id() string { return fmt.Sprintf("%s/%s/%d", v.Operation, v.Point, v.Nth) }

// of returns the operation of a job.
func of(id string) operation {
	name, _, _ := strings.Cut(id, "/")
	return operations[name]
}

// reference is an operation without a crash.
type reference struct {
	outcome outcome
	visits  []visit
}

// references runs each operation in memory.
func references(t testing.TB) map[string]reference {
	t.Helper()
	location := stores.Memory.New(t)
	return runAll(t, stores.OpenFor(t, location), stores.OpenFor(t, location))
}

// runAll runs each operation without a crash: one process begins it, another repeats it.
func runAll(t testing.TB, begins, repeats persist.Store) map[string]reference {
	t.Helper()
	all, folder := map[string]reference{}, t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		first, second := openBench(t, begins, folder), openBench(t, repeats, folder)
		id := visit{name, "none", 0}.id()
		require.NoError(t, second.prepare(id), name)
		var r reference
		var mu sync.Mutex
		ended := make(chan struct{})
		seen := map[string]int{}
		first.hook = func(point, _ string) {
			mu.Lock()
			defer mu.Unlock()
			seen[point]++
			if only := operations[name].only; only == nil || slices.Contains(only, point) && seen[point] == 1 {
				r.visits = append(r.visits, visit{name, point, seen[point]})
			}
			if point == "ended" && seen[point] == 1 { // a queue that is being stopped may take it again
				close(ended)
			}
		}
		require.NoError(t, first.begin(id), name)
		if operations[name].act == nil {
			testkit.Receive(t, ended, name)
		}
		require.NoError(t, first.stop(), name)
		require.NoError(t, second.again(id), name)
		r.outcome = second.outcome(t, id)
		require.Equal(t, operations[name].want, r.outcome.String(), name)
		all[name] = r
	}
	return all
}

// beginAll begins the operations of the visits, in a child, and blocks each at its point. It
// continues when it is told to, and ends when all of them have ended.
func beginAll(lease, poll time.Duration) error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	var visits []visit
	if err := json.Unmarshal([]byte(os.Getenv(envVisits)), &visits); err != nil {
		return err
	}
	b, err := newBench(store, os.Getenv(envFolder))
	if err != nil {
		return err
	}
	b.lease, b.poll = lease, poll
	var mu sync.Mutex
	seen, goOn := map[visit]bool{}, make(chan struct{})
	b.hook = func(point, id string) {
		name, _, _ := strings.Cut(id, "/")
		mu.Lock()
		n := 1
		for seen[visit{id, point, n}] {
			n++
		}
		seen[visit{id, point, n}] = true
		mu.Unlock()
		if v := (visit{name, point, n}); v.id() == id {
			testkit.Say("%s", id)
			<-goOn
		}
	}
	var all sync.WaitGroup
	for _, v := range visits {
		all.Go(func() {
			err := b.begin(v.id())
			for errors.Is(err, pawl.ErrLeaseLost) { // on a busy machine, or after a pause
				err = b.begin(v.id())
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, v.id(), err)
			}
		})
	}
	testkit.Begin()
	close(goOn)
	all.Wait()
	return errors.Join(b.stop(), b.rt.Close(context.Background()), store.Close())
}

// matrix returns the visits of all operations: each point that an operation reaches, and each time
// that it does so if all is true.
func matrix(refs map[string]reference, all bool) (visits []visit) {
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		for _, v := range refs[name].visits {
			if all || v.Nth == 1 {
				visits = append(visits, v)
			}
		}
	}
	return visits
}

// startChild starts a process that begins the operations of the visits.
func startChild(t testing.TB, role, location string, b *bench, visits []visit, env ...string) *testkit.Process {
	t.Helper()
	list, err := json.Marshal(visits)
	require.NoError(t, err)
	return testkit.Start(t, role, append(env, stores.Env(location), envVisits+"="+string(list), envFolder+"="+b.folder)...)
}

// block starts a process in a role that begins the operations of the visits, and returns when each of
// them is blocked at its point.
//
// A process that loses a lease on the way may never come to a point: its own Cancel gets the lease then,
// and requests nothing of a worker. All jobs are begun at once, and share the store with the renewals.
// So a lease is at least as long as the preparation of the jobs, which makes about as many commits.
func block(t testing.TB, role, location string, b *bench, visits []visit) *testkit.Process {
	t.Helper()
	began := time.Now()
	for _, v := range visits {
		require.NoError(t, b.prepare(v.id()), v)
	}
	lease := max(shortLease, time.Since(began))
	p := startChild(t, role, location, b, visits, envLease+"="+lease.String())
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

// repeat repeats the operations of the visits and compares what comes out with the references.
func repeat(t testing.TB, b *bench, visits []visit, refs map[string]reference) {
	t.Helper()
	errs := make([]error, len(visits))
	var all sync.WaitGroup
	for i, v := range visits {
		all.Go(func() { errs[i] = b.again(v.id()) })
	}
	all.Wait()
	for i, v := range visits {
		require.NoError(t, errs[i], v.id())
	}
	compare(t, b, visits, refs)
}

func compare(t testing.TB, b *bench, visits []visit, refs map[string]reference) {
	t.Helper()
	for _, v := range visits {
		require.Equal(t, refs[v.Operation].outcome, b.outcome(t, v.id()), v.id())
	}
}

// A process is killed at each point of the protocol, in each operation that reaches it, and the
// operation is repeated. The end, the totals, the balance and the images are those without a crash.
// PAWL_SHORT leaves the first visit to each point. Proves CANCEL-3, CANCEL-5, CANCEL-6, CANCEL-11.
func TestKilledAtEveryPoint(t *testing.T) {
	refs := references(t)
	visits := matrix(refs, !testkit.Short)
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		b := openBench(t, stores.OpenFor(t, location), t.TempDir())
		block(t, "victim", location, b, visits).Kill()
		repeat(t, b, visits, refs)
	})
	testkit.Figures(t, "%d kills, at every visit of every point", len(visits))
}
