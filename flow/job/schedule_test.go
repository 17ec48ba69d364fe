package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func init() { testkit.Child("ticker", tickerChild) }

// diary lists the ticks of a schedule that were committed.
type diary struct {
	Ticks []time.Time `json:"ticks"`
}

var diaries = pawl.Kind[diary]{Name: "diary"}

// note is a Schedule.Do that commits the tick to the diary.
func note(ctx context.Context, tx *pawl.Tx, tick time.Time) error {
	_, err := diaries.Scope(tx, "all").PushState(ctx, "ticks", tick.UTC())
	return err
}

// noted returns the ticks in the diary.
func noted(t testing.TB, rt *pawl.Runtime) []time.Time {
	t.Helper()
	d, err := diaries.Scope(rt, "all").State(context.Background())
	require.NoError(t, err)
	return d.Ticks
}

// hours returns the ticks in the diary in hours since begin.
func hours(t testing.TB, rt *pawl.Runtime, begin time.Time) (all []float64) {
	t.Helper()
	for _, tick := range noted(t, rt) {
		all = append(all, tick.Sub(begin).Hours())
	}
	return all
}

// schedule starts a scheduler with one schedule, named "report".
func schedule(t testing.TB, rt *pawl.Runtime, s job.Schedule) *job.Scheduler {
	t.Helper()
	s.Name = "report"
	if s.Do == nil {
		s.Do = note
	}
	scheduler, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: []job.Schedule{s}, Poll: 24 * time.Hour, Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, scheduler.Start(context.Background()))
	return scheduler
}

// Two schedulers on one store do each tick once. Proves JOB-1, JOB-3.
func TestScheduleTicksOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		other, err := pawl.Open(pawl.Config{Store: rt.Store()})
		require.NoError(t, err)
		begin := time.Now()
		hourly := job.Schedule{Every: time.Hour}
		first, second := schedule(t, rt, hourly), schedule(t, other, hourly)
		time.Sleep(4*time.Hour + time.Minute)
		require.NoError(t, first.Stop(t.Context()))
		time.Sleep(2 * time.Hour)
		require.NoError(t, second.Stop(t.Context()))
		require.Equal(t, []float64{1, 2, 3, 4, 5, 6}, hours(t, rt, begin))
		require.NoError(t, other.Close(t.Context()))
	})
}

// A schedule that is late does the latest tick, all ticks or none, by its policy. A schedule that is
// late for one tick only does it. Proves JOB-1.
func TestScheduleCatchesUp(t *testing.T) {
	for name, c := range map[string]struct {
		policy job.CatchUp
		want   []float64
	}{
		"once": {job.CatchUpOnce, []float64{1, 5, 6, 7, 8}},
		"all":  {job.CatchUpAll, []float64{1, 2, 3, 4, 5, 6, 7, 8}},
		"none": {job.CatchUpNone, []float64{1, 6, 7, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *pawl.Runtime) {
				begin := time.Now()
				hourly := job.Schedule{Every: time.Hour, CatchUp: c.policy}
				s := schedule(t, rt, hourly)
				time.Sleep(90 * time.Minute)
				require.NoError(t, s.Stop(t.Context()))
				time.Sleep(4 * time.Hour)
				s = schedule(t, rt, hourly)
				time.Sleep(time.Hour)
				require.NoError(t, s.Stop(t.Context()))
				time.Sleep(time.Hour) // late for 7 only
				s = schedule(t, rt, hourly)
				time.Sleep(time.Hour)
				require.NoError(t, s.Stop(t.Context()))
				require.Equal(t, c.want, hours(t, rt, begin))
			})
		})
	}
}

// A tick whose work fails is done again as the same tick, though later. Proves JOB-1, JOB-2.
func TestFailedTickStaysTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		begin := time.Now()
		var tried []time.Time
		s := schedule(t, rt, job.Schedule{Every: time.Hour, Do: func(ctx context.Context, tx *pawl.Tx, tick time.Time) error {
			if tried = append(tried, tick); len(tried) < 3 {
				return errors.New("no printer")
			}
			return note(ctx, tx, tick)
		}})
		time.Sleep(2*time.Hour + time.Minute)
		require.NoError(t, s.Stop(t.Context()))
		require.Equal(t, []float64{1, 2}, hours(t, rt, begin))
		require.Len(t, tried, 4)
		require.True(t, tried[0].Equal(tried[1]) && tried[0].Equal(tried[2]), "%v", tried)
	})
}

// A release that changes the times of a schedule sets its next tick. When it is stopped again, the
// release before goes on with its own times after that tick. Proves JOB-1.
func TestReleaseChangesTheTimes(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		other, err := pawl.Open(pawl.Config{Store: rt.Store()})
		require.NoError(t, err)
		begin := time.Now()
		old := schedule(t, rt, job.Schedule{Every: time.Hour})
		time.Sleep(100 * time.Minute)
		canary := schedule(t, other, job.Schedule{Cron: "15,45 * * * *"})
		require.NoError(t, canary.Stop(t.Context()))
		time.Sleep(97 * time.Minute)
		require.NoError(t, old.Stop(t.Context()))
		require.Equal(t, []float64{1, 1.75, 2, 3}, hours(t, rt, begin))
		changed := schedule(t, other, job.Schedule{Cron: "15,45 * * * *"})
		time.Sleep(time.Hour)
		require.NoError(t, changed.Stop(t.Context()))
		require.Equal(t, []float64{1, 1.75, 2, 3, 3.75, 4.25}, hours(t, rt, begin))
		require.NoError(t, other.Close(t.Context()))
	})
}

// A scheduler that was stopped stores no schedule, neither in a later Start nor in one that Stop
// overtakes. Proves JOB-1.
func TestStartAfterStopStoresNothing(t *testing.T) {
	hourly := func(name string) job.Schedule { return job.Schedule{Name: name, Every: time.Hour, Do: note} }
	for overtakes, want := range map[bool]int{false: 0, true: 1} {
		tap := &stores.Tap{Store: memory.New()}
		rt := open(t, tap)
		s, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: []job.Schedule{hourly("a"), hourly("b")}, Logger: quiet})
		require.NoError(t, err)
		stop := sync.OnceFunc(func() { require.NoError(t, s.Stop(t.Context())) })
		if overtakes {
			tap.OnCommit(func(context.Context, persist.Commit) error { stop(); return nil })
		} else {
			stop()
		}
		require.ErrorIs(t, s.Start(t.Context()), job.ErrStopped)
		require.EqualValues(t, want, tap.Commits.Load())
	}
}

// Ticks follow the clocks of the zone. A time that does not exist on a day is skipped, and a time
// that exists twice ticks once. Proves JOB-1.
func TestZone(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	for _, c := range []struct {
		cron, from string
		want       []string
	}{
		{"30 2 * * *", "2024-03-09T00:00:00-05:00", []string{"2024-03-09T02:30:00-05:00", "2024-03-11T02:30:00-04:00"}},
		{"30 1 * * *", "2024-11-02T00:00:00-04:00", []string{"2024-11-02T01:30:00-04:00", "2024-11-03T01:30:00-04:00", "2024-11-04T01:30:00-05:00"}},
		{"30 * * * *", "2024-11-03T00:00:00-04:00", []string{"2024-11-03T00:30:00-04:00", "2024-11-03T01:30:00-04:00", "2024-11-03T02:30:00-05:00"}},
		{"0 9 * * MON-FRI", "2024-03-08T12:00:00-05:00", []string{"2024-03-11T09:00:00-04:00", "2024-03-12T09:00:00-04:00"}},
		{"0 0 * * *", "2024-11-02T12:00:00-04:00", []string{"2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"}},
	} {
		s := job.Schedule{Name: "report", Cron: c.cron, Zone: zone}
		at, err := time.Parse(time.RFC3339, c.from)
		require.NoError(t, err)
		for _, want := range c.want {
			at, err = s.Next(at.UTC())
			require.NoError(t, err)
			require.Equal(t, want, at.Format(time.RFC3339), c.cron)
		}
	}
	s := job.Schedule{Cron: "0 9 * * *"}
	next, err := s.Next(time.Date(2024, 3, 1, 9, 0, 0, 0, time.UTC))
	require.NoError(t, err)
	require.Equal(t, time.Date(2024, 3, 2, 9, 0, 0, 0, time.UTC), next, "UTC without a zone")
}

func TestInvalidSchedules(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		good := job.Schedule{Name: "report", Every: time.Hour, Do: note}
		for name, change := range map[string]func(*job.Schedule){
			"no name":     func(s *job.Schedule) { s.Name = "" },
			"long name":   func(s *job.Schedule) { s.Name = strings.Repeat("x", 129) },
			"no times":    func(s *job.Schedule) { s.Every = 0 },
			"both times":  func(s *job.Schedule) { s.Cron = "@daily" },
			"negative":    func(s *job.Schedule) { s.Every = -1 },
			"no work":     func(s *job.Schedule) { s.Do = nil },
			"policy":      func(s *job.Schedule) { s.CatchUp = 3 },
			"four fields": func(s *job.Schedule) { s.Every, s.Cron = 0, "* * * *" },
			"words":       func(s *job.Schedule) { s.Every, s.Cron = 0, "every day" },
			"out of day":  func(s *job.Schedule) { s.Every, s.Cron = 0, "0 25 * * *" },
			"never":       func(s *job.Schedule) { s.Every, s.Cron = 0, "0 0 30 2 *" },
			"@every":      func(s *job.Schedule) { s.Every, s.Cron = 0, "@every 1h" },
			"zone":        func(s *job.Schedule) { s.Every, s.Cron = 0, "TZ=Asia/Tokyo 0 9 * * *" },
		} {
			s := good
			change(&s)
			_, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: []job.Schedule{s}})
			var argument *pawl.ArgumentError
			require.ErrorAs(t, err, &argument, name)
		}
		for name, all := range map[string][]job.Schedule{"none": nil, "one name": {good, good}} {
			_, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: all})
			var argument *pawl.ArgumentError
			require.ErrorAs(t, err, &argument, name)
		}
		_, err := job.NewScheduler(nil, job.SchedulerConfig{Schedules: []job.Schedule{good}})
		require.ErrorIs(t, err, pawl.ErrNoStore)
		synctest.Wait()
	})
}

// secondly is a schedule of processes that are killed. No tick of it is left out.
func secondly(do func(ctx context.Context, tx *pawl.Tx, tick time.Time) error) job.SchedulerConfig {
	return job.SchedulerConfig{
		Schedules: []job.Schedule{{Name: "report", Every: time.Second, CatchUp: job.CatchUpAll, Do: do}},
		Lease:     time.Second, Poll: 50 * time.Millisecond, Logger: quiet,
	}
}

// tickerChild blocks in the commit of its first tick.
func tickerChild() error {
	rt, err := openGiven()
	if err != nil {
		return err
	}
	s, err := job.NewScheduler(rt, secondly(func(ctx context.Context, tx *pawl.Tx, tick time.Time) error {
		if err := note(ctx, tx, tick); err != nil {
			return err
		}
		testkit.Say("%s", tick.UTC().Format(time.RFC3339Nano))
		select {}
	}))
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// A process is killed at a tick. Another process does that tick and the ticks after it, each once.
// Proves JOB-1.
func TestKilledAtTheTick(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		p := testkit.Start(t, "ticker", stores.Env(location))
		first, err := time.Parse(time.RFC3339Nano, p.Line())
		require.NoError(t, err)
		p.Kill()
		rt := open(t, stores.OpenFor(t, location))
		s, err := job.NewScheduler(rt, secondly(note))
		require.NoError(t, err)
		require.NoError(t, s.Start(t.Context()))
		testkit.Eventually(t, func() bool { return len(noted(t, rt)) >= 2 }, "ticks are done")
		require.NoError(t, s.Stop(t.Context()))
		for i, tick := range noted(t, rt) {
			require.True(t, tick.Equal(first.Add(time.Duration(i)*time.Second)), fmt.Sprint(first, noted(t, rt)))
		}
	})
}
