package etcd

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// Describe returns facts about the store. Size is that of the database of the member that answers,
// with all that the cluster keeps. It returns the errors of Load except persist.ErrNotFound.
func (s *Store) Describe(ctx context.Context) (persist.Description, error) {
	if err := s.enter(ctx); err != nil {
		return persist.Description{}, err
	}
	defer s.calls.Done()
	d := persist.Description{Schema: schema}
	err := s.patiently(ctx, func() (err error) {
		d.Kinds, err = s.kinds(ctx)
		return err
	})
	if err != nil {
		return persist.Description{}, explain(err)
	}
	err = s.patiently(ctx, func() error { return s.describeCluster(ctx, &d) })
	if err != nil {
		return persist.Description{}, explain(err)
	}
	return d, nil
}

// kinds counts the records of each kind.
func (s *Store) kinds(ctx context.Context) (kinds []persist.KindCount, err error) {
	start := s.keys.of(spaceRecord, "")
	for from, end := start, clientv3.GetPrefixRangeEnd(start); ; {
		first, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil || len(first.Kvs) == 0 {
			return kinds, err
		}
		kind, _, _ := strings.Cut(string(first.Kvs[0].Key[len(start):]), "\x00")
		count := persist.KindCount{Kind: kind}
		for space, n := range map[string]*int{spaceRecord: &count.Records, spaceTombstone: &count.Tombstones} {
			all, err := s.get(ctx, s.keys.of(space, kind, ""), clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				return nil, err
			}
			*n = int(all.Count)
		}
		kinds = append(kinds, count)
		from = start + kind + "\x01"
	}
}

// describeCluster adds the facts about the member that answers first.
func (s *Store) describeCluster(ctx context.Context, d *persist.Description) (err error) {
	for _, endpoint := range s.client.Endpoints() {
		var status *clientv3.StatusResponse
		one, cancel := context.WithTimeout(ctx, s.config.AttemptTimeout)
		status, err = s.client.Status(one, endpoint)
		cancel()
		if err != nil {
			continue
		}
		d.Size = status.DbSize
		quota := persist.Setting{Name: "quota-backend-bytes", Value: fmt.Sprint(status.DbSizeQuota)}
		if status.DbSizeQuota > 0 && status.DbSizeInUse > status.DbSizeQuota/10*8 {
			quota.Advice = fmt.Sprintf("%d bytes are in use: compact the history, purge tombstones, or raise the quota", status.DbSizeInUse)
		}
		d.Settings = append(d.Settings, persist.Setting{Name: "version", Value: status.Version}, quota)
		for _, alarm := range status.Errors {
			d.Settings = append(d.Settings, persist.Setting{Name: "alarm", Value: alarm, Advice: "see etcdctl alarm list"})
		}
		return nil
	}
	return err
}
