package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Commit applies c entirely or not at all, in one transaction of etcd; see the package comment. It
// returns *persist.Conflict, *persist.Fenced, *persist.LimitError, persist.ErrClosed after Close,
// persist.ErrUnsupported for a write with a log, and an error that wraps persist.ErrNotApplied when c
// is malformed, ctx had ended, or etcd refused it; persist.ErrUnavailable too if that passes by
// itself. Any other error leaves the outcome unknown: the transaction was sent and not answered.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := s.enter(ctx); err != nil {
		return time.Time{}, notApplied(err)
	}
	defer s.calls.Done()
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	if err := s.limits.Check(c); err != nil {
		return time.Time{}, err
	}
	if slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Log != nil }) {
		return time.Time{}, fmt.Errorf("%w: etcd: a write has a log; see persist.Logs", persist.ErrUnsupported)
	}
	if hasDuration(c) {
		if err := s.wakeClock(ctx); err != nil {
			return time.Time{}, notApplied(err)
		}
	}
	a := attempt{store: s, commit: c, keys: c.Keys()}
	v, ok := s.known.recall(c, a.keys)
	v.clock = s.clock.now()
	for deadline := time.Now().Add(s.config.Timeout); ; {
		if !ok {
			var err error
			if v, err = s.read(ctx, a.keys); err != nil {
				return time.Time{}, notApplied(err)
			}
		}
		at := v.now()
		next, err := persist.Apply(c, v.current(), at)
		switch {
		case err != nil && !v.fresh:
			ok = false // the records that this process knows are old
			continue
		case err != nil:
			return time.Time{}, a.held(err)
		case len(next) == 0 && v.fresh:
			return at, nil // the guards held at the revision of the view
		}
		if v, err = a.send(ctx, v, next, at); err != nil {
			return time.Time{}, err
		}
		if a.won {
			return at, nil
		}
		if err := a.waitForTurn(ctx, v); err != nil {
			return time.Time{}, err
		}
		if ok = v.fresh; time.Now().After(deadline) {
			return time.Time{}, fmt.Errorf("%w: %w: etcd: the records change too quickly", persist.ErrNotApplied, persist.ErrUnavailable)
		}
	}
}

// hasDuration reports whether c states a time as a duration from the commit on.
func hasDuration(c persist.Commit) bool {
	return slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Acquire != nil || w.TTL > 0 || w.DueIn > 0 }) ||
		slices.ContainsFunc(c.Guards, func(g persist.Guard) bool { return g.Extend > 0 || g.TTL > 0 })
}

// attempt is a commit on its way.
type attempt struct {
	store  *Store
	commit persist.Commit
	keys   []persist.Key
	won    bool // it was applied
	turns  turnState
}

// send writes next if the records are as in v. It returns the view to judge by next otherwise: one
// that is not fresh has to be read. The error is for the caller.
func (a *attempt) send(ctx context.Context, v view, next []persist.Record, at time.Time) (view, error) {
	s := a.store
	ops, size, err := a.operations(v, next)
	if err != nil {
		return view{}, notApplied(err)
	}
	compare := append(s.unchanged(a.keys, &v), s.before(v.turning(at, v.clock.Add(s.window(v)))))
	compare, ops = a.compareTurn(compare, ops)
	for _, c := range compare {
		size += len(c.KeyBytes()) + opBytes
	}
	otherwise, told := a.reads()
	if len(ops) == 0 && len(otherwise) == 0 { // without a read, a member that lags behind would answer by itself
		otherwise = []clientv3.Op{clientv3.OpGet(s.keys.clock())}
	}
	for _, op := range otherwise {
		size += len(op.KeyBytes()) + opBytes
	}
	if size > s.config.MaxRequestBytes {
		return view{}, &persist.LimitError{What: "bytes", Limit: s.config.MaxRequestBytes, Got: size}
	}
	ops, fits := nest(s.config.MaxTxnOps, max(len(compare), len(otherwise)), ops)
	if !fits {
		return view{}, &persist.LimitError{What: "keys", Limit: s.limits.MaxKeys, Got: len(a.keys)}
	}
	answer, err := s.txn(ctx, compare, ops, otherwise)
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return view{}, a.settle(ctx, v, next, err)
	case err != nil && refused(err) && passes(err) && ctx.Err() == nil:
		pause(ctx, retryPause) // a leader is being elected
		return view{}, nil
	case err != nil && refused(err):
		return view{}, notApplied(err)
	case err != nil:
		s.known.forget(a.keys)
		return view{}, unknown(ctx, err)
	case answer.Succeeded:
		a.won = true
		landed := view{entries: make(map[persist.Key]entry, len(next))}
		for _, r := range next {
			landed.entries[r.Key] = entry{record: r, mod: answer.Header.Revision}
		}
		s.known.learn(&landed)
		return view{}, nil
	case !told:
		return view{}, nil
	}
	again, err := s.parse(a.keys, answer.Responses)
	if err != nil {
		return view{}, notApplied(err)
	}
	a.hearTurn(&again, answer)
	s.known.learn(&again)
	return again, nil
}

// clockLag is by how many ticks the clock may be ahead of the time of a commit whose caller had that
// time before the call.
const clockLag = 2

// window returns by how much the clock may be ahead of v.clock when a commit that is judged by v is
// applied. What the commit was judged by does not depend on it: see turning. The window limits by how
// much the durations in the commit are too short.
//
//   - A time that was read since the call began is late by the requests of the call only. A holder
//     counts the length of its lease from before the call. So a slow answer shortens nothing that the
//     caller relies on, and the window is as long as two requests may take.
//   - A time that this process has heard of before may be late by any amount, so the window is short.
//     If it has passed, the transaction fails and the records are read.
func (s *Store) window(v view) time.Duration {
	if v.fresh {
		return 2 * s.config.AttemptTimeout
	}
	return clockLag * s.config.Tick
}

// operations returns the operations that replace the records of v by next, and their size.
func (a *attempt) operations(v view, next []persist.Record) (ops []clientv3.Op, size int, err error) {
	s := a.store
	for _, r := range next {
		text, err := encode(r)
		if err != nil {
			return nil, 0, err
		}
		ops = append(ops, clientv3.OpPut(s.keys.record(r.Key), text))
		written := slices.ContainsFunc(a.commit.Writes, func(w persist.Write) bool { return w.Key == r.Key })
		switch {
		case written && r.Deleted:
			ops = append(ops, clientv3.OpDelete(s.keys.document(r.Key)))
		case written:
			ops = append(ops, clientv3.OpPut(s.keys.document(r.Key), string(r.Doc)))
		}
		ops = append(ops, s.reindex(v.entries[r.Key].record, r)...)
	}
	return ops, sizeOf(ops), nil
}

// opBytes is more than the encoding of an operation or a comparison adds to its key and value.
const opBytes = 48

// sizeOf returns the size of operations in a request.
func sizeOf(ops []clientv3.Op) (size int) {
	for _, op := range ops {
		size += len(op.KeyBytes()) + len(op.ValueBytes()) + opBytes
	}
	return size
}

// unchanged returns the comparisons that the records of v are current, and the floor if it matters.
func (s *Store) unchanged(keys []persist.Key, v *view) []clientv3.Cmp {
	compare := make([]clientv3.Cmp, 0, len(keys)+3)
	absent := false
	for _, key := range keys {
		mod := v.entries[key].mod
		compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.keys.record(key)), "=", mod))
		absent = absent || mod == 0
	}
	if absent {
		compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.keys.floor()), "=", v.floor.mod))
	}
	return compare
}

// before returns the comparison that the clock has not reached t.
func (s *Store) before(t time.Time) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(s.keys.clock()), "<", sortable(t))
}

// reads returns the operations of a transaction that fails: they read the records. It reports false
// if they are too many.
func (a *attempt) reads() ([]clientv3.Op, bool) {
	ops := a.store.gets(a.keys)
	if len(ops) > a.store.config.MaxTxnOps/2 { // the other half is for nested operations
		return nil, false
	}
	return append(ops, a.claimTurn()...), true
}

// settle finds out whether a transaction was applied that etcd answered with ErrNoSpace: it was
// refused, or it was the one that reached the quota. Its fate is sealed by then, so the records tell.
func (a *attempt) settle(ctx context.Context, v view, next []persist.Record, full error) error {
	a.store.known.forget(a.keys)
	now, err := a.store.read(ctx, a.keys)
	if err != nil {
		return unknown(ctx, full)
	}
	same, landed := true, true
	for _, r := range next {
		current := now.entries[r.Key]
		same = same && current.mod == v.entries[r.Key].mod
		found, err1 := encode(current.record)
		written, err2 := encode(r)
		landed = landed && err1 == nil && err2 == nil && found == written
	}
	switch {
	case same:
		return notApplied(full)
	case landed: // each record is as this attempt has written it
		a.won = true
		return nil
	}
	return unknown(ctx, full)
}

// nest puts ops into transactions of their own if they are too many for one. Etcd takes the larger
// number of comparisons and operations of a transaction off the number that is left for those inside
// it. Beside is the number of comparisons, or of reads if that is larger. It reports false if ops are
// too many.
func nest(most, beside int, ops []clientv3.Op) ([]clientv3.Op, bool) {
	if len(ops) <= most && beside <= most {
		return ops, true
	}
	for inner := 1; inner < most; inner++ {
		outer := (len(ops) + inner - 1) / inner
		if max(beside, outer)+inner > most {
			continue
		}
		nested := make([]clientv3.Op, 0, outer)
		for part := range slices.Chunk(ops, inner) {
			nested = append(nested, clientv3.OpTxn(nil, part, nil))
		}
		return nested, true
	}
	return nil, false
}

const (
	opsPerKey  = 8        // at most: the record, the document, and three indexes, each removed and added
	spareBytes = 64 << 10 // of a request, for what a commit needs besides its documents
)

// limits returns the limits of a commit in a cluster with these limits of a request.
func (c Config) limits() persist.Limits {
	l := persist.Limits{MaxBytes: c.MaxRequestBytes - spareBytes}
	for {
		n := l.MaxKeys + 1
		if _, fits := nest(c.MaxTxnOps, n+3, make([]clientv3.Op, opsPerKey*n)); !fits {
			return l
		}
		l.MaxKeys = n
	}
}
