package pawl_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Data verbs and functions on one scope run in the order of submission. Proves LOCK-1.
func TestMutationsRunInSubmissionOrder(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s)
		want := []string{"blocker"}
		for i := range 100 {
			name := string(rune('A' + i))
			want = append(want, name)
			if i%2 == 0 {
				push(s, name)
				continue
			}
			go s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				b.Done = append(b.Done, name)
				return nil
			})
			synctest.Wait()
		}
		release()
		synctest.Wait()
		b, err := s.State(context.Background())
		require.NoError(t, err)
		assert.Equal(t, want, b.Done)
	})
}

// Two functions on one scope never run at the same time. Proves LOCK-1.
func TestFunctionsNeverOverlap(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	var inside, worst atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				_, err := s.AtomicState(t.Context(), func(context.Context, *counts) error {
					worst.Store(max(worst.Load(), inside.Add(1)))
					inside.Add(-1)
					return nil
				})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, worst.Load())
	require.NoError(t, rt.Close(t.Context()))
}

// Concurrent increments are all applied, each with its own version and without a conflict.
// Proves LOCK-2, LOCK-3.
func TestConcurrentIncrementsAllLand(t *testing.T) {
	var conflicts atomic.Int32
	rt, err := pawl.Open(pawl.Config{Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventConflicted {
			conflicts.Add(1)
		}
	})})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	versions := make([]map[uint64]bool, 64)
	var wg sync.WaitGroup
	for i := range versions {
		versions[i] = map[uint64]bool{}
		wg.Go(func() {
			for j := range 100 {
				var snap pawl.Snapshot[counts]
				var err error
				if j%2 == 0 {
					snap, err = s.IncState(t.Context(), "n", 1)
				} else {
					snap, err = s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil })
				}
				assert.NoError(t, err)
				assert.EqualValues(t, snap.Version, snap.ReadOnly().N, "each mutation sees the result of the one before it")
				versions[i][snap.Version] = true
			}
		})
	}
	wg.Wait()
	all := map[uint64]bool{}
	for _, v := range versions {
		for n := range v {
			all[n] = true
		}
	}
	assert.Len(t, all, 6400, "every increment has a version of its own")
	b, err := s.State(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 6400, b.N)
	assert.Zero(t, conflicts.Load())
	require.NoError(t, rt.Close(t.Context()))
}

// A mutation that arrives while the worker is about to stop is run. Proves LOCK-2.
func TestArrivalWhileTheWorkerStops(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[counts](rt, "a")
	var acknowledged atomic.Int64
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 20_000 {
				for range (i + w*7) % 23 { // before or after the worker stops
					runtime.Gosched()
				}
				if _, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil }); !assert.NoError(t, err) {
					return
				}
				acknowledged.Add(1)
			}
		})
	}
	wg.Wait()
	b, err := s.State(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, acknowledged.Load(), b.N)
}
