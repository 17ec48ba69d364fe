package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestFewAreWaitedFor: a leader waits for the few who shared the last transaction, and after it did so in vain, not the next times. It never waits for
// long, even where a test has stopped the clock.
func TestFewAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{crew: 2, waiting: []*request{{}}}
		began := time.Now()
		q.gather()
		require.Equal(t, []int{1, 1}, []int{q.vain, q.skip})
		q.gather()
		require.Equal(t, []int{1, 0}, []int{q.vain, q.skip}, "it did not wait")
		q.gather()
		require.Equal(t, []int{3, 3}, []int{q.vain, q.skip})
		for range 3 {
			q.gather()
		}
		arrive := make(chan struct{})
		go func() {
			<-arrive
			_, err := q.enter(&request{})
			require.NoError(t, err)
		}()
		close(arrive)
		q.gather()
		require.Len(t, q.waiting, 2)
		require.Equal(t, []int{0, 0}, []int{q.vain, q.skip})
		require.Zero(t, time.Since(began))
	})
}

// TestHalfOfMany: of many who write again and again, a transaction takes one half, and waits for no more; of few, and of those who come for the first
// time, it takes all.
func TestHalfOfMany(t *testing.T) {
	requests := func(n int) []*request {
		waiting := make([]*request, n)
		for i := range waiting {
			waiting[i] = &request{signal: make(chan signal, 1)}
		}
		return waiting
	}
	for _, c := range []struct{ crew, waiting, taken int }{
		{64, 64, 32}, {64, 40, 32}, {63, 33, 32}, {64, 10, 10}, {9, 9, 5}, {8, 8, 8}, {8, 3, 3}, {1, 64, 64}, {0, 1, 1}, {64, 65, 65},
		{1, maxBatchRequests + 1, maxBatchRequests}, {4 * maxBatchRequests, 4 * maxBatchRequests, maxBatchRequests},
	} {
		q := &queue{crew: c.crew, waiting: requests(c.waiting), skip: 1}
		q.gather()
		require.Len(t, q.take(), c.taken, "%+v", c)
		require.Len(t, q.waiting, c.waiting-c.taken, "%+v", c)
	}
	q := &queue{led: true, waiting: requests(64)}
	batch := q.take()
	q.waiting = requests(10)
	require.True(t, q.resign(batch[0], len(batch)))
	require.Equal(t, 74, q.crew)
	require.Equal(t, lead, <-q.waiting[0].signal)
	q.waiting = nil
	require.False(t, q.resign(nil, 0))
	require.False(t, q.led)
}

// TestLateLeader: who was handed the lead and is late holds up those who write, and nobody who reads or leaves. When it gives up, they are written.
//
// Proves STORE-7.
func TestLateLeader(t *testing.T) {
	const writers = 20
	s := openAt(t, dbPath(t), Config{})
	require.True(t, s.queue.tryLead())
	late := &request{signal: make(chan signal, 1)}
	leads, err := s.queue.enter(late)
	require.NoError(t, err)
	require.False(t, leads)
	times, errs := make([]time.Time, writers), make([]error, writers)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { times[i], errs[i] = s.Commit(t.Context(), put(fmt.Sprint(i), 0)) })
	}
	inQueue(t, s, writers+1)
	require.True(t, s.queue.resign(nil, 0))
	require.Equal(t, lead, <-late.signal)

	_, err = s.Load(t.Context(), thing("0"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	leaving, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	left.Go(func() {
		_, err := s.Commit(leaving, put("left", 0))
		require.ErrorIs(t, err, persist.ErrNotApplied)
	})
	inQueue(t, s, writers+2)
	leave()
	left.Wait()

	require.True(t, s.queue.resign(late, 0))
	group.Wait()
	transactions := map[time.Time]int{}
	for i, err := range errs {
		require.NoError(t, err)
		transactions[times[i]]++
	}
	require.Len(t, transactions, 2, "one half, and then the other")
}
