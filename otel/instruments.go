package otel

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// instruments are the metrics; docs/observability.md says what each of them counts.
type instruments struct {
	mutations, conflicts, incidents metric.Int64Counter
	wait, run, transactions         metric.Float64Histogram
	batch, queue                    metric.Int64Histogram
	store                           metric.Float64Histogram
	leases, watchers                metric.Int64UpDownCounter
	leaseEnds, missed, swept        metric.Int64Counter
	sweeps                          metric.Float64Histogram
	layers                          metric.Int64Counter
	layerLag, layerTook             metric.Float64Histogram
}

// Bounds of the buckets: seconds from 10 µs, which an adapter without I/O takes, to five minutes, and
// numbers up to the largest batch.
var (
	seconds = []float64{1e-5, 1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	numbers = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
)

// open makes the instruments. It returns the errors of m, joined.
func (i *instruments) open(m metric.Meter) error {
	var errs []error
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	gauge := func(name, unit, text string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	count := func(name, unit, text string) metric.Int64Histogram {
		h, err := m.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(numbers...))
		errs = append(errs, err)
		return h
	}
	duration := func(name, text string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(seconds...))
		errs = append(errs, err)
		return h
	}
	i.mutations = counter("pawl.mutations", "{mutation}", "Mutations that ended.")
	i.wait = duration("pawl.mutation.wait", "Time from the submission of a mutation to its turn.")
	i.run = duration("pawl.mutation.run", "Time from the turn of a mutation to its end, with all attempts.")
	i.conflicts = counter("pawl.conflicts", "{conflict}", "Commits that lost against another writer, one for each mutation in them.")
	i.incidents = counter("pawl.incidents", "{incident}", "Callers that left, and functions that are stuck, detached or abandoned.")
	i.batch = count("pawl.batch.size", "{mutation}", "Size of the batch that a committed mutation was in.")
	i.queue = count("pawl.queue.depth", "{mutation}", "Mutations that waited in the queue of a scope when another one came.")
	i.transactions = duration("pawl.transaction.duration", "Time of a Transact, with all attempts.")
	i.store = duration("pawl.store.duration", "Time of a call of the store.")
	i.leases = gauge("pawl.leases", "{lease}", "Leases held.")
	i.leaseEnds = counter("pawl.lease.ends", "{lease}", "Leases that ended.")
	i.watchers = gauge("pawl.watchers", "{watcher}", "Watches in progress.")
	i.missed = counter("pawl.watch.missed", "{version}", "Versions that watchers skipped.")
	i.swept = counter("pawl.swept", "{scope}", "Expired scopes that were cleared, and tombstones that were purged.")
	i.sweeps = duration("pawl.sweep.duration", "Time of a sweep of one kind.")
	i.layers = counter("pawl.layer.events", "{event}", "Events of layers, such as jobs and streams.")
	i.layerLag = duration("pawl.layer.lag", "How long the work of a layer was due.")
	i.layerTook = duration("pawl.layer.duration", "Time of the work of a layer.")
	return errors.Join(errs...)
}
