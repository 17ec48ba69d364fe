package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/worker"
)

// Wake leads to a Take at once. Proves LOOP-1.
func TestWakeTakesAtOnce(t *testing.T) {
	d := new(desk)
	bubble(t, d, worker.Config[int]{Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
		for i := range 10 {
			d.put(i)
			l.Wake()
			synctest.Wait()
			require.Len(t, d.done(), i+1)
		}
		for _, gap := range d.gaps() {
			assert.Zero(t, gap)
		}
	})
}

// Wake-ups during a Take lead to one more Take, however many there were. Proves LOOP-1.
func TestWakeDuringTakeIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := make(chan struct{}), make(chan struct{})
		d := new(desk)
		d.take = func(_ context.Context, _ int, jobs []int) ([]int, error) {
			asked <- struct{}{}
			<-answer
			return jobs, nil
		}
		l := d.loop(worker.Config[int]{Poll: time.Hour})
		require.NoError(t, l.Start(context.Background()))
		<-asked // this Take has seen an empty desk
		d.put(0)
		for range 100 {
			l.Wake()
		}
		answer <- struct{}{}
		<-asked
		answer <- struct{}{}
		synctest.Wait() // a full Take, so another follows
		<-asked
		answer <- struct{}{}
		synctest.Wait()
		assert.Equal(t, []int{0}, d.done())
		assert.Equal(t, 3, d.count(), "wake-ups are coalesced")
		assert.Equal(t, []time.Duration{0, 0}, d.gaps(), "no Take waited for the poll")
		require.NoError(t, l.Stop(context.Background()))
	})
}

// A wake-up that arrives while Once uses all slots is remembered until one is free. Proves LOOP-1.
func TestWakeWithoutFreeSlotIsNotLost(t *testing.T) {
	for name, come := range map[string]func(l *worker.Loop[int]){
		"wake":                  func(l *worker.Loop[int]) { l.Wake() },
		"time":                  func(l *worker.Loop[int]) { l.WakeIn(time.Minute) },
		"poll":                  func(*worker.Loop[int]) { pass(2 * time.Hour) },
		"wake with a time also": func(l *worker.Loop[int]) { l.WakeIn(3 * time.Hour); l.Wake() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				d := &desk{run: func(_ context.Context, job int) {
					if job == 0 {
						<-end
					}
				}}
				l := start(t, d, worker.Config[int]{Poll: time.Hour})
				ctx, cancel := context.WithCancel(t.Context())
				d.put(0)
				got := once(ctx, l)
				synctest.Wait()
				require.Equal(t, []int{0}, d.begun())
				cancel() // so that Once takes no more jobs

				d.put(1)
				come(l)
				pass(time.Minute)
				require.Equal(t, []int{0}, d.begun())
				close(end)
				assert.Equal(t, result{1, context.Canceled}, <-got)
				synctest.Wait()
				assert.Equal(t, []int{0, 1}, d.done())
				require.NoError(t, l.Stop(t.Context()))
			})
		})
	}
}

// Wake-ups before Start are remembered, and lead to one Take. Proves LOOP-1.
func TestWakeBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		l := d.loop(worker.Config[int]{Poll: time.Hour})
		l.Wake()
		l.WakeIn(time.Minute)
		l.Wake()
		synctest.Wait()
		assert.Zero(t, d.count())
		pass(30 * time.Second)
		require.NoError(t, l.Start(context.Background()))
		synctest.Wait()
		assert.Equal(t, 1, d.count())
		pass(time.Hour / 2)
		assert.Equal(t, []time.Duration{30 * time.Second}, d.gaps())
		require.NoError(t, l.Stop(context.Background()))
	})
}

// WakeIn leads to a Take after the given time. Proves LOOP-1.
func TestWakeIn(t *testing.T) {
	d := new(desk)
	check := func(name string, want []time.Duration, fn func(l *worker.Loop[int])) {
		t.Run(name, func(t *testing.T) {
			*d = desk{}
			bubble(t, d, worker.Config[int]{Poll: time.Hour}, func(t *testing.T, l *worker.Loop[int]) {
				fn(l)
				pass(time.Hour / 2)
				assert.Equal(t, want, d.gaps())
			})
		})
	}
	check("the earliest time counts", []time.Duration{time.Second}, func(l *worker.Loop[int]) {
		l.WakeIn(3 * time.Second)
		l.WakeIn(time.Second)
		l.WakeIn(2 * time.Second)
	})
	check("now", []time.Duration{0, 0}, func(l *worker.Loop[int]) {
		l.WakeIn(0)
		synctest.Wait()
		l.WakeIn(-time.Hour)
		synctest.Wait()
	})
	check("an earlier Take does not cancel it", []time.Duration{time.Second, time.Second}, func(l *worker.Loop[int]) {
		l.WakeIn(2 * time.Second)
		pass(time.Second)
		l.Wake()
	})
	check("again after the first time", []time.Duration{time.Second, 2 * time.Second}, func(l *worker.Loop[int]) {
		l.WakeIn(time.Second)
		pass(time.Second)
		l.WakeIn(2 * time.Second)
	})
	check("inside Take", []time.Duration{time.Second, 7 * time.Second}, func(l *worker.Loop[int]) {
		d.mu.Lock()
		d.take = func(context.Context, int, []int) ([]int, error) {
			if len(d.looks) == 2 { // the Take caused by the WakeIn below
				l.WakeIn(7 * time.Second)
			}
			return nil, nil
		}
		d.mu.Unlock()
		l.WakeIn(time.Second)
	})
}

// A time after many polls is kept. Proves LOOP-1.
func TestWakeInOutlivesPolls(t *testing.T) {
	d := new(desk)
	bubble(t, d, worker.Config[int]{Poll: time.Minute}, func(t *testing.T, l *worker.Loop[int]) {
		at := time.Now().Add(time.Hour)
		l.WakeIn(time.Hour)
		pass(2 * time.Hour)
		found := false
		for _, k := range d.looks {
			found = found || k.at.Equal(at)
		}
		assert.True(t, found)
	})
}

// After Stop, neither Wake nor WakeIn has any effect. Proves LOOP-4.
func TestWakeAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(desk)
		l := d.loop(worker.Config[int]{})
		require.NoError(t, l.Start(context.Background()))
		synctest.Wait()
		l.WakeIn(time.Second)
		require.NoError(t, l.Stop(context.Background()))
		d.put(0)
		l.Wake()
		l.WakeIn(time.Second)
		pass(time.Hour)
		assert.Equal(t, 1, d.count())
	})
}
