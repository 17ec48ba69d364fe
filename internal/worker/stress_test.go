package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/worker"
)

// unruly gives d jobs and a Take that yield, fail, panic and end their goroutine.
func (d *desk) unruly(done func(job int)) {
	d.take = func(_ context.Context, _ int, jobs []int) ([]int, error) {
		runtime.Gosched()
		if rand.N(8) == 0 {
			return jobs, errors.New("half of it")
		}
		return jobs, nil
	}
	d.run = func(_ context.Context, job int) {
		defer done(job)
		runtime.Gosched()
		switch rand.N(64) {
		case 0:
			panic("a job")
		case 1:
			runtime.Goexit()
		}
	}
}

// Goroutines put jobs and wake the loop, which polls only once per hour, and others call Once. Each
// job runs exactly once. Proves LOOP-1, LOOP-2, LOOP-3.
func TestConcurrentWakesLoseNoJob(t *testing.T) {
	const putters, each = 8, 500
	d := new(desk)
	var left sync.WaitGroup
	left.Add(putters * each)
	d.unruly(func(int) { left.Done() })
	l := d.loop(worker.Config[int]{Concurrency: 3, Poll: time.Hour, Backoff: 10 * time.Microsecond})
	require.NoError(t, l.Start(t.Context()))
	var wg sync.WaitGroup
	for i := range putters {
		wg.Go(func() {
			for j := range each {
				d.put(i*each + j)
				switch rand.N(4) {
				case 0:
					l.WakeIn(rand.N(50 * time.Microsecond))
				default:
					l.Wake()
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range 50 {
				_, _ = l.Once(t.Context()) // fails when Take does
			}
		})
	}
	wg.Wait()
	all := make(chan struct{})
	go func() { left.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d jobs are done: a wake-up was lost", len(d.done()), putters*each)
	}
	require.NoError(t, l.Stop(t.Context()))
	assert.Equal(t, numbers(putters*each), d.done())
	assert.LessOrEqual(t, d.most, 3)
	assert.LessOrEqual(t, d.asked, 3)
	assert.Equal(t, 1, d.takes, "concurrent Takes")
}

// Stop comes at random moments. After it returns, all jobs that were taken have run, none runs, and
// none is taken. Proves LOOP-2, LOOP-4.
func TestStopAtRandomMoments(t *testing.T) {
	for round := range 300 {
		d := new(desk)
		d.put(numbers(50)...)
		d.unruly(func(int) {})
		l := d.loop(worker.Config[int]{Concurrency: 1 + round%4, Poll: time.Hour, Backoff: 10 * time.Microsecond})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, do := range []func(){
			func() { _ = l.Start(ctx) }, func() { _ = l.Start(ctx) },
			l.Wake, func() { l.WakeIn(time.Microsecond) },
			func() { _, _ = l.Once(ctx) },
			func() {
				if round%5 == 0 {
					cancel()
				}
			},
		} {
			wg.Go(do)
		}
		for range 2 {
			wg.Go(func() {
				for range rand.N(200) {
					runtime.Gosched()
				}
				if err := l.Stop(t.Context()); !assert.NoError(t, err) {
					return
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				assert.Zero(t, d.running)
				assert.Equal(t, 50, len(d.due)+len(d.ended), "round %d: %d jobs due, %d ended", round, len(d.due), len(d.ended))
			})
		}
		wg.Wait()
		looks := d.count()
		l.Wake()
		cancel()
		require.Equal(t, worker.ErrStopped, l.Start(t.Context()))
		require.Equal(t, looks, d.count())
		if t.Failed() {
			return
		}
	}
}
