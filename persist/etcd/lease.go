package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Take acquires leases as persist.Leaser describes: it lists records and acquires them in one
// transaction, or one by one if another process was faster with some of them. The calls of one store
// run one after the other. It returns persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when q or a is not valid, ctx had ended, or no lease was acquired. With any
// other error it returns the records that it has acquired; others may be leased too.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if err := s.enter(ctx); err != nil {
		return nil, notApplied(err)
	}
	defer s.calls.Done()
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	select {
	case s.taking <- struct{}{}:
		defer func() { <-s.taking }()
	case <-ctx.Done():
		return nil, notApplied(ended(ctx))
	}
	if err := s.wakeClock(ctx); err != nil {
		return nil, notApplied(err)
	}
	q.Unheld = true
	t := taking{store: s, query: q, acquire: a, change: change}
	for deadline := time.Now().Add(s.config.Timeout); ; {
		found, err := s.search(ctx, q, min(q.PageSize(), s.limits.MaxKeys), true)
		if err != nil {
			return nil, notApplied(err)
		}
		err = t.all(ctx, found)
		switch {
		case err != nil && len(t.taken) == 0 && refused(err):
			return nil, notApplied(err)
		case err != nil:
			return t.taken, unknown(ctx, err)
		case len(t.taken) > 0 || !t.lost || time.Now().After(deadline):
			return t.taken, nil
		}
	}
}

// taking is a Take on its way.
type taking struct {
	store   *Store
	query   persist.Query
	acquire persist.Acquire
	change  persist.Change
	taken   []persist.Record
	lost    bool // another process was faster with some records
}

// all acquires the records that were found, together or one by one.
func (t *taking) all(ctx context.Context, found result) error {
	t.lost = false
	if won, err := t.together(ctx, found.entries, found.now); won || err != nil {
		return err
	}
	for i := range found.entries {
		won, err := t.together(ctx, found.entries[i:i+1], found.now)
		if err != nil {
			return err
		}
		t.lost = t.lost || !won
	}
	return nil
}

// together acquires the first entries, as many as fit into a request. It reports false, and acquires
// none, if one of them has changed.
func (t *taking) together(ctx context.Context, entries []entry, now time.Time) (won bool, err error) {
	s := t.store
	v := view{entries: make(map[persist.Key]entry, len(entries)), clock: laterOf(now, s.clock.now()), fresh: true} // the search may have taken a while
	for _, e := range entries {
		v.entries[e.record.Key] = e
	}
	at, size := v.now(), 0
	var ops []clientv3.Op
	var keys []persist.Key
	landed := view{entries: make(map[persist.Key]entry, len(entries))}
	var taken []persist.Record
	for _, e := range entries {
		if !t.query.Match(e.record, at) {
			continue
		}
		r, ok := t.acquire.Take(e.record, at, t.change)
		if !ok {
			continue
		}
		text, err := encode(r)
		if err != nil {
			return false, err
		}
		own := append([]clientv3.Op{clientv3.OpPut(s.keys.record(r.Key), text)}, s.reindex(e.record, r)...)
		if t.change != nil {
			own = append(own, clientv3.OpPut(s.keys.document(r.Key), string(r.Doc)))
		}
		if size += sizeOf(own) + len(r.Kind) + len(r.ID) + opBytes; size > s.config.MaxRequestBytes-spareBytes && len(keys) > 0 {
			break
		}
		ops, keys, taken = append(ops, own...), append(keys, r.Key), append(taken, r)
	}
	if len(keys) == 0 {
		return true, nil
	}
	compare := append(s.unchanged(keys, &v), s.before(v.turning(at, v.clock.Add(s.window(v)))))
	ops, _ = nest(s.config.MaxTxnOps, len(compare), ops) // they fit: there are at most limits.MaxKeys records
	answer, err := s.txn(ctx, compare, ops, nil)
	switch {
	case err != nil:
		s.known.forget(keys)
		return false, err
	case !answer.Succeeded:
		return false, nil
	}
	for _, r := range taken {
		landed.entries[r.Key] = entry{record: r, mod: answer.Header.Revision}
	}
	s.known.learn(&landed)
	t.taken = append(t.taken, taken...)
	return true, nil
}
