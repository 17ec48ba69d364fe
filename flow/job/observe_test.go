package job_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/persist/memory"
)

// notes keeps the events of jobs.
type notes struct {
	mu  sync.Mutex // protects all
	all []pawl.Event
}

func (n *notes) Observe(_ context.Context, e pawl.Event) {
	if e.Type != pawl.EventNoted {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, e)
}

// take returns the events since the last call.
func (n *notes) take() []pawl.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// The observer is told of each attempt: how late it began, and how it ended.
func TestAttemptsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := new(notes)
		rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{reminders}, Observer: seen})
		require.NoError(t, err)
		failure, began := errors.New("the mail server is down"), make(chan struct{})
		w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			time.Sleep(time.Second)
			switch {
			case j.ID == "withdrawn":
				return reminders.Scope(rt, j.ID).Delete(context.Background())
			case j.ID == "interrupted":
				close(began)
				<-ctx.Done()
				return context.Cause(ctx)
			case j.ID == "fails" && j.Attempt == 1:
				return failure
			case j.ID == "fails":
				return pawl.NonRetryable(failure)
			}
			return nil
		}, func(c *job.Config[reminder]) {
			c.Retry = pawl.Retry{Attempts: 3, First: time.Minute, Max: time.Minute}
			c.Parked, c.Lost = func(string, reminder) {}, func(string, error) {}
		})
		once := func(id string) [2]pawl.Event {
			_, err := w.Once(t.Context())
			require.NoError(t, err)
			got := seen.take()
			require.Len(t, got, 2)
			for _, e := range got {
				assert.Equal(t, "job", e.Path)
				assert.Equal(t, reminders.Scope(rt, id).Key(), e.Key)
			}
			assert.Equal(t, job.VerbTaken, got[0].Verb)
			return [2]pawl.Event(got)
		}
		put(t, rt, "works", time.Minute)
		time.Sleep(3 * time.Minute)
		got := once("works")
		assert.Equal(t, 2*time.Minute, got[0].Waited)
		assert.Equal(t, job.VerbDone, got[1].Verb)
		assert.Equal(t, time.Second, got[1].Took)
		assert.Equal(t, []int{1, 1}, []int{got[0].Attempts, got[1].Attempts})

		put(t, rt, "fails", 0)
		got = once("fails")
		assert.Equal(t, job.VerbFailed, got[1].Verb)
		assert.ErrorIs(t, got[1].Err, failure)
		time.Sleep(2 * time.Minute)
		got = once("fails")
		assert.Positive(t, got[0].Waited, "the second attempt was due before it was taken")
		assert.Equal(t, 2, got[1].Attempts)
		assert.Equal(t, job.VerbParked, got[1].Verb)
		assert.ErrorIs(t, got[1].Err, failure)

		put(t, rt, "withdrawn", 0)
		got = once("withdrawn")
		assert.Equal(t, job.VerbLost, got[1].Verb)
		assert.ErrorIs(t, got[1].Err, job.ErrWithdrawn)

		put(t, rt, "interrupted", 0)
		require.NoError(t, w.Start(t.Context()))
		<-began
		stop, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, w.Stop(stop))
		require.NoError(t, w.Stop(t.Context()))
		events := seen.take()
		require.Len(t, events, 2)
		assert.Equal(t, job.VerbHandedBack, events[1].Verb)
		assert.NoError(t, events[1].Err)
		require.NoError(t, rt.Close(t.Context()))
	})
}
