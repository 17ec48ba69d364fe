package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Purge removes tombstones as persist.Purger describes, some dozens in each transaction, which raises
// the version floor too. It returns persist.ErrClosed after Close, an error that wraps
// persist.ErrNotApplied when ctx had ended, and an error that wraps persist.ErrUnavailable if no
// majority answers.
func (s *Store) Purge(ctx context.Context, q persist.Query) (removed int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, notApplied(err)
	}
	defer s.calls.Done()
	q.Deleted = true
	const opsPerTombstone = 3
	most := (s.config.MaxTxnOps - 1) / opsPerTombstone
	for deadline := time.Now().Add(s.config.Timeout); q.Limit <= 0 || removed < q.Limit; {
		if q.Limit > 0 {
			most = min(most, q.Limit-removed)
		}
		found, err := s.search(ctx, q, most, false)
		if err != nil {
			return removed, explain(err)
		}
		if len(found.entries) == 0 {
			return removed, nil
		}
		won, err := s.purge(ctx, found.entries)
		switch {
		case err != nil:
			return removed, unknown(ctx, err)
		case won:
			removed += len(found.entries)
			deadline = time.Now().Add(s.config.Timeout)
		case time.Now().After(deadline):
			return removed, fmt.Errorf("%w: etcd: the tombstones change too quickly", persist.ErrUnavailable)
		}
	}
	return removed, nil
}

// purge removes tombstones and raises the floor. It reports false if one of them, or the floor, has
// changed.
func (s *Store) purge(ctx context.Context, tombstones []entry) (bool, error) {
	var level floor
	err := s.patiently(ctx, func() error {
		answer, err := s.get(ctx, s.keys.floor())
		if err == nil {
			level, err = parseFloor(answer.Kvs)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	compare := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.floor()), "=", level.mod)}
	var ops []clientv3.Op
	var keys []persist.Key
	for _, e := range tombstones {
		key := e.record.Key
		level.version = max(level.version, e.record.Version)
		compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.keys.record(key)), "=", e.mod))
		ops = append(ops, clientv3.OpDelete(s.keys.record(key)), clientv3.OpDelete(s.keys.turn(key)),
			clientv3.OpDelete(s.keys.of(spaceTombstone, key.Kind, key.ID)))
		keys = append(keys, key)
	}
	s.known.forget(keys)
	answer, err := s.txn(ctx, compare, append(ops, level.put(s)), nil)
	if err != nil {
		return false, err
	}
	return answer.Succeeded, nil
}
