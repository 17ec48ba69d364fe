package pawl

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
)

// Whoever comes is counted once, and no more once it is gone, whether it was answered, refused, withdrawn, passed by or given back by Abandon. One who
// was not would count for ever against those who come later, or let too many in. Proves LOCK-14.
func TestWhoIsGoneIsNotCounted(t *testing.T) {
	const writers, each = 128, 50
	rt, err := Open(Config{MaxQueue: writers / 2})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for range each {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(2_000))*time.Microsecond)
				stuck := r.IntN(50) == 0
				_, _ = s.AtomicState(ctx, func(ctx context.Context, _ *struct{ N int }) error {
					if stuck {
						<-ctx.Done()
						s.Abandon()
					}
					return nil
				})
				cancel()
			}
		})
	}
	all.Wait()
	require.NoError(t, rt.Close(t.Context()))
	q := &s.mem.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retire()
	q.uncount()
	require.Zero(t, q.came.Load())
}

// Who has come, but is not seen yet, is not left out of the count: whoever asks for the last place then cannot be told yet. Proves LOCK-14.
func TestWhoIsAboutToComeIsCounted(t *testing.T) {
	rt, err := Open(Config{})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	q := &s.mem.queue
	q.working.Store(true) // by nobody
	q.came.Add(1)
	err, sure := q.trySqueeze(newWaiter(), 1, s.mem)
	require.NoError(t, err)
	require.False(t, sure)
	q.came.Add(-1) // it has seen that there is no room
	err, sure = q.trySqueeze(newWaiter(), 1, s.mem)
	require.NoError(t, err)
	require.True(t, sure)
	w := newWaiter()
	w.call.key = s.key
	err, sure = q.trySqueeze(w, 1, s.mem)
	require.ErrorIs(t, err, ErrOverloaded)
	require.True(t, sure)
}

// Who was served and is not counted off yet takes no place away from others. Proves LOCK-14.
func TestWhoWasServedTakesNoPlace(t *testing.T) {
	rt, err := Open(Config{MaxQueue: 1})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	q := &s.mem.queue
	q.working.Store(true) // by nobody
	q.came.Add(mostServed)
	q.served = mostServed
	err, sure := q.trySqueeze(newWaiter(), 1, s.mem)
	require.NoError(t, err)
	require.True(t, sure)
	require.EqualValues(t, 1, q.came.Load())
}

// Who has left, and is not counted as such yet, takes no place away from others once the queue has passed it by. Proves LOCK-14.
func TestWhoIsAboutToLeaveTakesNoPlace(t *testing.T) {
	rt, err := Open(Config{MaxQueue: 2})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	q := &s.mem.queue
	var all sync.WaitGroup
	call := func(ctx context.Context) (_, _ chan struct{}) {
		runs, ends := make(chan struct{}), make(chan struct{})
		all.Go(func() {
			_, _ = s.AtomicState(ctx, func(context.Context, *struct{ N int }) error { close(runs); <-ends; return nil })
		})
		return runs, ends
	}
	linked := func(n int) (first *waiter) {
		testkit.Eventually(t, func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.gather()
			first = q.first
			return q.waiting == n
		})
		return first
	}
	runs, holding := call(t.Context())
	<-runs
	ctx, cancel := context.WithCancel(t.Context())
	_, leaving := call(ctx)
	gone := linked(1)
	runs, next := call(t.Context())
	linked(2)
	testkit.Eventually(t, func() bool { return gone.state()&isAsleep != 0 })
	_, ok := gone.become(isLeft, isClosing|isDone) // its caller gets no further before the queue moves on
	require.True(t, ok)
	close(holding)
	<-runs
	_, waiting := call(t.Context())
	linked(1)
	q.mu.Lock()
	require.Equal(t, 1, q.depth())
	q.mu.Unlock()
	cancel()
	close(leaving)
	close(next)
	close(waiting)
	all.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	require.Zero(t, q.left)
}
