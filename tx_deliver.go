package pawl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/drain"
)

// The end of a transaction: its commit, with or without its caller, and the callbacks after it.

// deliver sends b and updates the cache with its outcome. B is the commit of tx, or the confirmation
// of a run that failed with end. If the caller leaves, the commit and the callbacks continue without
// it: the transaction is a group with one member.
func (t *transaction) deliver(tx *Tx, end ending, b txCommit) (commit.Verdict, error) {
	if b.empty() {
		return commit.Verdict{Kind: commit.Landed}, nil
	}
	b.ID = t.env.newCommitID()
	if t.joined() || len(b.native) > 0 {
		return t.deliverHere(tx, b)
	}
	m := &member{t: t, tx: tx, end: end}
	g := &group{members: []*member{m}, settled: make(chan struct{})}
	go t.send(b, func(v commit.Verdict, err error) {
		t.cache(b, v, err)
		g.settle(v, err, len(b.Writes))
	})
	if leaving := t.awaitVerdict(g, m, b.changes(), b.broken); leaving != nil {
		return commit.Verdict{}, leaving
	}
	return g.verdict, g.err
}

// send sends b and calls settled with the answer, also if the store panics or ends the goroutine.
func (t *transaction) send(b txCommit, settled func(commit.Verdict, error)) {
	ctx := &patient{deadlineContext{Context: context.WithoutCancel(t.ctx), until: t.deadline}}
	defer ctx.release()
	var (
		v   commit.Verdict
		err error
	)
	p := guarded(func() {
		v, err = t.rt.send(ctx, commit.Route{Store: t.rt.logs, Once: b.releases()}, t.retry, b.Commit, b.bases())
	}, func() {
		settled(commit.Verdict{}, b.broken(errors.New("the store called runtime.Goexit")))
	})
	if p != nil {
		err = b.broken(p)
	}
	settled(v, err)
}

// awaitVerdict waits for the verdict about m, a member of g. It returns an error if the caller leaves
// before: its context has ended, or its budget. The answer or the caller sets claimed; the second of
// them finds it set, and ends the transaction.
func (t *transaction) awaitVerdict(g *group, m *member, writes bool, broken func(error) error) (leaving error) {
	patience := time.NewTimer(time.Until(t.deadline.Add(answerGrace)))
	defer patience.Stop()
	select {
	case <-g.settled:
		return nil
	case <-t.ctx.Done():
		leaving = t.canceled(PhaseQueued)
		if writes {
			leaving = t.canceled(PhaseCommitting)
		}
	case <-patience.C:
		leaving = broken(errors.New("no answer within the budget of " + t.retry.Within.String()))
	}
	if !m.claimed.CompareAndSwap(false, true) {
		<-g.settled
		return nil
	}
	t.left = true
	return leaving
}

// deliverHere is deliver for a commit that uses the caller's own transaction or code. Neither may
// be used after the caller has left, so the caller waits.
func (t *transaction) deliverHere(tx *Tx, b txCommit) (v commit.Verdict, err error) {
	ctx, cancel := context.WithDeadline(t.ctx, t.deadline)
	defer cancel()
	p := guarded(func() { v, err = t.rt.send(ctx, t.route(tx, b.native), t.retry, b.Commit, b.bases()) }, func() {
		t.panicked = goexit
		t.remember(b, v, b.broken(errors.New("runtime.Goexit was called")))
	})
	if p != nil {
		err = b.broken(p)
	}
	t.remember(b, v, err)
	if t.ctx.Err() == nil {
		return v, err
	}
	switch err.(type) { // the commit ended because the caller left
	case *UnavailableError:
		err = t.canceled(PhaseQueued)
	case *UnknownOutcomeError:
		err = t.canceled(PhaseCommitting)
	}
	return v, err
}

// remember updates the cached versions of the scopes of b with the answer of the store, and tells the
// observer.
func (t *transaction) remember(b txCommit, v commit.Verdict, err error) {
	if t.joined() {
		return // it may be undone
	}
	t.cache(b, v, err)
	if err == nil && v.Kind == commit.Landed {
		t.observeCommit(b.writers, len(b.Writes))
	}
}

// observeCommit tells the observer of what t wrote to parts, in a commit of this number of writes.
func (t *transaction) observeCommit(parts []*part, writes int) {
	for _, p := range parts {
		t.observe(Event{
			Type: EventCommitted, Key: p.key, Version: p.draft.Version,
			Attempts: t.attempts + 1, Batch: writes, Took: time.Since(t.started),
		})
	}
}

// cache updates the cached versions of the scopes of b with the answer of the store.
func (t *transaction) cache(b txCommit, v commit.Verdict, err error) {
	for i, p := range b.writers {
		switch {
		case err != nil:
			p.stored.seen.CompareAndSwap(p.base, nil) // it may not be current any more
		case v.Kind == commit.Landed:
			b.next[i].Landed(b.Writes[i], b.ID, v.At, v.Records)
			p.stored.advance(b.next[i])
		}
	}
	if err != nil || v.Kind != commit.Landed {
		return
	}
	for _, r := range v.Records {
		if i := slices.IndexFunc(b.writers, func(p *part) bool { return p.key == r.Key }); i >= 0 {
			b.writers[i].stored.advance(document.Of(r))
		}
	}
	for _, p := range b.renewed {
		p.stored.renewed(p.base, p.base.Renewed(v.At.Add(p.draft.Expiry.TTL)))
	}
}

// runAll runs the after-commit callbacks, all of them, and raises the first panic again.
func runAll(callbacks []func()) error {
	var first *PanicError
	for i, fn := range callbacks {
		p := guarded(fn, func() { _ = runAll(callbacks[i+1:]) })
		if first == nil {
			first = p
		}
	}
	return ending{panic: first}.deliver()
}

// runAllAlone is runAll after the caller has left. It logs panics.
func (t *transaction) runAllAlone(callbacks []func()) {
	for i, fn := range callbacks {
		if p := guarded(fn, func() { t.runAllAlone(callbacks[i+1:]) }); p != nil {
			t.env.logger().ErrorContext(t.ctx,
				"pawl: after-commit callback panicked after its caller left",
				"panic", p.Value, "stack", string(p.Stack))
		}
	}
}

// markCommitted notes that tx is committed.
func (tx *Tx) markCommitted() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.committed = true
}

// transactions are the running transactions of a runtime. Close waits for them.
type transactions struct{ drain.Group[*transaction] }

// close makes transactions closable: it refuses new ones.
func (s *transactions) close() <-chan struct{} { return s.Close() }

// busy describes the transactions that have not ended, for BusyError.
func (s *transactions) busy() (out []Running) {
	for _, t := range s.Live() {
		t.mu.Lock()
		out = append(out, Running{Scope: t.key, Verb: "Transact"})
		t.mu.Unlock()
	}
	return out
}
