// Package otel is a pawl.Observer for OpenTelemetry. It makes metrics of the events of a runtime, and
// spans below those of the callers. docs/observability.md lists the metrics, and dashboard.json shows
// them in Grafana.
//
//	observer, err := otel.New(otel.Config{})
//	...
//	rt, err := pawl.Open(pawl.Config{Store: store, Observer: observer})
//
// Attributes of metrics are kinds, paths, verbs, outcomes and error codes, never ids. An Observer
// keeps at most MaxSeries combinations of them apart, over all its metrics; further ones are counted
// under the kind "other".
//
// A span begins and ends when its mutation has ended, with the times of the mutation. Spans that the
// function of a mutation starts are therefore its siblings, not its children. A context without a span
// gets none: a commit that many callers share belongs to no trace.
package otel
