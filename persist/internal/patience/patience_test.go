package patience_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist/internal/patience"
)

// patient is the context of a patient caller.
type patient struct{ context.Context }

func (patient) Patient() {}

func patientFor(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return patient{ctx}
}

func TestHas(t *testing.T) {
	require.True(t, patience.Has(patientFor(t, time.Hour)))
	require.False(t, patience.Has(context.Background()))
}

func TestEndOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := patientFor(t, time.Minute)
		end, is := patience.EndOf(ctx, time.Hour)
		require.True(t, is)
		require.Equal(t, time.Minute, time.Until(end))
		end, is = patience.EndOf(ctx, time.Second)
		require.True(t, is)
		require.Equal(t, time.Second, time.Until(end))
		end, is = patience.EndOf(ctx.(patient).Context, time.Hour)
		require.False(t, is)
		require.Equal(t, time.Hour, time.Until(end))
	})
}

// Who shares a timer that rings early is told at its own time, and not before.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends patience.Ends
		never := make(chan int)
		shared := ends.At(time.Now().Add(64 * time.Second))
		require.Same(t, shared, ends.At(time.Now().Add(64*time.Second+500*time.Millisecond)))
		for _, d := range []time.Duration{64 * time.Second, 64*time.Second + 500*time.Millisecond, 90 * time.Second, time.Second} {
			began := time.Now()
			go func() {
				_, ok := patience.Wait(patientFor(t, d), &ends, never)
				require.False(t, ok)
				require.Equal(t, d, time.Since(began))
			}()
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestWaitForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends patience.Ends
		impatient, cancel := context.WithCancel(context.Background())
		for _, ctx := range []context.Context{patientFor(t, time.Minute), impatient} {
			answer := make(chan int, 1)
			time.AfterFunc(time.Second, func() { answer <- 7 })
			got, ok := patience.Wait(ctx, &ends, answer)
			require.True(t, ok)
			require.Equal(t, 7, got)
		}
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, ok := patience.Wait(impatient, &ends, make(chan int))
		require.False(t, ok)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// Those whose times are far apart share what they can, and leave nothing behind until the last of them would have ended.
func TestWaitOfSeveralSortsLeavesNothing(t *testing.T) {
	const many = 5000
	var ends patience.Ends
	wait := func(d time.Duration) {
		answer := make(chan int, 1)
		answer <- 7
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		_, ok := patience.Wait(patient{ctx}, &ends, answer)
		require.True(t, ok)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range many {
		wait(time.Hour)
		wait(time.Minute)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, max(after.HeapObjects, before.HeapObjects)-before.HeapObjects, uint64(many))
}
