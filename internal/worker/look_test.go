package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/worker"
)

// Take is asked for no more jobs than there are free slots, and all slots are used. Proves LOOP-2.
func TestLimitIsTheNumberOfFreeSlots(t *testing.T) {
	d := &desk{run: func(context.Context, int) { time.Sleep(rand.N(time.Second)) }}
	d.put(numbers(100)...)
	bubble(t, d, worker.Config[int]{Concurrency: 3, Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		pass(2 * time.Minute)
		assert.Equal(t, numbers(100), d.done())
		assert.Equal(t, 3, d.most, "jobs at the same time")
		assert.Equal(t, 3, d.asked, "jobs running or asked for at the same time")
		for _, k := range d.looks {
			assert.Positive(t, k.limit)
		}
	})
}

func TestConcurrencyIsOneByDefault(t *testing.T) {
	d := &desk{run: func(context.Context, int) { time.Sleep(time.Second) }}
	d.put(numbers(5)...)
	bubble(t, d, worker.Config[int]{}, func(t *testing.T, l *worker.Loop[int]) {
		pass(6 * time.Second)
		assert.Equal(t, numbers(5), d.started, "in the order of Take")
		assert.Equal(t, 1, d.most)
	})
}

// A full Take is followed by another as soon as a slot is free, without a delay. Proves LOOP-1.
func TestFullTakeIsFollowedByAnother(t *testing.T) {
	d := new(desk)
	d.put(numbers(20)...)
	bubble(t, d, worker.Config[int]{Concurrency: 4}, func(t *testing.T, l *worker.Loop[int]) {
		assert.Equal(t, numbers(20), d.done())
		for _, gap := range d.gaps() {
			assert.Zero(t, gap)
		}
		assert.Less(t, d.looks[len(d.looks)-1].got, d.looks[len(d.looks)-1].limit, "the last Take was not full")
	})
}

// After a full Take, one free slot is enough for another Take, while other jobs run. Proves LOOP-1.
func TestFreedSlotIsUsedAtOnce(t *testing.T) {
	d := &desk{run: func(_ context.Context, job int) { time.Sleep(time.Duration(1+job%2*100) * time.Second) }}
	d.put(numbers(4)...) // two slots: job 0 takes a second, job 1 much longer
	bubble(t, d, worker.Config[int]{Concurrency: 2, Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		pass(time.Second)
		require.Equal(t, []int{0, 1, 2}, d.begun())
		assert.Equal(t, 1, d.looks[1].limit)
	})
}

// After a Take that returned fewer jobs than asked for, the loop waits to be woken. The end of a
// job does not wake it. Proves LOOP-1.
func TestShortTakeWaits(t *testing.T) {
	d := &desk{run: func(context.Context, int) { time.Sleep(time.Second) }}
	d.put(0, 1)
	bubble(t, d, worker.Config[int]{Concurrency: 3, Poll: time.Minute}, func(t *testing.T, l *worker.Loop[int]) {
		d.put(2)
		pass(30 * time.Second)
		assert.Equal(t, []int{0, 1}, d.done())
		assert.Equal(t, 1, d.count())
		pass(time.Minute)
		assert.Equal(t, numbers(3), d.done(), "the poll finds the new job")
	})
}

// An idle loop calls Take at most once per Poll, with random jitter. Proves LOOP-1.
func TestPollIsJitteredAndNeverShorter(t *testing.T) {
	d := new(desk)
	bubble(t, d, worker.Config[int]{Poll: time.Minute}, func(t *testing.T, l *worker.Loop[int]) {
		pass(10 * time.Hour)
		gaps := d.gaps()
		require.Greater(t, len(gaps), 400)
		assert.GreaterOrEqual(t, slices.Min(gaps), time.Minute)
		assert.LessOrEqual(t, slices.Max(gaps), 75*time.Second+1)
		assert.Greater(t, slices.Max(gaps)-slices.Min(gaps), time.Second)
	})
}

func TestPollIsFiveSecondsByDefault(t *testing.T) {
	d := new(desk)
	bubble(t, d, worker.Config[int]{}, func(t *testing.T, l *worker.Loop[int]) {
		pass(5*time.Second - 1)
		assert.Equal(t, 1, d.count())
		pass(2 * time.Second)
		assert.Equal(t, 2, d.count())
	})
}

// Pauses after failures grow, are random, never exceed Poll, and start again after a success.
// Proves LOOP-1.
func TestFailingTakeBacksOff(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	d := &desk{take: func(context.Context, int, []int) ([]int, error) {
		if fail.Load() {
			return nil, errors.New("no store")
		}
		return nil, nil
	}}
	const poll = 10 * time.Second
	bubble(t, d, worker.Config[int]{Poll: poll}, func(t *testing.T, l *worker.Loop[int]) {
		pass(10 * time.Minute)
		gaps := d.gaps()
		longest := 100 * time.Millisecond
		for i, gap := range gaps {
			require.LessOrEqual(t, gap, longest, "after failure %d", i+1)
			require.Positive(t, gap)
			longest = min(2*longest, poll)
		}
		assert.Greater(t, len(gaps), 60, "pauses never exceed Poll")
		assert.Less(t, len(gaps), 240, "pauses are half of Poll on average")
		assert.Greater(t, slices.Max(gaps), poll/2)
		assert.Less(t, slices.Min(gaps[10:]), poll/2)

		fail.Store(false)
		pass(time.Minute)
		assert.LessOrEqual(t, d.count()-len(gaps)-1, 1+int(time.Minute/poll), "polls")
		fail.Store(true)
		n := d.count()
		pass(2 * poll)
		assert.Greater(t, d.count()-n, 4, "short pauses again")
	})
}

// While Take fails, Wake does not shorten the backoff, and no wake-up is lost. Proves LOOP-1.
func TestWakeDoesNotShortenBackoff(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	d := &desk{take: func(_ context.Context, _ int, jobs []int) ([]int, error) {
		if fail.Load() {
			return nil, errors.New("no store")
		}
		return jobs, nil
	}}
	bubble(t, d, worker.Config[int]{Poll: time.Minute}, func(t *testing.T, l *worker.Loop[int]) {
		for range 60_000 {
			l.Wake()
			l.WakeIn(time.Microsecond)
			pass(10 * time.Millisecond)
		}
		assert.Less(t, d.count(), 120, "Takes in ten minutes")
		fail.Store(false)
		d.put(0)
		pass(time.Minute + 1)
		assert.Equal(t, []int{0}, d.done())
	})
}

// Jobs returned with an error belong to this loop, so they are run. Proves LOOP-2.
func TestJobsReturnedWithErrorAreRun(t *testing.T) {
	d := &desk{take: func(_ context.Context, _ int, jobs []int) ([]int, error) {
		return jobs, errors.New("and then it broke")
	}}
	d.put(0, 1)
	bubble(t, d, worker.Config[int]{Concurrency: 3, Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		assert.Equal(t, []int{0, 1}, d.done())
		assert.Equal(t, 1, d.count(), "the Take still counts as failed")
	})
}

// If Take returns more jobs than asked for, all are run, and the count of free slots stays right.
// Proves LOOP-2.
func TestJobsBeyondTheLimitAreRun(t *testing.T) {
	first := true
	d := &desk{
		take: func(_ context.Context, limit int, jobs []int) ([]int, error) {
			if first {
				first = false
				return []int{100, 101, 102, 103, 104}, nil
			}
			return jobs, nil
		},
		run: func(context.Context, int) { time.Sleep(time.Minute) },
	}
	bubble(t, d, worker.Config[int]{Concurrency: 2, Poll: time.Second}, func(t *testing.T, l *worker.Loop[int]) {
		assert.Len(t, d.begun(), 5)
		assert.Equal(t, 1, d.lines("returned 5 jobs, limit 2"))
		d.put(numbers(10)...)
		pass(59 * time.Second)
		assert.Equal(t, 1, d.count(), "no Take while no slot is free")
		pass(10 * time.Minute)
		assert.Len(t, d.done(), 15)
		for _, k := range d.looks {
			assert.Contains(t, []int{1, 2}, k.limit)
		}
	})
}

// Jobs that panic or end their goroutine free their slot, and the log has the stack. Proves LOOP-3.
func TestPanickingJobsFreeTheirSlots(t *testing.T) {
	d := &desk{run: func(_ context.Context, job int) {
		switch job % 3 {
		case 0:
			explode(job)
		case 1:
			leaveForGood()
		}
	}}
	d.put(numbers(9)...)
	bubble(t, d, worker.Config[int]{Concurrency: 2, Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		assert.Equal(t, numbers(9), d.done())
		assert.LessOrEqual(t, d.most, 2)
		assert.Equal(t, 3, d.lines("job panicked"))
		assert.Equal(t, 3, d.lines("job called runtime.Goexit"))
		assert.Equal(t, 3, d.lines("worker_test.explode"), "stack of the panic")
		assert.Equal(t, 3, d.lines("worker_test.leaveForGood"), "stack of the Goexit")
		assert.Equal(t, 1, d.lines("panic=\"job 6\""))
		assert.Equal(t, 6, d.lines("worker=desk"))
	})
}

//go:noinline
func explode(job int) { panic("job " + string(rune('0'+job))) }

//go:noinline
func leaveForGood() { runtime.Goexit() }

// A Take that panics or ends its goroutine counts as failed, and the loop continues. Proves LOOP-3.
func TestPanickingTakeCountsAsFailed(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func()
		says   string
	}{
		"panic":  {func() { explode(1) }, "Take panicked: job 1"},
		"goexit": {leaveForGood, "Take called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			var works atomic.Bool
			d := &desk{take: func(_ context.Context, _ int, jobs []int) ([]int, error) {
				if !works.Load() {
					c.breaks()
				}
				return jobs, nil
			}}
			bubble(t, d, worker.Config[int]{Poll: time.Second}, func(t *testing.T, l *worker.Loop[int]) {
				pass(time.Minute)
				assert.Greater(t, d.count(), 20)
				assert.Less(t, d.count(), 300, "the loop backs off")
				assert.Equal(t, 1, d.lines(c.says))
				works.Store(true)
				d.put(0)
				pass(2 * time.Second)
				assert.Equal(t, []int{0}, d.done())
			})
		})
	}
}

// An error of Take is logged when it changes, not with each attempt. Proves LOOP-3.
func TestTakeErrorIsLoggedOncePerChange(t *testing.T) {
	var err atomic.Pointer[error]
	d := &desk{take: func(context.Context, int, []int) ([]int, error) {
		if p := err.Load(); p != nil {
			return nil, *p
		}
		return nil, nil
	}}
	bubble(t, d, worker.Config[int]{Poll: time.Second}, func(t *testing.T, l *worker.Loop[int]) {
		for _, says := range []string{"", "refused", "", "refused", "denied"} {
			err.Store(nil)
			if says != "" {
				err.Store(new(errors.New(says)))
			}
			pass(time.Minute)
		}
		synctest.Wait()
		assert.Equal(t, 2, d.lines("error=refused"))
		assert.Equal(t, 1, d.lines("error=denied"))
		assert.Equal(t, 1, d.lines("worker recovered"))
		assert.Equal(t, 4, d.lines("\n"), "nothing else")
		err.Store(new(nilError()))
		pass(time.Minute)
		assert.Equal(t, 5, d.lines("\n"), "an error that cannot speak")
	})
}

type mute struct{ what string }

func (m *mute) Error() string { return m.what }

func nilError() error { return (*mute)(nil) }
