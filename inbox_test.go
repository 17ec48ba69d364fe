package pawl

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
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
