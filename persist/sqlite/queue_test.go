package sqlite

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
