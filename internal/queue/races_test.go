package queue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/queue"
)

// A caller whose deadline passes after its answer was decided, but before it is woken, takes the
// answer. Proves LOCK-7.
func TestAnswerBeforeTheDeadline(t *testing.T) {
	leave(t, func(t *testing.T, ctx context.Context, within time.Duration, _ queue.Ending) {
		var r recorder
		w, release := r.answered(t, within)
		time.AfterFunc(time.Minute, w.Wake)
		began := time.Now()
		ending, _ := r.Await(ctx, w)
		require.Equal(t, queue.GotAnswer, ending)
		require.Equal(t, time.Minute, time.Since(began))
		release()
	})
}

// leave runs test with a context and a budget, one of which ends after a second.
func leave(t *testing.T, test func(t *testing.T, ctx context.Context, within time.Duration, ending queue.Ending)) {
	t.Run("deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, t.Context(), time.Second, queue.TimedOut) })
	})
	t.Run("canceled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			test(t, ctx, 0, queue.Canceled)
		})
	})
}

// An answer after the caller has left is dropped. Proves LOCK-8.
func TestAnswerAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		gate := make(chan struct{})
		w, err := r.submit(func() { <-gate }, time.Second, 10)
		require.NoError(t, err)
		ending, reached := r.Await(t.Context(), w)
		require.Equal(t, queue.TimedOut, ending)
		require.Equal(t, queue.Running, reached)
		r.Lock()
		require.True(t, w.Left())
		require.False(t, r.Answer(w))
		r.Unlock()
		close(gate)
	})
}

// A waiter that arrives after the worker has looked at others comes behind them. Proves LOCK-1.
func TestArrivalsComeLast(t *testing.T) {
	var (
		r    recorder
		got  []string
		last *queue.Waiter[func()]
	)
	gate := make(chan struct{})
	_, err := r.submit(func() { <-gate }, 0, 10)
	require.NoError(t, err)
	for _, name := range []string{"a", "b", "c"} {
		last, err = r.submit(func() { got = append(got, name) }, 0, 10)
		require.NoError(t, err)
		r.Lock()
		require.NotNil(t, r.First())
		r.Unlock()
	}
	close(gate)
	ending, _ := r.Await(t.Context(), last)
	require.Equal(t, queue.GotAnswer, ending)
	require.Equal(t, []string{"a", "b", "c"}, got)
}

// A waiter that arrives while a function runs, and leaves before it returns, never runs.
// Proves LOCK-7.
func TestWithdrawnArrival(t *testing.T) {
	leave(t, func(t *testing.T, ctx context.Context, within time.Duration, how queue.Ending) {
		var r recorder
		gate, ran := make(chan struct{}), false
		_, err := r.submit(func() { <-gate }, 0, 10)
		require.NoError(t, err)
		synctest.Wait()
		leaves, err := r.submit(func() { ran = true }, within, 10)
		require.NoError(t, err)
		stays, err := r.submit(func() {}, 0, 10)
		require.NoError(t, err)
		ending, reached := r.Await(ctx, leaves)
		require.Equal(t, how, ending)
		require.Equal(t, queue.Waiting, reached)
		close(gate)
		ending, _ = r.Await(t.Context(), stays)
		require.Equal(t, queue.GotAnswer, ending)
		require.False(t, ran)
	})
}

// Close waits for functions that run outside the queue. Proves SCOPE-18.
func TestCloseWaitsForDetached(t *testing.T) {
	var r recorder
	r.Lock()
	r.Detach()
	r.Unlock()
	drained := r.Close()
	require.NotNil(t, drained)
	r.Lock()
	r.Attach()
	r.Unlock()
	<-drained
	require.Nil(t, r.Close())
}

// lateWorker is a worker that starts when the test lets it.
type lateWorker struct {
	recorder
	gate chan struct{}
}

func (l *lateWorker) Work() {
	<-l.gate
	l.recorder.Work()
}

// A queue with a worker cannot be claimed, even if the waiter that started the worker has left.
// Proves TX-7.
func TestClaimOfDrivenQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lateWorker{gate: make(chan struct{})}
		w := queue.NewWaiter[func()]()
		w.Deadline = time.Now().Add(time.Second)
		require.NoError(t, l.Push(w, 10, l))
		ending, reached := l.Await(t.Context(), w)
		require.Equal(t, queue.TimedOut, ending)
		require.Equal(t, queue.Waiting, reached)
		l.Lock()
		require.True(t, l.Idle())
		require.False(t, l.Claim(&queue.Waiter[func()]{}))
		l.Unlock()
		close(l.gate)
		synctest.Wait()
		l.Lock()
		require.True(t, l.Claim(&queue.Waiter[func()]{}))
		l.Unlock()
	})
}
