package run_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func init() { testkit.Child("victim", victimChild) }

// Variables of the child.
const (
	envStep  = "PAWL_TEST_STEP" // the step at which it blocks
	envLease = "PAWL_TEST_LEASE"
)

// shortLease is the least lease of processes that the tests kill. It survives a short pause of a busy
// machine.
const shortLease = 1500 * time.Millisecond

// givenLease returns the lease of a child: what the parent gives, or shortLease.
func givenLease() time.Duration {
	lease, _ := time.ParseDuration(os.Getenv(envLease))
	return max(lease, shortLease)
}

const longSteps = 20

// moments are the boundaries of a step at which a process is killed. "after" is before its commit.
var moments = []string{"before", "inside", "after"}

func stepName(i int) string { return fmt.Sprintf("s%02d", i) }

// longRun returns the steps of a long run. inside is called in each step.
func longRun(inside func(key, step string)) (steps []run.Step[order]) {
	for i := range longSteps {
		s := step(stepName(i), func(_ context.Context, a *attempt) (run.Next, error) {
			inside(a.State.ID, stepName(i))
			return run.Continue(), nil
		})
		s.Retry.Attempts = 10
		steps = append(steps, s)
	}
	return steps
}

// startLong starts a long run whose key and order say where its worker is killed.
func startLong(t testing.TB, runs *run.Runs[order], key string) run.Run[order] {
	t.Helper()
	r, _, err := runs.Start(t.Context(), order{ID: key}, run.WithKey(key))
	require.NoError(t, err)
	return r
}

// victimChild works on long runs, and blocks each at the moment and step of its key. The parent may
// name the step instead.
func victimChild() error {
	rt, _, err := openGiven()
	if err != nil {
		return err
	}
	block := func(moment, key, step string) {
		if at := moment + " " + step; at == key || at == key+" "+os.Getenv(envStep) {
			testkit.Say("%s", at)
			select {}
		}
	}
	e, _ := engine(rt, run.Config{Lease: givenLease(), Poll: 50 * time.Millisecond, Concurrency: len(moments) * longSteps},
		longRun(func(key, step string) { block("inside", key, step) })...)
	e.Observe(block)
	testkit.Begin()
	if err := e.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// checkLong checks a long run that has ended: each step was committed once and in order, and the
// version counts two for each step and one for each attempt that was interrupted.
func checkLong(t testing.TB, rt *pawl.Runtime, r run.Run[order]) {
	t.Helper()
	require.Equal(t, run.Completed, r.Status, "%s: %s", r.Key, r.Error)
	version := uint64(1)
	for i, s := range r.Steps {
		require.Equal(t, stepName(i), r.State.Log[i], r.Key)
		require.Equal(t, run.Completed, s.Status)
		version += 1 + uint64(s.Attempts)
	}
	require.Len(t, r.State.Log, longSteps, r.Key)
	require.Equal(t, version, r.Version, r.Key)
	sum, err := totals.Scope(rt, r.ID).State(t.Context())
	require.NoError(t, err)
	require.Equal(t, longSteps, sum.Steps, r.Key)
}

// interrupted returns the number of attempts of all steps that did not end.
func interrupted(r run.Run[order]) (n int) {
	for _, s := range r.Steps {
		n += s.Attempts - 1
	}
	return n
}

// A process is killed that has sixty runs, one at each boundary of each of twenty steps. Another
// process completes them all: no step is lost, repeated in a commit or out of order. PAWL_SHORT
// leaves one boundary of every second step, in turn. Proves RUN-2, RUN-5, RUN-8, RUN-9.
func TestKilledAtEveryBoundary(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		rt := open(t, stores.OpenFor(t, location))
		e, runs := engine(rt, run.Config{Poll: 50 * time.Millisecond}, longRun(func(string, string) {})...)
		var all []run.Run[order]
		places := map[string]bool{}
		began := time.Now()
		for i := range longSteps {
			for m, moment := range moments {
				if testkit.Short && (i%2 == 1 || m != i%len(moments)) {
					continue
				}
				place := moment + " " + stepName(i)
				places[place] = true
				all = append(all, startLong(t, runs, place))
			}
		}
		// A victim that loses the lease of a run it has blocked takes that run again. Its renewals wait
		// behind the commits of all runs, so the lease is longer than it took to start them.
		lease := min(2*time.Since(began), 15*time.Second)
		p := testkit.Start(t, "victim", stores.Env(location), envLease+"="+lease.String())
		testkit.Ready(p)
		for range len(all) {
			place := p.Line()
			require.True(t, places[place], place)
			delete(places, place)
		}
		p.Kill()

		for i, r := range all {
			r, err := runs.Get(t.Context(), r.ID)
			require.NoError(t, err)
			require.Equal(t, run.Running, r.Status, r.Key)
			require.NotZero(t, r.StartedAt)
			_, at, _ := strings.Cut(r.Key, " ")
			require.Equal(t, at, stepName(len(r.State.Log)), "the steps before it are committed: %s", r.Key)
			all[i] = r
		}
		require.NoError(t, e.Start(t.Context()))
		for _, was := range all {
			r := finished(t, runs, was.ID)
			checkLong(t, rt, r)
			require.GreaterOrEqual(t, interrupted(r), 1, r.Key)
			require.True(t, was.StartedAt.Equal(r.StartedAt), r.Key)
		}
		testkit.Figures(t, "%d runs killed at a boundary of a step", len(all))
		require.NoError(t, e.Stop(t.Context()))
	})
}

// The worker of a run is killed at step after step, each time another process takes over. Proves
// RUN-2, RUN-8, RUN-9.
func TestKilledAgainAndAgain(t *testing.T) {
	kills := testkit.Times(longSteps, 2, "PAWL_KILLS")
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		rt := open(t, stores.OpenFor(t, location))
		e, runs := engine(rt, run.Config{Poll: 50 * time.Millisecond}, longRun(func(string, string) {})...)
		var all []run.Run[order]
		for _, moment := range moments {
			all = append(all, startLong(t, runs, moment))
		}
		for i := range min(kills, longSteps) {
			p := testkit.Start(t, "victim", stores.Env(location), envStep+"="+stepName(i))
			testkit.Ready(p)
			for range moments {
				p.Line()
			}
			p.Kill()
		}
		require.NoError(t, e.Start(t.Context()))
		for _, r := range all {
			r = finished(t, runs, r.ID)
			checkLong(t, rt, r)
			require.GreaterOrEqual(t, interrupted(r), min(kills, longSteps), r.Key)
		}
		testkit.Figures(t, "%d runs, %d kills of the worker of each", len(all), min(kills, longSteps))
		require.NoError(t, e.Stop(t.Context()))
	})
}

// A worker that is killed during the only attempt of a step's policy does not fail the run: the
// policy is for errors. Proves RUN-8.
func TestCrashIsNotAnError(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		rt := open(t, stores.OpenFor(t, location))
		ran := false
		s := step(stepName(0), func(context.Context, *attempt) (run.Next, error) {
			ran = true
			return run.Continue(), nil
		})
		s.Retry.Attempts = 1
		e, runs := engine(rt, run.Config{Poll: 50 * time.Millisecond}, s)
		r := startLong(t, runs, "inside "+stepName(0))
		p := testkit.Start(t, "victim", stores.Env(location))
		testkit.Ready(p)
		p.Line()
		p.Kill()
		require.NoError(t, e.Start(t.Context()))
		r = finished(t, runs, r.ID)
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, 2, r.Steps[0].Attempts)
		require.NoError(t, e.Stop(t.Context()))
		require.True(t, ran)
	})
}
