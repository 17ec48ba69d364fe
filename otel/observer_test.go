package otel_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/otel"
	"github.com/pawl-go/pawl/persist"
)

// Each event is counted once, under its kind, path, verb and outcome.
func TestMetrics(t *testing.T) {
	o, collect := newMeter(t)
	rt, tap := open(t, o)
	exercise(t, rt, tap)
	got := collect()
	for _, want := range []struct {
		value      int64
		metric     string
		attributes string
	}{
		{1, "pawl.mutations", "kind=counter path=cas verb=Patch outcome=unchanged"},
		{1, "pawl.mutations", "kind=counter path=cas verb=Atomic outcome=failed code=INTERNAL"},
		{1, "pawl.mutations", "kind=counter path=cas verb=Atomic outcome=panicked"},
		{1, "pawl.mutations", "kind=memory path=lock verb=Inc outcome=committed"},
		{7, "pawl.mutations", "kind=counter path=cas verb=Inc outcome=committed"},
		{2, "pawl.mutations", "kind=counter path=tx verb=Transact outcome=committed"},
		{7, "pawl.mutation.wait", "kind=counter path=cas verb=Inc outcome=committed"},
		{7, "pawl.mutation.run", "kind=counter path=cas verb=Inc outcome=committed"},
		{0, "pawl.mutation.run", "path=lock"},
		{7, "pawl.batch.size", "kind=counter path=cas verb=Inc"},
		{1, "pawl.conflicts", "kind=counter path=cas verb=Inc"},
		{1, "pawl.incidents", "kind=counter path=cas verb=Atomic outcome=withdrawn"},
		{1, "pawl.transaction.duration", "kind=counter path=tx verb=Transact outcome=ok"},
		{1, "pawl.transaction.duration", "path=tx verb=Transact outcome=failed code=INTERNAL"},
		{1, "pawl.store.duration", "kind=counter verb=Commit outcome=in doubt"},
		{2, "pawl.store.duration", "kind=counter verb=Commit outcome=conflict"},
		{0, "pawl.store.duration", "outcome=failed"},
		{1, "pawl.leases", "kind=counter"},
		{0, "pawl.leases", "kind=errand"},
		{1, "pawl.lease.ends", "kind=errand outcome=released"},
		{1, "pawl.watchers", "kind=counter"},
		{2, "pawl.watch.missed", "kind=counter"},
		{1, "pawl.swept", "kind=brief verb=Clear"},
		{1, "pawl.sweep.duration", "kind=brief verb=Clear outcome=ok"},
		{1, "pawl.layer.events", "kind=errand path=job verb=taken outcome=ok"},
		{1, "pawl.layer.events", "kind=errand path=job verb=done outcome=ok"},
		{1, "pawl.layer.duration", "kind=errand path=job verb=done outcome=ok"},
	} {
		var attributes []string
		for _, a := range strings.Split(strings.ReplaceAll(want.attributes, "in doubt", "in_doubt"), " ") {
			key, value, _ := strings.Cut(a, "=")
			attributes = append(attributes, key, strings.ReplaceAll(value, "in_doubt", "in doubt"))
		}
		value, _ := total(t, got[want.metric], attributes...)
		assert.Equal(t, want.value, value, "%s %s: %v", want.metric, want.attributes, points(t, got[want.metric]))
	}
	_, lag := total(t, got["pawl.layer.lag"], "kind", "errand", "verb", "taken")
	assert.InDelta(t, 60, lag, 10, "seconds")
	queued, _ := total(t, got["pawl.queue.depth"], "kind", "counter")
	assert.Positive(t, queued)
}

// The documentation lists every metric with its unit, and no other one.
func TestMetricsAreDocumented(t *testing.T) {
	o, collect := newMeter(t)
	rt, tap := open(t, o)
	exercise(t, rt, tap)
	text, err := os.ReadFile("../docs/observability.md")
	require.NoError(t, err)
	all := collect()
	for _, m := range all {
		assert.Contains(t, string(text), fmt.Sprintf("| `%s` | %s |", m.Name, m.Unit))
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "| `pawl."); ok {
			name, _, _ = strings.Cut(name, "`")
			assert.Contains(t, all, "pawl."+name)
		}
	}
}

// No metric has an id, and the number of series is bounded, whatever names events have.
func TestSeriesAreBounded(t *testing.T) {
	o, collect := newMeter(t)
	rt, tap := open(t, o)
	exercise(t, rt, tap)
	known := map[string]bool{"kind": true, "path": true, "verb": true, "outcome": true, "code": true}
	for name, m := range collect() {
		for _, p := range points(t, m) {
			for key, value := range p.attributes {
				assert.True(t, known[key], "%s: %s", name, key)
				assert.NotContains(t, []string{"a", "b", "m", "x", "watched", "late", "leased"}, value, "the id of a scope")
			}
		}
	}
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for i := range 2 * otel.MaxSeries {
				kind := fmt.Sprint(part, " ", i)
				o.Observe(t.Context(), pawl.Event{Type: pawl.EventCommitted, Path: "lock", Verb: kind, Key: pawl.Key{Kind: kind, ID: "1"}})
			}
		})
	}
	all.Wait()
	mutations := collect()["pawl.mutations"]
	assert.LessOrEqual(t, len(points(t, mutations)), otel.MaxSeries+5)
	beyond, _ := total(t, mutations, "kind", "other", "outcome", "committed")
	assert.Greater(t, beyond, int64(6*otel.MaxSeries))
	sum, _ := total(t, mutations, "path", "lock")
	assert.Equal(t, int64(4*2*otel.MaxSeries)+1, sum+beyond, "every mutation is counted")
}

// coded is an error of a user, with a code of its own.
type coded string

func (c coded) Error() string { return string(c) }
func (c coded) Code() string  { return string(c) }
func (coded) HTTPStatus() int { return 400 }

// Codes that contain ids leave room for other series.
func TestCodesLeaveRoom(t *testing.T) {
	o, collect := newMeter(t)
	for i := range 2 * otel.MaxSeries {
		err := coded(fmt.Sprint("ORDER_", i))
		o.Observe(t.Context(), pawl.Event{Type: pawl.EventFailed, Path: "cas", Verb: "Set", Key: pawl.Key{Kind: "order"}, Err: err})
	}
	o.Observe(t.Context(), pawl.Event{Type: pawl.EventCommitted, Path: "cas", Verb: "Set", Key: pawl.Key{Kind: "late"}})
	late, _ := total(t, collect()["pawl.mutations"], "kind", "late", "outcome", "committed")
	assert.Equal(t, int64(1), late)
	beyond, _ := total(t, collect()["pawl.mutations"], "kind", "order", "code", "other")
	assert.GreaterOrEqual(t, beyond, int64(otel.MaxSeries))
}

// A call of the store is sorted by what its error promises.
func TestStoreOutcomes(t *testing.T) {
	for _, test := range []struct {
		verb    string
		batch   int
		err     error
		outcome string
	}{
		{"Load", 0, nil, "ok"},
		{"Load", 0, persist.ErrUnavailable, "failed"},
		{"Commit", 1, &persist.Conflict{}, "conflict"},
		{"Commit", 1, fmt.Errorf("wrapped: %w", &persist.Fenced{}), "fenced"},
		{"Commit", 1, fmt.Errorf("%w: disk full", persist.ErrNotApplied), "refused"},
		{"Commit", 1, persist.ErrClosed, "refused"},
		{"Commit", 0, errNetwork, "refused"},
		{"Commit", 1, errNetwork, "in doubt"},
		{"Commit", 1, persist.ErrUnavailable, "in doubt"},
	} {
		o, collect := newMeter(t)
		o.Observe(t.Context(), pawl.Event{Type: pawl.EventStoreCalled, Verb: test.verb, Batch: test.batch, Err: test.err, Took: time.Millisecond})
		n, _ := total(t, collect()["pawl.store.duration"], "verb", test.verb, "outcome", test.outcome)
		assert.EqualValues(t, 1, n, "%+v", test)
	}
}

// tracing returns an observer, a tracer for callers, and the spans that ended.
func tracing(t *testing.T) (*otel.Observer, *trace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	o, err := otel.New(otel.Config{Tracers: provider})
	require.NoError(t, err)
	return o, provider, spans
}

// Mutations, transactions and reads of the store are spans below that of their caller.
func TestSpans(t *testing.T) {
	o, provider, spans := tracing(t)
	rt, _ := open(t, o)
	s := counters.Scope(rt, "a")
	_, err := s.IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	require.Empty(t, spans.Ended(), "a caller without a span")

	ctx, caller := provider.Tracer("caller").Start(t.Context(), "request")
	_, err = s.State(ctx)
	require.NoError(t, err)
	_, err = s.AtomicState(ctx, func(_ context.Context, c *counter) error {
		time.Sleep(10 * time.Millisecond)
		c.N++
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, pawl.Transact(ctx, rt, func(context.Context, *pawl.Tx) error { return errBusiness }), errBusiness)
	caller.End()

	byName := map[string]trace.ReadOnlySpan{}
	for _, span := range spans.Ended() {
		byName[span.Name()] = span
		assert.Equal(t, caller.SpanContext().TraceID(), span.SpanContext().TraceID())
		if span.Name() != "request" {
			assert.Equal(t, caller.SpanContext().SpanID(), span.Parent().SpanID(), span.Name())
		}
	}
	require.Len(t, byName, 4, "%v", byName)
	require.Contains(t, byName, "pawl store Load")
	atomic := byName["pawl Atomic"]
	require.NotNil(t, atomic)
	assert.GreaterOrEqual(t, atomic.EndTime().Sub(atomic.StartTime()), 10*time.Millisecond)
	got := map[string]any{}
	for _, a := range atomic.Attributes() {
		got[string(a.Key)] = a.Value.AsInterface()
	}
	assert.Equal(t, "counter", got["pawl.kind"])
	assert.Equal(t, "a", got["pawl.id"])
	assert.Equal(t, "committed", got["pawl.outcome"])
	assert.EqualValues(t, 2, got["pawl.version"])
	assert.Equal(t, codes.Unset, atomic.Status().Code)
	assert.Equal(t, trace.Status{Code: codes.Error, Description: errBusiness.Error()}, byName["pawl Transact"].Status())
}

// What happens to a mutation on its way is an event of its caller's span.
func TestSpanEvents(t *testing.T) {
	o, provider, spans := tracing(t)
	rt, _ := open(t, o)
	ctx, caller := provider.Tracer("caller").Start(t.Context(), "request")
	free := make(chan struct{})
	_, err := pawl.Memory[counter](rt, "a").AtomicState(ctx, func(context.Context, *counter) error {
		<-free
		return nil
	}, pawl.WithTimeout(time.Millisecond))
	require.ErrorAs(t, err, new(*pawl.ScopeMutationTimeoutError))
	caller.End()
	close(free)
	for _, span := range spans.Ended() {
		if span.Name() == "request" {
			require.NotEmpty(t, span.Events())
			require.Equal(t, "pawl timed out", span.Events()[0].Name)
			return
		}
	}
	require.Fail(t, "no span of the caller")
}
