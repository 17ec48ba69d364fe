package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// openRiver opens github.com/riverqueue/river, a job queue on PostgreSQL, with its migrations. Its
// settings are its defaults, except the shortest pause between two fetches that it accepts (1 ms; its
// default is 100 ms, which bounds the throughput). New jobs are announced by LISTEN/NOTIFY.
// Completions are written in batches: every 250 ms, or after 50 ms if 100 wait. That is its
// default. It reports a completion to its subscribers once it is written.
func openRiver(ctx context.Context, e *runEngine) error {
	driver := riverpgxv5.New(e.pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[runInput]) error {
		e.worked <- struct{}{}
		return nil
	}))
	client, err := river.NewClient(driver, &river.Config{
		Logger:        quiet,
		FetchCooldown: river.FetchCooldownMin,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: runWorkers}},
		Workers:       workers,
	})
	if err != nil {
		return err
	}
	completed, unsubscribe := client.Subscribe(river.EventKindJobCompleted)
	e.stop = func() {
		unsubscribe()
		_ = client.Stop(context.Background())
	}
	e.start = func(ctx context.Context, in runInput) (string, error) {
		r, err := client.Insert(ctx, in, nil)
		if err != nil {
			return "", err
		}
		return strconv.FormatInt(r.Job.ID, 10), nil
	}
	e.wait = func(ctx context.Context, id string) error { // one run at a time
		select {
		case event := <-completed:
			if got := strconv.FormatInt(event.Job.ID, 10); got != id {
				return fmt.Errorf("job %s completed instead of %s", got, id)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.count = `SELECT count(*) FROM river_job WHERE state = 'completed'`
	return client.Start(ctx)
}
