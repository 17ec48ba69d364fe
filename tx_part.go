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

// part is what a transaction knows of one scope, and what it wants of it.
type part struct {
	tx     *Tx
	key    Key
	bound  *binding
	stored *stored
	base   *document.Doc
	fresh  bool // base was read from the store by this transaction, not seen before by whomever
	moment bool // base was read together with others, at one moment
	read   bool // the function has seen base, so that the commit must find it there
	busy   bool // a function of AtomicState runs on it
	undone int  // how often writes of it were undone
	draft  document.Draft
	verbs  []*operation // what the draft is made of; enough to make it again as long as read is not set
}

// operation is a verb of a transaction.
type operation struct {
	part   *part
	call   call
	change *change
	bound  *binding
	after  any // *T; the state that it left behind
}

// enter finds or makes the part of a scope. The caller holds tx.mu, which is given up while the store is asked.
func (tx *Tx) enter(ctx context.Context, key Key, b *binding, s *stored) (*part, error) {
	if p, err := tx.find(key); p != nil || err != nil {
		return p, err
	}
	tx.of.named(key)
	if tx.of.parent != nil {
		if err := tx.of.parent.enter(&s.lane, key); err != nil {
			return nil, err
		}
	}
	p := &part{tx: tx, key: key, bound: b, stored: s}
	if d := tx.of.moment[key]; d != nil {
		p.base, p.moment, p.fresh = d, true, true
	} else if d := s.seen.Load(); d != nil && !tx.of.fresh && !tx.of.joined() && (d.Expires.IsZero() || time.Now().Before(d.Expires)) {
		p.base = d
	} else {
		tx.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, tx.of.retry.Within)
		d, err := tx.of.loadOne(limited, key)
		cancel()
		tx.mu.Lock()
		if err != nil {
			return nil, b.readError(ctx, key, err)
		}
		tx.of.advance(s, d)
		if p, err := tx.find(key); p != nil || err != nil {
			return p, err // it was not the only one who asked
		}
		p.base, p.fresh = d, true
	}
	p.draft = document.NewDraft(p.base)
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

// look returns the state that the verb left behind, as a *T. While the function runs that is reading. After the commit it is the state that was
// committed, and nil if there was none.
func (v *operation) look() any {
	p := v.part
	p.tx.mu.Lock()
	defer p.tx.mu.Unlock()
	switch {
	case !p.tx.over:
		p.read = true
	case !p.tx.landed || !slices.Contains(p.verbs, v):
		return nil
	}
	return v.after
}

// evaluate computes what v makes of d.
func (v *operation) evaluate(ctx context.Context, d document.Draft) outcome {
	out := evaluate(ctx, &v.call, v.change, v.bound, &d, true)
	v.after = nil
	if out.err == nil && out.draft.Life == alive && out.draft.View != nil {
		v.after = out.draft.View.State
	}
	return out
}

// rebase makes the draft of p again, on base. It reports false when the function has to run again, because it has seen more of the old
// base than its operations did, or because one of them is refused now.
func (p *part) rebase(base *document.Doc, fresh bool) bool {
	p.tx.mu.Lock()
	defer p.tx.mu.Unlock()
	p.base, p.fresh, p.moment, p.draft = base, fresh, false, document.NewDraft(base)
	if p.read {
		return false
	}
	for _, v := range p.verbs {
		out := v.evaluate(context.Background(), p.draft)
		if out.err != nil {
			return false
		}
		p.draft = out.draft
	}
	return true
}

// stale reports whether this process has seen something newer than the base of p, and what.
func (p *part) stale() (*document.Doc, bool) {
	d := p.stored.seen.Load()
	return d, d != nil && d.Version > p.base.Version && !p.tx.of.joined()
}

// writes reports whether the commit will change the document of p.
func (p *part) writes() bool { return p.draft.Changed > 0 }

// savepoint returns a function that undoes what is written from now on.
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
				s.draft = document.NewDraft(p.base)
			}
			if len(p.verbs) > s.verbs {
				p.read = true // that they were not refused has told something
				p.undone++
			}
			p.draft, p.verbs = s.draft, p.verbs[:s.verbs:s.verbs]
		}
	}
}

// snapshotInTx is Scope.Snapshot inside a transaction.
func (s Scope[T]) snapshotInTx(ctx context.Context) (Snapshot[T], error) {
	tx := s.tx
	if err := tx.usable(ctx, s.key); err != nil {
		return Snapshot[T]{}, err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	p, err := tx.enter(ctx, s.key, s.bound, s.stored)
	if err != nil {
		return Snapshot[T]{}, err
	}
	p.read = true
	d := &p.draft
	if d.Life != alive {
		return Snapshot[T]{ID: s.key.ID}, nil
	}
	v, err := decoded(d, &call{terms: s.bound.defaults, key: s.key}, s.bound.typ, s.bound)
	if err != nil {
		return Snapshot[T]{ID: s.key.ID}, err
	}
	at := time.Time{}
	if d.Changed == 0 {
		at = d.Base.At
	}
	return snapshotOf[T](s.key.ID, d.Version, at, v.State), nil
}

// applyInTx is Scope.Apply inside a transaction. What it returns for a data verb has no version, and becomes a read when it is looked at.
func (d *target[T]) applyInTx(ctx context.Context, call call, ch *change) (Snapshot[T], error) {
	tx, key := d.tx, call.key
	if err := tx.usable(ctx, key); err != nil {
		return Snapshot[T]{}, err
	}
	ch.freeze()
	tx.mu.Lock()
	defer tx.mu.Unlock()
	p, err := tx.enter(ctx, key, d.bound, d.stored)
	if err != nil {
		return Snapshot[T]{}, err
	}
	if l := call.lease; l != nil && !slices.Contains(tx.leases, l) {
		tx.leases = append(tx.leases, l)
	}
	if p.busy {
		return Snapshot[T]{}, wrapKey(ErrReentrant, key)
	}
	v := &operation{part: p, call: call, change: ch, bound: d.bound}
	var out outcome
	if ch.reads() {
		p.read = true
		out = p.runFunction(ctx, v)
	} else if out = v.evaluate(ctx, p.draft); out.err != nil {
		p.read = true // the error tells of the state
	}
	if out.err != nil {
		return Snapshot[T]{}, out.err
	}
	p.draft = out.draft
	p.verbs = append(p.verbs, v)
	snap := Snapshot[T]{ID: key.ID, verb: v}
	if p.read && v.after != nil {
		snap.Version = out.draft.Version
	}
	return snap, nil
}

// runFunction evaluates v, which is somebody's code, without tx.mu, so that it can use other scopes of the transaction.
func (p *part) runFunction(ctx context.Context, v *operation) (out outcome) {
	tx, from, undone := p.tx, p.draft, p.undone
	p.busy = true
	tx.mu.Unlock()
	defer func() {
		tx.mu.Lock()
		p.busy = false
		switch {
		case out.err != nil:
		case tx.over:
			out.err = wrapKey(ErrClosed, p.key)
		case p.undone != undone:
			out.err = wrapKey(ErrReentrant, p.key) // somebody else's part of the transaction was undone meanwhile, and this with it
		}
	}()
	if frameOf(ctx).outerTx() == nil {
		f := newFrame(ctx, tx.frame, innermost(ctx).held())
		f.tx = tx
		defer f.End()
		ctx = f
	}
	return v.evaluate(ctx, from)
}

// freeze prepares the values that have code of their own, so that applying the change again does not read them again.
func (c *change) freeze() {
	for i := range c.steps {
		if s := &c.steps[i]; s.fn == nil && s.data == nil && s.err == nil {
			data, err := c.typ.Prepare(s.ops)
			s.data, s.err, s.ops = &data, err, nil
		}
	}
}

// reads reports whether the change looks at the state with code of the caller's.
func (c *change) reads() bool {
	return c.fn != nil || slices.ContainsFunc(c.steps, func(s step) bool { return s.fn != nil })
}

// txCommit is a commit of a transaction, which has no id until it is sent.
type txCommit struct {
	persist.Commit
	writers []*part         // of Writes, one by one
	next    []*document.Doc // what Writes leave when they land
	renewed []*part         // whose expiry the guards put off
	native  []nativeCall
}

func (b *txCommit) bases() (bases []commit.Base) {
	for _, p := range b.writers {
		bases = append(bases, baseOf(p.base))
	}
	return bases
}

func (b *txCommit) empty() bool { return len(b.Writes)+len(b.Guards)+len(b.native) == 0 }

// broken is what no proper answer to b means.
func (b *txCommit) broken(cause error) error {
	key := append(b.Keys(), Key{Kind: "transaction"})[0]
	if len(b.Writes)+len(b.native) > 0 {
		return &UnknownOutcomeError{Scope: key, Commit: b.ID, Cause: cause}
	}
	return &UnavailableError{Scope: key, Cause: cause}
}

// assemble makes the commit of what tx wants. It is empty where there is nothing to ask the store.
func (tx *Tx) assemble() (b txCommit, err error) {
	for _, p := range tx.order {
		switch d := &p.draft; {
		case p.writes():
			w, next, err := p.bound.write(&call{terms: &terms{env: tx.of.env}, key: p.key}, d)
			if err != nil {
				return b, err
			}
			b.Writes, b.writers, b.next = append(b.Writes, w), append(b.writers, p), append(b.next, next)
		case d.Expiry.Renew:
			b.Guards, b.renewed = append(b.Guards, persist.Guard{Key: p.key, Read: true, Version: p.base.Version, TTL: d.Expiry.TTL}), append(b.renewed, p)
		case p.seen():
			b.Guards = append(b.Guards, p.guard())
		}
	}
	// With Via it takes place when the caller's own transaction does, and what it read has to stay until then; and until a lease ends, if it ends one.
	if !tx.of.joined() && len(tx.ended) == 0 {
		tx.spareProof(&b)
	}
	b.native = tx.native
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

// lostLease is what it means that the commit of tx, b, was refused because of a lease.
func (tx *Tx) lostLease(b *txCommit, f *fenced) error {
	for _, l := range tx.leases {
		if l := l.within(f, &b.Commit); l != nil {
			err := l.lostTo(f)
			if !tx.of.joined() { // else what ended it may be undone
				l.end(err)
			}
			return err
		}
	}
	return &UnavailableError{Scope: f.current.Key, Cause: f} // the store speaks of a lease that it was not asked about
}

// seen reports whether the function knows something of the base of p: that a verb was not refused is something, too.
func (p *part) seen() bool { return p.read || len(p.verbs) > 0 }

// confirmation makes the commit that only tests what tx knows.
func (tx *Tx) confirmation() (b txCommit) {
	for _, p := range tx.order {
		if p.seen() {
			b.Guards = append(b.Guards, p.guard())
		}
	}
	tx.spareProof(&b)
	return b
}

// guard is the test that the base of p is current.
func (p *part) guard() persist.Guard {
	return p.base.Guard(p.key)
}

// spareProof empties b if it only tests one record that was read from the store just now, or several that were read at one moment: that is
// when the transaction took place.
func (tx *Tx) spareProof(b *txCommit) {
	if len(b.Writes)+len(b.renewed)+len(tx.native) > 0 {
		return
	}
	proved := !slices.ContainsFunc(b.Guards, func(g persist.Guard) bool { return !tx.parts[g.Key].moment })
	if proved || len(b.Guards) == 1 && tx.parts[b.Guards[0].Key].fresh {
		b.Guards = nil
	}
}
