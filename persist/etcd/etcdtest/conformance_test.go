package etcdtest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
	"github.com/pawl-go/pawl/persist/etcd/internal/host"
	"github.com/pawl-go/pawl/persist/persisttest"
)

func TestMain(m *testing.M) {
	etcdtest.Child()
	testkit.Main(func() int { return persisttest.Main(m, open) }, stopShared)
}

// open opens the store at a location, "prefix@address,address".
func open(location string) (persist.Store, error) { return openAt(context.Background(), location) }

func openAt(ctx context.Context, location string) (persist.Store, error) {
	prefix, addresses, _ := strings.Cut(location, "@")
	s, err := etcd.Open(ctx, strings.Split(addresses, ","), etcd.Config{Prefix: prefix})
	if err != nil {
		return nil, err // not a nil *Store in an interface
	}
	return s, nil
}

// openLogs opens the store with logs as documents.
func openLogs(location string) (persist.Store, error) {
	s, err := open(location)
	if err != nil {
		return nil, err
	}
	return persist.Logs(s), nil
}

// openSkewed opens the store on a host whose clock is off.
func openSkewed(location string, off time.Duration) (persist.Store, error) {
	return openAt(host.With(context.Background(), off), location)
}

// link puts proxies in front of all members.
func link(t *testing.T, location string) persisttest.Link {
	prefix, addresses, _ := strings.Cut(location, "@")
	var proxies []*persisttest.Proxy
	var linked []string
	for address := range strings.SplitSeq(addresses, ",") {
		p := persisttest.NewProxy(t, address)
		proxies, linked = append(proxies, p), append(linked, p.Addr())
	}
	each := func(do func(*persisttest.Proxy)) func() {
		return func() {
			for _, p := range proxies {
				do(p)
			}
		}
	}
	return persisttest.Link{
		Location: prefix + "@" + strings.Join(linked, ","),
		Mute:     each((*persisttest.Proxy).Mute), Cut: each((*persisttest.Proxy).Cut),
	}
}

// shared are clusters that several tests use, by their number of members.
var shared = struct {
	sync.Mutex
	clusters map[int]*etcdtest.Cluster
}{clusters: map[int]*etcdtest.Cluster{}}

// cluster returns the shared cluster of n members.
func cluster(t testing.TB, n int) *etcdtest.Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.clusters[n] == nil {
		c, err := etcdtest.Start(n, etcdtest.Options{NoSync: true}) // a busy disk would let requests time out
		require.NoError(t, err)
		shared.clusters[n] = c
	}
	return shared.clusters[n]
}

func stopShared() {
	for _, c := range shared.clusters {
		c.Stop()
	}
}

var places atomic.Int64

// place returns the location of a new store in the cluster of n members.
func place(t testing.TB, n int) string {
	return fmt.Sprintf("test%d.%d/@%s", os.Getpid(), places.Add(1), strings.Join(cluster(t, n).Endpoints(), ","))
}

func options(members int) persisttest.Options {
	return persisttest.Options{
		Location: func(t *testing.T) string { return place(t, members) },
		Skewed:   openSkewed,
		Link:     link,
	}
}

// Proves STORE-1, STORE-3.
func TestConformance(t *testing.T) { persisttest.Run(t, open, options(1)) }

// Proves STORE-1, STORE-3.
func TestConformanceOfLogs(t *testing.T) { persisttest.RunLogs(t, openLogs, options(1)) }

// Proves STORE-1, STORE-3.
func TestConformanceOnThreeMembers(t *testing.T) {
	if os.Getenv("PAWL_ETCD_ROUNDS") == "" {
		t.Skip("takes a minute; make etcd-faults runs it")
	}
	persisttest.Run(t, open, options(3))
}
