package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// A turn keeps a writer from losing forever to another process that commits without a pause.
//
//	caller            store                                etcd
//	Commit, Insist -> compare the record; or take a turn -> the record has changed: the turn is taken
//	Conflict, Held <-
//	Commit, Insist -> compare the record and the turn    -> written; the turn is removed
//
// A turn is a key. Every commit of one record compares that there is no turn of another process, and
// waits and tries again if there is. After turnPatience it takes no notice of that turn, and removes
// it: its owner is slow, or gone. Turns decide only which of two commits goes first. What a commit may
// write is decided by the revision of the record, so a turn that is lost or left behind does no harm.

const (
	turnPatience = 25 * time.Millisecond
	turnPause    = 4 * time.Millisecond
)

// turnState is what an attempt knows of the turn of its key. Only commits of one key have turns.
type turnState struct {
	allowed int64     // the revision of the turn that the commit removes: its own, or one left behind
	claimed int64     // the revision of the turn that the last answer gave to this attempt; 0: none
	since   time.Time // when a turn of another process was first seen; zero: none
}

// alone reports whether the attempt is for one key that it writes.
func (a *attempt) alone() bool { return len(a.keys) == 1 && len(a.commit.Writes) == 1 }

// compareTurn adds the comparison that no other process has a turn, and removes the turn of this
// one.
func (a *attempt) compareTurn(compare []clientv3.Cmp, ops []clientv3.Op) ([]clientv3.Cmp, []clientv3.Op) {
	if !a.alone() {
		return compare, ops
	}
	if a.commit.Insist && a.turns.allowed == 0 {
		a.turns.allowed = a.store.known.takeTurn(a.keys[0])
	}
	key := a.store.keys.turn(a.keys[0])
	compare = append(compare, clientv3.Compare(clientv3.ModRevision(key), "=", a.turns.allowed))
	if a.turns.allowed != 0 {
		ops = append(ops, clientv3.OpDelete(key))
	}
	return compare, ops
}

// claimTurn returns the operations of a transaction that fails: they read the turn, and take it if
// the commit insists and it is free.
func (a *attempt) claimTurn() []clientv3.Op {
	if !a.alone() {
		return nil
	}
	key := a.store.keys.turn(a.keys[0])
	ops := []clientv3.Op{clientv3.OpGet(key)}
	if a.commit.Insist {
		free := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", 0)}
		ops = append(ops, clientv3.OpTxn(free, []clientv3.Op{clientv3.OpPut(key, "")}, nil))
	}
	return ops
}

// hearTurn learns from the answer of a transaction that failed whose turn it is.
func (a *attempt) hearTurn(v *view, answer *clientv3.TxnResponse) {
	if !a.alone() {
		return
	}
	rest := answer.Responses[2*len(a.keys)+2:]
	if found := kvs(rest[0]); len(found) > 0 {
		v.turn = found[0].ModRevision
	}
	a.turns.claimed = 0
	if len(rest) > 1 && rest[1].GetResponseTxn().GetSucceeded() {
		a.turns.claimed = answer.Header.Revision
	}
}

// waitForTurn waits if it is the turn of another process. It returns the error of a commit that was
// not applied if ctx ends.
func (a *attempt) waitForTurn(ctx context.Context, v view) error {
	switch {
	case !v.fresh || v.turn != 0 && v.turn == a.turns.allowed:
		return nil
	case v.turn == 0:
		a.turns.allowed = a.turns.claimed
		return nil
	case a.turns.since.IsZero():
		a.turns.since = time.Now()
	case time.Since(a.turns.since) > turnPatience:
		a.turns.allowed = v.turn
		return nil
	}
	a.turns.allowed = 0
	if pause(ctx, turnPause); ctx.Err() != nil {
		return notApplied(ended(ctx))
	}
	return nil
}

// held returns err, the answer of Apply. A conflict says whether the caller has a turn.
func (a *attempt) held(err error) error {
	conflict, ok := errors.AsType[*persist.Conflict](err)
	if ok && a.turns.claimed != 0 {
		conflict.Held = true
		a.store.known.keepTurn(a.keys[0], a.turns.claimed)
	}
	return err
}

// keepTurn remembers the turn of this process.
func (c *cache) keepTurn(key persist.Key, mod int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.turns {
		if len(c.turns) < mostKnown {
			break
		}
		delete(c.turns, other)
	}
	c.turns[key] = mod
}

// takeTurn returns the turn of this process, and forgets it. It returns 0 if there is none.
func (c *cache) takeTurn(key persist.Key) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	mod := c.turns[key]
	delete(c.turns, key)
	return mod
}
