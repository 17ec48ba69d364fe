package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// retryPause is the pause between two attempts of a call.
const retryPause = 25 * time.Millisecond

// txn sends one transaction, within Config.AttemptTimeout. A member without a leader refuses it at
// once. The client of etcd repeats a transaction that only reads, and one that could not be sent.
func (s *Store) txn(ctx context.Context, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.config.AttemptTimeout)
	defer cancel()
	return s.client.Txn(ctx).If(compare...).Then(then...).Else(otherwise...).Commit()
}

// get sends one read of a range, within Config.AttemptTimeout.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.config.AttemptTimeout)
	defer cancel()
	return s.client.Get(ctx, key, opts...)
}

// patiently runs fn, whose requests change nothing when they fail, until it succeeds, fails for
// good, or Config.Timeout has passed. It returns ctx's error when that ends.
func (s *Store) patiently(ctx context.Context, fn func() error) error {
	deadline := time.Now().Add(s.config.Timeout)
	for {
		err := fn()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx)
		case !passes(err) || time.Now().After(deadline):
			return err
		}
		pause(ctx, retryPause)
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// kvs returns the keys that a read in a transaction found.
func kvs(r *etcdserverpb.ResponseOp) []*mvccpb.KeyValue { return r.GetResponseRange().GetKvs() }
