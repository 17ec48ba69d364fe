package batch_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// A job is worked on item by item: each item is charged and made once. Proves CANCEL-1.
func TestJob(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s, func(c *config) { c.Items = 3 })
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(7, 5))
		require.Equal(t, batch.Queued, progress(t, q, "j").Status)
		start(t, q)
		p := finished(t, q, "j")
		require.Equal(t, batch.Completed, p.Status)
		require.True(t, p.Final)
		require.Equal(t, []int{7, 7, 0}, []int{p.Items, p.Done, p.Failed})
		require.EqualValues(t, 35, p.Cost())
		require.EqualValues(t, 65, balance(t, rt, "ada"))
		require.Equal(t, 7, s.count())
		require.Len(t, s.left(), 7)
		checkBooks(t, rt, q, 100, "j")
		c := cancelJob(t, q, "j")
		require.Equal(t, batch.AlreadyCompleted, c.Answer)
		require.Equal(t, p, c.Progress)
	})
}

// A job that no worker has is torn down by Cancel itself. Proves CANCEL-2, CANCEL-7, CANCEL-9.
func TestCancelQueued(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		c := cancelJob(t, q, "j")
		require.Equal(t, batch.NowCanceled, c.Answer)
		require.True(t, c.Progress.Final)
		require.Equal(t, 3, c.Progress.Canceled)
		require.Equal(t, batch.AlreadyCanceled, cancelJob(t, q, "j").Answer)
		n, err := q.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.Zero(t, s.count())
		require.Equal(t, batch.Canceled, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A job that is running is torn down by its worker at the next item, and watchers get the total.
// Proves CANCEL-3, CANCEL-5, CANCEL-6, CANCEL-9.
func TestCancelRunning(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(_ context.Context, text string) error {
			if text == "p2" {
				close(calling)
				<-goOn
			}
			return nil
		}
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(7, 5))
		start(t, q)
		<-calling
		c := cancelJob(t, q, "j")
		require.Equal(t, batch.Accepted, c.Answer)
		require.False(t, c.Progress.Final)
		require.Equal(t, batch.Accepted, cancelJob(t, q, "j").Answer)
		close(goOn)
		p := finished(t, q, "j")
		require.Equal(t, batch.Canceled, p.Status)
		require.Equal(t, 3, s.count())
		require.EqualValues(t, []int64{15, 15}, []int64{p.Charged, p.Refunded})
		require.EqualValues(t, 100, balance(t, rt, "ada"))
		require.Empty(t, s.left())
		checkBooks(t, rt, q, 100, "j")
	})
}
