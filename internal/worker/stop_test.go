package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/worker"
)

// start returns a started loop over d after its first Take. It must be called in a bubble.
func start(t *testing.T, d *desk, c worker.Config[int]) *worker.Loop[int] {
	l := d.loop(c)
	require.NoError(t, l.Start(context.Background()))
	synctest.Wait()
	return l
}

// Stop waits for running jobs, whose contexts stay alive, and no more jobs are taken.
// Proves LOOP-4.
func TestStopWaitsForJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		d := &desk{run: func(ctx context.Context, job int) {
			time.Sleep(time.Duration(1+job) * time.Minute)
			cut.Store(cut.Load() || ctx.Err() != nil)
		}}
		d.put(numbers(10)...)
		l := start(t, d, worker.Config[int]{Concurrency: 3})
		began := time.Now()
		l.Wake()
		require.NoError(t, l.Stop(testkit.Within(t, time.Hour)))
		assert.Equal(t, 3*time.Minute, time.Since(began))
		assert.Equal(t, numbers(3), d.done())
		assert.Equal(t, 1, d.count())
		assert.False(t, cut.Load())
		pass(time.Hour)
		assert.Equal(t, 1, d.count())
		require.NoError(t, l.Stop(ended()), "again")
	})
}

// When the context of Stop ends, so do the contexts of the jobs, and the error has their number.
// Another Stop waits for them. Proves LOOP-4.
func TestStopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		d := &desk{run: func(ctx context.Context, job int) {
			<-ctx.Done()
			assert.Equal(t, worker.ErrStopped, context.Cause(ctx))
			<-end
		}}
		d.put(0, 1)
		l := start(t, d, worker.Config[int]{Concurrency: 3})
		began := time.Now()
		err := l.Stop(testkit.Within(t, time.Minute))
		assert.Equal(t, time.Minute, time.Since(began))
		var busy *worker.BusyError
		require.ErrorAs(t, err, &busy)
		assert.Equal(t, worker.BusyError{Name: "desk", Jobs: 2, Cause: context.DeadlineExceeded}, *busy)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualError(t, err, "worker desk: 2 jobs running: context deadline exceeded")

		require.Error(t, l.Stop(ended()))
		close(end)
		require.NoError(t, l.Stop(context.Background()))
		assert.Equal(t, []int{0, 1}, d.done())
	})
}

// Stop of an idle loop returns at once, even if its context has ended. Proves LOOP-4.
func TestStopIdleLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		l := start(t, d, worker.Config[int]{})
		require.NoError(t, l.Stop(ended()))
	})
}

// Concurrent Stops wait with their own contexts. The first context that ends also ends those of the
// jobs. Proves LOOP-4.
func TestConcurrentStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{run: func(ctx context.Context, job int) {
			<-ctx.Done()
			time.Sleep(time.Minute)
		}}
		d.put(0)
		l := start(t, d, worker.Config[int]{})
		began := time.Now()
		results := make(chan error)
		for i := range 5 {
			go func() { results <- l.Stop(testkit.Within(t, time.Duration(1+i)*time.Hour)) }()
		}
		require.ErrorIs(t, <-results, context.DeadlineExceeded)
		assert.Equal(t, time.Hour, time.Since(began))
		for range 4 {
			require.NoError(t, <-results)
		}
		assert.Equal(t, time.Hour+time.Minute, time.Since(began))
	})
}

// A loop stopped before Start never takes a job. Proves LOOP-4.
func TestStopBeforeStart(t *testing.T) {
	d := new(desk)
	d.put(0)
	l := d.loop(worker.Config[int]{})
	require.NoError(t, l.Stop(ended()))
	require.NoError(t, l.Stop(context.Background()))
	assert.Equal(t, worker.ErrStopped, l.Start(context.Background()))
	n, err := l.Once(context.Background())
	assert.Equal(t, worker.ErrStopped, err)
	assert.Zero(t, n)
	assert.Zero(t, d.count())
}

// Stop ends the context of a running Take. Proves LOOP-4.
func TestStopEndsTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{take: func(ctx context.Context, _ int, _ []int) ([]int, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		l := start(t, d, worker.Config[int]{})
		began := time.Now()
		require.NoError(t, l.Stop(testkit.Within(t, time.Hour)))
		assert.Zero(t, time.Since(began))
		assert.Zero(t, d.lines("\n"), "that is nothing to complain about")
	})
}

// Jobs that Take returns after Stop belong to this loop: they run to their end, and Stop waits.
// Proves LOOP-2, LOOP-4.
func TestJobsTakenWhileStoppingAreRun(t *testing.T) {
	for name, failure := range map[string]error{"without an error": nil, "with an error": errors.New("canceled")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cut atomic.Bool
				d := &desk{
					take: func(ctx context.Context, _ int, jobs []int) ([]int, error) {
						<-ctx.Done()
						return jobs, failure
					},
					run: func(ctx context.Context, _ int) {
						time.Sleep(time.Minute)
						cut.Store(ctx.Err() != nil)
					},
				}
				d.put(0, 1)
				l := start(t, d, worker.Config[int]{Concurrency: 2})
				began := time.Now()
				require.NoError(t, l.Stop(testkit.Within(t, time.Hour)))
				assert.Equal(t, time.Minute, time.Since(began))
				assert.Equal(t, []int{0, 1}, d.done())
				assert.False(t, cut.Load())
				assert.Equal(t, 1, d.count())
			})
		})
	}
}

// If Take ignores its context, Stop fails in time. Jobs that Take returns later are still passed to
// Run. Proves LOOP-2, LOOP-4.
func TestTakeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var cut atomic.Bool
		d := &desk{
			take: func(_ context.Context, _ int, jobs []int) ([]int, error) {
				<-answer
				return jobs, nil
			},
			run: func(ctx context.Context, _ int) { cut.Store(ctx.Err() != nil) },
		}
		d.put(0)
		l := start(t, d, worker.Config[int]{})
		began := time.Now()
		err := l.Stop(testkit.Within(t, time.Minute))
		assert.Equal(t, time.Minute, time.Since(began))
		var busy *worker.BusyError
		require.ErrorAs(t, err, &busy)
		assert.True(t, busy.Taking)
		assert.Zero(t, busy.Jobs)
		assert.EqualError(t, err, "worker desk: 0 jobs running, Take has not returned: context deadline exceeded")

		close(answer)
		require.NoError(t, l.Stop(context.Background()))
		assert.Equal(t, []int{0}, d.done())
		assert.True(t, cut.Load(), "the job's context has ended")
	})
}

func TestStartTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		l := start(t, d, worker.Config[int]{Poll: time.Hour})
		other, cancel := context.WithCancel(context.Background())
		require.NoError(t, l.Start(other))
		synctest.Wait()
		assert.Equal(t, 1, d.count())
		cancel() // the loop ignores this context
		d.put(0)
		l.Wake()
		synctest.Wait()
		assert.Equal(t, []int{0}, d.done())
		require.NoError(t, l.Stop(context.Background()))
		assert.Equal(t, worker.ErrStopped, l.Start(context.Background()))
	})
}

// The end of Start's context is a Stop without waiting; Stop itself then waits. Proves LOOP-4.
func TestContextOfStartEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		d := &desk{run: func(ctx context.Context, _ int) {
			assert.Equal(t, "value", ctx.Value(key{}))
			<-ctx.Done()
			time.Sleep(time.Minute)
		}}
		d.put(0)
		l := d.loop(worker.Config[int]{Concurrency: 2, Poll: time.Second})
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "value"))
		require.NoError(t, l.Start(ctx))
		pass(time.Hour)
		before := d.count()
		began := time.Now()
		cancel()
		d.put(1)
		l.Wake() // before or after the loop notices the end
		synctest.Wait()
		require.Error(t, l.Stop(ended()))
		require.NoError(t, l.Stop(context.Background()))
		assert.Equal(t, time.Minute, time.Since(began))
		assert.Equal(t, []int{0}, d.done())
		assert.Equal(t, before, d.count(), "no more jobs are taken")
		assert.Equal(t, worker.ErrStopped, l.Start(context.Background()))
	})
}

// Start with an ended context starts nothing, and the loop can still be started.
func TestStartWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		l := d.loop(worker.Config[int]{})
		assert.Equal(t, context.Canceled, l.Start(ended()))
		synctest.Wait()
		assert.Zero(t, d.count())
		require.NoError(t, l.Start(context.Background()))
		synctest.Wait()
		assert.Equal(t, 1, d.count())
		require.NoError(t, l.Stop(context.Background()))
	})
}

// After Stop, the loop holds nothing of Start's context, which may live much longer. Proves LOOP-4.
func TestStopReleasesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var job context.Context
		d := &desk{run: func(ctx context.Context, _ int) { job = ctx }}
		d.put(0)
		l := d.loop(worker.Config[int]{})
		require.NoError(t, l.Start(ctx))
		synctest.Wait()
		require.NoError(t, l.Stop(context.Background()))
		assert.Error(t, job.Err())
		assert.NoError(t, ctx.Err())
		cancel()
		synctest.Wait()
	})
}
