package worker

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
)

// startTake reserves all free slots and takes jobs for them, for c. The caller holds l.mu.
func (l *Loop[J]) startTake(c *caller) {
	limit := l.free
	l.free = 0
	l.taking, c.taking = true, true
	go l.take(c, limit)
}

// take calls Take once and starts the jobs that it returned. The work is in a deferred function,
// which runs however Take ends.
func (l *Loop[J]) take(c *caller, limit int) {
	var jobs []J
	var stack []byte
	err := errors.New("worker: Take called runtime.Goexit")
	defer func() {
		if v := recover(); v != nil {
			err, stack = fmt.Errorf("worker: Take panicked: %v", v), debug.Stack()
		}
		if err == nil && len(jobs) > limit {
			err = fmt.Errorf("worker: Take returned %d jobs, limit %d", len(jobs), limit)
		}
		l.startJobs(c, jobs, limit)
		if c.isLoop && c.takes.Err() == nil { // after Stop an error is expected
			l.logTake(err, stack)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taking, c.taking = false, false
		c.got, c.err = len(jobs), err
		if c.isLoop {
			l.schedule(limit, len(jobs), err)
		}
		l.takeIfDue()
		l.changed.Broadcast()
	}()
	jobs, err = l.c.Take(c.takes, limit)
}

// startJobs starts all jobs and frees the reserved slots that they do not use.
func (l *Loop[J]) startJobs(c *caller, jobs []J, reserved int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free += reserved - len(jobs)
	l.running += len(jobs)
	c.running += len(jobs)
	for _, job := range jobs {
		go l.run(c, job)
	}
}

// run runs one job.
func (l *Loop[J]) run(c *caller, job J) {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			l.c.Logger.Error("pawl: job panicked", "worker", l.c.Name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		} else if !returned {
			l.c.Logger.Error("pawl: job called runtime.Goexit", "worker", l.c.Name, "stack", string(debug.Stack()))
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free++
		l.running--
		c.running--
		l.takeIfDue()
		l.changed.Broadcast()
	}()
	l.c.Run(c.jobs, job)
	returned = true
}

// logTake logs a failure of Take, and its end, if it differs from the last one logged.
func (l *Loop[J]) logTake(err error, stack []byte) {
	now := ""
	if err != nil {
		now = cmp.Or(fmt.Sprint(err), "error with an empty message") // err.Error itself may panic
	}
	if now == l.lastLogged {
		return
	}
	l.lastLogged = now
	switch {
	case err == nil:
		l.c.Logger.Info("pawl: worker recovered", "worker", l.c.Name)
	case stack != nil:
		l.c.Logger.Error("pawl: worker failed to take jobs", "worker", l.c.Name, "error", now, "stack", string(stack))
	default:
		l.c.Logger.Error("pawl: worker failed to take jobs", "worker", l.c.Name, "error", now)
	}
}
