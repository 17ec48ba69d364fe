package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/worker"
)

// result holds the results of Once.
type result struct {
	taken int
	err   error
}

// once calls Once in the background and sends its results to the channel.
func once(ctx context.Context, l *worker.Loop[int]) <-chan result {
	out := make(chan result, 1)
	go func() {
		n, err := l.Once(ctx)
		out <- result{n, err}
	}()
	return out
}

// When Once returns, all due jobs have run, with the same concurrency, whether the loop is started
// or not. Proves LOOP-2.
func TestOnceRunsAllDueJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{run: func(context.Context, int) { time.Sleep(time.Second) }}
		d.put(numbers(20)...)
		l := d.loop(worker.Config[int]{Concurrency: 4})
		began := time.Now()
		n, err := l.Once(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 20, n)
		assert.Equal(t, numbers(20), d.done())
		assert.Equal(t, 4, d.most)
		assert.Equal(t, 4, d.asked)
		assert.Equal(t, 5*time.Second, time.Since(began))
		pass(time.Hour)
		n, err = l.Once(t.Context())
		require.NoError(t, err)
		assert.Zero(t, n)

		require.NoError(t, l.Start(context.Background()))
		synctest.Wait()
		d.put(numbers(20)...)
		n, err = l.Once(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 20, n)
		assert.Len(t, d.done(), 40)
		assert.Equal(t, 4, d.most)
		require.NoError(t, l.Stop(context.Background()))
	})
}

// With one slot, jobs run one after the other in the order of Take.
func TestOnceKeepsTheOrder(t *testing.T) {
	d := new(desk)
	d.put(5, 3, 4, 1)
	_, err := d.loop(worker.Config[int]{}).Once(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []int{5, 3, 4, 1}, d.ended)
}

// Once also runs jobs that its jobs make due, even after a Take that found no more. Proves LOOP-1.
func TestOnceRunsJobsMadeDueByJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		d.run = func(_ context.Context, job int) {
			time.Sleep(time.Second)
			if job < 10 {
				d.put(job+1, job+1)
			}
		}
		d.put(8)
		n, err := d.loop(worker.Config[int]{Concurrency: 3}).Once(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1+2+4, n)
		assert.Equal(t, []int{8, 9, 9, 10, 10, 10, 10}, d.done())
	})
}

// Once and the loop share the slots, so there are never more jobs than slots. Proves LOOP-2.
func TestOnceWaitsForSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{run: func(context.Context, int) { time.Sleep(time.Minute) }}
		d.put(0)
		l := start(t, d, worker.Config[int]{Poll: 24 * time.Hour})
		got := once(t.Context(), l)
		pass(30 * time.Second)
		assert.Equal(t, 1, d.count())
		assert.Empty(t, got)
		assert.Equal(t, result{0, nil}, <-got)

		d.put(1)
		l.Wake()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		assert.Equal(t, result{0, context.DeadlineExceeded}, <-once(ctx, l))
		assert.Equal(t, time.Second, time.Since(began))
		assert.Equal(t, 1, d.most)
		require.NoError(t, l.Stop(context.Background()))
	})
}

// A slot that becomes free during a Take does not make Once start a second Take. Proves LOOP-2.
func TestOneTakeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, answer := make(chan struct{}), make(chan struct{})
		d := &desk{run: func(context.Context, int) { <-end }}
		d.put(0)
		l := start(t, d, worker.Config[int]{Concurrency: 2, Poll: time.Hour})
		d.mu.Lock()
		d.take = func(_ context.Context, _ int, jobs []int) ([]int, error) {
			<-answer
			return jobs, nil
		}
		d.mu.Unlock()
		l.Wake()
		synctest.Wait()
		close(end)
		got := once(t.Context(), l)
		synctest.Wait()
		assert.Equal(t, 2, d.count())
		close(answer)
		assert.Equal(t, result{0, nil}, <-got)
		assert.Equal(t, 1, d.takes)
		require.NoError(t, l.Stop(t.Context()))
	})
}

// Once returns an error, panic or Goexit of Take as its error, after the jobs already returned have
// ended. Proves LOOP-3.
func TestOnceReturnsErrorOfTake(t *testing.T) {
	failure := errors.New("no store")
	for name, c := range map[string]struct {
		breaks func() error
		want   string
	}{
		"error":  {func() error { return failure }, "no store"},
		"panic":  {func() error { panic("no desk") }, "worker: Take panicked: no desk"},
		"goexit": {func() error { leaveForGood(); return nil }, "worker: Take called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{run: func(context.Context, int) { time.Sleep(time.Minute) }}
				d.take = func(_ context.Context, _ int, jobs []int) ([]int, error) {
					if len(jobs) == 1 {
						return jobs, c.breaks()
					}
					return jobs, nil
				}
				d.put(0, 1, 2)
				l := d.loop(worker.Config[int]{Concurrency: 2})
				n, err := l.Once(t.Context())
				require.EqualError(t, err, c.want)
				if name == "error" {
					assert.Equal(t, 3, n)
					assert.Equal(t, numbers(3), d.done(), "jobs returned with the error have run")
				} else {
					assert.Equal(t, 2, n)
					assert.Equal(t, numbers(2), d.done())
				}
				d.put(3, 4) // the slots are free
				n, err = l.Once(t.Context())
				require.NoError(t, err)
				assert.Equal(t, 2, n)
			})
		})
	}
}

// The end of the context ends the contexts of the jobs, and Once returns when they have ended.
func TestContextOfOnceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		d := &desk{run: func(ctx context.Context, _ int) {
			assert.Equal(t, "value", ctx.Value(key{}))
			<-ctx.Done()
			time.Sleep(time.Minute)
		}}
		d.put(0, 1)
		l := d.loop(worker.Config[int]{})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Hour)
		defer cancel()
		began := time.Now()
		n, err := l.Once(ctx)
		assert.Equal(t, context.DeadlineExceeded, err)
		assert.Equal(t, 1, n)
		assert.Equal(t, time.Hour+time.Minute, time.Since(began))
		assert.Equal(t, []int{0}, d.done())

		n, err = l.Once(ended())
		assert.Equal(t, context.Canceled, err)
		assert.Zero(t, n)
		assert.Equal(t, 1, d.count())
	})
}

// Stop waits for the jobs of Once, and ends them like those of the loop. Proves LOOP-4.
func TestStopWaitsForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{run: func(ctx context.Context, _ int) {
			<-ctx.Done()
			time.Sleep(time.Minute)
		}}
		d.put(0, 1)
		l := d.loop(worker.Config[int]{})
		got := once(context.Background(), l)
		waiting := once(context.Background(), l)
		synctest.Wait()
		var busy *worker.BusyError
		require.ErrorAs(t, l.Stop(testkit.Within(t, time.Hour)), &busy)
		assert.Equal(t, 1, busy.Jobs)
		require.NoError(t, l.Stop(context.Background()))
		results := []result{<-got, <-waiting}
		assert.ElementsMatch(t, []result{{1, worker.ErrStopped}, {0, worker.ErrStopped}}, results)
		assert.Len(t, d.done(), 1)
	})
}

// Stop ends the Take of Once, and the jobs it returned are run. Proves LOOP-2, LOOP-4.
func TestStopEndsTheTakeOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{take: func(ctx context.Context, _ int, jobs []int) ([]int, error) {
			<-ctx.Done()
			return jobs, context.Cause(ctx)
		}}
		d.put(0)
		l := d.loop(worker.Config[int]{})
		got := once(context.Background(), l)
		synctest.Wait()
		require.NoError(t, l.Stop(testkit.Within(t, time.Hour)))
		assert.Equal(t, []int{0}, d.done())
		assert.Equal(t, result{1, worker.ErrStopped}, <-got)
	})
}

// A failing Take of Once does not affect the loop: it neither backs off nor logs.
func TestFailureOfOnceDoesNotAffectLoop(t *testing.T) {
	d := new(desk)
	bubble(t, d, worker.Config[int]{Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		d.take = func(context.Context, int, []int) ([]int, error) { return nil, errors.New("no store") }
		for range 20 {
			_, err := l.Once(t.Context())
			require.Error(t, err)
		}
		assert.Zero(t, d.lines("\n"))
		d.take = nil
		d.put(0)
		l.Wake()
		synctest.Wait()
		assert.Equal(t, []int{0}, d.done())
	})
}
