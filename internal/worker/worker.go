// Package worker is the background loop of the library: it takes jobs that are due and runs them,
// until it is stopped. It imports only the standard library.
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

// The states of a loop, and of one take:
//
//	        Start             Stop, or Start's ctx ends       the last Take and job end
//	fresh ─────────► started ───────────────────────────► stopping ─────────► stopped
//	  └──────────────────────── Stop ───────────────────────────┘
//
//	        takeIfDue: it is time, a slot is free       Take returns         Run returns
//	idle ──────────────────────────────────────► taking ────────────► running ────────► idle
//	        all free slots are reserved        unused slots are freed   its slot is freed
//
// No goroutine waits. Each possible reason for a take (Wake, WakeIn, the timer, the end of a job or
// of a Take, Start) changes the state under Loop.mu and calls takeIfDue there, which starts a take
// or sets the timer. So the lock's order decides every race, and no decision uses an old state:
//   - Wake during a Take that has already read its store: takeNow is cleared before Take is called,
//     so a wake-up during the Take is still set when it ends.
//   - Wake while the loop becomes idle: takeIfDue reads takeNow under the lock that Wake sets it
//     under.
//   - WakeIn and an earlier take: wakeAt is cleared only by a take that starts at that time or
//     later.
//   - The timer fires while it is reset: a timer that fires too early only calls takeIfDue, which
//     sets it again.
//   - Once and the loop: both reserve slots under the lock, and only one Take runs at a time.
//   - Stop and a take: takeIfDue reads stopped under the lock, so no Take starts after Stop. The
//     context of a Take that runs ends. The jobs that it returns are run, because Take holds them
//     and only Run can release them.
//   - Stop and its ctx: Stop waits only for Take and Run, so only they can delay it.
//   - A job that does not return, by panic or runtime.Goexit: a deferred function frees its slot.

// ErrStopped is returned by methods of a loop that was stopped.
var ErrStopped = errors.New("worker: loop is stopped")

// BusyError is returned by [Loop.Stop] when its ctx ended before the jobs and Take did. It wraps
// the context's cause.
type BusyError struct {
	Name string
	// Jobs is the number of jobs that still run.
	Jobs int
	// Taking says that a Take has not returned. Its jobs will be run with a context that has ended.
	Taking bool
	Cause  error
}

// Error returns the number of jobs that still run.
func (e *BusyError) Error() string {
	taking := ""
	if e.Taking {
		taking = ", Take has not returned"
	}
	return fmt.Sprintf("worker %s: %d jobs running%s: %v", e.Name, e.Jobs, taking, e.Cause)
}

// Unwrap returns the cause.
func (e *BusyError) Unwrap() error { return e.Cause }

// Config configures a loop. Take and Run are required.
type Config[J any] struct {
	// Name appears in log lines.
	Name string
	// Take returns at most limit jobs that are due now; limit is at least 1. Each of them is run,
	// also a job that comes with an error or after Stop. Take has to hold them against other
	// processes until then. Its context ends at Stop. It is not called concurrently, and may call
	// Wake and WakeIn. A Take that panics, calls runtime.Goexit or returns more than limit jobs has
	// failed.
	Take func(ctx context.Context, limit int) ([]J, error)
	// Run does one job, in a goroutine of its own, and handles its errors. Its context ends with
	// the ctx of Stop and with that of Start or Once. A job that Take returns after that is passed
	// to Run too, to be released. A panic and runtime.Goexit are logged.
	Run func(ctx context.Context, job J)
	// Concurrency is how many jobs run at a time. 0: 1.
	Concurrency int
	// Poll is the time between two takes if nothing wakes the loop. It is extended by up to a
	// quarter, at random, so that processes that start together do not take together. 0: 5 s.
	Poll time.Duration
	// Backoff bounds the pause after the first failed Take. The bound doubles with each further
	// failure, up to Poll; the pause is a random part of it. Waking the loop does not shorten it,
	// but is remembered. 0: 100 ms.
	Backoff time.Duration
	// Logger gets the failures of Take, once per change, and the panics of jobs. nil: slog.Default.
	Logger *slog.Logger
}

// Loop takes jobs that are due and runs them, until it is stopped. Its methods are safe for
// concurrent use.
type Loop[J any] struct {
	c Config[J]

	mu        sync.Mutex    // protects the fields below; Take and Run are called without it
	changed   *sync.Cond    // signals a change that Stop or Once may wait for
	started   *caller       // the caller of Start; nil: not started
	callers   []*caller     // started, and one for each running Once
	unwatch   func() bool   // stops waiting for the end of Start's context
	stopped   bool          // no Take starts any more
	free      int           // slots; below 0 if Take returned more jobs than its limit
	running   int           // jobs
	taking    bool          // a Take is running
	takeNow   bool          // take again as soon as possible
	wakeAt    time.Time     // the time set by WakeIn; zero: none
	pollAt    time.Time     // the time of the next take if nothing wakes the loop
	notBefore time.Time     // no take before this time, after a failed Take; zero: no bound
	backoff   time.Duration // bound of the pause after the last failure; 0: the last Take succeeded
	timer     *time.Timer   // calls takeIfDue; nil: not yet needed
	timerAt   time.Time     // when it fires; zero: it is not set

	lastLogged string // the last logged failure of Take; "": none. Used by the running take only
}

// caller is the loop itself or one call of Once, for which jobs are taken.
type caller struct {
	isLoop            bool            // it is the loop itself
	takes, jobs       context.Context // passed to Take, and to Run
	endTakes, endJobs context.CancelCauseFunc

	// Protected by Loop.mu.
	taking  bool  // a Take runs for it
	running int   // jobs
	got     int   // jobs of the last Take
	err     error // of the last Take
}

// New returns a loop that is not started.
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

// Start takes the jobs that are due and continues in the background. The contexts of the jobs are
// made from ctx. When ctx ends, nothing more is taken and the contexts of the jobs end; Stop still
// waits for the jobs.
//
// Starting a started loop does nothing. Start returns [ErrStopped] after Stop, and the cause of a
// ctx that has ended.
func (l *Loop[J]) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return ErrStopped
	case l.started != nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	l.started = l.addCaller(ctx)
	l.started.isLoop = true
	l.unwatch = context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stopTaking()
		l.endJobs()
	})
	l.takeIfDue()
	return nil
}

// Stop ends the taking and waits for the jobs that run. When ctx ends first, it ends the contexts
// of the jobs and returns a [*BusyError] with the number of jobs that still run; another Stop can
// wait for them. After nil no goroutine of the loop is left.
//
// Neither a job nor Take may call Stop: it would wait for its caller. If several calls wait, the
// first whose ctx ends ends the contexts of the jobs.
func (l *Loop[J]) Stop(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTaking()
	defer context.AfterFunc(ctx, l.broadcast)()
	for l.taking || l.running > 0 {
		if ctx.Err() != nil {
			l.endJobs()
			return &BusyError{l.c.Name, l.running, l.taking, context.Cause(ctx)}
		}
		l.changed.Wait()
	}
	l.endJobs() // releases the contexts
	return nil
}

// State reports whether the loop takes jobs, and how many run.
func (l *Loop[J]) State() (started bool, jobs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.started != nil && l.stopReason(l.started.takes) == nil, l.running
}

// stopTaking is the common part of Stop and the end of Start's context. The caller holds l.mu.
func (l *Loop[J]) stopTaking() {
	l.stopped = true
	if l.unwatch != nil {
		l.unwatch()
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, c := range l.callers {
		c.endTakes(ErrStopped)
	}
	l.changed.Broadcast()
}

// endJobs ends the contexts of all jobs. The caller holds l.mu.
func (l *Loop[J]) endJobs() {
	for _, c := range l.callers {
		c.endJobs(ErrStopped)
	}
}

// broadcast makes Stop and Once test their contexts again.
func (l *Loop[J]) broadcast() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.Broadcast()
}

// Wake makes the loop take again as soon as a slot is free, the running Take has returned, and the
// pause after a failed Take is over. Calls are coalesced, and calls before Start are remembered. It
// never blocks.
func (l *Loop[J]) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeNow = true
	l.takeIfDue()
}

// WakeIn makes the loop take again after d. An earlier take does not replace it. Only the earliest
// of several calls counts. The take at that time may call WakeIn for jobs that are due later; those
// without such a call are found by polling.
func (l *Loop[J]) WakeIn(d time.Duration) {
	at := time.Now().Add(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wakeAt.IsZero() || at.Before(l.wakeAt) {
		l.wakeAt = at
		l.takeIfDue()
	}
}

// Once takes and runs jobs until none is due and its last job has ended, and returns how many it
// took. It is for tests and tools. It works on a loop that is not started and on one that is: then
// it shares the slots, and does not wait for the jobs of the loop. Neither a job nor Take may call
// it: it would wait for its caller.
//
// Once returns the error of Take, [ErrStopped] when the loop is stopped, and ctx's cause when ctx
// ends, each after its jobs have ended. The contexts of its jobs are made from ctx.
func (l *Loop[J]) Once(ctx context.Context) (taken int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.addCaller(ctx)
	defer l.removeCaller(c)
	defer context.AfterFunc(ctx, l.broadcast)()
	for {
		for l.stopReason(ctx) == nil && (l.taking || l.free <= 0) {
			l.changed.Wait()
		}
		if err = l.stopReason(ctx); err != nil {
			break
		}
		limit, alone := l.free, c.running == 0
		l.startTake(c)
		for c.taking {
			l.changed.Wait()
		}
		taken += c.got
		if c.err != nil {
			err = cmp.Or(l.stopReason(ctx), c.err)
			break
		}
		if c.got == 0 && alone {
			break
		}
		for c.got < limit && c.running > 0 { // a job may make others due
			l.changed.Wait()
		}
	}
	for c.running > 0 {
		l.changed.Wait()
	}
	return taken, err
}

// stopReason returns why a caller with this ctx takes nothing more; nil: it may take. The caller
// holds l.mu.
func (l *Loop[J]) stopReason(ctx context.Context) error {
	if l.stopped {
		return ErrStopped
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// addCaller returns a new caller whose contexts are made from ctx. The caller holds l.mu.
func (l *Loop[J]) addCaller(ctx context.Context) *caller {
	c := new(caller)
	c.jobs, c.endJobs = context.WithCancelCause(ctx)
	c.takes, c.endTakes = context.WithCancelCause(c.jobs)
	l.callers = append(l.callers, c)
	return c
}

// removeCaller removes c, which has neither a Take nor jobs running. The caller holds l.mu.
func (l *Loop[J]) removeCaller(c *caller) {
	c.endJobs(nil)
	l.callers = slices.DeleteFunc(l.callers, func(other *caller) bool { return other == c })
}

// takeIfDue starts a take if it is time, and sets the timer otherwise. The caller holds l.mu.
func (l *Loop[J]) takeIfDue() {
	if l.started == nil || l.taking || l.free <= 0 || l.stopReason(l.started.takes) != nil {
		return // Start, the end of a Take and the end of a job call it again
	}
	now, at := time.Now(), l.nextTake()
	if at.After(now) {
		l.setTimer(at)
		return
	}
	l.takeNow = false
	if !l.wakeAt.After(now) {
		l.wakeAt = time.Time{}
	}
	l.startTake(l.started)
}

// nextTake returns the time of the next take. The caller holds l.mu.
func (l *Loop[J]) nextTake() time.Time {
	at := l.pollAt
	if !l.wakeAt.IsZero() && l.wakeAt.Before(at) {
		at = l.wakeAt
	}
	if l.takeNow {
		at = time.Time{}
	}
	if at.Before(l.notBefore) {
		at = l.notBefore
	}
	return at
}

// setTimer makes the timer call takeIfDue at that time. The caller holds l.mu.
func (l *Loop[J]) setTimer(at time.Time) {
	switch {
	case at.Equal(l.timerAt):
		return
	case l.timer != nil:
		l.timer.Reset(time.Until(at))
	default:
		l.timer = time.AfterFunc(time.Until(at), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.timerAt = time.Time{}
			l.takeIfDue()
		})
	}
	l.timerAt = at
}

// schedule sets the time of the next take after one with this limit and result. The caller holds
// l.mu.
func (l *Loop[J]) schedule(limit, got int, err error) {
	now := time.Now()
	l.pollAt = now.Add(l.c.Poll).Add(rand.N(l.c.Poll/4 + 1))
	if err == nil {
		l.backoff, l.notBefore = 0, time.Time{}
		l.takeNow = l.takeNow || got == limit
		return
	}
	if l.backoff == 0 {
		l.backoff = min(l.c.Backoff, l.c.Poll)
	} else {
		l.backoff += min(l.backoff, l.c.Poll-l.backoff)
	}
	l.notBefore = now.Add(1 + rand.N(l.backoff))
	l.takeNow = true
}

// unrecorded is how long a job is kept whose end could not be recorded.
const unrecorded = time.Second

// PauseUnrecorded keeps a job, and with it its lease, for a while, or until one of the contexts ends: its
// end could not be recorded, so another worker would take it at once.
func PauseUnrecorded(held, stop context.Context) {
	timer := time.NewTimer(unrecorded)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-held.Done():
	case <-stop.Done():
	}
}
