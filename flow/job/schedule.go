package job

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pawl-go/pawl"
)

// A schedule is a job that is due at its next tick:
//
//	due ──► Do, in the commit that makes the schedule due at the tick after it ──► due
//
// Races, and what decides each:
//   - Several processes see the tick: the lease decides which of them works on it. Do and the next
//     tick are one commit, so Do takes effect once per tick.
//   - A process dies before that commit: another one does the tick, late.
//   - Two releases have different times for one schedule: the one that starts last sets the next
//     tick. While both run, either may do a tick, and sets the next one by its own times.
//     Which of them is newer is not known: a release may come back. Another name avoids that.

// Schedule says when to do something.
type Schedule struct {
	// Name identifies the schedule in the store.
	Name string
	// Cron is a cron expression with five fields, such as "0 9 * * MON-FRI", or one of @hourly,
	// @daily, @weekly, @monthly and @yearly.
	Cron string
	// Every is the time between two ticks, instead of Cron. Ticks are at multiples of it, as
	// time.Time.Truncate counts them.
	Every time.Duration
	// Zone is the time zone of Cron; nil: UTC. A time that does not exist on the day when clocks go
	// forward is skipped; a time that exists twice ticks once. So an expression such as "*/5 * * * *"
	// pauses for an hour when clocks go back: use Every for intervals.
	Zone *time.Location
	// CatchUp says what to do about ticks that no process was there for.
	CatchUp CatchUp
	// Do does the work of one tick as part of tx: it starts a run, or writes a job. It may run more
	// than once, and takes effect once. An error is retried.
	Do func(ctx context.Context, tx *pawl.Tx, tick time.Time) error

	parsed cron.Schedule // of Cron; nil: not yet parsed
}

// CatchUp is a policy for a schedule that is so late that several of its ticks have come.
type CatchUp uint8

// The policies.
const (
	CatchUpOnce CatchUp = iota // do the latest of these ticks
	CatchUpAll                 // do every tick, one after another
	CatchUpNone                // do none of them
)

// next returns the first tick after t.
func (s *Schedule) next(t time.Time) (time.Time, error) {
	if s.Every > 0 {
		return t.Truncate(s.Every).Add(s.Every), nil
	}
	if s.parsed == nil {
		if strings.HasPrefix(s.Cron, "@every") || strings.Contains(s.Cron, "TZ=") {
			return time.Time{}, fmt.Errorf("cron expression %q: use Every and Zone", s.Cron)
		}
		parsed, err := cron.ParseStandard(s.Cron)
		if err != nil {
			return time.Time{}, err
		}
		s.parsed = parsed
	}
	zone := s.Zone
	if zone == nil {
		zone = time.UTC
	}
	next := s.parsed.Next(t.In(zone))
	for repeated(next) {
		next = s.parsed.Next(next)
	}
	if next.IsZero() {
		return next, fmt.Errorf("cron expression %q never ticks", s.Cron)
	}
	return next, nil
}

// repeated reports whether the clocks of t's zone, which were put back, showed the time of t before.
func repeated(t time.Time) bool {
	start, _ := t.ZoneBounds()
	if start.IsZero() {
		return false
	}
	_, before := start.Add(-1).Zone()
	_, after := t.Zone()
	return t.Sub(start) < time.Duration(before-after)*time.Second
}

// fault returns an error if s is invalid. It also parses Cron.
func (s *Schedule) fault() error {
	bad := func(format string, args ...any) error {
		return &pawl.ArgumentError{Argument: "Schedule " + s.Name, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.Name == "" || len(s.Name) > 128:
		return bad("Name must have 1 to 128 bytes, got %d", len(s.Name))
	case (s.Cron == "") == (s.Every == 0):
		return bad("exactly one of Cron and Every must be set")
	case s.Every < 0:
		return bad("Every must not be negative, got %v", s.Every)
	case s.Do == nil:
		return bad("Do is nil")
	case s.CatchUp > CatchUpNone:
		return bad("unknown CatchUp %d", s.CatchUp)
	}
	if _, err := s.next(time.Now()); err != nil {
		return bad("%v", err)
	}
	return nil
}

// label is the label of the document of s. A process that does not have the schedule does not take
// it.
func (s *Schedule) label() string { return Ready + " " + s.Name }

// times describes when s ticks.
func (s *Schedule) times() string { return fmt.Sprintf("%s %v %v", s.Cron, s.Every, s.Zone) }

// tick returns the tick to do now, for a schedule that is due at a time, and the one after it. It
// returns do=false if there is none.
func (s *Schedule) tick(due, now time.Time) (tick time.Time, do bool, next time.Time, err error) {
	tick, do = due, true
	for {
		if next, err = s.next(tick); err != nil || next.After(now) || s.CatchUp == CatchUpAll {
			return tick, do, next, err
		}
		tick, do = next, s.CatchUp == CatchUpOnce
	}
}

// scheduleRecord is the document of a schedule. Its id is the name.
type scheduleRecord struct {
	State           // due at Tick, or at the next attempt after a failed one
	Tick  time.Time `json:"tick"`
	Times string    `json:"times"` // of the release that set Tick
}

var scheduleRecords = pawl.Kind[scheduleRecord]{Name: "job.schedule", Label: Label, Due: Due}

// SchedulerConfig configures a Scheduler. Schedules is required.
type SchedulerConfig struct {
	Schedules []Schedule
	// Lease, Poll and Logger are those of Config.
	Lease  time.Duration
	Poll   time.Duration
	Logger *slog.Logger
}

// Scheduler does the work of schedules, between Start and Stop, in all processes together once per
// tick. Its methods are safe for concurrent use.
type Scheduler struct {
	rt        *pawl.Runtime
	schedules map[string]*Schedule
	worker    *Worker[scheduleRecord]
	stopped   atomic.Bool // set by Stop
}

// NewScheduler returns a scheduler that is not started. It returns *pawl.ArgumentError for a fault of
// a schedule, and the errors of New.
func NewScheduler(rt *pawl.Runtime, c SchedulerConfig) (*Scheduler, error) {
	s := &Scheduler{rt: rt, schedules: map[string]*Schedule{}}
	var labels []string
	for _, one := range c.Schedules {
		if err := one.fault(); err != nil {
			return nil, err
		}
		if s.schedules[one.Name] != nil {
			return nil, &pawl.ArgumentError{Argument: "Schedule " + one.Name, Reason: "two schedules have this name"}
		}
		s.schedules[one.Name] = &one
		labels = append(labels, one.label())
	}
	if len(labels) == 0 {
		return nil, &pawl.ArgumentError{Argument: "Schedules", Reason: "must not be empty"}
	}
	w, err := New(rt, Config[scheduleRecord]{
		Kind: scheduleRecords, Handle: s.do, Protocol: Protocol[scheduleRecord]{Labels: labels}, Lease: c.Lease, Poll: c.Poll, Logger: c.Logger,
		Retry: pawl.Retry{Attempts: 1 << 30, First: time.Second, Max: time.Minute}, // a schedule is never parked
	})
	if err != nil {
		return nil, err
	}
	s.worker = w
	return s, nil
}

// Start stores the schedules that are new or have other times, and begins. A new schedule ticks for
// the first time after now. It returns the errors of pawl's verbs and of Worker.Start.
func (s *Scheduler) Start(ctx context.Context) error {
	for name, one := range s.schedules {
		first, err := one.next(time.Now())
		if err != nil {
			return err
		}
		_, err = scheduleRecords.Scope(s.rt, name).AtomicState(ctx, func(_ context.Context, r *scheduleRecord) error {
			if s.stopped.Load() { // its times do not count any more
				return ErrStopped
			}
			if r.Times != one.times() {
				*r = scheduleRecord{State{Label: one.label(), Due: first}, first, one.times()}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return s.worker.Start(ctx)
}

// Stop ends the scheduler as Worker.Stop ends a worker. The schedules stay in the store.
func (s *Scheduler) Stop(ctx context.Context) error {
	s.stopped.Store(true)
	return s.worker.Stop(ctx)
}

// do is the handler of the worker.
func (s *Scheduler) do(_ context.Context, j *Job[scheduleRecord]) error {
	one := s.schedules[j.ID]
	tick, do, next, err := one.tick(j.State.Tick, j.Now())
	if err != nil {
		return err
	}
	if do {
		j.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
			if err := one.Do(ctx, tx, tick); err != nil {
				return fmt.Errorf("schedule %s, tick %v: %v", one.Name, tick, err) // not final: a schedule is never parked
			}
			return nil
		})
	}
	j.Update(func(r *scheduleRecord) error {
		r.Due, r.Tick, r.Times = next, next, one.times()
		return nil
	})
	return nil
}
