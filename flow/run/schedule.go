package run

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// Schedule starts a run at each tick of s, once in all processes together. s.Do is ignored. It is
// called before Start, which returns an error if s or q is invalid.
//
// The name of s is unique in the store, in all workspaces. q.Key is ignored: the key of the run is
// made of the name and the tick.
func (e *Engine) Schedule(s job.Schedule, q Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.workers != nil {
		e.faults = append(e.faults, &pawl.ArgumentError{Argument: "Schedule " + s.Name, Reason: "added after Start"})
	}
	s.Do = func(ctx context.Context, tx *pawl.Tx, tick time.Time) error {
		start := q
		start.Key = "schedule " + s.Name + " " + tick.UTC().Format(time.RFC3339Nano)
		_, _, err := e.Create(ctx, tx, start)
		return err
	}
	e.schedules, e.requests = append(e.schedules, s), append(e.requests, q)
}

// checkRequest returns why no run can be created by q. The caller holds e.mu.
func (e *Engine) checkRequest(q Request) error {
	d := e.definitions[q.Definition]
	if d == nil {
		return &UnknownDefinitionError{q.Definition}
	}
	_, err := newRecord(d, q)
	return err
}
