package otel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/pawl-go/pawl"
)

// BenchmarkObserve measures one event of a mutation. The hot case is a data verb that found its
// in-memory scope idle.
func BenchmarkObserve(b *testing.B) {
	key := pawl.Key{Kind: "counter", ID: "a"}
	for name, e := range map[string]pawl.Event{
		"started":   {Type: pawl.EventStarted, Path: "lock", Verb: "Inc", Key: key},
		"in place":  {Type: pawl.EventCommitted, Path: "lock", Verb: "Inc", Key: key, Version: 1, Batch: 1},
		"persisted": {Type: pawl.EventCommitted, Path: "cas", Verb: "Inc", Key: key, Version: 1, Batch: 4, Attempts: 1, Waited: time.Microsecond, Took: time.Millisecond},
		"store":     {Type: pawl.EventStoreCalled, Verb: "Commit", Key: key, Batch: 1, Took: time.Millisecond},
	} {
		b.Run(name, func(b *testing.B) {
			o, _ := newMeter(b)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					o.Observe(context.Background(), e)
				}
			})
		})
	}
}

// BenchmarkInc measures a mutation in memory without an observer, with one, and in a trace.
func BenchmarkInc(b *testing.B) {
	o, _ := newMeter(b)
	provider := trace.NewTracerProvider()
	traced, span := provider.Tracer("caller").Start(context.Background(), "request")
	defer span.End()
	for _, test := range []struct {
		name     string
		observer pawl.Observer
		ctx      context.Context
	}{{"none", nil, context.Background()}, {"metrics", o, context.Background()}, {"spans", o, traced}} {
		b.Run(test.name, func(b *testing.B) {
			rt, err := pawl.Open(pawl.Config{Observer: test.observer})
			require.NoError(b, err)
			defer rt.Close(context.Background())
			s := pawl.Memory[counter](rt, "a")
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.IncState(test.ctx, "n", 1)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkCost compares a mutation with the observer and one without, side by side: they take turns
// in blocks, so that other load on the machine slows both. ratio is the quotient of their times.
func BenchmarkCost(b *testing.B) {
	for _, test := range []struct {
		name  string
		scope func(rt *pawl.Runtime) pawl.Scope[counter]
		block int
	}{
		{"memory", func(rt *pawl.Runtime) pawl.Scope[counter] { return pawl.Memory[counter](rt, "a") }, 10_000},
		{"sqlite", func(rt *pawl.Runtime) pawl.Scope[counter] { return counters.Scope(rt, "a") }, 100},
	} {
		b.Run(test.name, func(b *testing.B) {
			o, _ := newMeter(b)
			plain, _ := open(b, nil)
			observed, _ := open(b, o)
			scopes := []pawl.Scope[counter]{test.scope(plain), test.scope(observed)}
			var took [2]time.Duration
			for b.Loop() {
				for i, s := range scopes {
					began := time.Now()
					for range test.block {
						_, err := s.IncState(context.Background(), "n", 1)
						require.NoError(b, err)
					}
					took[i] += time.Since(began)
				}
			}
			calls := float64(b.N * test.block)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[0].Nanoseconds())/calls, "ns/plain")
			b.ReportMetric(float64(took[1].Nanoseconds())/calls, "ns/observed")
			b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
		})
	}
}
