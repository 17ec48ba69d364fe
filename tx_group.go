package pawl

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// Transactions of one process that want the same queues share a commit. A transaction that has run
// passes the queues it holds, and its drafts, on to the next one that waits for them, and waits.
// That one runs on these drafts. After the last one, the drafts of all are committed under one version
// test, and only then any of them returns.
//
//	hold ─► run ─► join the group ─┬─► pass the turn on ──────► wait ─► landed: return
//	  ▲                            └─► commit for all members ─┘   │
//	  └─────────────────────────────────────────────────────────────┘ lost: run again
//
// The turn is the right to add to the group, and to end it. It belongs to the transaction whose held
// queues it is: takeQueues, under the transaction's lock, decides who goes on with it.
//
// Races, and what decides them:
//   - a function is slow in its turn: a timer takes the turn away after slowAfter and commits what
//     the others did. The function has run on drafts that may never be committed, so it runs again,
//     alone.
//   - a function fails, or panics, on drafts that are not committed yet: it is a member without
//     writes, and its error is returned once the commit has landed. A panic is also raised if the
//     store gives no answer.
//   - a caller leaves: before its turn, the queue withdraws it. In its turn, it passes the turn on.
//     After its turn its writes stay in the commit, and an atomic flag decides whether the caller or
//     the commit ends the transaction.
//   - the store is slow: the queues are released after exclusiveFor, as for a transaction alone.
//   - the commit is lost to another process: every member runs again, and counts an attempt if one of
//     its own scopes moved. A member without such a scope runs alone.
//   - the store refuses the commit because of one member: every member runs again, alone.
//   - the outcome is unknown: it is for all members, under one commit id.
//   - mutations wait behind a transaction: a group goes on only while every held queue is empty, or
//     has a transaction at its front that fits. So a mutation is served in its turn.
//   - a function reads a log: the store has no entries of other members yet, so a transaction that
//     reads logs commits alone.

// maxGroup bounds how many turns a group has. It starts none after slowAfter.
const maxGroup = 128

// group is a set of transactions that share a commit. Everything but the verdict belongs to the
// transaction that has the turn.
type group struct {
	began   time.Time
	turns   int // that were passed on
	members []*member
	parts   []*part // one for each scope; its draft has the writes of all members so far

	id      atomic.Pointer[string] // of the commit; nil: it is not sent yet
	settled chan struct{}          // closed when the fields below are set
	verdict commit.Verdict
	err     error
}

// member is a transaction whose run is part of a group.
type member struct {
	t       *transaction
	tx      *Tx
	end     ending      // of the run; a failure is the answer if the commit lands
	claimed atomic.Bool // decides whether the caller or the commit ends the transaction
}

// find returns the index of the part of a scope, -1 if no member touched it.
func (g *group) find(key Key) int {
	return slices.IndexFunc(g.parts, func(p *part) bool { return p.key == key })
}

// add makes the run of t that ended with end a member.
func (g *group) add(t *transaction, tx *Tx, end ending) *member {
	for _, p := range tx.order {
		// A copy: the transaction may run again, and a slow function may still look at the group.
		next := &part{key: p.key, bound: p.bound, stored: p.stored, base: p.base, draft: p.draft}
		if end.failed() {
			next.draft = p.start
		}
		switch i := g.find(p.key); {
		case i < 0 && p.seen():
			g.parts = append(g.parts, next)
		case i >= 0 && p.writes():
			g.parts[i] = next
		}
	}
	m := &member{t: t, tx: tx, end: end}
	g.members = append(g.members, m)
	return m
}

// goOn passes the turn, with the held queues, to the next transaction. If there is none, or the group
// is full, it commits.
func (g *group) goOn(held []*stored) {
	g.turns++
	if g.turns >= maxGroup || time.Since(g.began) > slowAfter || !followed(held) || !g.passTurn(held) {
		go g.commit(held)
	}
}

// followed reports whether a transaction is next in one of the held queues, and all that are next want
// no other queue.
func followed(held []*stored) (found bool) {
	for _, s := range held {
		s.queue.Lock()
		w := s.queue.First()
		fits := w != nil && w.Value.holder.fits(held)
		s.queue.Unlock()
		if w != nil && !fits {
			return false
		}
		found = found || fits
	}
	return found
}

// passTurn gives the turn to a transaction that is next in one of the held queues and wants no other.
// It reports false if there is none.
func (g *group) passTurn(held []*stored) bool {
	for _, s := range held {
		s.queue.Lock()
		w := s.queue.First()
		passed := w != nil && w.Value.holder.fits(held)
		if passed {
			s.queue.Next()
			s.queue.Answer(w)
			w.Value.holder.takeTurn(g, held)
		}
		s.queue.Unlock()
		if passed {
			w.Wake()
			return true
		}
	}
	return false
}

// fits reports whether t, which waits in one of the held queues, wants no other. The receiver is nil
// if a mutation waits there.
func (t *transaction) fits(held []*stored) bool {
	return t != nil && t.wants != nil && !slices.ContainsFunc(t.wants, func(s *stored) bool { return !slices.Contains(held, s) })
}

// takeTurn gives t the turn in g, with the held queues. The timer takes both away.
func (t *transaction) takeTurn(g *group, held []*stored) {
	t.group = g
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.turn = held, g
	t.holdTimer = time.AfterFunc(slowAfter, func() {
		if held := t.takeQueues(g); held != nil {
			g.commit(held)
		}
	})
}

// singular reports whether tx can never be part of a group: its commit tests or ends leases or runs
// the caller's SQL, or its function has read a log.
func (tx *Tx) singular() bool {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.readsLog || len(tx.leases)+len(tx.native)+len(tx.ended) > 0
}

// sharable reports whether tx, which ran while these queues were held, can be part of a group. One
// that touched other scopes, or only put off an expiry, commits by itself.
func (t *transaction) sharable(tx *Tx, held []*stored) bool {
	if t.alone || t.joined() || tx.singular() {
		return false
	}
	return !slices.ContainsFunc(tx.order, func(p *part) bool {
		return !slices.Contains(held, p.stored) || !p.writes() && p.draft.Expiry != p.start.Expiry
	})
}

// startGroup makes a group of t and the transactions behind it, and takes part in it. It reports
// false for started if t has to commit alone.
func (t *transaction) startGroup(tx *Tx) (started, done bool, err error) {
	if held := t.heldQueues(); !t.sharable(tx, held) || !followed(held) {
		return false, false, nil
	}
	g := &group{began: time.Now(), settled: make(chan struct{})}
	m := g.add(t, tx, ending{})
	g.goOn(t.takeQueues(nil))
	done, err = t.settleMember(g, m)
	return true, done, err
}

// continueGroup puts the writes of tx, which ran before t got the turn, on top of the drafts of the
// group. It reports false if the function has to run again, because it has read an older state.
func (t *transaction) continueGroup(tx *Tx) bool {
	for _, p := range tx.order {
		base, start := p.base, p.start
		if i := t.group.find(p.key); i >= 0 {
			base, start = t.group.parts[i].base, t.group.parts[i].draft
		} else if newer, stale := p.stale(); stale {
			base, start = newer, document.NewDraft(newer)
		}
		if start.Version == p.start.Version && base.Same(p.base) {
			continue
		}
		if !t.restart(p, base, start, false) {
			return false
		}
	}
	return true
}

// settleTurn ends the turn of t, whose function has returned. It reports whether the transaction has
// ended; otherwise the function has to run again.
func (t *transaction) settleTurn(tx *Tx, end ending) (done bool, err error) {
	g := t.group
	t.group = nil
	held := t.takeQueues(g)
	if held == nil { // the function was slow
		t.alone = true
		return false, nil
	}
	if t.ctx.Err() != nil {
		g.goOn(held)
		return true, t.leftWith(end)
	}
	if !t.sharable(tx, held) {
		t.alone = true
		g.goOn(held)
		return false, nil
	}
	m := g.add(t, tx, end)
	g.goOn(held)
	return t.settleMember(g, m)
}

// leaveTurn passes on the turn of a transaction that ends without a result.
func (t *transaction) leaveTurn() {
	if t.group == nil {
		return
	}
	if held := t.takeQueues(t.group); held != nil {
		t.group.goOn(held)
	}
	t.group = nil
}

// settleMember waits for the verdict about m. It reports whether the transaction has ended; otherwise
// the function has to run again.
func (t *transaction) settleMember(g *group, m *member) (done bool, err error) {
	broken := func(cause error) error { return m.broken(g, cause) }
	if err := t.awaitVerdict(g, m, m.wrote(), broken); err != nil {
		if m.end.panic != nil {
			return true, m.end.deliver()
		}
		return true, err
	}
	failure := m.failure(g)
	switch {
	case failure != nil && m.end.panic == nil:
		return true, failure
	case failure != nil || g.err == nil && g.verdict.Kind == commit.Landed:
		if m.end.failed() {
			return true, m.end.deliver()
		}
		return true, runAll(m.tx.after)
	}
	losses := m.tx.losses(g.verdict.Records)
	if len(losses) == 0 { // the scope of another member moved, or the store refuses its document
		t.alone = true
		return false, nil
	}
	_, err = t.lost(losses, true)
	return err != nil, err
}

// failure returns the error of m if the store failed, which concerns all members alike. It returns
// nil for an error that may be of one member only.
func (m *member) failure(g *group) error {
	switch err := g.err.(type) {
	case *UnknownOutcomeError:
		return m.broken(g, err.Cause)
	case *UnavailableError:
		return &UnavailableError{Scope: m.t.firstKey(), Cause: err.Cause}
	}
	return nil
}

// wrote reports whether the commit has writes of m.
func (m *member) wrote() bool {
	return !m.end.failed() && slices.ContainsFunc(m.tx.order, (*part).writes)
}

// broken returns the error of m when the store gave no valid answer about the commit.
func (m *member) broken(g *group, cause error) error {
	id := ""
	if sent := g.id.Load(); sent != nil {
		id = *sent
	}
	return noAnswer(m.t.firstKey(), id, m.wrote(), cause)
}

// commit commits what all members wrote, tests what they read, and releases the queues.
func (g *group) commit(held []*stored) {
	sender := slices.MaxFunc(g.members, func(a, b *member) int { return a.t.deadline.Compare(b.t.deadline) }).t
	b, err := g.assemble(sender.env)
	release := sync.OnceFunc(func() {
		for _, s := range held {
			s.endHold()
		}
	})
	limit := time.AfterFunc(exclusiveFor, release)
	settled := func(v commit.Verdict, err error) {
		limit.Stop()
		sender.cache(b, v, err)
		if err == nil && v.Kind == commit.Lost {
			g.replaceLost(v.Records)
		}
		release()
		g.settle(v, err, len(b.Writes))
	}
	if err != nil || b.empty() {
		settled(commit.Verdict{Kind: commit.Landed}, err)
		return
	}
	sender.send(b, settled)
}

// replaceLost updates the cached versions with those that made the store refuse the commit.
func (g *group) replaceLost(winners []persist.Record) {
	for _, r := range winners {
		if i := g.find(r.Key); i >= 0 {
			g.parts[i].stored.replace(g.parts[i].base, document.Of(r))
		}
	}
}

// assemble makes the commit of all members. Its id is made now: it has to be later than those in the
// documents that the commit replaces.
func (g *group) assemble(e *env) (b txCommit, err error) {
	b.ID = e.newCommitID()
	g.id.Store(&b.ID)
	for _, p := range g.parts {
		if p.draft.Changed == 0 {
			b.Guards = append(b.Guards, p.guard())
		} else if err := b.add(e, p); err != nil {
			return b, err
		}
	}
	return b, nil
}

// settle tells the members what became of their commit, which has this number of writes. It ends the
// transactions whose callers have left.
func (g *group) settle(v commit.Verdict, err error, writes int) {
	landed := err == nil && v.Kind == commit.Landed
	for _, m := range g.members {
		if landed && !m.end.failed() {
			m.tx.markCommitted()
			m.t.observeCommit(m.tx.writers(), writes)
		}
	}
	g.verdict, g.err = v, err
	left := slices.DeleteFunc(slices.Clone(g.members), func(m *member) bool { return m.claimed.CompareAndSwap(false, true) })
	close(g.settled)
	for _, m := range left {
		go func() { // apart: a callback may take long, or end its goroutine
			m.t.releaseQueues()
			defer m.t.rt.transactions.End(m.t)
			if landed && !m.end.failed() {
				m.t.runAllAlone(m.tx.after)
			}
		}()
	}
}
