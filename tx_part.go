package pawl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// part is one scope in a transaction: the version it is based on and the writes on top of it.
type part struct {
	tx     *Tx
	key    Key
	bound  *binding
	stored *stored
	// base is the version that the draft is computed on.
	base *document.Doc
	// fresh is set when this transaction read base from the store. Otherwise it is a cached
	// version.
	fresh bool
	// together is set when base was read at one instant with the other scopes.
	together bool
	// read is set when the function has seen base. The commit must then find base unchanged.
	read bool
	// busy is set while a function of AtomicState runs on the part.
	busy bool
	// undone counts how often writes of the part were undone.
	undone int
	// start is what the run started from: base, or in a group base with the writes of other members.
	start document.Draft
	// draft is start with the writes so far.
	draft document.Draft
	// verbs made the draft. As long as read is not set, they can make it again on another base.
	verbs []*operation
}

// operation is a verb of a transaction.
type operation struct {
	part   *part
	call   call
	change *change
	bound  *binding
	after  any // *T; the state after the verb, nil: none
}

// addPart finds or makes the part of a scope. The caller holds tx.mu, which is released while the
// store is read.
func (tx *Tx) addPart(ctx context.Context, key Key, b *binding, s *stored) (*part, error) {
	if p, err := tx.find(key); p != nil || err != nil {
		return p, err
	}
	if len(tx.order) >= MaxScopes {
		return nil, &LimitError{Scope: key, What: "scopes", Limit: MaxScopes, Got: MaxScopes + 1, Reason: "in one transaction"}
	}
	tx.of.setKey(key)
	if tx.of.parent != nil {
		if err := tx.of.parent.callOut(&s.lane, key); err != nil {
			return nil, err
		}
	}
	p := &part{tx: tx, key: key, bound: b, stored: s}
	g := tx.of.group
	if g != nil && g.find(key) >= 0 {
		shared := g.parts[g.find(key)]
		p.base, p.start = shared.base, shared.draft
	} else if d := tx.of.snapshot[key]; d != nil && g == nil {
		p.base, p.together, p.fresh = d, true, true
	} else if d := s.seen.Load(); d != nil && !tx.of.fresh && !tx.of.joined() &&
		(d.Expires.IsZero() || time.Now().Before(d.Expires)) {
		p.base = d
	} else {
		tx.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, tx.of.retry.Within)
		r, err := tx.of.env.load(limited, tx.of.store, key)
		cancel()
		tx.mu.Lock()
		if err != nil {
			return nil, storeError(ctx, key, err)
		}
		d := document.Of(r)
		tx.of.advance(s, d)
		if p, err := tx.find(key); p != nil || err != nil {
			return p, err // another goroutine made it during the read
		}
		p.base, p.fresh = d, true
	}
	if p.start.Base == nil {
		p.start = document.NewDraft(p.base)
	}
	p.draft = p.start
	tx.parts[key] = p
	tx.order = append(tx.order, p)
	return p, nil
}

// find returns the part of a scope, nil if there is none. The caller holds tx.mu.
func (tx *Tx) find(key Key) (*part, error) {
	if tx.over {
		return nil, fmt.Errorf("%w: %s: the transaction is over", ErrClosed, key)
	}
	return tx.parts[key], nil
}

// look returns the state after the verb, as a *T. While the function runs that is a read. After the
// function it returns nil unless the verb was committed.
func (v *operation) look() any {
	p := v.part
	p.tx.mu.Lock()
	defer p.tx.mu.Unlock()
	switch {
	case !p.tx.over:
		p.read = true
	case !p.tx.committed || !slices.Contains(p.verbs, v):
		return nil
	}
	return v.after
}

// evaluate applies v to d, which stays as it is if v fails.
func (v *operation) evaluate(ctx context.Context, d *document.Draft) error {
	out := evaluate(ctx, &v.call, v.change, v.bound, d, true)
	v.after = nil
	if out.view != nil {
		v.after = out.view.State
	}
	return out.err
}

// restart makes the draft of p again, from start, which rests on base. It reports false when the
// function has to run again: it has read the old state, or an operation is refused on the new one.
func (p *part) restart(base *document.Doc, start document.Draft, fresh bool) bool {
	p.tx.mu.Lock()
	defer p.tx.mu.Unlock()
	p.base, p.fresh, p.together, p.start, p.draft = base, fresh, false, start, start
	if p.read {
		return false
	}
	for _, v := range p.verbs {
		if v.evaluate(context.Background(), &p.draft) != nil {
			return false
		}
	}
	return true
}

// stale returns the newest version that this process has seen, and whether it is newer than the
// base of p.
func (p *part) stale() (*document.Doc, bool) {
	d := p.stored.seen.Load()
	return d, d != nil && d.Version > p.base.Version && !p.tx.of.joined()
}

// writes reports whether the commit will change the document of p.
func (p *part) writes() bool { return p.draft.Changed > p.start.Changed }

// savepoint returns a function that undoes the writes after savepoint.
func (tx *Tx) savepoint() (undo func()) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	type state struct {
		draft document.Draft
		verbs int
	}
	saved := map[*part]state{}
	for _, p := range tx.order {
		saved[p] = state{p.draft, len(p.verbs)}
	}
	after, native := len(tx.after), len(tx.native)
	ended := len(tx.ended)
	return func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if tx.over {
			return
		}
		tx.after, tx.native = tx.after[:after:after], tx.native[:native:native]
		tx.ended = tx.ended[:ended:ended]
		for _, p := range tx.order {
			s, ok := saved[p]
			if !ok {
				s.draft = p.start
			}
			if len(p.verbs) > s.verbs {
				p.read = true // that they were not refused has told something
				p.undone++
			}
			p.draft, p.verbs = s.draft, p.verbs[:s.verbs:s.verbs]
		}
	}
}

// snapshotInTx implements Scope.Snapshot inside a transaction.
func (s *handle) snapshotInTx(ctx context.Context) (snapshot, error) {
	tx := s.tx
	if err := tx.usable(ctx, s.key); err != nil {
		return snapshot{}, err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	p, err := tx.addPart(ctx, s.key, s.bound, s.stored)
	if err != nil {
		return snapshot{}, err
	}
	p.read = true
	d := &p.draft
	if d.Life != alive {
		return snapshot{id: s.key.ID}, nil
	}
	v, err := decoded(d, &call{terms: s.bound.defaults, key: s.key}, s.bound.typ, s.bound)
	if err != nil {
		return snapshot{id: s.key.ID}, err
	}
	at := time.Time{}
	if d.Changed == 0 {
		at = d.Base.At
	}
	return snapshot{id: s.key.ID, version: d.Version, at: at, state: v.State}, nil
}

// applyInTx implements Scope.Apply inside a transaction. The Snapshot of a data verb has no
// version. Looking at its state is a read.
func (d *target) applyInTx(ctx context.Context, call call, ch *change) (snapshot, error) {
	tx, key := d.tx, call.key
	if err := tx.usable(ctx, key); err != nil {
		return snapshot{}, err
	}
	ch.freeze()
	tx.mu.Lock()
	defer tx.mu.Unlock()
	p, err := tx.addPart(ctx, key, d.bound, d.stored)
	if err != nil {
		return snapshot{}, err
	}
	if l := call.lease; l != nil && !slices.Contains(tx.leases, l) {
		tx.leases = append(tx.leases, l)
	}
	if p.busy {
		return snapshot{}, wrapKey(ErrReentrant, key)
	}
	v := &operation{part: p, call: call, change: ch, bound: d.bound}
	draft := p.draft
	if ch.hasFunction() {
		p.read = true
		err = p.runFunction(ctx, v, &draft)
	} else {
		err = v.evaluate(ctx, &draft)
	}
	if err != nil {
		p.read = true // the error tells of the state
		return snapshot{}, err
	}
	p.draft, p.verbs = draft, append(p.verbs, v)
	snap := snapshot{id: key.ID, verb: v}
	if p.read && v.after != nil {
		snap.version = p.draft.Version
	}
	return snap, nil
}

// runFunction is evaluate for a v that runs code of the caller's, without tx.mu. So v can use other
// scopes of the transaction.
func (p *part) runFunction(ctx context.Context, v *operation, d *document.Draft) (err error) {
	tx, undone := p.tx, p.undone
	p.busy = true
	tx.mu.Unlock()
	defer func() {
		tx.mu.Lock()
		p.busy = false
		switch {
		case err != nil:
		case tx.over:
			err = wrapKey(ErrClosed, p.key)
		case p.undone != undone:
			// A joined Transact that was undone meanwhile has undone the writes of v with its own.
			err = wrapKey(ErrReentrant, p.key)
		}
	}()
	if frameOf(ctx).outerTx() == nil {
		f := newFrame(ctx, tx.frame, innermost(ctx).held())
		f.tx = tx
		defer f.End()
		ctx = f
	}
	return v.evaluate(ctx, d)
}

// freeze prepares values with code of their own, so that applying the change again does not read
// them again.
func (c *change) freeze() {
	for i := range c.steps {
		if s := &c.steps[i]; s.fn == nil && s.data == nil && s.err == nil {
			data, err := c.typ.Prepare(s.ops)
			s.data, s.err, s.ops = &data, err, nil
		}
	}
}

// txCommit is the commit of a transaction. It has no id until it is sent.
type txCommit struct {
	persist.Commit
	// writers are the parts of Writes, in the same order.
	writers []*part
	// next are the documents after Writes, in the same order.
	next []*document.Doc
	// renewed are the parts whose expiry the guards extend.
	renewed []*part
	// native are the calls that run inside the commit.
	native []nativeCall
}

// bases returns the facts about the bases of Writes that settle a commit in doubt.
func (b *txCommit) bases() (bases []commit.Base) {
	for _, p := range b.writers {
		bases = append(bases, baseOf(p.base))
	}
	return bases
}

func (b *txCommit) empty() bool { return len(b.Writes)+len(b.Guards)+len(b.native) == 0 }

// changes reports whether b changes anything, if only an expiry or a lease.
func (b *txCommit) changes() bool {
	return len(b.Writes)+len(b.renewed)+len(b.native) > 0 || b.releases()
}

// broken returns the error of b when the store gave no valid answer.
func (b *txCommit) broken(cause error) error {
	key := append(b.Keys(), Key{Kind: "transaction"})[0]
	return noAnswer(key, b.ID, b.changes(), cause)
}

// releases reports whether b gives a lease back. That can be done once: a second time the lease is
// lost.
func (b *txCommit) releases() bool {
	return slices.ContainsFunc(b.Guards, func(g persist.Guard) bool { return g.Release })
}

// add adds the write of p.
func (b *txCommit) add(e *env, p *part) error {
	w, next, err := p.bound.write(&call{terms: &terms{env: e, maxDoc: p.bound.defaults.maxDoc}, key: p.key}, &p.draft)
	if err != nil {
		return err
	}
	b.Writes, b.writers, b.next = append(b.Writes, w), append(b.writers, p), append(b.next, next)
	return nil
}

// assemble makes the commit of tx. The commit is empty if the store has nothing to write or test.
func (tx *Tx) assemble() (b txCommit, err error) {
	for _, p := range tx.order {
		switch d := &p.draft; {
		case p.writes():
			if err := b.add(tx.of.env, p); err != nil {
				return b, err
			}
		case d.Expiry.Renew:
			g := persist.Guard{Key: p.key, Read: true, Version: p.base.Version, TTL: d.Expiry.TTL}
			b.Guards, b.renewed = append(b.Guards, g), append(b.renewed, p)
		case p.seen():
			b.Guards = append(b.Guards, p.guard())
		}
	}
	// With CommitThrough, the reads must stay current until the caller's own transaction commits.
	// If the commit releases a lease, they must stay current until it does.
	if !tx.of.joined() && len(tx.ended) == 0 {
		tx.dropProvenGuards(&b)
	}
	b.native = tx.native
	if err := tx.of.checkLogs(&b); err != nil {
		return b, err
	}
	if len(b.Writes)+len(b.renewed)+len(b.native)+len(tx.ended) > 0 {
		for _, l := range tx.leases {
			l.fences(&b.Commit)
		}
	}
	for _, l := range tx.ended {
		guardOf(&b.Commit, l.key).Release = true
	}
	return b, nil
}

// lostLease returns the error of b, the commit of tx, which the store refused because of a lease.
func (tx *Tx) lostLease(b *txCommit, f *fenced) error {
	for _, l := range tx.leases {
		if l := l.within(f, &b.Commit); l != nil {
			err := l.lostTo(f)
			if !tx.of.joined() { // otherwise the end of the lease may be rolled back
				l.end(err)
			}
			return err
		}
	}
	return &UnavailableError{Scope: f.current.Key, Cause: f} // the commit did not name this lease
}

// seen reports whether the function knows anything about the base of p. That a verb was accepted
// counts.
func (p *part) seen() bool { return p.read || len(p.verbs) > 0 }

// confirmation makes the commit that only tests what the function of tx knows.
func (tx *Tx) confirmation() (b txCommit) {
	for _, p := range tx.order {
		if p.seen() {
			b.Guards = append(b.Guards, p.guard())
		}
	}
	tx.dropProvenGuards(&b)
	return b
}

// guard returns the test that the base of p is current.
func (p *part) guard() persist.Guard {
	return p.base.Guard(p.key)
}

// dropProvenGuards empties b if it only tests one record that this transaction read from the store,
// or several that it read at one instant. The transaction then took place at that instant.
func (tx *Tx) dropProvenGuards(b *txCommit) {
	if len(b.Writes)+len(b.renewed)+len(tx.native) > 0 {
		return
	}
	proved := !slices.ContainsFunc(b.Guards, func(g persist.Guard) bool { return !tx.parts[g.Key].together })
	if proved || len(b.Guards) == 1 && tx.parts[b.Guards[0].Key].fresh {
		b.Guards = nil
	}
}
