package pawl

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// A transaction from its first run to its last:
//
//	run fn ─► hold the queues that it writes to ─► commit ─► landed: update the cache, release the
//	  ▲                                              │       queues, run the after-commit callbacks
//	  │                                              │
//	  │                                              ├─ conflict where only data verbs wrote:
//	  │                                              │  apply them to the winner, commit again
//	  │                                              │
//	  ├── hold the queues of all it touched ◄────────┤ another conflict, or a newer version was seen
//	  │                                              │
//	  └── read all it touched at one instant ◄───────┘ the same, of a run that only read
//
// The first run is optimistic. Its commit waits its turn in the queues of the scopes it writes, so
// that it does not race with the batches of this process. After a conflict the function runs again
// with the queues of everything it touched held. Then only two writers of this process can conflict
// with it: functions that left their queue, and transactions that did not wait for theirs. Other
// processes can, too; the budget counts those conflicts. Queues are held for progress only. The
// store alone decides what is committed.
//
// A run that only read needs no queue: the next run gets everything that it touched from one instant,
// and proves itself. So it cannot lose, however fast others write, unless it touches other scopes.
//
// Races, and what decides them:
//   - two transactions that hold queues: queues are taken in the order of keys, by a transaction
//     that holds none.
//   - a function inside a queue: it never waits while it holds a persisted queue (it is detached
//     first), and in-memory scopes are refused inside a transaction. So no cycle leads through a
//     function. A function that bypasses that with another context waits at most exclusiveFor.
//   - a slow function, store or other queue while queues are held: the queues are released after
//     exclusiveFor, and the transaction continues without them.
//   - a slow function that left its queue: before its commit it waits for a transaction that holds
//     the queue.
//   - fn read two scopes, another commit came in between, and fn fails because of that: its error
//     or panic is the answer only if the store confirms what it read. Otherwise fn runs again.
//   - the caller leaves during the commit: an atomic flag of the member decides whether the caller or
//     the sender ends the transaction. The commit continues without the caller.
type transaction struct {
	rt      *Runtime
	env     *env
	ctx     context.Context
	parent  *frame        // of the function that Transact was called in; nil: none
	lease   *Lease        // the innermost lease that Transact was called under; nil: none
	store   persist.Store // the runtime's, or one that is joined to the caller's own transaction
	via     bool          // store is joined to the caller's own transaction
	retry   Retry
	started time.Time
	// deadline ends the budget, which does not include the function's own time.
	deadline time.Time
	// runs counts how often the function ran.
	runs int
	// attempts counts the lost commits that the budget counts.
	attempts int
	// spent is set when a conflict used up the budget.
	spent bool
	// staleCached has the scopes whose cached version was stale.
	staleCached map[Key]bool
	// fresh is set after a wait, and after a run that only read: cached versions are not worth an
	// attempt any more.
	fresh bool
	// reads is set when the last run only read, and the next one needs no queues.
	reads bool
	// excused is set when a run that only read has lost. That does not count as an attempt, once.
	excused bool
	// left is set when the caller has left. The commit under way then ends the transaction.
	left bool
	// touched has the scopes that earlier runs touched, each key once.
	touched []*part
	// touchedKeys has the keys of touched.
	touchedKeys map[Key]bool
	// snapshot has the documents of touched, read at one instant. Nil means that there are none.
	snapshot map[Key]*document.Doc
	// group is the group in which this run got the turn; turn says whether it still has it. Nil means
	// that it got none.
	group *group
	// wants are the queues of all scopes that the transaction touched, which a turn has to include. Nil
	// means that it cannot share a commit. It is not changed while the transaction waits.
	wants []*stored
	// alone is set when the transaction has to run and commit by itself.
	alone bool
	// panicked is the panic of the last run, or of other code of the caller's that ended the
	// transaction, or goexit. Nil means that there is none.
	panicked *PanicError

	// mu protects the fields below.
	mu sync.Mutex
	// held are the containers whose queues the transaction holds.
	held []*stored
	// turn is the group that held belongs to. Nil means that the transaction got them by itself.
	turn *group
	// holdTimer releases the held queues. Nil means that none is held.
	holdTimer *time.Timer
	// key is the first scope that was touched, for errors and events.
	key Key
}

// newTransaction returns a transaction that has not begun.
func newTransaction(ctx context.Context, rt *Runtime) *transaction {
	around := innermost(ctx)
	return &transaction{
		rt: rt, env: rt.env, ctx: ctx, parent: around.caller(), lease: around.held(), store: rt.store,
		started: time.Now(),
	}
}

// begin applies the options and registers the transaction with its runtime. If it returns an error
// there is nothing to end.
func (t *transaction) begin(opts []CallOption) error {
	rt := t.rt
	if t.parent.outerTx() != nil {
		return ErrOutsideTx
	}
	if rt.store == nil {
		return ErrNoStore
	}
	if t.lease != nil {
		if err := t.lease.coversStore(rt); err != nil {
			return err
		}
	}
	call, err := (&terms{env: rt.env, retry: rt.retry}).with(opts)
	if err != nil {
		return err
	}
	if call.pinned || call.absent || call.exists || call.ttl != 0 || call.dueIn != 0 {
		return &ArgumentError{Argument: "option", Reason: "preconditions, TTL and due time apply to verbs only"}
	}
	if call.joined && call.via == nil {
		return &ArgumentError{Argument: "CommitThrough", Reason: "nil"}
	}
	if call.joined && rt.keepsIn(call.via) {
		return &ArgumentError{Argument: "CommitThrough", Reason: "not joined to a transaction"}
	}
	t.retry = call.retry
	t.deadline = t.started.Add(t.retry.Within)
	if call.joined {
		t.store, t.via = call.via, true
	}
	if !rt.transactions.Begin(t) {
		return ErrClosed
	}
	return nil
}

// end releases the queues and unregisters the transaction, unless the commit under way does that.
func (t *transaction) end() {
	t.leaveTurn()
	if !t.left {
		t.releaseQueues()
		t.rt.transactions.End(t)
	}
}

// ending is how a run of the function ended.
type ending struct {
	err   error
	panic *PanicError
}

func (e ending) failed() bool { return e.err != nil || e.panic != nil }

// deliver returns the error, or raises the panic again.
func (e ending) deliver() error {
	if e.panic != nil {
		panic(e.panic)
	}
	return e.err
}

// run repeats the function until its commit lands or the transaction fails.
func (t *transaction) run(fn func(context.Context, *Tx) error) error {
	for {
		if t.ctx.Err() != nil {
			return t.canceled(PhaseQueued)
		}
		if t.touched != nil && !t.reads && t.group == nil && len(t.heldQueues()) == 0 {
			if err := t.hold(t.touched, t.touched); err != nil {
				return err
			}
		}
		if t.fresh && t.group == nil {
			if err := t.preload(); err != nil {
				return err
			}
		}
		tx, end := t.attempt(fn)
		done, err := t.settle(tx, end)
		if done {
			return err
		}
		t.touch(tx.order)
		if t.reads || !t.holdsAll(t.touched) {
			t.releaseQueues()
		}
	}
}

// touch adds parts to the scopes whose queues the next run holds.
func (t *transaction) touch(parts []*part) {
	if t.touchedKeys == nil {
		t.touchedKeys = make(map[Key]bool, len(parts))
	}
	for _, p := range parts {
		if !t.touchedKeys[p.key] {
			t.touchedKeys[p.key] = true
			t.touched = append(t.touched, p)
		}
	}
}

// attempt runs the function once.
func (t *transaction) attempt(fn func(context.Context, *Tx) error) (*Tx, ending) {
	t.runs++
	tx := &Tx{of: t, parts: map[Key]*part{}}
	if t.lease != nil {
		tx.leases = []*Lease{t.lease}
	}
	tx.frame = newFrame(t.ctx, t.parent, t.lease)
	tx.frame.tx = tx
	began := time.Now()
	defer func() {
		tx.frame.End()
		tx.mu.Lock()
		tx.over = true
		tx.mu.Unlock()
		t.deadline = t.deadline.Add(time.Since(began))
	}()
	var end ending
	end.panic = guarded(func() { end.err = fn(tx.frame, tx) }, func() { t.panicked = goexit })
	t.panicked = end.panic
	return tx, end
}

// settle commits what a run wrote, or confirms what it read. It reports whether the transaction has
// ended.
func (t *transaction) settle(tx *Tx, end ending) (done bool, err error) {
	if t.group != nil {
		return t.settleTurn(tx, end)
	}
	if end.failed() {
		return t.settleFailure(tx, end)
	}
	t.alone = t.alone || tx.singular()
	for {
		if t.ctx.Err() != nil {
			return true, t.canceled(PhaseQueued)
		}
		if len(tx.after) > 0 && t.joined() {
			return true, &ArgumentError{Argument: "AfterCommit", Reason: "not allowed with CommitThrough"}
		}
		if len(t.heldQueues()) == 0 {
			if err := t.hold(tx.writers(), tx.order); err != nil {
				return true, err
			}
			if t.group != nil {
				if t.continueGroup(tx) {
					return t.settleTurn(tx, end)
				}
				return false, nil
			}
		}
		b, err := tx.assemble()
		if err != nil {
			return true, err
		}
		losses, byStore := tx.outdated(), false
		if b.empty() || len(losses) == 0 {
			if !b.empty() {
				if started, done, err := t.startGroup(tx); started {
					return done, err
				}
			}
			v, err := t.deliver(tx, end, b)
			if f := asFenced(err); f != nil {
				return true, tx.lostLease(&b, f)
			}
			if own, ok := err.(foreign); ok {
				t.panicked = own.panic
				return true, own.deliver()
			}
			if err != nil {
				return true, err
			}
			if v.Kind == commit.Landed {
				t.releaseQueues()
				tx.markCommitted()
				return true, runAll(tx.after)
			}
			losses, byStore = tx.losses(v.Records), true
		}
		if again, err := t.lost(losses, byStore); again || err != nil {
			return err != nil, err
		}
	}
}

// writers returns the parts whose documents the commit changes.
func (tx *Tx) writers() []*part {
	return slices.DeleteFunc(slices.Clone(tx.order), func(p *part) bool { return !p.writes() })
}

// settleFailure confirms that the state which the function failed on is current. It reports whether
// the transaction has ended.
func (t *transaction) settleFailure(tx *Tx, end ending) (bool, error) {
	b := tx.confirmation()
	if b.empty() {
		return true, end.deliver()
	}
	if t.ctx.Err() != nil {
		return true, t.leftWith(end)
	}
	losses, byStore := slices.DeleteFunc(tx.outdated(), func(l loss) bool { return !l.part.seen() }), false
	if len(losses) == 0 {
		v, err := t.deliver(tx, end, b)
		// If it is joined, the function may have failed because the caller's own transaction did.
		if err != nil && end.panic == nil && !t.joined() {
			return true, err
		}
		if err != nil || v.Kind == commit.Landed {
			return true, end.deliver()
		}
		losses, byStore = tx.losses(v.Records), true
	}
	_, err := t.lost(losses, byStore)
	return err != nil, err
}

// leftWith returns the error of a caller that left while its function ran. It is too late to confirm a
// failure of the function: that is returned only if the context caused it.
func (t *transaction) leftWith(end ending) error {
	if end.panic != nil || end.err != nil && (errors.Is(end.err, t.ctx.Err()) || errors.Is(end.err, context.Cause(t.ctx))) {
		return end.deliver()
	}
	return t.canceled(PhaseQueued)
}

// loss is a scope whose version moved.
type loss struct {
	part *part
	won  *document.Doc
}

// outdated returns the parts of which this process has seen a newer version.
func (tx *Tx) outdated() (losses []loss) {
	for _, p := range tx.order {
		if d, stale := p.stale(); stale {
			losses = append(losses, loss{p, d})
		}
	}
	return losses
}

// losses returns the parts that made the store refuse a commit.
func (tx *Tx) losses(winners []persist.Record) (losses []loss) {
	for _, r := range winners {
		if p := tx.parts[r.Key]; p != nil {
			losses = append(losses, loss{p, document.Of(r)})
		}
	}
	return losses
}

// lost takes over the newer versions and reports whether the function has to run again. ByStore
// means that the store refused the commit. Otherwise this process saw a newer version before the
// commit was sent. After a conflict with another process, lost waits without its queues. It returns
// *ConcurrentModificationError when the budget is spent.
func (t *transaction) lost(losses []loss, byStore bool) (again bool, err error) {
	first := losses[0]
	base := first.part.base
	wait, spent := time.Duration(0), t.runs > maxRuns*t.retry.Attempts
	t.reads = t.onlyRead(first.part.tx)
	switch {
	case t.reads && !t.excused:
		t.fresh, t.excused = true, true
	case byStore && !t.lostFromCache(losses): // a stale cache does not count as an attempt
		t.attempts++
		wait, spent = backoff(t.retry, t.attempts), t.attempts >= t.retry.Attempts
	}
	for _, l := range losses {
		p := l.part
		t.observe(Event{Type: EventConflicted, Key: p.key, Version: l.won.Version, Attempts: t.attempts})
		if !t.joined() {
			p.stored.replace(p.base, l.won)
		}
	}
	if spent || time.Now().Add(wait).After(t.deadline) {
		t.spent = true
		return false, &ConcurrentModificationError{
			Scope: first.part.key, Expected: base.Expected(), Actual: first.won.Version,
			Attempts: max(t.attempts, 1), Elapsed: time.Since(t.started),
		}
	}
	if wait > 0 {
		t.releaseQueues()
		if !commit.Sleep(t.ctx, rand.N(wait)) {
			return false, t.canceled(PhaseQueued)
		}
		t.fresh = true
	}
	again = t.reads // to read everything at one instant, also what only data verbs looked at
	for _, l := range losses {
		if !t.rebase(l.part, l.won, byStore) {
			again = true
		}
	}
	if wait > 0 && !again {
		return t.refresh(first.part.tx)
	}
	return again, nil
}

// onlyRead reports whether tx only reads, and the next run can read everything at one instant.
func (t *transaction) onlyRead(tx *Tx) bool {
	_, together := t.store.(persist.Reader)
	writes := slices.ContainsFunc(tx.order, func(p *part) bool { return p.writes() || p.draft.Expiry.Renew })
	return together && !writes && len(tx.native)+len(tx.ended) == 0 && !t.joined()
}

// maxRuns bounds how often a function runs because this process saw a newer version: that many
// times for each attempt of the budget.
const maxRuns = 4

// lostFromCache reports whether every loss is a scope whose base came from this process's cache,
// and is its first one.
func (t *transaction) lostFromCache(losses []loss) bool {
	all := true
	for _, l := range losses {
		all = all && !l.part.fresh && !t.staleCached[l.part.key]
		if t.staleCached == nil {
			t.staleCached = map[Key]bool{}
		}
		t.staleCached[l.part.key] = true
	}
	return all
}

// rebase makes the draft of p again, on base.
func (t *transaction) rebase(p *part, base *document.Doc, fresh bool) bool {
	return t.restart(p, base, document.NewDraft(base), fresh)
}

// restart calls part.restart, which may run code of the state's type. Its panic counts as one of the
// function.
func (t *transaction) restart(p *part, base *document.Doc, start document.Draft, fresh bool) (ok bool) {
	if panicked := guarded(func() { ok = p.restart(base, start, fresh) }, func() { t.panicked = goexit }); panicked != nil {
		t.panicked = panicked
		panic(panicked)
	}
	return ok
}

// refresh rebases all parts of tx on what the store has. After a wait, under constant writes, every
// version seen before it is stale. It reports whether the function has to run again.
func (t *transaction) refresh(tx *Tx) (again bool, err error) {
	docs, _, err := t.load(tx.order)
	if err != nil {
		return false, err
	}
	for i, p := range tx.order {
		if d := docs[i]; !d.Same(p.base) && !t.rebase(p, d, true) {
			again = true
		}
	}
	return again, nil
}

// load reads the scopes of parts from the store. Together reports whether they were read at one
// instant.
func (t *transaction) load(parts []*part) (docs []*document.Doc, together bool, err error) {
	ctx, cancel := context.WithDeadline(t.ctx, t.deadline.Add(answerGrace))
	defer cancel()
	_, together = t.store.(persist.Reader)
	keys := make([]Key, len(parts))
	for i, p := range parts {
		keys[i] = p.key
	}
	records, err := t.env.loadAll(ctx, t.store, keys)
	if err != nil {
		return nil, false, storeError(t.ctx, parts[0].key, err)
	}
	for i, r := range records {
		docs = append(docs, document.Of(r))
		t.advance(parts[i].stored, docs[i])
	}
	return docs, together, nil
}

// joined reports whether the transaction is part of one of the caller's own. Then nothing that it
// reads or writes is known to be committed. It waits for no queue of this process: a waiter ahead
// of it may be waiting for the caller's connection.
func (t *transaction) joined() bool { return t.via }

// advance updates the cached version of c, unless d may still be rolled back.
func (t *transaction) advance(c *stored, d *document.Doc) {
	if !t.joined() {
		c.advance(d)
	}
}

// preload reads all scopes that earlier runs touched, at one instant where the store can. A run
// that only reads them then has no conflict, however fast others write.
func (t *transaction) preload() error {
	docs, together, err := t.load(t.touched)
	if err != nil || !together {
		return err
	}
	t.snapshot = make(map[Key]*document.Doc, len(docs))
	for i, p := range t.touched {
		t.snapshot[p.key] = docs[i]
	}
	return nil
}

// setKey records the first scope that the transaction touched.
func (t *transaction) setKey(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.key == (Key{}) {
		t.key = key
	}
}

// observe reports an event of the transaction to the observer.
func (t *transaction) observe(e Event) {
	e.Path, e.Verb = "tx", "Transact"
	t.env.observe(t.ctx, e)
}

// observeEnd reports the end of a transaction that returns err.
func (t *transaction) observeEnd(err error) {
	if t.env.observer == nil {
		return
	}
	e := Event{Type: EventTransacted, Attempts: t.attempts + 1, Took: time.Since(t.started)}
	switch {
	case err != nil:
		e.Type, e.Err = EventFailed, err
	case t.panicked == goexit:
		e.Type = EventPanicked
	case t.panicked != nil:
		e.Type, e.Err, e.Stack = EventPanicked, t.panicked, t.panicked.Stack
	}
	if t.spent {
		e.Attempts = max(t.attempts, 1)
	}
	t.mu.Lock()
	e.Key = t.key
	t.mu.Unlock()
	t.observe(e)
}

// firstKey returns the first scope that the transaction touched, for errors.
func (t *transaction) firstKey() Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	return orTransaction(t.key)
}

// canceled returns the error of a caller that left in phase.
func (t *transaction) canceled(phase Phase) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return leftBy(t.ctx, t.key, phase)
}
