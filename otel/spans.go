package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawl-go/pawl"
)

// span makes a span of an event that ends something, below the span of its caller. It makes none if
// ctx has no span.
func (o *Observer) span(ctx context.Context, e pawl.Event, outcome string) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	name := "pawl " + e.Verb
	if e.Type == pawl.EventStoreCalled {
		name = "pawl store " + e.Verb
	}
	end := time.Now()
	_, span := o.tracer.Start(ctx, name, trace.WithTimestamp(end.Add(-e.Took)))
	if span.IsRecording() {
		span.SetAttributes(attributes(e)...)
		span.SetAttributes(attribute.String("pawl.outcome", outcome))
		if e.Err != nil {
			span.SetStatus(codes.Error, e.Err.Error())
		} else if outcome == panicked {
			span.SetStatus(codes.Error, "runtime.Goexit was called")
		}
	}
	span.End(trace.WithTimestamp(end))
}

// note adds an event to the span of the caller, if it has one.
func (o *Observer) note(ctx context.Context, e pawl.Event) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("pawl "+e.Type.String(), trace.WithAttributes(attributes(e)...))
	}
}

// attributes returns the attributes of a span, which may have ids.
func attributes(e pawl.Event) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String("pawl.kind", e.Key.Kind), attribute.String("pawl.verb", e.Verb)}
	if e.Key.ID != "" {
		all = append(all, attribute.String("pawl.id", e.Key.ID))
	}
	if e.Path != "" {
		all = append(all, attribute.String("pawl.path", e.Path))
	}
	if e.Version != 0 {
		all = append(all, attribute.Int64("pawl.version", int64(e.Version)))
	}
	if e.Attempts != 0 {
		all = append(all, attribute.Int("pawl.attempts", e.Attempts))
	}
	if e.Batch != 0 {
		all = append(all, attribute.Int("pawl.batch", e.Batch))
	}
	if e.Waited != 0 {
		all = append(all, attribute.Float64("pawl.waited", e.Waited.Seconds()))
	}
	if e.Type != pawl.EventConflicted && e.Err != nil {
		all = append(all, attribute.String("pawl.code", pawl.Code(e.Err)))
	}
	return all
}
