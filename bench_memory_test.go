package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/state"
)

// The in-memory path beside what one would write by hand. Every peer does the same to the same state; figures count as ratios of one run.

type small struct {
	Count int64            `json:"count"`
	Name  string           `json:"name"`
	Tags  []string         `json:"tags"`
	Votes map[string]int64 `json:"votes"`
}

// plain is a small state without a map.
type plain struct {
	Count int64    `json:"count"`
	Name  string   `json:"name"`
	Tags  []string `json:"tags"`
}

func benchScope[T any](b *testing.B, start T) pawl.Scope[T] {
	rt, err := pawl.Open(pawl.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = rt.Close(context.Background()) })
	s := pawl.Memory[T](rt, "bench")
	if _, err := s.SetState(b.Context(), start); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkMemoryData: data verbs, against the same merge function under a mutex.
func BenchmarkMemoryData(b *testing.B) {
	names := [2]any{"odd", "even"}
	counts := [2]any{int64(1), int64(2)}
	keys := [2]any{int64(3), int64(4)}
	for _, v := range []struct {
		name string
		do   func(ctx context.Context, s pawl.Scope[small], i int) error
		ops  func(ops []state.Op, i int) []state.Op
	}{
		{"inc", func(ctx context.Context, s pawl.Scope[small], i int) error {
			_, err := s.IncState(ctx, "count", 1)
			return err
		}, func(ops []state.Op, i int) []state.Op {
			return append(ops, state.Op{Verb: state.Inc, Field: "count", By: 1})
		}},
		{"patch1", func(ctx context.Context, s pawl.Scope[small], i int) error {
			_, err := s.PatchState(ctx, pawl.Patch{"name": names[i%2]})
			return err
		}, func(ops []state.Op, i int) []state.Op {
			for f, v := range (pawl.Patch{"name": names[i%2]}) {
				ops = append(ops, state.Op{Verb: state.Patch, Field: string(f), Value: v})
			}
			return ops
		}},
		{"patch2", func(ctx context.Context, s pawl.Scope[small], i int) error {
			_, err := s.PatchState(ctx, pawl.Patch{"name": names[i%2], "count": counts[i%2]})
			return err
		}, func(ops []state.Op, i int) []state.Op {
			for f, v := range (pawl.Patch{"name": names[i%2], "count": counts[i%2]}) {
				ops = append(ops, state.Op{Verb: state.Patch, Field: string(f), Value: v, Joins: len(ops) > 0})
			}
			return ops
		}},
		{"record", func(ctx context.Context, s pawl.Scope[small], i int) error {
			_, err := s.SetStateRecord(ctx, "votes", "ann", keys[i%2])
			return err
		}, func(ops []state.Op, i int) []state.Op {
			return append(ops, state.Op{Verb: state.SetRecord, Field: "votes", Key: "ann", Value: keys[i%2]})
		}},
	} {
		start := small{Name: "n", Tags: []string{"a", "b", "c"}, Votes: map[string]int64{"ann": 1, "bob": 2}}
		b.Run(v.name+"/pawl", func(b *testing.B) {
			s := benchScope(b, start)
			ctx := context.Background()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := v.do(ctx, s, i); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(v.name+"/mutex", func(b *testing.B) {
			typ, err := state.Of(reflect.TypeFor[small]())
			if err != nil {
				b.Fatal(err)
			}
			var mu sync.Mutex
			var tail state.Tail
			var cur atomic.Pointer[small]
			cur.Store(&start)
			room := make([]state.Op, 0, 2)
			apply := func(i int) error {
				mu.Lock()
				defer mu.Unlock()
				p, err := typ.Prepare(v.ops(room, i))
				if err != nil {
					return err
				}
				next := new(small)
				if _, err := p.Apply(cur.Load(), next, &tail); err != nil {
					return err
				}
				cur.Store(next)
				return nil
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := apply(i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMemoryAtomic: functions, from one and from many goroutines, against a mutex, a goroutine that is asked through channels, and a
// goroutine for each function that waits for the one before it.
func BenchmarkMemoryAtomic(b *testing.B) {
	start := plain{Name: "n", Tags: []string{"a", "b", "c"}}
	change := func(_ context.Context, p *plain) error { p.Count++; return nil }
	for _, writers := range []int{1, 64, 1024} {
		run := func(name string, do func(ctx context.Context) error) {
			b.Run(fmt.Sprintf("%d/%s", writers, name), func(b *testing.B) {
				b.ReportAllocs()
				inParallel(b, writers, do)
			})
		}
		s := benchScope(b, start)
		run("pawl", func(ctx context.Context) error {
			_, err := s.AtomicState(ctx, change)
			return err
		})
		forever := pawl.WithTimeout(pawl.NoTimeout)
		run("pawl-no-timeout", func(ctx context.Context) error {
			_, err := s.AtomicState(ctx, change, forever)
			return err
		})
		run("pawl-inc", func(ctx context.Context) error {
			_, err := s.IncState(ctx, "count", 1)
			return err
		})

		var mu sync.Mutex
		var cur atomic.Pointer[plain]
		cur.Store(&start)
		step := func() {
			next := *cur.Load()
			next.Tags = slices.Clone(next.Tags)
			_ = change(context.Background(), &next)
			cur.Store(&next)
		}
		run("mutex", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			step()
			return nil
		})

		type request struct{ reply chan struct{} }
		asked := make(chan *request)
		go func() {
			for r := range asked {
				step()
				r.reply <- struct{}{}
			}
		}()
		pool := sync.Pool{New: func() any { return &request{make(chan struct{}, 1)} }}
		run("channels", func(context.Context) error {
			r := pool.Get().(*request)
			asked <- r
			<-r.reply
			pool.Put(r)
			return nil
		})
		close(asked)

		var tailMu sync.Mutex
		tail := make(chan struct{})
		close(tail)
		run("tail", func(context.Context) error {
			done := make(chan struct{})
			tailMu.Lock()
			before := tail
			tail = done
			tailMu.Unlock()
			go func() {
				defer close(done)
				<-before
				step()
			}()
			timer := time.NewTimer(30 * time.Second)
			defer timer.Stop()
			select {
			case <-done:
				return nil
			case <-timer.C:
				return errors.New("timeout")
			}
		})
	}
}

// inParallel divides b.N calls of do among writers.
func inParallel(b *testing.B, writers int, do func(ctx context.Context) error) {
	ctx := context.Background()
	var wg sync.WaitGroup
	gate := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(b.N))
	for range writers {
		wg.Go(func() {
			<-gate
			for left.Add(-1) >= 0 {
				if err := do(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.ResetTimer()
	close(gate)
	wg.Wait()
}

// BenchmarkMemoryRead: reads, against loading a pointer.
func BenchmarkMemoryRead(b *testing.B) {
	start := plain{Name: "n", Tags: []string{"a", "b", "c"}}
	ctx := context.Background()
	s := benchScope(b, start)
	var sum int64
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			snap, _ := s.Snapshot(ctx)
			sum += snap.ReadOnly().Count
		}
	})
	b.Run("last-seen", func(b *testing.B) {
		for b.Loop() {
			snap, _ := s.LastSeen()
			sum += snap.ReadOnly().Count
		}
	})
	var c pawl.Container[plain]
	if _, err := pawl.ApplyMutation(ctx, &c, pawl.Options[plain]{}, pawl.Set{State: start}); err != nil {
		b.Fatal(err)
	}
	b.Run("container", func(b *testing.B) {
		for b.Loop() {
			snap := c.Snapshot()
			sum += snap.ReadOnly().Count
		}
	})
	var cur atomic.Pointer[plain]
	cur.Store(&start)
	b.Run("pointer", func(b *testing.B) {
		for b.Loop() {
			sum += cur.Load().Count
		}
	})
}

// BenchmarkMemoryPush: appending costs the same whatever the length.
func BenchmarkMemoryPush(b *testing.B) {
	for _, size := range []int{10, 1_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := benchScope(b, plain{Tags: make([]string, size)})
			ctx := context.Background()
			var item any = "item"
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.PushState(ctx, "tags", item); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
