package pawl

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
)

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
	testkit.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); q.gather(); return q.waiting == 1 })
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
	testkit.Eventually(t, func() bool { return w.state()&isAsleep != 0 })
	require.True(t, s.Abandon())
	require.ErrorIs(t, <-answered, ErrAbandoned)
	require.False(t, w.timer.Stop()) // it was stopped
	close(ends)
	require.NoError(t, rt.Close(t.Context()))
}
