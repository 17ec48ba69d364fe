package pawl

import (
	"context"
	"reflect"
	"slices"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// How commits are tested against the leases that they are made under.

// covers returns why a call cannot be made under l and its outer leases. B is nil for a container
// of the caller's own. Such a container, like an in-memory scope, has no store that could test the
// leases: what this process knows of them decides.
func (l *Lease) covers(b *binding) error {
	if b != nil && !b.kind.InMemory {
		return l.coversStore(b.rt)
	}
	return l.lostAny()
}

// knownLost returns *LeaseLostError if this process knows that the lease of v is lost and the
// backend cannot test that in its commit.
func (v *storedCall) knownLost() error {
	if _, ok := v.backend.(*binding); ok {
		return nil
	}
	return v.call.lease.lostAny()
}

// lostAny returns why l or one of its outer leases has ended; nil: all are live.
func (l *Lease) lostAny() error {
	for ; l != nil; l = l.outer {
		if err := l.lost(); err != nil {
			return err
		}
	}
	return nil
}

// keepsIn reports whether store is the store of rt.
func (rt *Runtime) keepsIn(store persist.Store) bool {
	return reflect.ValueOf(store).Comparable() && store == rt.store
}

// coversStore returns why a commit of rt cannot be made under l and its outer leases.
func (l *Lease) coversStore(rt *Runtime) error {
	for ; l != nil; l = l.outer {
		if l.rt != rt && !rt.keepsIn(l.rt.store) {
			return &ArgumentError{Argument: "ctx", Reason: "belongs to a lease in another store"}
		}
		if err := l.lost(); err != nil {
			return err
		}
	}
	return nil
}

// Guards reports whether commits that are made with ctx are tested against l.
func (l *Lease) Guards(ctx context.Context) bool {
	for held := innermost(ctx).held(); held != nil; held = held.outer {
		if held == l {
			return true
		}
	}
	return false
}

// fences adds the tests of l and of its outer leases to a commit. Of two leases of one scope only
// the later can be live; the earlier is tested, and so refuses the commit.
func (l *Lease) fences(c *persist.Commit) {
	for ; l != nil; l = l.outer {
		if g := guardOf(c, l.key); g.Token == 0 || l.token < g.Token {
			g.Token = l.token
		}
	}
}

// endedBy returns *LeaseLostError if l, or an outer lease, is one of key and a mutation in d ended
// it. The store tests the commit as a whole and would accept mutations after that one.
func (l *Lease) endedBy(d *document.Draft, key Key) error {
	for ; d.Lease.Over && l != nil; l = l.outer {
		if l.key == key {
			return &LeaseLostError{Scope: key, Token: l.token}
		}
	}
	return nil
}

// within returns the lease that f refused, l or one of its outer leases; nil if there is none.
func (l *Lease) within(f *fenced, c *persist.Commit) *Lease {
	token := guardOf(c, f.current.Key).Token
	for ; l != nil; l = l.outer {
		if l.key == f.current.Key && l.token == token {
			return l
		}
	}
	return nil
}

// guardOf returns the guard of key in c, and adds one if there is none.
func guardOf(c *persist.Commit, key Key) *persist.Guard {
	i := slices.IndexFunc(c.Guards, func(g persist.Guard) bool { return g.Key == key })
	if i < 0 {
		i = len(c.Guards)
		c.Guards = append(c.Guards, persist.Guard{Key: key})
	}
	return &c.Guards[i]
}

// fences returns the tests of the leases that the members of b run under.
func (b *batch) fences() []persist.Guard {
	var c persist.Commit
	for _, w := range b.members {
		if v := &w.Value; v.out.ran && v.out.err == nil {
			v.call.lease.fences(&c)
		}
	}
	return c.Guards
}

// dropLost answers the members of b whose lease was lost, and prepares the others to be computed
// again.
func (s *stored) dropLost(b *batch, f *fenced) progress {
	tested := persist.Commit{Guards: b.draft.Lease.Guards}
	base := b.draft.Base
	var keep []*storedWaiter
	for _, w := range b.members {
		l := w.Value.call.lease.within(f, &tested)
		if l == nil {
			keep = append(keep, w)
			continue
		}
		err := l.lostTo(f)
		l.end(err)
		s.fail(w, err)
	}
	if len(keep) == len(b.members) { // the store refused a lease that the commit did not name
		s.failAll(b, &UnavailableError{Scope: b.members[0].Value.call.key, Cause: f})
		return settled
	}
	return s.startOver(b, keep, document.NewDraft(base))
}

// ReleaseIn gives the lease back with the commit of tx, both or neither: no reader sees the writes
// of tx while the lease is still held. The commit is tested against the lease, whatever context tx
// has. It returns *ArgumentError for a nil tx, one with CommitThrough, or one of another runtime.
func (l *Lease) ReleaseIn(tx *Tx) error {
	switch {
	case tx == nil:
		return &ArgumentError{Argument: "tx", Reason: "nil"}
	case tx.of.joined():
		return &ArgumentError{Argument: "ReleaseIn", Reason: "not possible with CommitThrough: only the caller knows when that transaction commits"}
	case l.rt != tx.of.rt:
		return &ArgumentError{Argument: "tx", Reason: "belongs to another runtime"}
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over || slices.Contains(tx.ended, l) {
		return nil
	}
	if !slices.Contains(tx.leases, l) {
		tx.leases = append(tx.leases, l)
	}
	tx.ended = append(tx.ended, l)
	tx.after = append(tx.after, l.endByCommit)
	return nil
}
