package pawl

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// A function that was reported to be stuck, and has returned, is forgotten while others follow. Proves LOCK-7.
func TestWhoWasStuckIsForgotten(t *testing.T) {
	rt, err := Open(Config{})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	ends, next := make(chan struct{}), make(chan struct{})
	_, err = s.AtomicState(t.Context(), func(context.Context, *struct{ N int }) error { <-ends; return nil }, WithTimeout(time.Millisecond))
	require.ErrorIs(t, err, ErrTimeout)
	var all sync.WaitGroup
	all.Go(func() {
		_, err := s.AtomicState(t.Context(), func(context.Context, *struct{ N int }) error { next <- struct{}{}; <-next; return nil })
		require.NoError(t, err)
	})
	q := &s.mem.queue
	require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); q.gather(); return q.waiting == 1 }, time.Minute, time.Millisecond)
	q.mu.Lock()
	require.NotNil(t, q.stuck)
	q.mu.Unlock()
	close(ends)
	<-next // it has its turn, and the queue was never empty
	q.mu.Lock()
	require.Nil(t, q.stuck)
	q.mu.Unlock()
	next <- struct{}{}
	all.Wait()
	require.NoError(t, rt.Close(t.Context()))
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
		require.Eventually(t, func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.gather()
			first = q.first
			return q.waiting == n
		}, time.Minute, time.Millisecond)
		return first
	}
	runs, holding := call(t.Context())
	<-runs
	ctx, cancel := context.WithCancel(t.Context())
	_, leaving := call(ctx)
	gone := linked(1)
	runs, next := call(t.Context())
	linked(2)
	require.Eventually(t, func() bool { return gone.state()&isAsleep != 0 }, time.Minute, time.Millisecond)
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

// A call that was abandoned leaves no alarm behind, which would keep what it was given until it rings.
func TestAbandonedCallsLeaveNoAlarm(t *testing.T) {
	rt, err := Open(Config{})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	runs, ends, answered := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := s.AtomicState(t.Context(), func(context.Context, *struct{ N int }) error { close(runs); <-ends; return nil }, WithTimeout(time.Hour))
		answered <- err
	}()
	<-runs
	w := s.mem.queue.holder.Load().waiter
	require.Eventually(t, func() bool { return w.state()&isAsleep != 0 }, time.Minute, time.Millisecond)
	require.True(t, s.Abandon())
	require.ErrorIs(t, <-answered, ErrAbandoned)
	require.False(t, w.timer.Stop()) // it was stopped
	close(ends)
	require.NoError(t, rt.Close(t.Context()))
}

// What an observer does before a call is queued counts as part of its budget. Proves LOCK-5.
func TestObserversTakeOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := Open(Config{Observer: ObserverFunc(func(_ context.Context, e Event) {
			if e.Type == Queued {
				time.Sleep(300 * time.Millisecond)
			}
		})})
		require.NoError(t, err)
		s := Memory[struct{ N int }](rt, "a")
		ends, began := make(chan struct{}), time.Now()
		_, err = s.AtomicState(t.Context(), func(context.Context, *struct{ N int }) error { <-ends; return nil }, WithTimeout(400*time.Millisecond))
		var late *ScopeMutationTimeoutError
		require.ErrorAs(t, err, &late)
		require.Equal(t, 400*time.Millisecond, time.Since(began))
		close(ends)
		require.NoError(t, rt.Close(t.Context()))
	})
}
