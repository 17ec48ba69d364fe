package recipes

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// Report is a report to be made. It is a job: a worker does it when it is due.
type Report struct {
	job.State
	Day string `json:"day"`
}

// Reports holds the reports that are not made yet. The id is the day.
var Reports = pawl.Kind[Report]{Name: "report", Label: job.Label, Due: job.Due}

// NewReports returns a scheduler that adds a report at nine on each working day, and a worker that
// makes the reports. Any number of processes may start both. A report that fails is made again later.
// The report of a process that dies is made again once its lease is over, so work must tolerate a
// second call with the same key.
func NewReports(rt *pawl.Runtime, work func(ctx context.Context, key, day string) error) (*job.Scheduler, *job.Worker[Report], error) {
	scheduler, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: []job.Schedule{{
		Name: "daily report",
		Cron: "0 9 * * MON-FRI",
		Do: func(ctx context.Context, tx *pawl.Tx, tick time.Time) error { // committed once per tick
			day := tick.Format(time.DateOnly)
			_, err := Reports.Scope(tx, day).SetState(ctx, Report{State: job.At(tick), Day: day})
			return err
		},
	}}, Poll: time.Minute})
	if err != nil {
		return nil, nil, err
	}
	worker, err := job.New(rt, job.Config[Report]{
		Kind:   Reports,
		Poll:   time.Minute, // how often it looks for reports whose process died
		Handle: func(ctx context.Context, j *job.Job[Report]) error { return work(ctx, j.Key(), j.State.Day) },
	})
	return scheduler, worker, err
}
