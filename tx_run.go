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
//	run fn ─► hold the queues of what it writes ─► commit ─► landed: remember, let go, after-commit callbacks
//	  ▲                                              │
//	  │                                              ├─ lost, but only where data verbs wrote: apply them to what won, commit again
//	  └── hold the queues of all it touched ◄────────┘ lost otherwise, or something newer was seen meanwhile
//
// The first run is optimistic. Its commit waits its turn in the queues of the scopes it writes, so that it does not race with the rounds
// of this process, and a run that lost is repeated with the queues of everything it touched held: nobody in this process can
// make it lose a second time but functions that left their queue, and transactions that have not waited for theirs. Other processes can; the
// budget counts those. Holding is for progress only; what is right is decided by the store.
//
// Races, and what decides them:
//   - two transactions that hold: queues are taken in the order of keys, and only by those who hold none.
//   - a mutator inside a queue: it never waits while it holds a persisted queue (it is detached first), and in-memory scopes are refused
//     inside a transaction, so that no circle leads through one. Whoever bypasses that with another context waits at most exclusiveFor.
//   - a function, a store or another queue that takes its time while queues are held: they are let go after exclusiveFor, and it goes on
//     without them.
//   - a slow mutator that left its queue: before it commits it gives way to a transaction that holds the queue.
//   - fn saw a state of two times (another commit came between two of its reads) and fails because of it: its error or panic is an
//     answer only once the read set was confirmed, else it runs again.
//   - the caller leaves while the commit is under way: claimed decides who takes the verdict; the commit goes on without the caller.
type transaction struct {
	rt          *Runtime
	env         *env
	ctx         context.Context
	parent      *frame        // of the mutator that Transact was called in; nil: none
	lease       *Lease        // the innermost that Transact was called under; nil: none
	store       persist.Store // the runtime's, or one that is joined to the caller's own transaction
	via         bool          // the latter
	retry       Retry
	started     time.Time
	deadline    time.Time // of the budget; the function's own time does not count
	runs        int
	attempts    int                   // commits that lost
	forgiven    map[Key]bool          // scopes of which what this process had seen before was old
	fresh       bool                  // it had to wait for others, so that what was seen before is not worth a try
	left        bool                  // the caller is gone, and the commit under way ends the transaction
	touched     []*part               // by the runs that lost, once for each key
	touchedKeys map[Key]bool          // the keys of touched
	panicked    *PanicError           // of the function's last run, or of code that counts as the function's
	exited      bool                  // the function, or code that counts as its own, called runtime.Goexit
	spent       bool                  // the last commit that lost was the last of the budget
	moment      map[Key]*document.Doc // what they were at one moment; nil: not known

	mu   sync.Mutex // protects what follows
	held []*stored
	hour *time.Timer // when they are let go; nil: nothing is held
	key  Key         // the first that was touched, for people
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
func (t *transaction) begin(opts []Option) error {
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
	if call.pinned || call.absent || call.exists || call.ttl != 0 {
		return &ArgumentError{Argument: "option", Reason: "preconditions and TTL are for verbs, not for Transact"}
	}
	if call.joined && call.via == nil {
		return &ArgumentError{Argument: "Via", Reason: "nil"}
	}
	if call.joined && rt.keepsIn(call.via) {
		return &ArgumentError{Argument: "Via", Reason: "the runtime's own store, and not one that is joined to a transaction"}
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

// end lets go of everything, unless the commit under way does so.
func (t *transaction) end() {
	if !t.left {
		t.letGo()
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

// run takes the transaction to its end.
func (t *transaction) run(fn func(context.Context, *Tx) error) error {
	for {
		if t.ctx.Err() != nil {
			return t.canceled(PhaseQueued)
		}
		if t.touched != nil {
			if err := t.hold(t.touched); err != nil {
				return err
			}
		}
		if t.fresh {
			if err := t.preload(); err != nil {
				return err
			}
		}
		tx, end := t.attempt(fn)
		done, err := t.settle(tx, end)
		if done {
			return err
		}
		t.letGo()
		t.touch(tx.order)
	}
}

// touch adds to the scopes whose queues the next run holds.
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
	end.panic = guarded(func() { end.err = fn(tx.frame, tx) }, func() { t.exited = true })
	t.panicked = end.panic
	return tx, end
}

// settle commits what a run wrote, or confirms what it read, and reports whether that ends the transaction.
func (t *transaction) settle(tx *Tx, end ending) (done bool, err error) {
	if end.failed() {
		return t.settleFailure(tx, end)
	}
	for {
		if t.ctx.Err() != nil {
			return true, t.canceled(PhaseQueued)
		}
		if len(tx.after) > 0 && t.joined() {
			return true, &ArgumentError{Argument: "AfterCommit", Reason: "with Via, the caller alone knows when that is"}
		}
		if len(t.heldQueues()) == 0 {
			if err := t.hold(slices.DeleteFunc(slices.Clone(tx.order), func(p *part) bool { return !p.writes() })); err != nil {
				return true, err
			}
		}
		b, err := tx.assemble()
		if err != nil {
			return true, err
		}
		losses, byStore := tx.outdated(), false
		if b.empty() || len(losses) == 0 {
			v, err := t.deliver(tx, b, tx.after)
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
				t.letGo()
				return true, runAll(tx.after)
			}
			losses, byStore = tx.losses(v.Records), true
		}
		if again, err := t.lost(losses, byStore); again || err != nil {
			return err != nil, err
		}
	}
}

// settleFailure makes sure that the function failed on a state that was there.
func (t *transaction) settleFailure(tx *Tx, end ending) (bool, error) {
	b := tx.confirmation()
	if b.empty() {
		return true, end.deliver()
	}
	if t.ctx.Err() != nil { // nobody waits for better, but nor is it an answer
		if end.panic != nil || errors.Is(end.err, t.ctx.Err()) || errors.Is(end.err, context.Cause(t.ctx)) {
			return true, end.deliver()
		}
		return true, t.canceled(PhaseQueued)
	}
	losses, byStore := slices.DeleteFunc(tx.outdated(), func(l loss) bool { return !l.part.seen() }), false
	if len(losses) == 0 {
		v, err := t.deliver(nil, b, nil)
		if err != nil && end.panic == nil && !t.joined() { // there the function may have failed because the caller's own transaction has
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

// loss is a scope in which somebody else was faster.
type loss struct {
	part *part
	won  *document.Doc
}

// outdated returns the parts that something newer was seen of.
func (tx *Tx) outdated() (losses []loss) {
	for _, p := range tx.order {
		if d, stale := p.stale(); stale {
			losses = append(losses, loss{p, d})
		}
	}
	return losses
}

// losses returns what refused a commit.
func (tx *Tx) losses(winners []persist.Record) (losses []loss) {
	for _, r := range winners {
		if p := tx.parts[r.Key]; p != nil {
			losses = append(losses, loss{p, document.Of(r)})
		}
	}
	return losses
}

// lost takes over what others wrote and reports whether the function has to run again. By the store's word others were faster; otherwise
// something newer was seen here, before anything was sent. It returns *ConcurrentModificationError when the budget is spent, and waits, without its
// queues, before it returns where another process has to be given way.
func (t *transaction) lost(losses []loss, byStore bool) (again bool, err error) {
	first := losses[0]
	base := first.part.base
	wait, spent := time.Duration(0), t.runs > maxRuns*t.retry.Attempts
	if byStore && !t.guessed(losses) { // what had been seen before the call was but a guess
		t.attempts++
		wait, spent = backoff(t.retry, t.attempts), t.attempts >= t.retry.Attempts
	}
	for _, l := range losses {
		p := l.part
		t.observe(Event{Type: Conflicted, Key: p.key, Version: l.won.Version, Attempts: t.attempts})
		if !t.joined() {
			p.stored.replace(p.base, l.won)
		}
	}
	if spent || time.Now().Add(wait).After(t.deadline) {
		t.spent = true
		return false, &ConcurrentModificationError{Scope: first.part.key, Expected: base.Expected(), Actual: first.won.Version,
			Attempts: max(t.attempts, 1), Elapsed: time.Since(t.started)}
	}
	if wait > 0 {
		t.letGo()
		if !commit.Sleep(t.ctx, rand.N(wait)) {
			return false, t.canceled(PhaseQueued)
		}
		t.fresh = true
	}
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

// maxRuns bounds how often a function runs because of what was seen here: so many times for each attempt of the budget.
const maxRuns = 4

// guessed reports whether all that was lost had been guessed, for the first time each, from what this process had seen before.
func (t *transaction) guessed(losses []loss) bool {
	all := true
	for _, l := range losses {
		all = all && !l.part.fresh && !t.forgiven[l.part.key]
		if t.forgiven == nil {
			t.forgiven = map[Key]bool{}
		}
		t.forgiven[l.part.key] = true
	}
	return all
}

// rebase is part.rebase, which may run code of the state's type: its panic is one of the function.
func (t *transaction) rebase(p *part, base *document.Doc, fresh bool) (ok bool) {
	if panicked := guarded(func() { ok = p.rebase(base, fresh) }, func() { t.exited = true }); panicked != nil {
		t.panicked = panicked
		panic(panicked)
	}
	return ok
}

// refresh makes all of tx again on what the store has: where others write all the time, all that was seen before a wait has been overwritten
// meanwhile. It reports whether the function has to run again.
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

// load asks the store for the scopes of these parts, and reports whether they are as they were at one moment.
func (t *transaction) load(parts []*part) (docs []*document.Doc, oneMoment bool, err error) {
	ctx, cancel := context.WithDeadline(t.ctx, t.deadline.Add(lastWord))
	defer cancel()
	_, oneMoment = t.store.(persist.Reader)
	keys := make([]Key, len(parts))
	for i, p := range parts {
		keys[i] = p.key
	}
	records, err := loadAll(ctx, t.store, keys)
	if err != nil {
		return nil, false, parts[0].bound.readError(t.ctx, parts[0].key, err)
	}
	for i, r := range records {
		docs = append(docs, document.Of(r))
		t.advance(parts[i].stored, docs[i])
	}
	return docs, oneMoment, nil
}

// joined reports whether the transaction is part of one of the caller's own. Then nothing that it reads or writes is known to be committed, and
// nothing in this process is waited for: whoever is in front may be waiting for the connection that the caller has.
func (t *transaction) joined() bool { return t.via }

func (t *transaction) advance(c *stored, d *document.Doc) {
	if !t.joined() {
		c.advance(d)
	}
}

func (t *transaction) loadOne(ctx context.Context, key Key) (*document.Doc, error) {
	records, err := loadAll(ctx, t.store, []Key{key})
	if err != nil {
		return nil, err
	}
	return document.Of(records[0]), nil
}

// preload reads all that the last run touched for the next one, which then sees it as it was at one moment: a run that only reads cannot
// lose any more, however fast others write.
func (t *transaction) preload() error {
	docs, oneMoment, err := t.load(t.touched)
	if err != nil || !oneMoment {
		return err
	}
	t.moment = make(map[Key]*document.Doc, len(docs))
	for i, p := range t.touched {
		t.moment[p.key] = docs[i]
	}
	return nil
}

// named gives the transaction a name for people: the first scope it touched.
func (t *transaction) named(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.key == (Key{}) {
		t.key = key
	}
}

// observe tells of an event of the whole transaction.
func (t *transaction) observe(e Event) {
	if t.env.observer == nil {
		return
	}
	e.Path, e.Verb = "tx", "Transact"
	t.env.observer.Observe(t.ctx, e)
}

// observeFailure reports the end of a transaction that returns err, unless err is nil and its
// function neither panicked nor called runtime.Goexit.
func (t *transaction) observeFailure(err error) {
	e := Event{Type: Failed, Err: err, Attempts: t.attempts + 1, Took: time.Since(t.started)}
	switch {
	case err != nil:
	case t.panicked != nil:
		e.Type, e.Err, e.Stack = Panicked, t.panicked, t.panicked.Stack
	case t.exited:
		e.Type = Panicked
	default:
		return
	}
	if t.spent {
		e.Attempts = max(t.attempts, 1)
	}
	t.mu.Lock()
	e.Key = t.key
	t.mu.Unlock()
	t.observe(e)
}

func (t *transaction) canceled(phase Phase) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return leftBy(t.ctx, t.key, phase)
}

// loadAll reads several records, at one moment where the store can.
func loadAll(ctx context.Context, store persist.Store, keys []Key) ([]persist.Record, error) {
	if reader, ok := store.(persist.Reader); ok && len(keys) > 1 {
		return reader.LoadAll(ctx, keys)
	}
	var records []persist.Record
	for _, key := range keys {
		r, err := store.Load(ctx, key)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}
