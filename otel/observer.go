package otel

import (
	"cmp"
	"context"
	"errors"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// name is that of the meter and of the tracer.
const name = "github.com/pawl-go/pawl/otel"

// Config configures an Observer. Its zero value uses the global providers of OpenTelemetry.
type Config struct {
	// Meters gets the metrics. Nil means the global provider, as it is when New is called.
	Meters metric.MeterProvider
	// Tracers gets the spans. Nil means the global provider; the one of trace/noop turns spans off.
	Tracers trace.TracerProvider
}

// Observer is a pawl.Observer. Several runtimes may share one.
type Observer struct {
	instruments
	series table
	tracer trace.Tracer
}

var _ pawl.Observer = (*Observer)(nil)

// New returns an observer. It returns the errors of the meter provider, joined.
func New(c Config) (*Observer, error) {
	c.Meters = cmp.Or(c.Meters, api.GetMeterProvider())
	c.Tracers = cmp.Or(c.Tracers, api.GetTracerProvider())
	o := &Observer{tracer: c.Tracers.Tracer(name)}
	err := o.instruments.open(c.Meters.Meter(name))
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Outcomes of mutations and transactions, of calls of the store, and of layers.
const (
	committed = "committed"
	unchanged = "unchanged"
	failed    = "failed"
	unknown   = "unknown" // it may have been committed
	panicked  = "panicked"

	ok       = "ok"
	conflict = "conflict" // the version has moved
	fenced   = "fenced"   // the lease was lost
	refused  = "refused"  // nothing was written
	inDoubt  = "in doubt" // the commit may have been applied
)

// Observe implements pawl.Observer.
func (o *Observer) Observe(ctx context.Context, e pawl.Event) {
	switch e.Type {
	case pawl.EventQueued:
		o.queue.Record(ctx, int64(e.Queue), o.series.find(labels{kind: e.Key.Kind, path: e.Path}).record...)
	case pawl.EventCommitted:
		o.ended(ctx, e, committed)
	case pawl.EventUnchanged:
		o.ended(ctx, e, unchanged)
	case pawl.EventTransacted:
		o.ended(ctx, e, ok)
	case pawl.EventPanicked:
		o.ended(ctx, e, panicked)
	case pawl.EventFailed:
		outcome := failed
		if pawl.OutcomeUnknown(e.Err) {
			outcome = unknown
		}
		o.ended(ctx, e, outcome)
	case pawl.EventConflicted:
		o.conflicts.Add(ctx, 1, o.of(e, "", "").add...)
		o.note(ctx, e)
	case pawl.EventTimedOut, pawl.EventWithdrawn, pawl.EventStuck, pawl.EventDetached, pawl.EventAbandoned:
		o.incidents.Add(ctx, 1, o.of(e, e.Type.String(), "").add...)
		o.note(ctx, e)
	case pawl.EventLeaseAcquired:
		o.leases.Add(ctx, 1, o.ofKind(e).add...)
	case pawl.EventLeaseReleased:
		o.leaseEnded(ctx, e, "released")
	case pawl.EventLeaseLost:
		o.leaseEnded(ctx, e, "lost")
		o.note(ctx, e)
	case pawl.EventStoreCalled:
		o.storeCalled(ctx, e)
	case pawl.EventWatchStarted:
		o.watchers.Add(ctx, 1, o.ofKind(e).add...)
	case pawl.EventWatchEnded:
		o.watchers.Add(ctx, -1, o.ofKind(e).add...)
	case pawl.EventWatchMissed:
		o.missed.Add(ctx, int64(e.Batch), o.ofKind(e).add...)
	case pawl.EventSwept:
		o.swept.Add(ctx, int64(e.Batch), o.of(e, "", "").add...)
		o.sweeps.Record(ctx, e.Took.Seconds(), o.of(e, okOr(e.Err), "").record...)
	case pawl.EventNoted:
		o.noted(ctx, e)
	}
}

// of returns the series of an event.
func (o *Observer) of(e pawl.Event, outcome, code string) *options {
	return o.series.find(labels{kind: e.Key.Kind, path: e.Path, verb: e.Verb, outcome: outcome, code: code})
}

// ofKind returns the series of the kind of an event.
func (o *Observer) ofKind(e pawl.Event) *options { return o.series.find(labels{kind: e.Key.Kind}) }

// ended records the end of a mutation or of a transaction.
func (o *Observer) ended(ctx context.Context, e pawl.Event, outcome string) {
	code := ""
	if outcome == failed {
		code = pawl.Code(e.Err)
	}
	series := o.of(e, outcome, code)
	if e.Path == "tx" && outcome != committed { // a transaction; otherwise one scope that it wrote
		o.transactions.Record(ctx, e.Took.Seconds(), series.record...)
		o.span(ctx, e, outcome)
		return
	}
	o.mutations.Add(ctx, 1, series.add...)
	if e.Path == "tx" {
		return
	}
	if e.Batch > 0 && e.Path == "cas" {
		o.batch.Record(ctx, int64(e.Batch), o.of(e, "", "").record...)
	}
	if e.Took > 0 { // otherwise it found its scope idle, or panicked, and was not timed
		o.wait.Record(ctx, e.Waited.Seconds(), series.record...)
		o.run.Record(ctx, (e.Took - e.Waited).Seconds(), series.record...)
	}
	o.span(ctx, e, outcome)
}

func (o *Observer) leaseEnded(ctx context.Context, e pawl.Event, how string) {
	o.leases.Add(ctx, -1, o.ofKind(e).add...)
	o.leaseEnds.Add(ctx, 1, o.series.find(labels{kind: e.Key.Kind, outcome: how}).add...)
}

func (o *Observer) storeCalled(ctx context.Context, e pawl.Event) {
	outcome := storeOutcome(e)
	o.store.Record(ctx, e.Took.Seconds(), o.of(e, outcome, "").record...)
	o.span(ctx, e, outcome)
}

// storeOutcome tells what became of a call of the store; see pawl.EventStoreCalled.
func storeOutcome(e pawl.Event) string {
	if e.Err == nil {
		return ok
	}
	var (
		moved *persist.Conflict
		lost  *persist.Fenced
	)
	switch {
	case errors.As(e.Err, &moved):
		return conflict
	case errors.As(e.Err, &lost):
		return fenced
	case e.Verb != "Commit":
		return failed
	case e.Batch == 0, errors.Is(e.Err, persist.ErrNotApplied), errors.Is(e.Err, persist.ErrClosed), errors.Is(e.Err, persist.ErrUnsupported):
		return refused
	}
	return inDoubt
}

// noted records an event of a layer.
func (o *Observer) noted(ctx context.Context, e pawl.Event) {
	series := o.of(e, okOr(e.Err), "")
	o.layers.Add(ctx, 1, series.add...)
	if e.Waited > 0 {
		o.layerLag.Record(ctx, e.Waited.Seconds(), series.record...)
	}
	if e.Took > 0 {
		o.layerTook.Record(ctx, e.Took.Seconds(), series.record...)
	}
}

func okOr(err error) string {
	if err != nil {
		return failed
	}
	return ok
}
