package etcd

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor in
// Record.Version, for an absent key; persist.ErrClosed after Close; ctx's error; and an error that
// wraps persist.ErrUnavailable if no majority answers within Config.Timeout.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	records, err := s.LoadAll(ctx, []persist.Key{key})
	switch {
	case err != nil:
		return persist.Record{}, err
	case records[0].Absent():
		return records[0], persist.ErrNotFound
	}
	return records[0], nil
}

// LoadAll returns the records of keys at one revision. It returns the errors of Load except
// persist.ErrNotFound.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	v, err := s.read(ctx, keys)
	if err != nil {
		return nil, explain(err)
	}
	records, now := make([]persist.Record, len(keys)), v.now()
	for i, key := range keys {
		records[i] = v.entries[key].record.Clone()
		records[i].Now = now
	}
	return records, nil
}

// Versions returns the current versions of keys, 0 for a key without a record. It returns the errors
// of Load except persist.ErrNotFound.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	var found []entry
	err := s.patiently(ctx, func() (err error) {
		found, err = s.recordsAt(ctx, keys, 0)
		return err
	})
	if err != nil {
		return nil, explain(err)
	}
	versions := make([]uint64, len(keys))
	for i, e := range found {
		versions[i] = e.record.Version
	}
	return versions, nil
}

// gets returns the operations that read the records of keys, their documents, the floor and the
// clock. An option says at which revision.
func (s *Store) gets(keys []persist.Key, opts ...clientv3.OpOption) []clientv3.Op {
	ops := make([]clientv3.Op, 0, 2*len(keys)+2)
	for _, key := range keys {
		ops = append(ops, clientv3.OpGet(s.keys.record(key), opts...), clientv3.OpGet(s.keys.document(key), opts...))
	}
	return append(ops, clientv3.OpGet(s.keys.floor(), opts...), clientv3.OpGet(s.keys.clock(), opts...))
}

// parse returns the view in the answers to gets.
func (s *Store) parse(keys []persist.Key, answers []*etcdserverpb.ResponseOp) (v view, err error) {
	v = view{entries: make(map[persist.Key]entry, len(keys)), fresh: true}
	rest := answers[2*len(keys):]
	if v.floor, err = parseFloor(kvs(rest[0])); err != nil {
		return view{}, err
	}
	if v.clock, err = s.clock.heardIn(kvs(rest[1])); err != nil {
		return view{}, err
	}
	for i, key := range keys {
		e := entry{record: persist.Record{Key: key, Version: v.floor.version}}
		if found := kvs(answers[2*i]); len(found) > 0 {
			if e, err = decode(found[0]); err != nil {
				return view{}, err
			}
			if doc := kvs(answers[2*i+1]); len(doc) > 0 {
				e.record.Doc = doc[0].Value
			}
		}
		v.entries[key] = e
	}
	return v, nil
}

// read returns the records of keys at one revision. It tries again for Config.Timeout.
func (s *Store) read(ctx context.Context, keys []persist.Key) (v view, err error) {
	err = s.patiently(ctx, func() (err error) {
		v, err = s.readOnce(ctx, keys)
		for errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil {
			v, err = s.readOnce(ctx, keys)
		}
		return err
	})
	if err != nil {
		return view{}, err
	}
	s.known.learn(&v)
	return v, nil
}

// readOnce reads keys at the revision of its first request. It returns rpctypes.ErrCompacted if that
// was compacted before the last one.
func (s *Store) readOnce(ctx context.Context, keys []persist.Key) (view, error) {
	var all view
	var opts []clientv3.OpOption
	for part := range slices.Chunk(keys, s.config.MaxTxnOps/2-1) {
		answer, err := s.txn(ctx, nil, s.gets(part, opts...), nil)
		if err != nil {
			return view{}, err
		}
		v, err := s.parse(part, answer.Responses)
		if err != nil {
			return view{}, err
		}
		if all.entries == nil {
			all = v
			opts = []clientv3.OpOption{clientv3.WithRev(answer.Header.Revision)}
			continue
		}
		for key, e := range v.entries {
			all.entries[key] = e
		}
	}
	return all, nil
}

// recordsAt returns the records of keys without their documents, at a revision, or at several if that
// is 0. A key without a record gets an absent record of version 0.
func (s *Store) recordsAt(ctx context.Context, keys []persist.Key, revision int64) (found []entry, err error) {
	for part := range slices.Chunk(keys, s.config.MaxTxnOps) {
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpGet(s.keys.record(key), clientv3.WithRev(revision))
		}
		answer, err := s.txn(ctx, nil, ops, nil)
		if err != nil {
			return nil, err
		}
		for i, key := range part {
			e := entry{record: persist.Record{Key: key}}
			if kv := kvs(answer.Responses[i]); len(kv) > 0 {
				if e, err = decode(kv[0]); err != nil {
					return nil, err
				}
			}
			found = append(found, e)
		}
	}
	return found, nil
}

// addDocuments reads the documents of entries at a revision.
func (s *Store) addDocuments(ctx context.Context, entries []entry, revision int64) error {
	for part := range slices.Chunk(entries, s.config.MaxTxnOps) {
		ops := make([]clientv3.Op, len(part))
		for i := range part {
			ops[i] = clientv3.OpGet(s.keys.document(part[i].record.Key), clientv3.WithRev(revision))
		}
		answer, err := s.txn(ctx, nil, ops, nil)
		if err != nil {
			return err
		}
		for i := range part {
			if kv := kvs(answer.Responses[i]); len(kv) > 0 {
				part[i].record.Doc = kv[0].Value
			}
		}
	}
	return nil
}
