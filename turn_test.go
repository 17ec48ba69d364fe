package pawl_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// Those that wait in memory are taken together. These tests are about what happens to one of them between that and its turn.

// taken lets a function that runs until it is released, and whatever submit queues behind it, be taken together, and returns once it runs.
func taken(t *testing.T, s pawl.Scope[counts], fn func(context.Context, *counts) error, submit func()) (release func(), result <-chan error) {
	t.Helper()
	before, _ := block(s)
	free, done, runs := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		_, err := s.AtomicState(context.Background(), func(ctx context.Context, b *counts) error {
			close(runs)
			<-free
			return fn(ctx, b)
		}, pawl.WithTimeout(pawl.NoTimeout))
		done <- err
	}()
	synctest.Wait()
	submit()
	before()
	<-runs
	synctest.Wait()
	return sync.OnceFunc(func() { close(free) }), done
}

// say appends name to the list.
func say(name string) func(context.Context, *counts) error {
	return func(_ context.Context, b *counts) error { b.Done = append(b.Done, name); return nil }
}

func said(t *testing.T, s pawl.Scope[counts]) []string {
	t.Helper()
	b, err := s.State(context.Background())
	require.NoError(t, err)
	return b.Done
}

// Proves LOCK-1, LOCK-7.
func TestWithdrawnAfterItWasTaken(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		ctx, cancel := context.WithCancel(context.Background())
		var late, left, stays <-chan error
		release, result := taken(t, s, say("first"), func() {
			late = push(s, "late", pawl.WithTimeout(time.Second))
			gone := make(chan error, 1)
			go func() { _, err := s.PushState(ctx, "done", "left"); gone <- err }()
			left = gone
			synctest.Wait()
			stays = push(s, "stays")
		})
		var timeout *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, <-late, &timeout)
		assert.Equal(t, pawl.PhaseQueued, timeout.Phase)
		cancel()
		var canceled *pawl.CanceledError
		require.ErrorAs(t, <-left, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		last := push(s, "last")
		release()
		for _, done := range []<-chan error{result, stays, last} {
			require.NoError(t, <-done)
		}
		assert.Equal(t, []string{"blocker", "first", "stays", "last"}, said(t, s))
	})
}

// The queue goes on with those that were taken together with the function that was given up, before those who came later. Proves LOCK-1, LOCK-11.
func TestAbandonedBeforeOthersThatWereTaken(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var late, second, third <-chan error
		release, result := taken(t, s, say("first"), func() {
			second = push(s, "second")
			late = push(s, "late", pawl.WithTimeout(time.Second))
			third = push(s, "third")
		})
		require.ErrorIs(t, <-late, pawl.ErrTimeout)
		last := push(s, "last")
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		for _, done := range []<-chan error{second, third, last} {
			require.NoError(t, <-done)
		}
		release()
		synctest.Wait()
		assert.False(t, s.Abandon())
		require.NoError(t, <-push(s, "after"))
		assert.Equal(t, []string{"blocker", "second", "third", "last", "after"}, said(t, s))
	})
}

// Proves LOCK-1, SCOPE-5.
func TestGoexitBeforeOthersThatWereTaken(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var second, third <-chan error
		release, _ := taken(t, s, func(context.Context, *counts) error { runtime.Goexit(); return nil }, func() {
			second = push(s, "second")
			third = push(s, "third")
		})
		release()
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		assert.Equal(t, []string{"blocker", "second", "third"}, said(t, s))
	})
}

// Those that were taken count as waiting until they have their turn, or leave. Proves LOCK-14.
func TestTakenStillWait(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 3}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var late <-chan error
		release, _ := taken(t, s, say("first"), func() {
			push(s, "second")
			late = push(s, "late", pawl.WithTimeout(time.Second))
		})
		third := push(s, "third")
		var overloaded *pawl.OverloadedError
		require.ErrorAs(t, <-push(s, "too many"), &overloaded)
		assert.Equal(t, 3, overloaded.Queue)
		require.ErrorIs(t, <-late, pawl.ErrTimeout)
		fourth := push(s, "fourth") // there is room again
		require.ErrorAs(t, <-push(s, "too many"), &overloaded)
		release()
		require.NoError(t, <-third)
		require.NoError(t, <-fourth)
		assert.Equal(t, []string{"blocker", "first", "second", "third", "fourth"}, said(t, s))
	})
}

// Close finishes what was taken, and what came before it. Proves SCOPE-18.
func TestCloseFinishesWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{})
		require.NoError(t, err)
		s := pawl.Memory[counts](rt, "a")
		var second <-chan error
		release, result := taken(t, s, say("first"), func() { second = push(s, "second") })
		third, closed := push(s, "third"), make(chan error, 1)
		go func() { closed <- rt.Close(context.Background()) }()
		synctest.Wait()
		require.ErrorIs(t, <-push(s, "refused"), pawl.ErrClosed)
		release()
		for _, done := range []<-chan error{result, second, third, closed} {
			require.NoError(t, <-done)
		}
	})
}

// What callers who left had asked for is not kept until a function that does not return is given up. Proves LOCK-7.
func TestCallersWhoLeftAreForgotten(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[counts](rt, "a")
	free, runs := make(chan struct{}), make(chan struct{})
	blocked := make(chan error, 1)
	go func() {
		_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error { close(runs); <-free; return nil })
		blocked <- err
	}()
	<-runs
	const callers = 2000
	kept := make([]weak.Pointer[[1 << 10]byte], callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			large := new([1 << 10]byte)
			kept[i] = weak.Make(large)
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error { b.N += int(large[0]); return nil }, pawl.WithTimeout(5*time.Millisecond))
			assert.ErrorIs(t, err, pawl.ErrTimeout)
		})
	}
	wg.Wait()
	soon(t, func() bool {
		runtime.GC()
		alive := len(slices.DeleteFunc(slices.Clone(kept), func(p weak.Pointer[[1 << 10]byte]) bool { return p.Value() == nil }))
		return alive < callers/10
	})
	close(free)
	require.NoError(t, <-blocked)
}

// Whoever comes while the queue's goroutine is about to go is not forgotten. Proves LOCK-2.
func TestComingAsTheWorkerGoes(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[counts](rt, "a")
	var acknowledged atomic.Int64
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 20_000 {
				for range (i + w*7) % 23 { // sooner or later than it goes
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
