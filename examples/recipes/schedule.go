package recipes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// Schedule is work that is due again and again.
type Schedule struct {
	Every time.Duration `json:"every"`
	Next  time.Time     `json:"next"`
	Runs  int           `json:"runs"`
}

// Schedules holds the schedules, by name. The store indexes the time at which each is due.
var Schedules = pawl.Kind[Schedule]{Name: "schedule", Due: "next"}

// AddSchedule creates a schedule, unless it exists: every process may call it when it starts.
func AddSchedule(ctx context.Context, rt *pawl.Runtime, name string, every time.Duration) error {
	_, err := Schedules.Scope(rt, name).AtomicState(ctx, func(_ context.Context, s *Schedule) error {
		if s.Next.IsZero() {
			s.Next = time.Now().Add(every)
		}
		s.Every = every
		return nil
	})
	return err
}

// RunSchedules runs work for each schedule that is due, until ctx ends. Any number of processes may
// call it: a lease lets one of them run a schedule. Failed work is repeated after poll. Work of a
// process that dies is repeated once the lease is over, so it must tolerate a second run.
func RunSchedules(ctx context.Context, rt *pawl.Runtime, poll time.Duration, work func(ctx context.Context, name string) error) {
	for ctx.Err() == nil {
		taken, err := Schedules.Take(ctx, rt, pawl.Query{Due: true, Limit: 10})
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot look for schedules", "err", err)
		}
		var running sync.WaitGroup
		for _, s := range taken {
			running.Go(func() {
				err := s.Lease.Run(func(ctx context.Context, _ *pawl.Lease) error { return runSchedule(ctx, rt, s.ID, work) })
				if err != nil && ctx.Err() == nil {
					slog.WarnContext(ctx, "schedule failed", "name", s.ID, "err", err)
				}
			})
		}
		running.Wait()
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// runSchedule runs the work and moves the schedule on. The commit is refused if the lease was lost.
func runSchedule(ctx context.Context, rt *pawl.Runtime, name string, work func(ctx context.Context, name string) error) error {
	if err := work(ctx, name); err != nil {
		return err // the schedule stays due
	}
	_, err := Schedules.Scope(rt, name).AtomicState(ctx, func(_ context.Context, s *Schedule) error {
		s.Runs++
		for now := time.Now(); !s.Next.After(now); { // skip runs that were missed
			s.Next = s.Next.Add(s.Every)
		}
		return nil
	})
	return err
}
