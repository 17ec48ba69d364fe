package etcdtest_test

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/etcd"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
)

// A program keeps the state of its scopes in a cluster of three members.
func Example() {
	cluster, err := etcdtest.Start(3, etcdtest.Options{})
	if err != nil {
		panic(err)
	}
	defer cluster.Stop()

	ctx := context.Background()
	store, err := etcd.Open(ctx, cluster.Endpoints(), etcd.Config{Prefix: "chat/"})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		panic(err)
	}
	defer rt.Close(ctx)
	snap, err := pawl.Session[map[string]int](rt, "42").IncState(ctx, "visits", 1)
	fmt.Println(snap.State()["visits"], err)
	// Output: 1 <nil>
}
