package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/protect"
	"github.com/pawl-go/pawl/internal/worker"
)

// A job from its first due time to its end:
//
//	        Take: lease, attempts +1      handler      nil: deleted, or changed by Update;
//	ready ──────────────────────────► taken ─────────►   OnCommit, and ends the lease
//	  ▲                                 │   └─ error ─► ready, due later; ends the lease
//	  │                                 │               └─ attempts spent, or pawl.NonRetryable:
//	  │                                 │                  parked, until Retry
//	  ├── Stop interrupts the handler: attempts -1, still due; ends the lease
//	  └── the process dies: the lease runs out, and the job is still due
//
// Races, and what decides each:
//   - Two workers take one job: taking is a version-checked write. One of them gets the lease.
//   - A worker that was paused until its lease ran out ends its attempt: the commit is tested
//     against the token of the lease. It writes nothing.
//   - A process dies after the handler returned and before the commit: the handler runs again.
//   - A handler kills its process: the attempt was counted when the job was taken, so the job is
//     parked in the end, after at least leastCrashes attempts.
//   - Another writer changes the document meanwhile: the last commit is computed again on the new
//     document, without the handler. A changed document is not deleted, and is done once more. Another
//     job under the same id, which has no attempts, is left alone.
//   - Another writer withdraws the job meanwhile: it deletes the document, or gives it a label that
//     the worker does not take. The last commit reads the document and writes nothing. The context
//     of the handler ends when a hint of the store arrives, or within Poll.
//   - A job becomes ready while the worker looks for jobs: the hint of the store is remembered, and
//     the worker looks again. A lost hint costs one Poll.

// Defaults of Config.
const (
	DefaultConcurrency = 4
	DefaultPoll        = 5 * time.Second
)

// DefaultRetry is the retry policy of a job. Its delays add up to less than two hours.
var DefaultRetry = pawl.Retry{Attempts: 20, First: time.Second, Max: 10 * time.Minute}

// commitRetry is the budget of a commit that ends an attempt.
var commitRetry = pawl.Retry{Attempts: 100, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: time.Minute}

// Config configures a Worker. Kind and Handle are required.
type Config[T any] struct {
	// Kind is the kind of the documents. Its Label and Due are the fields of State.
	Kind pawl.Kind[T]
	// Handle does one job. nil ends the job. An error is retried by Retry, unless it is marked by
	// pawl.NonRetryable: then the job is parked. A panic is an error.
	//
	// Its context ends with the cause ErrWithdrawn, ErrStopped or *pawl.LeaseLostError, and after
	// Timeout. Every commit made with it is fenced by the lease.
	Handle func(ctx context.Context, j *Job[T]) error
	// Retry is the policy for failed attempts; zero fields: DefaultRetry. Within is ignored.
	Retry pawl.Retry
	// Timeout ends the context of an attempt; 0: none.
	Timeout time.Duration
	// Concurrency is the number of jobs that this worker does at a time; 0: DefaultConcurrency.
	Concurrency int
	// Lease is the length of the lease of an attempt. A job whose process died is taken again at
	// most this long after the last renewal. 0: pawl.DefaultLease.
	Lease time.Duration
	// Poll is how often the worker looks for due jobs without a hint of the store, such as those
	// whose process died. 0: DefaultPoll.
	Poll time.Duration
	// Parked is called for each job that is parked; nil: it is logged.
	Parked func(id string, state T)
	// Lost is called when an attempt ends without effect, because its lease was lost or the job was
	// withdrawn (ErrWithdrawn); nil: it is logged.
	Lost func(id string, cause error)
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger

	// Protocol is for documents that have statuses of their own. Most jobs do not need it.
	Protocol Protocol[T]
}

// Protocol adapts a worker to documents with statuses of their own. The zero value is for plain
// jobs.
type Protocol[T any] struct {
	// Labels are the labels of documents that are taken when they are due; empty: Ready.
	Labels []string
	// Begin returns a change for the commit that takes a document; nil: only its attempts are
	// counted. With pawl.Atomic in it, jobs are taken one by one. A label that it sets has to be one
	// of Labels.
	Begin func() pawl.Mutation
	// HandBack undoes the change of Begin when Stop interrupts the job; nil: nothing to undo.
	HandBack func(state *T)
	// Retry returns the policy for one document; nil: Config.Retry. Zero fields are taken from that.
	Retry func(state *T) pawl.Retry
	// Failed changes a document in the commit that records a failed attempt. State is set by then:
	// the job is due later, or parked if final. nil: nothing else changes.
	Failed func(state *T, final bool)
}

// Worker does jobs, between Start and Stop. Its methods are safe for concurrent use.
type Worker[T any] struct {
	rt     *pawl.Runtime
	config Config[T]
	state  func(*T) *State
	loop   *worker.Loop[taken[T]]
	// skipped is the last logged error about single documents, and busy says that the last look found
	// as many jobs as it asked for. Only take uses them.
	skipped string
	busy    bool

	mu      sync.Mutex // protects the fields below
	running map[*Job[T]]context.CancelCauseFunc
	stop    context.CancelFunc // ends the goroutine that follows hints; nil: not started
	ended   chan struct{}      // closed when that goroutine has ended
}

// ErrStopped is the cause that ends the context of a handler that Stop interrupts.
var ErrStopped = errors.New("job: worker stopped")

// ErrWithdrawn is the cause that ends the context of a handler whose job was deleted, or got a label
// that the worker does not take.
var ErrWithdrawn = errors.New("job: withdrawn")

// leastCrashes is how many attempts may end with the death of their process before a job is parked,
// even if its policy has fewer attempts.
const leastCrashes = 20

// checkEvery is the least time between two looks at the documents of the running jobs.
const checkEvery = 100 * time.Millisecond

// taken is a job whose lease this process holds.
type taken[T any] struct {
	pawl.Taken[T]
	at time.Time // just after it was taken, by the clock of this process
}

// New returns a worker that is not started. It returns *pawl.ArgumentError for a missing or negative
// field and for a kind without the fields of State, and pawl.ErrNoStore.
func New[T any, P document[T]](rt *pawl.Runtime, c Config[T]) (*Worker[T], error) {
	bad := func(format string, args ...any) error {
		return &pawl.ArgumentError{Argument: "Config", Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case rt == nil || rt.Store() == nil:
		return nil, pawl.ErrNoStore
	case c.Handle == nil:
		return nil, bad("Handle is nil")
	case c.Kind.Label != Label || c.Kind.Due != Due:
		return nil, bad("kind %s must have Label: job.Label and Due: job.Due", c.Kind.Name)
	case c.Retry.Attempts < 0 || c.Retry.First < 0 || c.Retry.Max < 0:
		return nil, bad("Retry must not be negative, got %+v", c.Retry)
	case c.Timeout < 0 || c.Lease < 0 || c.Poll < 0 || c.Concurrency < 0:
		return nil, bad("Timeout, Lease, Poll and Concurrency must not be negative")
	}
	c.Retry = c.Retry.Or(DefaultRetry)
	c.Lease, c.Poll = cmp.Or(c.Lease, pawl.DefaultLease), cmp.Or(c.Poll, DefaultPoll)
	c.Concurrency, c.Logger = cmp.Or(c.Concurrency, DefaultConcurrency), cmp.Or(c.Logger, slog.Default())
	if len(c.Protocol.Labels) == 0 {
		c.Protocol.Labels = []string{Ready}
	}
	w := &Worker[T]{rt: rt, config: c, state: func(d *T) *State { return P(d).job() }, running: map[*Job[T]]context.CancelCauseFunc{}}
	w.loop = worker.New(worker.Config[taken[T]]{
		Name: c.Kind.Name, Take: w.take, Run: w.run, Concurrency: c.Concurrency, Poll: c.Poll, Logger: c.Logger,
	})
	return w, nil
}

// Start does the jobs that are due, in the background, until Stop or until ctx ends. The contexts of
// the jobs are made from ctx. Starting a started worker does nothing. Start returns the cause of a
// ctx that has ended, and ErrStopped after Stop.
func (w *Worker[T]) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.loop.Start(ctx); err != nil || w.stop != nil {
		return stopped(err)
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.ended = make(chan struct{})
	go w.follow(ctx, w.config.Kind.Wakeups(ctx, w.rt))
	w.loop.Wake() // for a hint after its first look, and before Wakeups
	return nil
}

// stopped returns err, with ErrStopped in place of the error of the loop.
func stopped(err error) error {
	if errors.Is(err, worker.ErrStopped) {
		return ErrStopped
	}
	return err
}

// follow wakes the loop for each hint of the store, and ends the contexts of jobs that were
// withdrawn.
func (w *Worker[T]) follow(ctx context.Context, hints <-chan struct{}) {
	defer close(w.ended)
	check, poll := time.NewTimer(checkEvery), time.NewTicker(w.config.Poll)
	defer check.Stop()
	defer poll.Stop()
	changed, mayCheck := false, false
	panicked := map[*Job[T]]bool{} // running jobs whose documents panicked, which was logged
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
			w.loop.Wake()
			changed = true
		case <-poll.C:
			changed = true // perhaps: a hint may be lost
		case <-check.C:
			mayCheck = true
		}
		if changed && mayCheck {
			w.endWithdrawn(ctx, panicked)
			changed, mayCheck = false, false
			check.Reset(checkEvery)
		}
	}
}

// endWithdrawn ends the contexts of the running jobs that were withdrawn. It runs code of the user's
// outside of any call: a document on which that panics is looked at again later, and logged once.
func (w *Worker[T]) endWithdrawn(ctx context.Context, panicked map[*Job[T]]bool) {
	w.mu.Lock()
	running := maps.Clone(w.running)
	w.mu.Unlock()
	maps.DeleteFunc(panicked, func(j *Job[T], _ bool) bool { return running[j] == nil })
	for j, cancel := range running {
		logger := w.config.Logger
		if panicked[j] {
			logger = slog.New(slog.DiscardHandler)
		}
		panicked[j] = nil != protect.Call(logger, func() error {
			snap, err := w.config.Kind.Scope(w.rt, j.ID).Snapshot(ctx)
			doc := snap.State()
			if err == nil && (snap.Version == 0 || !w.takes(&doc)) {
				cancel(ErrWithdrawn)
			}
			return nil
		})
	}
}

// retry returns the retry policy of a document.
func (w *Worker[T]) retry(doc *T) pawl.Retry {
	if w.config.Protocol.Retry != nil {
		return w.config.Protocol.Retry(doc).Or(w.config.Retry)
	}
	return w.config.Retry
}

// takes reports whether the label of a document is one that the worker takes.
func (w *Worker[T]) takes(doc *T) bool {
	return slices.Contains(w.config.Protocol.Labels, w.state(doc).Label)
}

// Stop takes no more jobs and waits for those in progress. When ctx ends first, it ends their
// contexts and returns an error that wraps the cause of ctx; another Stop can wait for them. An
// interrupted job is handed back: it is still due, and the attempt is not counted. Stopping twice
// is safe. A handler must not call Stop.
func (w *Worker[T]) Stop(ctx context.Context) error {
	err := w.loop.Stop(ctx)
	w.mu.Lock()
	stop, ended := w.stop, w.ended
	w.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
	return err
}

// Once does the jobs that are due, and those that they make due, and returns how many it did. It is
// for tests and tools, and works without Start. It returns the errors of pawl.Kind.Take and
// pawl.Kind.List, ErrStopped after Stop, and the cause of a ctx that has ended.
func (w *Worker[T]) Once(ctx context.Context) (int, error) {
	n, err := w.loop.Once(ctx)
	return n, stopped(err)
}

// take is the Take of the loop. The leases outlive ctx, because Stop waits for attempts in progress.
func (w *Worker[T]) take(ctx context.Context, limit int) (jobs []taken[T], err error) {
	// After a full look the next one comes soon. It leaves out the question for the next due time; if
	// it finds less, another look asks.
	asks := !w.busy
	if asks {
		if err := w.wakeForNext(ctx); err != nil {
			return nil, err
		}
	}
	q := pawl.Query{Due: true, Labels: w.config.Protocol.Labels, Limit: limit}
	begin := pawl.All{pawl.Inc{Field: "attempts", By: 1}}
	if w.config.Protocol.Begin != nil {
		begin = append(begin, w.config.Protocol.Begin())
	}
	all, err := w.config.Kind.Take(context.WithoutCancel(ctx), w.rt, q, pawl.LeaseFor(w.config.Lease), pawl.WithMutation(begin, pawl.WithDueIn(0)))
	at := time.Now() // afterwards, so that Job.Now is not ahead of the store
	if w.busy = len(all) == limit; !w.busy && !asks {
		w.loop.Wake()
	}
	for _, t := range all {
		jobs = append(jobs, taken[T]{t, at})
	}
	if err == nil || ctx.Err() != nil || pawl.IsRetryable(err) || pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrClosed) {
		w.skipped = ""
		return jobs, err
	}
	// About single documents: they must not delay the others.
	if text := err.Error(); text != w.skipped {
		w.skipped = text
		w.config.Logger.WarnContext(ctx, "job: documents were left alone", "kind", w.config.Kind.Name, "err", err)
	}
	return jobs, nil
}

// wakeForNext makes the loop look again when the next job falls due. It comes before Take: a job
// that falls due between the two is taken. The loop extends Poll by up to a quarter, so it looks
// ahead further than that.
func (w *Worker[T]) wakeForNext(ctx context.Context) error {
	in, err := w.config.Kind.NextDue(ctx, w.rt, pawl.Query{Labels: w.config.Protocol.Labels}, 2*w.config.Poll)
	if err == nil && in > 0 {
		w.loop.WakeIn(in)
	}
	return err
}

// Verbs of the events that a worker passes to the runtime's observer, with the Path "job". Key is that
// of the document, and Attempts the number of the attempt.
const (
	VerbTaken      = "taken"       // an attempt begins; Waited is the time since the job was due
	VerbDone       = "done"        // the job has ended, after Took
	VerbFailed     = "failed"      // the attempt failed with Err, and is to be repeated
	VerbParked     = "parked"      // the attempt failed with Err, and the job is parked
	VerbHandedBack = "handed back" // Stop interrupted the attempt
	VerbLost       = "lost"        // the attempt ended without effect, because of Err
)

// emit passes an event of an attempt to the observer of the runtime.
func (w *Worker[T]) emit(ctx context.Context, j *Job[T], verb string, e pawl.Event) {
	e.Type, e.Path, e.Verb = pawl.EventNoted, "job", verb
	e.Key, e.Attempts = pawl.Key{Kind: w.config.Kind.Name, ID: j.ID}, j.Attempt
	w.rt.Observe(ctx, e)
}

// emitEnd passes the end of an attempt to the observer of the runtime.
func (w *Worker[T]) emitEnd(ctx context.Context, j *Job[T], verb string, err error) {
	w.emit(ctx, j, verb, pawl.Event{Took: time.Since(j.since), Err: err})
}

// lag returns how long the job was due when it was taken, 0 if the document does not say.
func (j *Job[T]) lag() time.Duration {
	due := j.document(&j.State).Due
	if due.IsZero() {
		return 0
	}
	return max(j.taken.Sub(due), 0)
}

// run is the Run of the loop: it makes one attempt. The end of ctx means that Stop interrupts it.
func (w *Worker[T]) run(ctx context.Context, t taken[T]) {
	j := &Job[T]{ID: t.ID, taken: t.Time, since: t.at, key: w.config.Kind.Name + "/" + t.ID, document: w.state}
	err := t.Lease.Run(func(held context.Context, l *pawl.Lease) error {
		j.State = t.State()
		s := w.state(&j.State)
		j.Attempt, j.due, j.retry = s.Attempts, s.Due, w.retry(&j.State) // the handler may change its copy
		w.emit(ctx, j, VerbTaken, pawl.Event{Waited: j.lag()})
		err := w.attempt(ctx, held, j)
		fenced := context.WithoutCancel(held) // Stop does not interrupt the commit
		if err == nil {
			err = protect.Call(w.config.Logger, func() error { return w.complete(fenced, l, j) })
		}
		switch {
		case err == nil:
			w.emitEnd(ctx, j, VerbDone, nil)
			return nil
		case held.Err() != nil:
			return context.Cause(held)
		case ctx.Err() != nil && !pawl.IsNonRetryable(err):
			if err = w.handBack(fenced, l, j); err == nil {
				w.emitEnd(ctx, j, VerbHandedBack, nil)
			}
			return err
		}
		err = protect.Call(w.config.Logger, func() error { return w.fail(fenced, l, j, err) })
		if err != nil && !errors.Is(err, ErrWithdrawn) { // the job is still due
			worker.PauseUnrecorded(held, ctx)
		}
		return err
	})
	if err != nil {
		w.emitEnd(ctx, j, VerbLost, err)
	}
	lost := errors.Is(err, ErrWithdrawn) || errors.Is(err, pawl.ErrLeaseLost)
	switch {
	case err == nil:
	case lost && w.config.Lost != nil:
		w.config.Lost(t.ID, err)
	case lost:
		w.config.Logger.InfoContext(ctx, "job: an attempt ended without effect", "kind", w.config.Kind.Name, "id", t.ID, "err", err)
	default:
		w.config.Logger.WarnContext(ctx, "job: the end of an attempt could not be recorded; it will be repeated",
			"kind", w.config.Kind.Name, "id", t.ID, "err", err)
	}
}

// attempt calls the handler. It returns an error without a call if the job has no attempts left:
// the last one never ended.
func (w *Worker[T]) attempt(ctx, held context.Context, j *Job[T]) error {
	if ctx.Err() != nil {
		return ErrStopped // before the attempt began
	}
	if j.Attempt > max(j.retry.Attempts, leastCrashes) {
		return pawl.NonRetryable(errors.New("attempts spent: the last one did not end"))
	}
	body, cancel := context.WithCancelCause(held)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(ErrStopped) })()
	w.mu.Lock()
	w.running[j] = cancel
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, j)
	}()
	if w.config.Timeout > 0 {
		limited, end := context.WithTimeout(body, w.config.Timeout)
		defer end()
		body = limited
	}
	return protect.Call(w.config.Logger, func() error { return w.config.Handle(body, j) })
}

// complete commits a job whose handler has returned nil.
func (w *Worker[T]) complete(ctx context.Context, l *pawl.Lease, j *Job[T]) error {
	return w.end(ctx, l, j, func(ctx context.Context, tx *pawl.Tx, scope pawl.Scope[T], changed bool) error {
		for _, fn := range j.onCommit {
			if err := fn(ctx, tx); err != nil {
				return err
			}
		}
		if j.update == nil && !changed {
			return scope.Delete(ctx)
		}
		_, err := scope.AtomicState(ctx, func(_ context.Context, doc *T) error {
			j.sees(doc)
			s := w.state(doc)
			s.Attempts, s.Error = 0, ""
			if j.update == nil {
				return nil
			}
			return j.update(doc)
		})
		return err
	})
}

// handBack leaves a job that Stop interrupted as if the attempt had not begun: it is still due.
func (w *Worker[T]) handBack(ctx context.Context, l *pawl.Lease, j *Job[T]) error {
	_, err := w.endOwn(ctx, l, j, func(doc *T) {
		s := w.state(doc)
		s.Attempts--
		if s.Due.Equal(j.due) && (s.Due.IsZero() || s.Due.After(j.Now())) { // pawl.WithDueIn made it due
			s.Due = j.Now()
		}
		if w.config.Protocol.HandBack != nil {
			w.config.Protocol.HandBack(doc)
		}
	})
	return err
}

// endOwn changes the document of the attempt by fn, and ends the lease. If another job was put under the
// id meanwhile, it leaves that alone, and returns ErrWithdrawn.
func (w *Worker[T]) endOwn(ctx context.Context, l *pawl.Lease, j *Job[T], fn func(doc *T)) (after pawl.Snapshot[T], err error) {
	err = w.end(ctx, l, j, func(ctx context.Context, _ *pawl.Tx, scope pawl.Scope[T], _ bool) (err error) {
		after, err = scope.AtomicState(ctx, func(_ context.Context, doc *T) error {
			if j.sees(doc) {
				fn(doc)
			}
			return nil
		})
		return err
	})
	if err == nil && j.replaced {
		err = ErrWithdrawn
	}
	return after, err
}

// fail records that an attempt failed with cause. The job is due later, or parked.
func (w *Worker[T]) fail(ctx context.Context, l *pawl.Lease, j *Job[T], cause error) error {
	final := j.Attempt >= j.retry.Attempts || pawl.IsNonRetryable(cause)
	delay := j.retry.Delay(j.Attempt)
	record := func(text string) (pawl.Snapshot[T], error) {
		return w.endOwn(ctx, l, j, func(doc *T) {
			s := w.state(doc)
			s.Error = text
			if s.Due.Equal(j.due) { // otherwise another writer has set it
				s.Due = j.Now().Add(delay)
			}
			if final {
				s.Label, s.Due = Parked, time.Time{}
			}
			if w.config.Protocol.Failed != nil {
				w.config.Protocol.Failed(doc, final)
			}
		})
	}
	after, err := record(protect.Text(cause))
	if errors.As(err, new(*pawl.LimitError)) {
		after, err = record("the error is too long for the document")
	}
	verb := VerbFailed
	if final {
		verb = VerbParked
	}
	if err == nil {
		w.emitEnd(ctx, j, verb, cause)
	}
	switch {
	case err != nil || !final:
	case w.config.Parked != nil:
		_ = protect.Call(w.config.Logger, func() error { w.config.Parked(j.ID, after.State()); return nil }) // the job is parked, whatever it does
	default:
		w.config.Logger.ErrorContext(ctx, "job: parked", "kind", w.config.Kind.Name, "id", j.ID, "attempts", j.Attempt, "err", cause)
	}
	return err
}

// end runs fn as a transaction that ends the lease, unless the job was withdrawn. Then it returns
// ErrWithdrawn and writes nothing. fn gets to know whether another writer has changed the document
// since it was taken.
func (w *Worker[T]) end(
	ctx context.Context, l *pawl.Lease, j *Job[T], fn func(ctx context.Context, tx *pawl.Tx, scope pawl.Scope[T], changed bool) error,
) error {
	return pawl.Transact(ctx, w.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := w.config.Kind.Scope(tx, j.ID)
		snap, err := scope.Snapshot(ctx)
		if err != nil {
			return err
		}
		if doc := snap.State(); !w.takes(&doc) { // also of a document that was deleted
			return ErrWithdrawn
		}
		if err := fn(ctx, tx, scope, snap.Version != l.Token()); err != nil {
			return err
		}
		return l.ReleaseIn(tx)
	}, pawl.WithRetry(commitRetry))
}

// Parked yields the jobs that are parked, by any process, with the errors of pawl.Kind.List.
func (w *Worker[T]) Parked(ctx context.Context) iter.Seq2[pawl.Snapshot[T], error] {
	return w.config.Kind.List(ctx, w.rt, pawl.Query{Labels: []string{Parked}})
}

// Retry makes a parked job ready again, due at once, with a full budget of attempts. It returns
// pawl.ErrNotFound if no job with that id is parked, and the errors of pawl's verbs.
func (w *Worker[T]) Retry(ctx context.Context, id string) error {
	_, err := w.config.Kind.Scope(w.rt, id).AtomicState(ctx, func(_ context.Context, doc *T) error {
		s := w.state(doc)
		if s.Label != Parked {
			return fmt.Errorf("%w: job %s is not parked", pawl.ErrNotFound, id)
		}
		*s = State{Label: w.config.Protocol.Labels[0], Due: time.Now()}
		return nil
	}, pawl.IfExists(), pawl.WithDueIn(0))
	if errors.Is(err, pawl.ErrDeleted) {
		return fmt.Errorf("%w: %w", pawl.ErrNotFound, err)
	}
	return err
}
