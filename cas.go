package pawl

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/internal/yield"
)

// The commit loop. Writers of one process meet in the queue; whoever drives it takes all that wait as one round, applies them in
// order to the state last seen, commits the result under one version check, and only then answers everybody:
//
//	take ─► open ─► compute ◄─► join ─► settle ─► answered
//	         ▲         │                  │
//	         │         │                  └─ lost: adopt the winner, back off, compute again
//	         └─ Load   └─ a function is slow: the round goes on without it, and it goes solo
//
// Races, and what decides them:
//   - another process commits first: the store's version test; the round runs again on the winner.
//   - an answer that wrote nothing (no-op, error, refusal) on a state that is not current any more: settle confirms
//     the state unless it was read after the round was taken.
//   - a slow function returns when the round has gone on: queue.mu, round.current; it then commits against the store
//     like a foreign writer, and only onto a state that was really committed (round.draft had no uncommitted change).
//   - a caller leaves: before its mutation is computed it is withdrawn; a function that outlives its caller is
//     discarded; what is in a commit goes on, and is not computed again if that commit loses.
//   - a commit is in doubt: see internal/commit.

const (
	// slowAfter is how long a function may hold up the round it is in.
	slowAfter = 10 * time.Millisecond
	// exclusiveFor is how long a function that kept losing may have the queue to itself.
	exclusiveFor = time.Second
	// maxRound bounds how many mutations share a commit.
	maxRound = 1024
	// joinYields is how often a round lets others run before it sleeps until they have come.
	joinYields = 2
	// longestGather bounds how long a round waits for those who are about to write, which is half the time of a commit at most, and how long it takes in more.
	longestGather = time.Millisecond
	// gatherYields bounds how often it yields in that time, which does not pass for a clock that stands still.
	gatherYields = 1_000
	// longestSkip bounds how many rounds do not wait after one that did so in vain.
	longestSkip = 31
	// insistAfter is how many commits are lost before the next one insists; where few may be, after a quarter of them.
	insistAfter = 4
	// lastWord is how long a caller waits beyond its budget for what the store has to say when it ends.
	lastWord = 100 * time.Millisecond
	// leastTime is what the store gets for an answer even when a slow function has used up the budget.
	leastTime = 5 * time.Second
)

// cell is a queue and what this process last saw of the persisted state behind it.
type cell struct {
	queue
	seen  atomic.Pointer[document.Doc]
	line  atomic.Pointer[line]         // who waits for the lease; nil: nobody ever did
	group atomic.Pointer[notify.Group] // of watchers; nil: there never were any
	site  *registration                // where a scope's cell is registered; nil: nowhere

	round *round        // the queue's round in progress; this and the next are protected by queue.mu
	crew  int           // how many the last one has answered, with those who waited then
	all   chan struct{} // closed when so many wait; nil: nobody waits for that
	vain  int           // how many rounds skip that, after it was in vain
	skip  int           // of them, those to come
	took  time.Duration // the last commit
	free  chan struct{} // closed when the transaction that holds the queue lets go; nil: nobody waits for that
	watch alarm         // rings when a function has held up others for long enough
}

// casState is what a waiter needs on this path.
type casState struct {
	backend   backend
	attempts  int  // commits that it took part in and that lost
	exclusive bool // it had, or waits for, the queue to itself
	holds     bool // it is a transaction, which keeps the queue until it lets go
	out       outcome
	landed    uint64 // the version that its commit made
	reply     reply
	reusable  bool // it was answered, and nobody else knows it any more
}

// reply is what the caller gets: the state its mutation left behind.
type reply struct {
	state   any // *T; nil: none
	version uint64
	landed  uint64 // the version that its commit made: that of the last mutation in it
	at      time.Time
}

// round is a set of mutations that share a commit.
type round struct {
	members  []*waiter // replaced, under queue.mu, by whoever drives the round
	next     int       // the first member not computed yet
	draft    document.Draft
	fresh    bool      // draft.base was read after the members were taken
	hurried  bool      // it did not pause, and lost what was held for it even so
	open     bool      // others may join
	began    time.Time // how long it may go on to take in whoever comes is counted from then
	careful  bool      // check the size after each mutation, to find the one that is too large
	solo     *waiter   // one function that left the queue; nil: the queue's own round
	current  *waiter
	started  time.Time     // when current's function did
	slow     bool          // a function took longer than it might have, had others been waiting
	patience time.Duration // how long current may take
	one      [1]*waiter    // room for the members of most
}

// newCell returns an empty cell and the place that it is registered at.
func newCell() (resident, *registration) {
	c := &cell{site: &registration{}}
	return c, c.site
}

// release makes cell a resident; a persisted container is never pinned.
func (c *cell) release(bool) {}

// apply runs ch in its turn on the persisted state.
func (c *cell) apply(ctx context.Context, parent *frame, call *call, ch *change, b backend) (reply, error) {
	if parent != nil {
		if err := parent.mutating(&c.queue, call.key); err != nil {
			return reply{}, err
		}
		if err := parent.waitFor(&c.queue); err != nil {
			return reply{}, err
		}
		defer parent.waited(&c.queue)
	}
	w := call.env.waiters.Get().(*waiter)
	w.ctx, w.parent, w.call, w.own, w.cas.backend = ctx, parent, *call, *ch, b
	return c.takeTurn(w)
}

// runAtomic is apply for a function with no more than the terms of its scope, which is called outside of any other; see there in memory.
func (c *cell) runAtomic(ctx context.Context, b *binding, key *Key, fn function) (reply, error) {
	w := b.defaults.env.waiters.Get().(*waiter)
	w.ctx, w.call.terms, w.call.key, w.cas.backend = ctx, b.defaults, *key, b
	w.own.typ, w.own.verb, w.own.fn = b.typ, "Atomic", fn
	return c.takeTurn(w)
}

// takeTurn queues w and waits for its answer.
func (c *cell) takeTurn(w *waiter) (reply, error) {
	w.change = &w.own
	w.submitted = now()
	w.deadline = w.submitted.Add(w.call.retry.Within).Add(lastWord) // one by one: the sum may be too long for a Duration
	w.arm(w.submitted)
	if w.call.env.observer != nil {
		w.observeQueued()
	}
	c.mu.Lock()
	err := c.enter(w)
	c.mu.Unlock()
	if err == nil {
		err = c.sleep(w) // the store takes its time
	}
	if err != nil || !w.cas.reusable || w.panic != nil || w.exited {
		w.disarm()
	}
	if err != nil {
		return reply{}, err
	}
	w.deliver()
	r, err := w.cas.reply, w.err
	if w.cas.reusable {
		env := w.call.env
		w.cas.forget()
		w.change, w.err = nil, nil
		w.forget()
		w.forgetTime()
		w.reset()
		env.waiters.Put(w)
	}
	return r, err
}

// enter queues w and makes sure that somebody drives the queue. The caller holds queue.mu.
func (c *cell) enter(w *waiter) error {
	if err := c.push(w, w.call.env.maxQueue); err != nil {
		return err
	}
	if r := c.round; r != nil && r.current != nil {
		c.watchOver(r)
	}
	c.start(c)
	c.came()
	return nil
}

// forget lets go of what an answered waiter was given. What was computed is gone already, see hand.
func (s *casState) forget() {
	s.backend, s.attempts, s.exclusive, s.holds, s.landed, s.reply, s.reusable = nil, 0, false, false, 0, reply{}, false
}

// take: a mutation that is taken into a round can be withdrawn until it is computed.
func (c *cell) take(w *waiter) { c.give(w) }

// run makes cell a runner: lead and everybody queued behind it become a round.
func (c *cell) run(lead *waiter) bool {
	deepen(0)
	if lead.cas.holds {
		return c.grant(lead)
	}
	r := &round{patience: slowAfter, open: !lead.cas.exclusive, began: now()}
	c.mu.Lock()
	r.members = append(r.one[:0], lead)
	if n := max(1+c.waiting, c.crew); n > 1 {
		r.members = append(make([]*waiter, 0, min(n, maxRound)), lead)
	}
	if lead.cas.exclusive {
		r.patience = exclusiveFor
	} else {
		c.admit(r)
	}
	c.round = r
	c.mu.Unlock()
	observeStart(r.members)
	return c.drive(r)
}

// admit takes those who wait into r and reports whether there were any. The caller holds queue.mu.
func (c *cell) admit(r *round) bool {
	before := len(r.members)
	for w := c.first; w != nil && !w.cas.exclusive && !w.cas.holds && len(r.members) < maxRound; w = c.first {
		c.unlink(w)
		r.members = append(r.members, w)
	}
	return len(r.members) > before
}

// join takes those into r, whose members are computed, who have come since it began, and reports whether there were any. It waits for those
// who were answered by the last round and are about to write again: they share this one, and are computed as they come, instead of waiting for
// its end. While it is young, who has come by then joins, however many there are. Nobody joins a round whose state was read for those who are there already.
func (c *cell) join(r *round) bool {
	if !r.open || r.fresh {
		return false
	}
	c.mu.Lock()
	before := len(r.members)
	if before >= c.crew && (c.waiting == 0 || now().Sub(r.began) > longestGather) {
		c.mu.Unlock()
		return false
	}
	joined := c.admit(r)
	for i := 0; i < joinYields && !joined; i++ {
		c.mu.Unlock()
		yield.Local()
		c.mu.Lock()
		joined = c.admit(r)
	}
	if !joined {
		r.open = false
		c.gather(r)
		joined = c.admit(r)
	}
	came := r.members[before:]
	c.mu.Unlock()
	observeStart(came)
	return joined
}

func observeStart(members []*waiter) {
	for _, w := range members {
		if w.call.env.observer != nil {
			w.call.observe(w.ctx, Event{Type: Started, Path: "cas", Verb: w.change.verb, Waited: time.Since(w.submitted)})
		}
	}
}

// gather waits until all are there whom r can expect. The last of them wakes it. A lone writer does not pay for that, and where it was in vain
// it is not done the next times. The caller holds queue.mu.
func (c *cell) gather(r *round) {
	wait := min(c.took/2, longestGather)
	switch {
	case c.waiting+len(r.members) >= c.crew || c.closed || wait <= 0:
		return
	case c.skip > 0:
		c.skip--
		return
	}
	all := make(chan struct{})
	c.all = all
	if wait < longestGather {
		c.yieldFor(wait)
	} else {
		c.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-all:
		case <-timer.C:
		}
		timer.Stop()
		c.mu.Lock()
	}
	if c.all == nil {
		c.vain = 0
		return
	}
	c.all = nil
	c.vain = min(2*c.vain+1, longestSkip)
	c.skip = c.vain
}

// yieldFor lets others run for so long, or until all are there whom gather waits for. Where nobody runs, a timer of less than a millisecond takes as
// long as one. The caller holds queue.mu.
func (c *cell) yieldFor(wait time.Duration) {
	began := time.Now()
	for i := 0; i < gatherYields && c.all != nil && time.Since(began) < wait; i++ {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// came tells gather when all are there. The caller holds queue.mu.
func (c *cell) came() {
	if c.all != nil && c.waiting+len(c.round.members) >= c.crew {
		close(c.all)
		c.all = nil
	}
}

// drive takes r to its end and reports whether this goroutine still drives the queue.
func (c *cell) drive(r *round) bool {
	for {
		if r.draft.Base == nil && !c.open(r) {
			break
		}
		if !c.compute(r) {
			return false
		}
		if c.join(r) {
			continue
		}
		if c.settle(r) {
			break
		}
		if r.solo != nil && c.requeue(r.solo) {
			return false
		}
		if w := r.members[0]; r.solo == nil && w.cas.exclusive {
			c.goSolo(r, w)
			return true
		}
	}
	return c.ended(r)
}

// ended closes r and reports whether whoever drove it drives the queue.
func (c *cell) ended(r *round) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.solo != nil {
		c.comeBack(r.solo)
		return false
	}
	c.round, c.running = nil, nil
	return true
}

// open finds the state to start from: what was last seen, or else the store's.
func (c *cell) open(r *round) bool {
	if d := c.seen.Load(); d != nil && r.solo == nil && (d.Expires.IsZero() || time.Now().Before(d.Expires)) {
		r.draft = document.NewDraft(d)
		return true
	}
	return c.reload(r)
}

// reload asks the store; if it does not answer, everybody learns that.
func (c *cell) reload(r *round) bool {
	w := r.members[0]
	var d *document.Doc
	err := c.ask(r, func(ctx context.Context) (err error) {
		d, err = w.cas.backend.load(ctx, w.call.key)
		return err
	})
	if err != nil {
		c.answerAll(r, err)
		return false
	}
	c.advance(d)
	r.draft, r.fresh = document.NewDraft(d), true
	r.draft.Fresh = true
	return true
}

// advance remembers d unless something newer was seen.
func (c *cell) advance(d *document.Doc) {
	for {
		cur := c.seen.Load()
		if cur != nil && cur.Version > d.Version {
			return
		}
		if cur != nil && cur.Same(d) {
			d.CacheFrom(cur) // a version has one content: spare the next one the decoding
		}
		if c.seen.CompareAndSwap(cur, d) {
			if cur == nil || !cur.Same(d) {
				c.announce()
			}
			return
		}
	}
}

// replace puts won, which is current by the store's word, in the place of base, whatever their versions say, or else advances to it.
func (c *cell) replace(base, won *document.Doc) {
	if c.seen.CompareAndSwap(base, won) {
		c.announce()
		return
	}
	c.advance(won)
}

// renewed puts d, which is base with another expiry, in its place.
func (c *cell) renewed(base, d *document.Doc) {
	if c.seen.CompareAndSwap(base, d) {
		c.announce() // who waits for the expiry
	}
}

// settle commits or confirms what the members of r were computed on and answers them. It reports false when they have to
// be computed again.
func (c *cell) settle(r *round) bool {
	if len(r.members) == 0 {
		return true
	}
	lead, d := r.members[0], &r.draft
	var won *document.Doc
	switch {
	case d.Changed > 0:
		if r.solo != nil {
			c.giveWay()
		}
		var landed *document.Doc
		d.Lease.Guards = r.fences()
		d.Contention.Insist = r.insists()
		began := time.Now()
		err := c.ask(r, func(ctx context.Context) (err error) {
			landed, won, err = lead.cas.backend.commit(ctx, &lead.call, d)
			return err
		})
		took := time.Since(began)
		if unwritable(err) && !r.careful {
			r.careful = true
			return !c.again(r, r.members, d.Base)
		}
		if f := asFenced(err); f != nil {
			return c.dropLost(r, f)
		}
		if err != nil {
			c.seen.CompareAndSwap(d.Base, nil) // whatever is current now, it need not be this
			c.answerAll(r, err)
			return true
		}
		if landed != nil {
			c.advance(landed)
			c.answer(r, landed.At, took)
			return true
		}
	case d.Expiry.Renew:
		var renewed *document.Doc
		d.Lease.Guards = r.fences()
		err := c.ask(r, func(ctx context.Context) (err error) {
			renewed, won, err = lead.cas.backend.renew(ctx, &lead.call, d)
			return err
		})
		if f := asFenced(err); f != nil {
			return c.dropLost(r, f)
		}
		if err != nil {
			c.answerAll(r, err)
			return true
		}
		if renewed != nil {
			c.renewed(d.Base, renewed)
			c.answer(r, d.Base.At, 0)
			return true
		}
	case r.fresh:
		c.answer(r, d.Base.At, 0)
		return true
	default:
		var now *document.Doc
		err := c.ask(r, func(ctx context.Context) (err error) {
			now, err = lead.cas.backend.load(ctx, lead.call.key)
			return err
		})
		if err != nil {
			c.answerAll(r, err)
			return true
		}
		if now.Same(d.Base) {
			c.answer(r, d.Base.At, 0)
			return true
		}
		won = now
	}
	return c.lost(r, won)
}

// lost prepares r to be computed again on the version that won; it reports true if nobody is left to do so.
func (c *cell) lost(r *round, won *document.Doc) bool {
	base, stale := r.draft.Base, !r.fresh
	hurry := r.draft.Contention.Held && !r.hurried
	r.hurried = hurry
	c.replace(base, won)
	now := time.Now()
	delay := time.Duration(0)
	keep := r.members[:0:0]
	for _, w := range r.members {
		if !stale { // the first conflict of a state from before the call is but its read
			w.cas.attempts++
		}
		if r.draft.Changed > 0 {
			w.call.observe(w.ctx, Event{Type: Conflicted, Path: "cas", Verb: w.change.verb, Version: won.Version, Attempts: w.cas.attempts})
		}
		// If nobody comes before w, won is what it would run on, and no retry would change its refusal.
		if err := w.call.admit(w.change, won.Life, won.Version); err != nil && len(keep) == 0 {
			c.finish(w, outcome{ran: true, err: err}, 0, time.Time{}) // nor is a panic on what is not current an answer
			continue
		}
		wait := time.Duration(0)
		if !stale && !hurry {
			wait = backoff(w.call.retry, w.cas.attempts)
		}
		if w.cas.attempts >= w.call.retry.Attempts || now.Sub(w.submitted)+wait > w.call.retry.Within {
			c.fail(w, &ConcurrentModificationError{Scope: w.call.key, Expected: base.Expected(), Actual: won.Version,
				Attempts: max(w.cas.attempts, 1), Elapsed: now.Sub(w.submitted)})
			continue
		}
		if delay == 0 || wait < delay {
			delay = wait // of the most eager: nobody waits for another's backoff
		}
		keep = append(keep, w)
	}
	r.fresh = true
	if !c.again(r, keep, won) {
		return true
	}
	if delay > 0 {
		time.Sleep(rand.N(delay))
		return !c.reload(r) // where others write all the time, what won has been overwritten meanwhile
	}
	return false
}

// insists reports whether r has lost so often that the store is to hold for it what it loses to next, and whether it would come back for that.
func (r *round) insists() bool {
	lead := r.members[0]
	lost, may := lead.cas.attempts, lead.call.retry.Attempts
	return r.solo == nil && !r.slow && !lead.cas.exclusive && lost > 0 && lost >= min(may/4, insistAfter) && lost+1 < may
}

// again puts r back to the start, on base, with these of its members. Until they are computed they can be withdrawn; those whose callers
// left are dropped. It reports whether any are left.
func (c *cell) again(r *round, members []*waiter, base *document.Doc) bool {
	var dropped []*waiter
	c.mu.Lock()
	r.members = slices.DeleteFunc(slices.Clone(members), func(w *waiter) bool {
		if w.left || w.abandoned {
			dropped = append(dropped, w)
			return true
		}
		w.phase = queued
		return false
	})
	r.next, r.draft = 0, document.NewDraft(base)
	r.draft.Fresh = r.fresh
	c.mu.Unlock()
	for _, w := range dropped {
		if out := w.cas.out; out.panic != nil || out.exited {
			w.reportPanic(out.panic, true)
		}
	}
	return len(r.members) > 0
}
