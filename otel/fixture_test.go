package otel_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/otel"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// counter is the state of the tests.
type counter struct {
	N int `json:"n"`
}

// errand is a job of the tests.
type errand struct {
	job.State
}

var (
	counters = pawl.Kind[counter]{Name: "counter"}
	brief    = pawl.Kind[counter]{Name: "brief", TTL: time.Microsecond}
	errands  = pawl.Kind[errand]{Name: "errand", Label: job.Label, Due: job.Due}

	errBusiness = errors.New("not enough credit")
	errNetwork  = errors.New("the answer was lost")
)

// open opens a runtime on an SQLite file, behind a tap.
func open(t testing.TB, observer pawl.Observer) (*pawl.Runtime, *stores.Tap) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"), sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	tap := &stores.Tap{Store: store}
	rt, err := pawl.Open(pawl.Config{Store: tap, Kinds: []pawl.AnyKind{counters, brief, errands}, Observer: observer})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt, tap
}

// exercise does everything that a metric counts. Afterwards one lease is held and one watch is in
// progress, until the test ends.
func exercise(t testing.TB, rt *pawl.Runtime, tap *stores.Tap) {
	t.Helper()
	ctx := t.Context()
	a := counters.Scope(rt, "a")
	inc := func(ctx context.Context, s pawl.Scope[counter]) error {
		_, err := s.IncState(ctx, "n", 1)
		return err
	}

	// Mutations: a commit, one without a change, a failure, a panic, one in memory.
	require.NoError(t, inc(ctx, a))
	_, err := a.PatchState(ctx, pawl.Patch{"n": 1})
	require.NoError(t, err)
	_, err = a.AtomicState(ctx, func(context.Context, *counter) error { return errBusiness })
	require.ErrorIs(t, err, errBusiness)
	require.Panics(t, func() {
		_, _ = a.AtomicState(ctx, func(context.Context, *counter) error { panic("a bug") })
	})
	require.NoError(t, inc(ctx, pawl.Memory[counter](rt, "m")))

	// A commit in doubt that has landed, and one of another writer that wins.
	var lost atomic.Bool
	tap.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
		if lost.CompareAndSwap(false, true) {
			return at, errNetwork
		}
		return at, err
	})
	require.NoError(t, inc(ctx, a))
	tap.OnCommitted(nil)
	other, err := pawl.Open(pawl.Config{Store: tap.Store})
	require.NoError(t, err)
	require.NoError(t, inc(ctx, counters.Scope(other, "a")))
	require.NoError(t, other.Close(ctx))
	require.NoError(t, inc(ctx, a))

	// A caller that leaves.
	short, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	_, err = a.AtomicState(short, func(context.Context, *counter) error {
		cancel()
		<-left
		return nil
	})
	close(left)
	require.ErrorAs(t, err, new(*pawl.CanceledError))

	// Transactions.
	require.NoError(t, pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		return errors.Join(inc(ctx, a.In(tx)), inc(ctx, counters.Scope(tx, "b")))
	}))
	require.ErrorIs(t, pawl.Transact(ctx, rt, func(context.Context, *pawl.Tx) error { return errBusiness }), errBusiness)

	// A watch that misses versions, and one that goes on.
	watched := counters.Scope(rt, "watched")
	require.NoError(t, inc(ctx, watched))
	seen := 0
	for _, err := range watched.Watch(ctx) {
		require.NoError(t, err)
		if seen++; seen == 2 {
			break
		}
		for range 3 {
			require.NoError(t, inc(ctx, watched))
		}
	}
	going, end := context.WithCancel(context.Background())
	changes := watched.Changes(going)
	<-changes
	t.Cleanup(func() {
		end()
		for range changes {
		}
	})

	// A sweep.
	require.NoError(t, inc(ctx, brief.Scope(rt, "x")))
	sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{})
	require.NoError(t, err)
	time.Sleep(time.Millisecond) // until x has expired, by the clock of the store
	swept, err := sweeper.Sweep(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, swept.Cleared)

	// A job that is late.
	worker, err := job.New(rt, job.Config[errand]{Kind: errands, Handle: func(context.Context, *job.Job[errand]) error { return nil }})
	require.NoError(t, err)
	_, err = errands.Scope(rt, "late").SetState(ctx, errand{State: job.At(time.Now().Add(-time.Minute))})
	require.NoError(t, err)
	done, err := worker.Once(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, done)

	// A lease that is held.
	_, err = counters.Scope(rt, "leased").Acquire(context.Background())
	require.NoError(t, err)
}

// newMeter returns an observer, and a function that collects its metrics by their names.
func newMeter(t testing.TB) (*otel.Observer, func() map[string]metricdata.Metrics) {
	t.Helper()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	o, err := otel.New(otel.Config{Meters: provider})
	require.NoError(t, err)
	return o, func() map[string]metricdata.Metrics {
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &all))
		out := map[string]metricdata.Metrics{}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				out[m.Name] = m
			}
		}
		return out
	}
}

// point is one series: the value of a counter or gauge, or the number and sum of a histogram.
type point struct {
	attributes map[string]string
	value      int64
	sum        float64
}

// points returns the series of a metric.
func points(t testing.TB, m metricdata.Metrics) (out []point) {
	t.Helper()
	switch data := m.Data.(type) {
	case nil: // nothing was recorded
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			out = append(out, point{named(p.Attributes), p.Value, float64(p.Value)})
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			out = append(out, point{named(p.Attributes), int64(p.Count), float64(p.Sum)})
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			out = append(out, point{named(p.Attributes), int64(p.Count), p.Sum})
		}
	default:
		require.Fail(t, "unexpected data", "%s: %T", m.Name, m.Data)
	}
	return out
}

func named(set attribute.Set) map[string]string {
	out := map[string]string{}
	for _, a := range set.ToSlice() {
		out[string(a.Key)] = a.Value.AsString()
	}
	return out
}

// total returns the value and sum of all series of a metric that have these attributes, given as
// alternating keys and values.
func total(t testing.TB, m metricdata.Metrics, attributes ...string) (value int64, sum float64) {
	t.Helper()
	for _, p := range points(t, m) {
		match := true
		for i := 0; i < len(attributes); i += 2 {
			match = match && p.attributes[attributes[i]] == attributes[i+1]
		}
		if match {
			value, sum = value+p.value, sum+p.sum
		}
	}
	return value, sum
}
