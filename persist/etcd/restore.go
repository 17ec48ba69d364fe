package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Restore writes records as persist.Restorer describes, some in each transaction. It returns
// *persist.Conflict, persist.ErrClosed after Close, an error that wraps persist.ErrNotApplied when a
// record is malformed or ctx had ended, *persist.LimitError for a record that is too large, and an
// error that wraps persist.ErrUnavailable if no majority answers.
func (s *Store) Restore(ctx context.Context, records []persist.Record, level uint64) error {
	if err := s.enter(ctx); err != nil {
		return notApplied(err)
	}
	defer s.calls.Done()
	if err := persist.ValidateRestore(records); err != nil {
		return err
	}
	if err := s.raiseFloor(ctx, level); err != nil {
		return explain(err)
	}
	const opsPerRecord = opsPerKey + 1
	for len(records) > 0 {
		n, size := 0, 0
		for n < len(records) && n < s.config.MaxTxnOps/opsPerRecord {
			more := len(records[n].Doc) + recordBytes(records[n])
			if n > 0 && size+more > s.config.MaxRequestBytes {
				break
			}
			n, size = n+1, size+more
		}
		if size > s.config.MaxRequestBytes {
			return &persist.LimitError{What: "bytes", Limit: s.config.MaxRequestBytes, Got: size}
		}
		if err := s.restore(ctx, records[:n]); err != nil {
			return explain(err)
		}
		records = records[n:]
	}
	return nil
}

// recordBytes is more than r takes in a request without its document.
func recordBytes(r persist.Record) int {
	size := 1024 + 8*(len(r.Kind)+len(r.ID)+len(r.Label)+len(r.Lease.Holder))
	for _, id := range r.Commits {
		size += 2*len(id) + 8
	}
	return size
}

// restore writes records in one transaction.
func (s *Store) restore(ctx context.Context, records []persist.Record) error {
	var keys []persist.Key
	for _, r := range records {
		keys = append(keys, r.Key)
	}
	defer s.known.forget(keys)
	return s.patiently(ctx, func() error { // a transaction that was sent twice writes the same records
		v, err := s.read(ctx, keys)
		if err != nil {
			return err
		}
		var winners []persist.Record
		var ops []clientv3.Op
		for _, r := range records {
			current := v.entries[r.Key].record
			if !current.Absent() && current.Version > r.Version {
				current.Now = v.now()
				winners = append(winners, current)
				continue
			}
			text, err := encode(r)
			if err != nil {
				return err
			}
			ops = append(append(ops, clientv3.OpPut(s.keys.record(r.Key), text)), s.reindex(current, r)...)
			if r.Deleted {
				ops = append(ops, clientv3.OpDelete(s.keys.document(r.Key)))
			} else {
				ops = append(ops, clientv3.OpPut(s.keys.document(r.Key), string(r.Doc)))
			}
		}
		if len(winners) > 0 {
			return &persist.Conflict{Winners: winners}
		}
		answer, err := s.txn(ctx, s.unchanged(keys, &v), ops, nil)
		if err == nil && !answer.Succeeded {
			err = errChanged
		}
		return err
	})
}

// errChanged means that a record was changed by another process during Restore.
var errChanged = fmt.Errorf("%w: etcd: records changed while they were restored", persist.ErrUnavailable)

// raiseFloor raises the version floor to version, if it is lower.
func (s *Store) raiseFloor(ctx context.Context, version uint64) error {
	if version == 0 {
		return nil
	}
	return s.patiently(ctx, func() error {
		answer, err := s.get(ctx, s.keys.floor())
		if err != nil {
			return err
		}
		level, err := parseFloor(answer.Kvs)
		if err != nil || level.version >= version {
			return err
		}
		compare := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.floor()), "=", level.mod)}
		raised, err := s.txn(ctx, compare, []clientv3.Op{floor{version: version}.put(s)}, nil)
		if err == nil && !raised.Succeeded {
			err = errChanged
		}
		return err
	})
}
