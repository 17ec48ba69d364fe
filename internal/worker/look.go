package worker

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
)

// begin reserves all free slots and takes for them, on behalf of p. The caller holds l.mu.
func (l *Loop[J]) begin(p *party) {
	limit := l.free
	l.free = 0
	l.taking, p.taking = true, true
	go l.look(p, limit)
}

// look is one Take, and the start of what it returned. It does its work in a deferred function, for that runs however Take ends.
func (l *Loop[J]) look(p *party, limit int) {
	var jobs []J
	var stack []byte
	err := errors.New("worker: Take called runtime.Goexit")
	defer func() {
		if v := recover(); v != nil {
			err, stack = fmt.Errorf("worker: Take panicked: %v", v), debug.Stack()
		}
		if err == nil && len(jobs) > limit {
			err = fmt.Errorf("worker: Take returned %d when asked for %d", len(jobs), limit)
		}
		l.launch(p, jobs, limit)
		if p.loop && p.takes.Err() == nil { // an error after that means nothing
			l.report(err, stack)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taking, p.taking = false, false
		p.got, p.err = len(jobs), err
		if p.loop {
			l.schedule(limit, len(jobs), err)
		}
		l.kick()
		l.changed.Broadcast()
	}()
	jobs, err = l.c.Take(p.takes, limit)
}

// launch starts jobs, all of them: they are taken. The slots that they do not use are free again.
func (l *Loop[J]) launch(p *party, jobs []J, reserved int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free += reserved - len(jobs)
	l.running += len(jobs)
	p.running += len(jobs)
	for _, job := range jobs {
		go l.run(p, job)
	}
}

// run is one job.
func (l *Loop[J]) run(p *party, job J) {
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
		p.running--
		l.kick()
		l.changed.Broadcast()
	}()
	l.c.Run(p.jobs, job)
	returned = true
}

// report logs how Take fares, when that has changed.
func (l *Loop[J]) report(err error, stack []byte) {
	now := ""
	if err != nil {
		now = cmp.Or(fmt.Sprint(err), "an error without words") // not err.Error, which may panic
	}
	if now == l.complaint {
		return
	}
	l.complaint = now
	switch {
	case err == nil:
		l.c.Logger.Info("pawl: worker takes again", "worker", l.c.Name)
	case stack != nil:
		l.c.Logger.Error("pawl: worker cannot take", "worker", l.c.Name, "error", now, "stack", string(stack))
	default:
		l.c.Logger.Error("pawl: worker cannot take", "worker", l.c.Name, "error", now)
	}
}
