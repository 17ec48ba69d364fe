package etcd

import (
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A member that let a request run out of time is left out, but never more than a minority, and is
// used again later.
func TestAvoid(t *testing.T) {
	all := []string{"127.0.0.1:1", "http://127.0.0.1:2", "localhost:3"}
	client, err := clientv3.New(clientv3.Config{Endpoints: all, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m := &members{endpoints: all, avoided: make(map[string]time.Time)}
	m.avoid("127.0.0.1:1") // before the client is there
	m.avoided = make(map[string]time.Time)
	m.attach(client)
	defer m.detach()
	check := func(want ...string) {
		t.Helper()
		if got := client.Endpoints(); !slices.Equal(got, want) {
			t.Errorf("%q are used, want %q", got, want)
		}
	}
	m.avoid("127.0.0.1:9")
	m.avoid("no address")
	check(all...)
	m.avoid("127.0.0.1:2")
	check(all[0], all[2])
	m.avoid("127.0.0.1:3")
	check(all[0], all[1])
	m.avoid("127.0.0.1:1")
	check(all[1], all[2])
	m.mu.Lock()
	m.avoided[all[0]] = time.Now().Add(-time.Second)
	m.use()
	m.mu.Unlock()
	check(all...)
}
