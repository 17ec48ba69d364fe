package otel

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// MaxSeries is the number of combinations of attributes that an Observer keeps apart. Of further ones,
// only the outcome is told. When half of them are in use, new ones have the code "other".
const MaxSeries = 2000

// other stands for names beyond MaxSeries.
const other = "other"

// labels are the attributes of one series. Empty ones are left out.
type labels struct{ kind, path, verb, outcome, code string }

// options are the attributes of a series, as instruments take them.
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// table keeps the options of each series, so that an event need not make them. Its zero value is
// empty.
type table struct {
	known atomic.Pointer[map[labels]*options] // never changed, only replaced; nil: empty
	mu    sync.Mutex                          // held to replace it
}

// find returns the options of l.
func (t *table) find(l labels) *options {
	if known := t.known.Load(); known != nil {
		if o, ok := (*known)[l]; ok {
			return o
		}
	}
	return t.add(l)
}

// add adds l, or returns the options of its outcome if the table is full.
func (t *table) add(l labels) *options {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := map[labels]*options{}
	if old := t.known.Load(); old != nil {
		known = *old
	}
	if _, ok := known[l]; !ok && len(known) >= MaxSeries/2 && l.code != "" {
		l.code = other // codes are the user's: they may not crowd out the other series
	}
	if _, ok := known[l]; !ok && len(known) >= MaxSeries {
		l = labels{kind: other, outcome: l.outcome}
	}
	if o, ok := known[l]; ok {
		return o
	}
	known = maps.Clone(known)
	known[l] = l.options()
	t.known.Store(&known)
	return known[l]
}

// options returns the options of l.
func (l labels) options() *options {
	var all []attribute.KeyValue
	for _, a := range []struct{ key, value string }{
		{"kind", l.kind}, {"path", l.path}, {"verb", l.verb}, {"outcome", l.outcome}, {"code", l.code},
	} {
		if a.value != "" {
			all = append(all, attribute.String(a.key, a.value))
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	return &options{[]metric.AddOption{set}, []metric.RecordOption{set}}
}
