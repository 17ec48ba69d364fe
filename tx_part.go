package pawl

import (
	"context"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// part is what a transaction knows of one scope, and what it wants of it.
type part struct {
	tx     *Tx
	key    Key
	bound  *binding
	cell   *cell
	base   *doc
	cached bool // base was seen by this process before, and may be old
	moment bool // base was read together with others, at one moment
	read   bool // the function has seen base, so that the commit must find it there
	busy   bool // a function of AtomicState runs on it
	draft  draft
	ops    []operation // what the draft is made of; enough to make it again as long as read is not set
}

// operation is a data verb of a transaction.
type operation struct {
	call   call
	change *change
	bound  *binding
}

// enter finds or makes the part of a scope. The caller holds tx.mu.
func (tx *Tx) enter(ctx context.Context, key Key, b *binding, c *cell) (*part, error) {
	if p := tx.parts[key]; p != nil {
		if p.busy {
			return nil, wrapKey(ErrReentrant, key)
		}
		return p, nil
	}
	if tx.of.parent != nil {
		if err := tx.of.parent.mutating(&c.queue, key); err != nil {
			return nil, err
		}
	}
	p := &part{tx: tx, key: key, bound: b, cell: c}
	if d := tx.of.moment[key]; d != nil {
		p.base, p.moment = d, true
	} else if d := c.seen.Load(); d != nil && !tx.of.fresh && (d.expires.IsZero() || time.Now().Before(d.expires)) {
		p.base, p.cached = d, true
	} else {
		d, err := b.load(ctx, key)
		if err != nil {
			return nil, b.readError(ctx, key, err)
		}
		c.advance(d)
		p.base = d
	}
	p.draft = newDraft(p.base)
	tx.parts[key] = p
	tx.of.named(key)
	tx.order = append(tx.order, p)
	return p, nil
}

// touch puts p into the read set.
func (p *part) touch() {
	p.tx.mu.Lock()
	defer p.tx.mu.Unlock()
	p.read = true
}

// evaluate applies op to the draft of p and returns the outcome.
func (p *part) evaluate(ctx context.Context, op operation) outcome {
	w := &waiter{ctx: ctx, call: op.call, change: op.change}
	w.cas.backend = op.bound
	return evaluate(ctx, w, p.draft, true)
}

// rebase makes the draft of p again, on base. It reports false when the function has to run again, because it has seen more of the old
// base than its operations did, or because one of them is refused now.
func (p *part) rebase(base *doc) bool {
	p.base, p.cached, p.moment, p.draft = base, false, false, newDraft(base)
	if p.read {
		return false
	}
	for _, op := range p.ops {
		out := p.evaluate(context.Background(), op)
		if out.err != nil {
			return false
		}
		p.draft = out.draft
	}
	return true
}

// stale reports whether this process has seen something newer than the base of p, and what.
func (p *part) stale() (*doc, bool) {
	d := p.cell.seen.Load()
	return d, d != nil && d.version > p.base.version
}

// writes reports whether the commit will change the document of p.
func (p *part) writes() bool { return p.draft.changed > 0 }

// savepoint returns a function that undoes what is written from now on.
func (tx *Tx) savepoint() (undo func()) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	type state struct {
		draft draft
		ops   int
	}
	saved := map[*part]state{}
	for _, p := range tx.order {
		saved[p] = state{p.draft, len(p.ops)}
	}
	after := len(tx.after)
	return func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if tx.over {
			return
		}
		tx.after = tx.after[:after]
		for _, p := range tx.order {
			if s, ok := saved[p]; ok {
				p.draft, p.ops = s.draft, p.ops[:s.ops]
			} else {
				p.draft, p.ops = newDraft(p.base), nil
			}
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
	p, err := tx.enter(ctx, s.key, s.bound, s.cell)
	if err != nil {
		return Snapshot[T]{}, err
	}
	p.read = true
	d := &p.draft
	if d.life != alive {
		return Snapshot[T]{ID: s.key.ID}, nil
	}
	w := &waiter{call: call{env: s.bound.defaults.env, key: s.key}, change: &change{typ: s.bound.typ}}
	w.cas.backend = s.bound
	v, err := d.decoded(w)
	if err != nil {
		return Snapshot[T]{ID: s.key.ID}, err
	}
	at := time.Time{}
	if d.changed == 0 {
		at = d.base.at
	}
	return snapshotOf[T](s.key.ID, d.version, at, v.state), nil
}

// applyInTx is Scope.Apply inside a transaction. What it returns for a data verb has no version, and becomes a read when it is looked at.
func (d dispatch[T]) applyInTx(ctx context.Context, call call, ch *change) (Snapshot[T], error) {
	tx, key := d.tx, call.key
	if err := tx.usable(ctx, key); err != nil {
		return Snapshot[T]{}, err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	p, err := tx.enter(ctx, key, d.bound, d.cell)
	if err != nil {
		return Snapshot[T]{}, err
	}
	op := operation{call: call, change: ch, bound: d.bound}
	var out outcome
	if ch.reads() {
		p.read = true
		out = p.runFunction(ctx, op)
		if tx.over {
			return Snapshot[T]{}, wrapKey(ErrClosed, key)
		}
	} else if out = p.evaluate(ctx, op); out.err != nil {
		p.read = true // the error tells of the state
	}
	if out.err != nil {
		return Snapshot[T]{}, out.err
	}
	p.draft = out.draft
	p.ops = append(p.ops, op)
	snap := Snapshot[T]{ID: key.ID, part: p}
	if next := &out.draft; next.life == alive && next.view != nil {
		snap.state = next.view.state.(*T)
		if p.read {
			snap.Version = next.version
		}
	}
	return snap, nil
}

// runFunction evaluates op, which is somebody's code, without tx.mu, so that it can use other scopes of the transaction.
func (p *part) runFunction(ctx context.Context, op operation) outcome {
	p.busy = true
	p.tx.mu.Unlock()
	defer func() {
		p.tx.mu.Lock()
		p.busy = false
	}()
	if frameOf(ctx).outerTx() == nil {
		f := &frame{Context: ctx, tx: p.tx, parent: p.tx.frame}
		f.begin()
		defer f.end()
		ctx = f
	}
	return p.evaluate(ctx, op)
}

// reads reports whether the change looks at the state with code of the caller's.
func (c *change) reads() bool {
	return c.fn != nil || slices.ContainsFunc(c.steps, func(s step) bool { return s.fn != nil })
}

// batch is a commit of a transaction, which has no id until it is sent.
type batch struct {
	persist.Commit
	writers []*part // of Writes, one by one
	next    []*doc  // what Writes leave when they land
	renewed []*part // whose expiry the guards put off
}

func (b *batch) bases() (bases []*doc) {
	for _, p := range b.writers {
		bases = append(bases, p.base)
	}
	return bases
}

// broken is what no proper answer to b means.
func (b *batch) broken(cause error) error {
	key := b.Keys()[0]
	if len(b.Writes) > 0 {
		return &UnknownOutcomeError{Scope: key, Commit: b.ID, Cause: cause}
	}
	return &UnavailableError{Scope: key, Cause: cause}
}

// assemble makes the commit of what tx wants. It is empty where there is nothing to ask the store.
func (tx *Tx) assemble() (b batch, err error) {
	for _, p := range tx.order {
		switch d := &p.draft; {
		case p.writes():
			w, next, err := p.bound.write(&call{env: tx.of.env, key: p.key}, d)
			if err != nil {
				return b, err
			}
			b.Writes, b.writers, b.next = append(b.Writes, w), append(b.writers, p), append(b.next, next)
		case d.renews:
			b.Guards, b.renewed = append(b.Guards, persist.Guard{Key: p.key, Read: true, Version: p.base.version, TTL: d.ttl}), append(b.renewed, p)
		case p.read || len(p.ops) > 0:
			b.Guards = append(b.Guards, p.guard())
		}
	}
	tx.spareProof(&b)
	return b, nil
}

// confirmation makes the commit that only tests what tx has read.
func (tx *Tx) confirmation() (b batch) {
	for _, p := range tx.order {
		if p.read {
			b.Guards = append(b.Guards, p.guard())
		}
	}
	tx.spareProof(&b)
	return b
}

// guard is the test that the base of p is current.
func (p *part) guard() persist.Guard {
	return persist.Guard{Key: p.key, Read: true, Version: p.base.expected(), Gone: p.base.life == deleted || p.base.life == expired}
}

// spareProof empties b if it only tests one record that was read from the store just now, or several that were read at one moment: that is
// when the transaction took place.
func (tx *Tx) spareProof(b *batch) {
	if len(b.Writes)+len(b.renewed) > 0 {
		return
	}
	proved := !slices.ContainsFunc(b.Guards, func(g persist.Guard) bool { return !tx.parts[g.Key].moment })
	if proved || len(b.Guards) == 1 && !tx.parts[b.Guards[0].Key].cached {
		b.Guards = nil
	}
}
