package etcdtest_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
)

// lateStore returns a store whose transactions that write documents are held back until the returned
// channel is closed. Sent has an element when one is held back.
func lateStore(t *testing.T, location string) (store *etcd.Store, sent, release chan struct{}) {
	sent, release = make(chan struct{}, 100), make(chan struct{})
	hold := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if txn, ok := request.(*etcdserverpb.TxnRequest); ok {
			for _, op := range txn.Success {
				if bytes.Contains(op.GetRequestPut().GetKey(), []byte("/c\x00")) {
					sent <- struct{}{}
					<-release
					break
				}
			}
		}
		return invoke(ctx, method, request, reply, conn, opts...)
	}
	prefix, addresses, _ := strings.Cut(location, "@")
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(addresses, ","), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(hold)},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	store, err = etcd.New(t.Context(), client, etcd.Config{Prefix: prefix, AttemptTimeout: 30 * time.Second, Timeout: 30 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store, sent, release
}

// A commit that was sent while a lease and a document were alive, and arrives when another process has
// seen that they are not, changes nothing.
//
// Proves STORE-13, STORE-8.
func TestLateCommit(t *testing.T) {
	for name, test := range map[string]struct {
		write  persist.Write
		guards []persist.Guard
		ended  func(r persist.Record) bool
		check  func(t *testing.T, err error)
	}{
		"lease": {
			persist.Write{Acquire: &persist.Acquire{Holder: "me", For: 2 * time.Second}},
			[]persist.Guard{{Token: 1}},
			func(r persist.Record) bool { return !r.Held(r.Now) },
			func(t *testing.T, err error) { require.ErrorAs(t, err, new(*persist.Fenced)) },
		},
		"expiry": {
			persist.Write{TTL: 2 * time.Second},
			nil,
			func(r persist.Record) bool { return r.Gone(r.Now) },
			func(t *testing.T, err error) { require.ErrorAs(t, err, new(*persist.Conflict)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			location := place(t, 1)
			direct, err := open(location)
			require.NoError(t, err)
			defer direct.Close()
			late, sent, release := lateStore(t, location)
			key := persist.Key{Kind: "k", ID: "1"}
			w := test.write
			w.Key, w.Version, w.Doc = key, 1, []byte("1")
			_, err = direct.Commit(t.Context(), persist.Commit{ID: "a.1", Writes: []persist.Write{w}})
			require.NoError(t, err)

			answered := make(chan error, 1)
			guards := test.guards
			for i := range guards {
				guards[i].Key = key
			}
			go func() {
				_, err := late.Commit(context.Background(), persist.Commit{ID: "b.1", Guards: guards, Writes: []persist.Write{
					{Key: key, Expected: 1, Version: 2, Doc: []byte("2")},
				}})
				answered <- err
			}()
			select {
			case <-sent:
			case err := <-answered:
				t.Fatalf("the commit was judged only after its lease or document had ended: %v", err)
			}
			for {
				r, err := direct.Load(t.Context(), key)
				require.NoError(t, err)
				require.EqualValues(t, 1, r.Version)
				if test.ended(r) {
					break
				}
				time.Sleep(time.Millisecond)
			}
			close(release)
			test.check(t, <-answered)
			r, err := direct.Load(t.Context(), key)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Version)
		})
	}
}
