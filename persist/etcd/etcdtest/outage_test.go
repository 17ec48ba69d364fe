package etcdtest_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
	"github.com/pawl-go/pawl/persist/etcd/internal/host"
)

// openRefused opens a store whose requests are answered as by a member without a leader while refuse
// reports true for them.
func openRefused(ctx context.Context, t *testing.T, location string, config etcd.Config, refuse func(request any) bool) *etcd.Store {
	prefix, addresses, _ := strings.Cut(location, "@")
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(addresses, ","), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if refuse(request) {
					return rpctypes.ErrGRPCNoLeader
				}
				return invoke(ctx, method, request, reply, conn, opts...)
			})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	config.Prefix = prefix
	store, err := etcd.New(ctx, client, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// movesClock reports whether request writes the clock.
func movesClock(request any) bool {
	txn, ok := request.(*etcdserverpb.TxnRequest)
	return ok && len(txn.Success) > 0 && bytes.HasSuffix(txn.Success[0].GetRequestPut().GetKey(), []byte("/clock"))
}

// A process that opens the store during an outage does not take the clock for one that no process
// keeps: the others could not move it. Its host's clock, which is wrong, does not become the store's.
//
// Proves STORE-17.
func TestOutageIsNoSilence(t *testing.T) {
	t.Parallel()
	location := place(t, 1)
	var outage atomic.Bool // for the process that keeps the clock
	keeper := openRefused(t.Context(), t, location, etcd.Config{}, func(any) bool { return outage.Load() })
	before, err := keeper.Commit(t.Context(), persist.Commit{ID: "a.1", Writes: []persist.Write{
		{Key: persist.Key{Kind: "k", ID: "1"}, Version: 1, Doc: []byte("1")},
	}})
	require.NoError(t, err)
	outage.Store(true)

	var learned atomic.Int64 // when the second process had read the clock, in Unix nanoseconds
	opened := openRefused(host.With(t.Context(), time.Hour), t, location, etcd.Config{Timeout: time.Minute}, func(request any) bool {
		switch {
		case !movesClock(request): // it creates the store, or reads the clock
			learned.Store(time.Now().UnixNano())
			return false
		case time.Since(time.Unix(0, learned.Load())) < 6*time.Second && outage.Load(): // longer than a clock without a keeper is watched
			return true
		}
		outage.Store(false) // the end of the outage: each process gets through from here on
		return false
	})
	r, err := opened.Load(t.Context(), persist.Key{Kind: "k", ID: "1"})
	require.NoError(t, err)
	require.Less(t, r.Now.Sub(before), 10*time.Minute)
}

// After a time in which no process could move the clock, a lease lasts from the call that takes or
// renews it on, and not from the last move.
//
// Proves STORE-8, STORE-13.
func TestLeaseAfterOutage(t *testing.T) {
	t.Parallel()
	const tick, outage = 10 * time.Millisecond, 300 * time.Millisecond
	key := persist.Key{Kind: "k", ID: "1"}
	for name, lease := range map[string]func(t *testing.T, s *etcd.Store) time.Time{
		"renewed": func(t *testing.T, s *etcd.Store) time.Time {
			at, err := s.Commit(t.Context(), persist.Commit{ID: "a.2", Guards: []persist.Guard{{Key: key, Token: 1, Extend: time.Minute}}})
			require.NoError(t, err)
			return at
		},
		"taken": func(t *testing.T, s *etcd.Store) time.Time {
			other := persist.Key{Kind: "k", ID: "2"}
			at, err := s.Commit(t.Context(), persist.Commit{ID: "a.2", Writes: []persist.Write{
				{Key: other, Version: 1, Doc: []byte("1"), Acquire: &persist.Acquire{Holder: "me", For: time.Minute}},
			}})
			require.NoError(t, err)
			return at
		},
		"taken by a list": func(t *testing.T, s *etcd.Store) time.Time {
			taken, err := s.Take(t.Context(), persist.Query{Kind: "free"}, persist.Acquire{Holder: "me", For: time.Minute}, nil)
			require.NoError(t, err)
			require.Len(t, taken, 1)
			return taken[0].Lease.Until.Add(-time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stands atomic.Bool
			s := openRefused(t.Context(), t, place(t, 1), etcd.Config{Tick: tick}, func(request any) bool { return stands.Load() && movesClock(request) })
			before, err := s.Commit(t.Context(), persist.Commit{ID: "a.1", Writes: []persist.Write{
				{Key: key, Version: 1, Doc: []byte("1"), Acquire: &persist.Acquire{Holder: "me", For: time.Minute}},
				{Key: persist.Key{Kind: "free", ID: "1"}, Version: 1, Doc: []byte("1")},
			}})
			require.NoError(t, err)
			stands.Store(true)
			time.Sleep(outage)
			stands.Store(false)
			require.GreaterOrEqual(t, lease(t, s).Sub(before), outage-4*tick)
		})
	}
}

// Take returns the records that it has acquired with the error that ended it.
//
// Proves STORE-13.
func TestTakeInterrupted(t *testing.T) {
	t.Parallel()
	location := place(t, 1)
	direct, err := open(location)
	require.NoError(t, err)
	defer direct.Close()
	key := func(id string) persist.Key { return persist.Key{Kind: "k", ID: id} }
	for _, id := range []string{"1", "2", "3"} {
		_, err := direct.Commit(t.Context(), persist.Commit{ID: "a." + id, Writes: []persist.Write{{Key: key(id), Version: 1, Doc: []byte("1")}}})
		require.NoError(t, err)
	}
	sent := 0 // transactions that take leases; Take sends one after the other
	s := openRefused(t.Context(), t, location, etcd.Config{}, func(request any) bool {
		txn, ok := request.(*etcdserverpb.TxnRequest)
		if !ok || len(txn.Success) == 0 || !bytes.Contains(txn.Success[0].GetRequestPut().GetKey(), []byte("/m\x00")) {
			return false
		}
		switch sent++; sent {
		case 1: // for all records, one of which has changed now
			_, err := direct.Commit(t.Context(), persist.Commit{ID: "b.1", Writes: []persist.Write{{Key: key("1"), Expected: 1, Version: 2, Doc: []byte("2")}}})
			require.NoError(t, err)
		case 4: // for the last record alone
			return true
		}
		return false
	})
	taken, err := s.Take(t.Context(), persist.Query{Kind: "k", Limit: 3}, persist.Acquire{Holder: "me", For: time.Minute}, nil)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NotErrorIs(t, err, persist.ErrNotApplied)
	require.Len(t, taken, 1)
	require.Equal(t, key("2"), taken[0].Key)
	r, err := direct.Load(t.Context(), key("2"))
	require.NoError(t, err)
	require.Equal(t, r.Lease, taken[0].Lease)
}
