package pawl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/internal/waitgraph"
)

// The persisted path, from top to bottom:
//
//	apply ─► queue ─► Work ─► drive: open ─► compute ─► settle ─► answer
//	                                         ▲    │ ▲    │
//	                                         │    └─┘    │ join: later arrivals, once
//	                                         └─── retry ─┘ another process was faster
//
// open finds the state to start from, compute (cas_compute.go) runs the mutations, settle commits,
// answer (cas_answer.go) tells the callers. A slow function leaves its batch (cas_slow.go). A mutation
// whose document cannot be written is found and fails alone (cas_isolate.go). cas_seen.go keeps the
// version last seen.
//
// Writers of one process meet in the queue. The worker takes all that wait as one batch, applies
// them in order to the state last seen, and commits the result under one version check. Only then
// it answers them.
//
// Races, and what decides each:
//   - another process commits first: the store's version test; the batch is computed again on the
//     version that won.
//   - an answer that wrote nothing (no-op, error, refusal) on a state that is no longer current:
//     settle confirms the state, unless it was read after the batch was taken.
//   - a slow function returns when its batch has gone on: batch.running, under the queue's lock. The
//     function then commits by itself, and only onto a state that was really committed.
//   - a caller leaves: before its mutation is computed it is withdrawn; the result of a function that
//     outlives its caller is discarded; what is in a commit stays in it, and is not computed again if
//     that commit loses.
//   - a waiter serves another call while Stats, Close or a timer looks for it: answer makes the batch forget
//     its members under the queue's lock, and detach compares batch.running.
//   - a commit's answer is lost: see internal/commit.

const (
	// maxBatch bounds how many mutations share a commit.
	maxBatch = 1024
	// insistAfter: a batch insists (persist.Commit.Insist) after this many lost commits, or after a
	// quarter of its attempts if that is fewer.
	insistAfter = 4
	// answerGrace is how long a caller waits beyond its budget for the store's answer at its end.
	answerGrace = 100 * time.Millisecond
)

// stored is a persisted scope in this process: the queue of its writers, and the version last seen.
type stored struct {
	queue queue.Queue[storedCall]
	lane  waitgraph.Lane // the queue as deadlock detection sees it; no function holds it
	seen  atomic.Pointer[document.Doc]
	line  atomic.Pointer[line]         // callers that wait for the lease; nil: there never were any
	group atomic.Pointer[notify.Group] // of watchers; nil: there never were any
	place *registration                // where a scope's container is registered; nil: nowhere

	// Protected by the queue's lock.
	batch *batch          // the queue's batch in progress; nil: none
	alone []*storedWaiter // functions that left their batch and run on their own
	free  chan struct{}   // closed when the transaction that holds the queue lets go; nil: not asked for
}

type storedWaiter = queue.Waiter[storedCall]

// storedCall is a mutation in a persisted queue.
type storedCall struct {
	ctx       context.Context
	parent    *frame // of the function that the call was made in; nil: none
	call      call
	change    change
	backend   backend
	holder    *transaction // keeps the queue until it lets go; nil: it is a mutation
	submitted time.Time

	// Of the worker that drives its batch.
	attempts int           // commits that it took part in and that lost
	landed   uint64        // the version after the whole commit, which is the token of a lease taken in it
	waited   time.Duration // from submission to its first batch; 0 without an observer

	// Protected by the queue's lock.
	exclusive bool // it had, or waits for, the queue to itself
	abandoned bool // its result is not wanted any more
	running   bool // its function runs, since started
	started   time.Time
	checked   bool        // its caller left at the deadline, see checkStuck
	check     *time.Timer // calls reportStuck; nil: not set

	// The answer, once the waiter is answered: the caller reads it then. Until then the worker keeps
	// here what the mutation made of the draft.
	out      outcome
	at       time.Time // when it was committed; zero: not known
	reusable bool      // nothing but its caller will lead to the waiter, which may serve another call
}

// batch is a set of mutations that share a commit. It belongs to the goroutine that drives it,
// except for the fields that the queue's lock protects.
type batch struct {
	next          int // the first member not computed yet
	draft         document.Draft
	fresh         bool            // draft.Base was read after the members were taken
	retriedAtOnce bool            // it did not back off after its last conflict
	joined        bool            // it took in later arrivals once
	awake         sync.WaitGroup  // of the callers that answer has woken; see package queue
	slow          bool            // a function took longer than it may when others wait
	careful       bool            // check the document after each mutation, to find the one that cannot be written
	rest          []*storedWaiter // members that isolate has set aside; they follow when the others are answered
	alone         *storedWaiter   // the only member, a function that left the queue; nil: the queue's own batch
	allowed       time.Duration   // how long a function may hold up the others

	// Protected by the queue's lock. The driver replaces members; while a function runs, detach may
	// change members and next, and another goroutine drives the batch then.
	members []*storedWaiter
	running *storedWaiter // the function that runs now; nil: none, or it was detached
	started time.Time     // when it did
	limit   *time.Timer   // calls checkSlow; nil: not set
}

// apply runs ch in its turn on the persisted state.
func (s *stored) apply(ctx context.Context, parent *frame, call *call, ch *change, store backend) (reply, error) {
	if parent != nil {
		if err := parent.callOut(&s.lane, call.key); err != nil {
			return reply{}, err
		}
		if err := parent.waitFor(&s.lane); err != nil {
			return reply{}, err
		}
		defer parent.Waited(&s.lane)
	}
	w := call.env.storedWaiters.Get().(*storedWaiter)
	v := &w.Value
	v.ctx, v.parent, v.backend, v.submitted = ctx, parent, store, time.Now()
	v.call = *call // apart: an assignment of all at once goes through temporary copies
	v.change = *ch
	w.Deadline = v.submitted.Add(call.retry.Within).Add(answerGrace) // one by one: the sum may be too long for a Duration
	if call.env.observer != nil {
		call.observe(ctx, Event{Type: EventQueued, Path: "cas", Verb: ch.verb, Queue: s.queue.Len()})
	}
	s.queue.Lock()
	err := s.submit(w)
	s.queue.Unlock()
	if err != nil {
		return reply{}, err
	}
	if err := s.await(w); err != nil {
		return reply{}, err
	}
	if v.abandoned { // out is still the worker's
		return reply{}, wrapKey(ErrAbandoned, call.key)
	}
	raise(v.out.panic)
	r, err := v.reply(), v.out.err
	if v.reusable { // others are left to the garbage collector
		w.Clear()
		call.env.storedWaiters.Put(w)
	}
	return r, err
}

// submit queues w and makes sure that a worker drives the queue. The caller holds the queue's lock.
func (s *stored) submit(w *storedWaiter) error {
	if err := s.queue.Push(w, w.Value.call.env.maxQueue, s); err != nil {
		return refusedByQueue(err, w.Value.call.key)
	}
	if b := s.batch; b != nil && b.running != nil {
		s.limitRunning(b) // now it holds up another
	}
	return nil
}

// await waits for the answer of w. It returns an error if the caller left without one.
func (s *stored) await(w *storedWaiter) error {
	v := &w.Value
	ending, reached := s.queue.Await(v.ctx, w)
	if ending == queue.GotAnswer {
		return nil
	}
	phase := PhaseQueued // also of a function that runs: its result is discarded
	if reached == queue.Committing {
		phase = PhaseCommitting
	}
	if ending == queue.Canceled {
		v.call.observe(v.ctx, Event{Type: EventWithdrawn, Path: "cas", Verb: v.change.verb, Err: context.Cause(v.ctx)})
		return leftBy(v.ctx, v.call.key, phase)
	}
	cause := fmt.Errorf("no answer within the budget of %v", v.call.retry.Within)
	err := noAnswer(v.call.key, "", phase == PhaseCommitting, cause)
	v.call.observe(v.ctx, Event{Type: EventTimedOut, Path: "cas", Verb: v.change.verb, Took: time.Since(v.submitted), Err: err})
	if reached == queue.Running {
		s.checkStuck(w)
	}
	return err
}

// Work makes stored a queue.Worker: it serves the waiters in batches.
func (s *stored) Work() {
	for {
		s.queue.Lock()
		w := s.queue.Next()
		if w == nil {
			s.keepCached()
			s.queue.Unlock()
			return
		}
		if w.Value.holder != nil {
			granted := s.queue.Answer(w)
			if granted { // from now on w's transaction drives the queue
				w.Wake()
			}
			s.queue.Unlock()
			if granted {
				return
			}
			continue
		}
		b := s.newBatch(w)
		s.queue.Unlock()
		observeStart(b.members)
		if s.drive(b) == queue.Passed {
			return
		}
		b.awake.Wait()
	}
}

// newBatch makes a batch of w, which has the turn, and the waiters behind it. The caller holds the
// queue's lock.
func (s *stored) newBatch(w *storedWaiter) *batch {
	b := &batch{members: []*storedWaiter{w}, allowed: slowAfter}
	if w.Value.exclusive {
		b.allowed, b.joined = exclusiveFor, true
	} else {
		s.addWaiting(b)
	}
	s.batch = b
	return b
}

// addWaiting adds waiters to b. The caller holds the queue's lock.
func (s *stored) addWaiting(b *batch) {
	for len(b.members) < maxBatch {
		w := s.queue.First()
		if w == nil || w.Value.exclusive || w.Value.holder != nil {
			return
		}
		b.members = append(b.members, s.queue.Take())
	}
}

// join adds waiters that arrived after b was taken, once, and reports whether there were any. None
// join a batch whose state was read for its present members.
func (s *stored) join(b *batch) bool {
	if b.joined || b.fresh {
		return false
	}
	s.queue.Lock()
	b.joined = true
	before := len(b.members)
	s.addWaiting(b)
	came := b.members[before:]
	s.queue.Unlock()
	observeStart(came)
	return len(came) > 0
}

func observeStart(members []*storedWaiter) {
	for _, w := range members {
		if v := &w.Value; v.call.env.observer != nil {
			if v.waited == 0 { // else it was queued again
				v.waited = time.Since(v.submitted)
			}
			v.call.observe(v.ctx, Event{Type: EventStarted, Path: "cas", Verb: v.change.verb, Waited: v.waited})
		}
	}
}

// drive takes b to its end, and says whether this goroutine still drives the queue.
func (s *stored) drive(b *batch) queue.Ownership {
	for {
		if b.draft.Base == nil && !s.open(b) {
			return s.ended(b)
		}
		if s.compute(b) == queue.Passed {
			return queue.Passed
		}
		if s.join(b) {
			continue
		}
		if s.settle(b) == settled {
			return s.ended(b)
		}
		if b.alone != nil && s.requeue(b.alone) {
			return queue.Passed
		}
		if w := b.members[0]; b.alone == nil && w.Value.exclusive {
			s.leaveAgain(b, w)
			return queue.Kept
		}
	}
}

// ended drives the members that isolate has set aside; without any it closes b, whose members were answered.
func (s *stored) ended(b *batch) queue.Ownership {
	if s.takeRest(b) {
		return s.drive(b)
	}
	s.queue.Lock()
	defer s.queue.Unlock()
	if b.alone != nil {
		s.endAlone(b.alone)
		return queue.Passed
	}
	s.batch = nil
	return queue.Kept
}

// open finds the state to start from: the version last seen, or else the store's. If all members
// create the scope from data, it takes the scope for absent; the commit tests that. A function has
// to find its condition true before it runs. Open reports false when the store did not answer, and
// all members were told.
func (s *stored) open(b *batch) bool {
	if d := s.seen.Load(); d != nil && b.alone == nil && (d.Expires.IsZero() || time.Now().Before(d.Expires)) {
		b.draft = document.NewDraft(d)
		return true
	}
	reads := func(w *storedWaiter) bool { return !w.Value.call.absent || w.Value.change.hasFunction() }
	if d := b.members[0].Value.backend.unwritten(); d != nil && b.alone == nil && !slices.ContainsFunc(b.members, reads) {
		b.draft = document.NewDraft(d)
		return true
	}
	return s.reload(b)
}

// reload asks the store for the state to start from.
func (s *stored) reload(b *batch) bool {
	v := &b.members[0].Value
	var d *document.Doc
	err := s.ask(b, func(ctx context.Context) (err error) {
		d, err = v.backend.load(ctx, v.call.key)
		return err
	})
	if err != nil {
		s.failAll(b, err)
		return false
	}
	s.advance(d)
	b.draft, b.fresh = document.NewDraft(d), true
	b.draft.Fresh = true
	return true
}

// progress says whether a batch is at its end.
type progress bool

const (
	settled    progress = true
	startsOver progress = false // its members are to be computed again
)

// settle commits or confirms the state that the members of b were computed on, and answers them.
func (s *stored) settle(b *batch) progress {
	if !slices.ContainsFunc(b.members, func(w *storedWaiter) bool { return w.Value.out.ran }) {
		return settled // the caller of every member left before it was computed
	}
	v, d := &b.members[0].Value, &b.draft
	changed := d.Changed > 0
	if b.fresh && !changed && !d.Expiry.Renew {
		s.answer(b, d.Base.At)
		return settled
	}
	if changed && b.alone != nil {
		s.giveWay()
	}
	var landed, won *document.Doc
	d.Lease.Guards, d.Contention.Insist = b.fences(), b.insists()
	err := s.ask(b, func(ctx context.Context) (err error) {
		landed, won, err = v.backend.commit(ctx, &v.call, d)
		return err
	})
	if unwritable(err) && (changed || len(b.members) > 1) {
		return s.isolate(b, err)
	}
	if f := asFenced(err); f != nil {
		return s.dropLost(b, f)
	}
	if err != nil {
		if changed {
			s.seen.CompareAndSwap(d.Base, nil) // it may no longer be current
		}
		s.failAll(b, err)
		return settled
	}
	switch {
	case landed == nil:
		return s.retry(b, won)
	case changed:
		s.advance(landed)
	case landed != d.Base:
		s.renewed(d.Base, landed)
	}
	s.answer(b, landed.At)
	return settled
}

// retry adopts the version that won, and prepares b to be computed again on it. Members whose
// budget is spent are answered.
func (s *stored) retry(b *batch, won *document.Doc) progress {
	base, stale := b.draft.Base, !b.fresh
	atOnce := b.draft.Contention.Held && !b.retriedAtOnce
	b.retriedAtOnce = atOnce
	s.replace(base, won)
	now := time.Now()
	delay := time.Duration(0)
	keep := b.members[:0:0]
	for _, w := range b.members {
		v := &w.Value
		if !stale { // the first conflict of a state from before the call is only its read
			v.attempts++
		}
		if b.draft.Changed > 0 {
			v.call.observe(v.ctx, Event{Type: EventConflicted, Path: "cas", Verb: v.change.verb, Version: won.Version, Attempts: v.attempts})
		}
		// Finish, not fail: that would raise a panic of the member, which ran on a state that has been
		// overwritten. Only the first member is judged here: it would run on won itself. The others run on
		// what those before them make of won.
		if err := v.call.checkConditions(&v.change, won.Life, won.Version); err != nil && len(keep) == 0 {
			s.finish(w, outcome{ran: true, err: err})
			continue
		}
		wait := time.Duration(0)
		if !stale && !atOnce {
			wait = backoff(v.call.retry, v.attempts)
		}
		if v.attempts >= v.call.retry.Attempts || wait > v.call.retry.Within-now.Sub(v.submitted) {
			err := &ConcurrentModificationError{Scope: v.call.key, Expected: base.Expected(), Actual: won.Version,
				Attempts: max(v.attempts, 1), Elapsed: now.Sub(v.submitted)}
			s.finish(w, outcome{ran: true, err: err})
			continue
		}
		if delay == 0 || wait < delay {
			delay = wait // the shortest: no member waits for another's backoff
		}
		keep = append(keep, w)
	}
	b.fresh = true
	if s.startOver(b, keep, document.NewDraft(won)) == settled {
		return settled
	}
	if delay > 0 {
		time.Sleep(rand.N(delay))
		if !s.reload(b) { // under steady writes, won has been overwritten meanwhile
			return settled
		}
	}
	return startsOver
}

// insists reports whether b has lost so often that the store is asked to hold the winner for it. A
// batch that could not be back at once does not ask.
func (b *batch) insists() bool {
	v := &b.members[0].Value
	lost, may := v.attempts, v.call.retry.Attempts
	return b.alone == nil && !b.slow && !v.exclusive && lost > 0 && lost >= min(may/4, insistAfter) && lost+1 < may
}

// startOver puts b back to its start, on draft, with the given members. Members whose callers left
// are dropped, and their panics reported; the others can be withdrawn until they are computed again.
func (s *stored) startOver(b *batch, members []*storedWaiter, draft document.Draft) progress {
	var dropped []*storedWaiter
	s.queue.Lock()
	b.members = slices.DeleteFunc(slices.Clone(members), func(w *storedWaiter) bool {
		if w.Left() || w.Value.abandoned {
			dropped = append(dropped, w)
			return true
		}
		w.State = queue.Waiting
		return false
	})
	b.next, b.draft = 0, draft
	b.draft.Fresh = b.fresh
	s.queue.Unlock()
	for _, w := range dropped {
		if v := &w.Value; v.out.panic != nil {
			v.call.reportPanic(v.ctx, "cas", v.change.verb, v.out.panic, true)
		}
	}
	if len(b.members) == 0 {
		return settled
	}
	return startsOver
}

// keepCached keeps the container of a queue that has become empty for a while, so that the next writer
// need not read. The caller holds the queue's lock.
func (s *stored) keepCached() {
	if d := s.seen.Load(); d != nil && s.place != nil {
		s.place.Keep(len(d.Raw))
	}
}

// close makes stored closable: it refuses new work, ends the watches, and wakes the callers that wait
// for the lease, which are refused.
func (s *stored) close() <-chan struct{} {
	s.group.Load().Close()
	if l := s.line.Load(); l != nil {
		l.free.Set()
	}
	return s.queue.Close()
}

// busy describes the mutations that run, or between turns the next one, for BusyError.
func (s *stored) busy() (out []Running) {
	s.queue.Lock()
	defer s.queue.Unlock()
	running := slices.Clone(s.alone)
	if w := s.queue.Current(); w != nil {
		if !slices.Contains(running, w) { // else it left the queue, which has not moved on yet
			running = append(running, w)
		}
	} else if w := s.queue.First(); w != nil {
		running = append(running, w)
	}
	for _, w := range running {
		out = append(out, Running{Scope: w.Value.call.key, Verb: w.Value.change.verb, Waiting: s.queue.Len()})
	}
	return out
}

// newStored returns an empty container and the place that it is registered at.
func newStored() (resident, *registration) {
	s := &stored{place: &registration{}}
	return s, s.place
}
