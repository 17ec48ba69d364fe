// Package worker is the background loop of the library: it takes what is due and runs it, until it is stopped. It imports
// the standard library only.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// The life of a loop, and of a look:
//
//	        Start             Stop, or Start's ctx ends       the last Take and job end
//	fresh ─────────► started ───────────────────────────► stopping ─────────► stopped
//	  └──────────────────────── Stop ───────────────────────────┘
//
//	         kick: it is time, a slot is free          Take returns      Run returns
//	resting ───────────────────────────────────► taking ────────────► running ────────► resting
//	         all free slots are reserved                 unused slots go back   its slot goes back
//
// There is no goroutine that waits. Whatever may be a reason for a look (Wake, WakeIn, the alarm, a job's end, a Take's end, Start)
// changes the state under Loop.mu and calls kick there, which looks or sets the alarm. So the races of this page are decided by
// who gets the lock first, and nobody decides to sleep on what he knew earlier:
//   - Wake against a Take that has asked its store already: want is cleared before Take is called, so that a wake-up
//     during the Take is still there when it ends;
//   - Wake against going to rest: kick reads want under the lock under which Wake sets it;
//   - WakeIn against an earlier look: due is cleared by a look that begins at that time or later, and by no other;
//   - the alarm against its own resetting: an alarm that rings too early only kicks, and is set again;
//   - Once against the loop: both reserve slots under the lock, and only one Take is under way at a time;
//   - Stop against a look: kick looks at stopped under the lock, so that no Take begins afterwards; one that has begun is told by
//     its context, and what it returns all the same is run: somebody holds it, and nobody else would let it go;
//   - Stop against its own patience: only what runs somebody else's code is waited for, so Stop is late only by that;
//   - a job that never comes back, by panic or runtime.Goexit: its slot is given back by a deferred function.

// ErrStopped is returned by what is asked of a loop that was stopped.
var ErrStopped = errors.New("worker: the loop is stopped")

// BusyError is returned by [Loop.Stop] when its patience ended before what was under way did. It wraps the context's cause.
type BusyError struct {
	Name   string
	Jobs   int  // that still run
	Taking bool // a Take has not returned; what it returns will be run, with a context that has ended
	Cause  error
}

// Error says how many jobs still run.
func (e *BusyError) Error() string {
	also := ""
	if e.Taking {
		also = ", and Take has not returned"
	}
	return fmt.Sprintf("worker %s: jobs that still run: %d%s: %v", e.Name, e.Jobs, also, e.Cause)
}

// Unwrap returns the cause.
func (e *BusyError) Unwrap() error { return e.Cause }

// Config says what a loop does. Take and Run are required.
type Config[J any] struct {
	// Name is for the log.
	Name string
	// Take returns what is due now, at most limit, which is at least 1. Each job that it returns is run, also one
	// that comes with an error or after Stop: holding it until then, and against others, is Take's business. Its
	// context ends at Stop. It is not called concurrently, and may call Wake and WakeIn. A Take that panics or calls
	// runtime.Goexit has failed, and so has one that returns more than limit.
	Take func(ctx context.Context, limit int) ([]J, error)
	// Run does one job, in a goroutine of its own. What went wrong is its own business. Its context ends when the patience
	// of Stop does, and with that of Start or Once; a job that Take returned later than that is still given to
	// Run, to be let go. A panic and runtime.Goexit are logged.
	Run func(ctx context.Context, job J)
	// Concurrency is how many jobs run at a time. 0: 1.
	Concurrency int
	// Poll is the time between looks when nothing wakes the loop. It is prolonged by up to a quarter, at
	// random, so that processes that were started together do not look together. 0: 5 s.
	Poll time.Duration
	// Backoff is the longest pause after a first failing Take. It doubles with each further one, up to Poll; the pause
	// is a random part of it. Nothing shortens it: what wakes the loop meanwhile is remembered. 0: 100 ms.
	Backoff time.Duration
	// Logger gets the failures of Take, once per change, and the panics of jobs. nil: slog.Default.
	Logger *slog.Logger
}

// Loop takes what is due and runs it, until it is stopped. Its methods are safe for concurrent use.
type Loop[J any] struct {
	c Config[J]

	mu      sync.Mutex    // protects what follows; nobody else's code runs under it
	changed *sync.Cond    // something that Stop or Once may wait for has happened
	own     *party        // of Start; nil: not started
	parties []*party      // own, and one for each Once under way
	leave   func() bool   // forgets Start's context
	stopped bool          // no Take begins any more
	free    int           // slots; below 0 if Take returned more than it was asked for
	running int           // jobs
	taking  bool          // a Take is under way
	want    bool          // look again as soon as possible
	due     time.Time     // when WakeIn wants a look; zero: never
	poll    time.Time     // when a look is made though nobody wants one
	patient time.Time     // no look before this: Take has failed
	pause   time.Duration // the longest one after the last failure; 0: it did not fail
	alarm   *time.Timer   // kicks
	rings   time.Time     // when; zero: it is not set

	complaint string // what was logged last about Take; "": all is well. Only the look under way uses it
}

// party is on whose behalf a look is made: that of the loop itself, or of one call of Once.
type party struct {
	loop              bool            // it is the loop itself
	takes, jobs       context.Context // of Take, and of Run
	endTakes, endJobs context.CancelCauseFunc

	// Protected by Loop.mu.
	taking  bool
	running int   // jobs
	got     int   // by the last look
	err     error // of the last look
}

// New returns a loop that is not started yet.
func New[J any](c Config[J]) *Loop[J] {
	c.Concurrency = max(c.Concurrency, 1)
	if c.Poll <= 0 {
		c.Poll = 5 * time.Second
	}
	if c.Backoff <= 0 {
		c.Backoff = 100 * time.Millisecond
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	l := &Loop[J]{c: c, free: c.Concurrency}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Start begins with a look at what is due, and goes on in the background. When ctx ends it is as if Stop had been called without
// patience: nothing more is taken, and the contexts of the jobs, which are made from ctx, end. Stop then still
// waits for the jobs.
//
// Starting a loop again does nothing. Start returns [ErrStopped] after Stop, and the cause of a ctx that has ended already.
func (l *Loop[J]) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return ErrStopped
	case l.own != nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	l.own = l.join(ctx)
	l.own.loop = true
	l.leave = context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.halt()
		l.endJobs()
	})
	l.kick()
	return nil
}

// Stop makes sure that nothing more is taken and waits for the jobs that run. When ctx ends first, it ends the contexts of
// the jobs and returns a [*BusyError] that says how many still run; another Stop can wait for them. After nil
// nothing of the loop runs any more.
//
// Neither a job nor Take may call it: it would wait for the one that called it. Of several calls the one that loses patience first ends the jobs' contexts.
func (l *Loop[J]) Stop(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.halt()
	defer context.AfterFunc(ctx, l.ring)()
	for l.taking || l.running > 0 {
		if ctx.Err() != nil {
			l.endJobs()
			return &BusyError{l.c.Name, l.running, l.taking, context.Cause(ctx)}
		}
		l.changed.Wait()
	}
	l.endJobs() // nobody uses them, but their parents hold them
	return nil
}

// halt is what Stop and the end of Start's context have in common. The caller holds l.mu.
func (l *Loop[J]) halt() {
	l.stopped = true
	if l.leave != nil {
		l.leave()
	}
	if l.alarm != nil {
		l.alarm.Stop()
	}
	for _, p := range l.parties {
		p.endTakes(ErrStopped)
	}
	l.changed.Broadcast()
}

// endJobs ends the contexts of all jobs. The caller holds l.mu.
func (l *Loop[J]) endJobs() {
	for _, p := range l.parties {
		p.endJobs(ErrStopped)
	}
}

// ring lets those who wait look at their contexts.
func (l *Loop[J]) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.Broadcast()
}

// Wake makes the loop look again at once: as soon as a slot is free, the Take that is under way has returned, and the pause after
// a failing one is over. Calls are coalesced, and those before Start are remembered. It never blocks.
func (l *Loop[J]) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want = true
	l.kick()
}

// WakeIn makes the loop look again after d, when something becomes due. A look before that does not make up for it. Of several only
// the earliest counts: Take, which runs then, may call WakeIn for what it sees coming; what nobody asks for again is found by polling.
func (l *Loop[J]) WakeIn(d time.Duration) {
	at := time.Now().Add(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due.IsZero() || at.Before(l.due) {
		l.due = at
		l.kick()
	}
}

// Once takes and runs, until nothing is due and its last job has ended, and returns how many jobs it took. It is for
// tests and for people, and works on a loop that is started and on one that is not; with a started loop it shares the slots, and it does not
// wait for jobs that the loop took. Neither a job nor Take may call it: it would wait for the one that called it.
//
// It returns the error of Take, [ErrStopped] when the loop is stopped, and ctx's cause when that ends, each once its jobs have ended:
// their contexts are made from ctx.
func (l *Loop[J]) Once(ctx context.Context) (taken int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.join(ctx)
	defer l.part(p)
	defer context.AfterFunc(ctx, l.ring)()
	for {
		for l.halted(ctx) == nil && (l.taking || l.free <= 0) {
			l.changed.Wait()
		}
		if err = l.halted(ctx); err != nil {
			break
		}
		limit, alone := l.free, p.running == 0
		l.begin(p)
		for p.taking {
			l.changed.Wait()
		}
		taken += p.got
		if p.err != nil {
			err = cmp.Or(l.halted(ctx), p.err)
			break
		}
		if p.got == 0 && alone {
			break
		}
		for p.got < limit && p.running > 0 { // a job may make others due
			l.changed.Wait()
		}
	}
	for p.running > 0 {
		l.changed.Wait()
	}
	return taken, err
}

// halted returns why nothing more is to be taken on behalf of ctx. The caller holds l.mu.
func (l *Loop[J]) halted(ctx context.Context) error {
	if l.stopped {
		return ErrStopped
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// join returns a new party whose contexts are made from ctx. The caller holds l.mu.
func (l *Loop[J]) join(ctx context.Context) *party {
	p := new(party)
	p.jobs, p.endJobs = context.WithCancelCause(ctx)
	p.takes, p.endTakes = context.WithCancelCause(p.jobs)
	l.parties = append(l.parties, p)
	return p
}

// part ends what join began, once p has neither a Take nor jobs under way. The caller holds l.mu.
func (l *Loop[J]) part(p *party) {
	p.endJobs(nil)
	l.parties = slices.DeleteFunc(l.parties, func(q *party) bool { return q == p })
}

// kick looks if it is time, and otherwise makes sure that it is called again then. The caller holds l.mu.
func (l *Loop[J]) kick() {
	if l.own == nil || l.taking || l.free <= 0 || l.halted(l.own.takes) != nil {
		return // what ends these, if anything, kicks
	}
	now, at := time.Now(), l.next()
	if at.After(now) {
		l.setAlarm(at)
		return
	}
	l.want = false
	if !l.due.After(now) {
		l.due = time.Time{}
	}
	l.begin(l.own)
}

// next returns when to look. The caller holds l.mu.
func (l *Loop[J]) next() time.Time {
	at := l.poll
	if !l.due.IsZero() && l.due.Before(at) {
		at = l.due
	}
	if l.want {
		at = time.Time{}
	}
	if at.Before(l.patient) {
		at = l.patient
	}
	return at
}

// setAlarm makes sure that kick is called at that time. The caller holds l.mu.
func (l *Loop[J]) setAlarm(at time.Time) {
	switch {
	case at.Equal(l.rings):
		return
	case l.alarm != nil:
		l.alarm.Reset(time.Until(at))
	default:
		l.alarm = time.AfterFunc(time.Until(at), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.rings = time.Time{}
			l.kick()
		})
	}
	l.rings = at
}

// schedule sets when the loop looks again after a look that asked for limit. The caller holds l.mu.
func (l *Loop[J]) schedule(limit, got int, err error) {
	now := time.Now()
	l.poll = now.Add(l.c.Poll).Add(rand.N(l.c.Poll/4 + 1))
	if err == nil {
		l.pause, l.patient = 0, time.Time{}
		l.want = l.want || got == limit
		return
	}
	if l.pause == 0 {
		l.pause = min(l.c.Backoff, l.c.Poll)
	} else {
		l.pause += min(l.pause, l.c.Poll-l.pause)
	}
	l.patient = now.Add(1 + rand.N(l.pause))
	l.want = true
}
