package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// linked is a cluster whose members reach each other through proxies.
type linked struct {
	*etcdtest.Cluster
	t     *testing.T
	links map[string]*persisttest.Proxy // to the members, by the address that they advertise
}

// startLinked starts a cluster of three members for one test.
func startLinked(t *testing.T) *linked {
	c := &linked{t: t, links: make(map[string]*persisttest.Proxy)}
	var err error
	c.Cluster, err = etcdtest.Start(3, etcdtest.Options{PeerLink: func(address string) string {
		p := persisttest.NewProxy(t, address)
		c.links[p.Addr()] = p
		return p.Addr()
	}})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

func (c *linked) location() string {
	return fmt.Sprintf("faults%d/@%s", places.Add(1), strings.Join(c.Endpoints(), ","))
}

func (c *linked) leader() *etcdtest.Member {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	m, err := c.Leader(ctx)
	require.NoError(c.t, err)
	return m
}

// isolate holds back all bytes between a member and the others, until heal.
func (c *linked) isolate(m *etcdtest.Member) {
	c.t.Helper()
	client, err := etcdtest.NewClient(m.Client)
	require.NoError(c.t, err)
	defer client.Close()
	status, err := client.Status(c.t.Context(), m.Client)
	require.NoError(c.t, err)
	for address, link := range c.links {
		if address == m.Advertised {
			link.Block()
		} else {
			link.Block(fmt.Sprintf("X-Server-From: %x\r\n", status.Header.MemberId))
		}
	}
}

func (c *linked) heal() {
	for _, link := range c.links {
		link.Heal()
	}
}

// rounds returns how often faults are repeated: once, or as PAWL_ETCD_ROUNDS says.
func rounds(t *testing.T) int {
	text := os.Getenv("PAWL_ETCD_ROUNDS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Members are killed, frozen, isolated and replaced while two processes write. Every acknowledged
// change counts once, and the histories are linearizable.
//
// Proves STORE-14, CAS-6.
func TestFaults(t *testing.T) {
	c := startLinked(t)
	l := startLoad(t, c.location())
	for range rounds(t) {
		l.fault("leader killed", func() {
			m := c.leader()
			m.Kill()
			l.progress(20)
			require.NoError(t, m.Restart())
		})
		l.fault("leader frozen", func() {
			m := c.leader()
			require.NoError(t, m.Freeze())
			l.progress(20)
			require.NoError(t, m.Thaw())
		})
		l.fault("leader isolated", func() {
			m := c.leader()
			c.isolate(m)
			l.progress(20)
			c.heal()
		})
		l.fault("all killed", func() {
			for _, m := range c.Members {
				m.Kill()
			}
			for _, m := range c.Members {
				require.NoError(t, m.Spawn())
			}
			for _, m := range c.Members {
				require.NoError(t, m.Ready())
			}
		})
	}
	l.fault("member replaced", func() {
		m := c.leader()
		m.Kill()
		l.progress(20)
		_, err := c.Replace(t.Context(), m)
		require.NoError(t, err)
	})
	l.check()
}

// A client that reaches only the minority of a cluster that is cut in two gets *UnavailableError in
// bounded time, reads no old state, and works again when the cut heals.
//
// Proves STORE-14.
func TestMinority(t *testing.T) {
	c := startLinked(t)
	location := c.location()
	minority := c.leader()
	prefix, _, _ := strings.Cut(location, "@")
	openRuntime := func(location string) *pawl.Runtime {
		store, err := open(location)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{counters}, Retry: pawl.Retry{Within: 3 * time.Second}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
		return rt
	}
	cut, free := openRuntime(prefix+"@"+minority.Client), openRuntime(location)
	increment := func(rt *pawl.Runtime) error {
		_, err := counters.Scope(rt, "1").AtomicState(t.Context(), func(_ context.Context, c *counter) error { c.Count++; return nil })
		return err
	}
	require.NoError(t, increment(cut))
	c.isolate(minority)
	acked := 1
	for acked < 4 { // until the majority has a new leader
		if err := increment(free); err == nil {
			acked++
		} else {
			require.False(t, errors.Is(err, pawl.ErrConflict), "%v", err)
		}
	}
	err := increment(cut)
	var unavailable *pawl.UnavailableError
	require.True(t, errors.As(err, &unavailable) || pawl.OutcomeUnknown(err), "%v", err)
	_, err = counters.Scope(cut, "1").Snapshot(t.Context())
	require.ErrorAs(t, err, &unavailable, "a member without a majority must not answer")
	c.heal()
	for err = increment(cut); err != nil; err = increment(cut) {
		require.NoError(t, t.Context().Err())
	}
	snap, err := counters.Scope(free, "1").Snapshot(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, snap.State().Count, acked+1)
}

// A cluster that has reached its quota refuses commits as unavailable, writes nothing in part, and
// still answers reads. It works again once an operator has made room.
//
// Proves STORE-14.
func TestNoSpace(t *testing.T) {
	c, err := etcdtest.Start(1, etcdtest.Options{Quota: 4 << 20})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	store, err := open("full/@" + c.Members[0].Client)
	require.NoError(t, err)
	defer store.Close()
	doc := fmt.Appendf(nil, "%q", strings.Repeat("x", 1<<19))
	a, b := persist.Key{Kind: "k", ID: "a"}, persist.Key{Kind: "k", ID: "b"}
	version := uint64(0)
	commit := func() error {
		c := persist.Commit{ID: fmt.Sprint("full.", version), Writes: []persist.Write{
			{Key: a, Expected: version, Version: version + 1, Doc: doc}, {Key: b, Expected: version, Version: version + 1, Doc: doc},
		}}
		_, err := store.Commit(t.Context(), c)
		return err
	}
	for err = commit(); err == nil; err = commit() { // the one that reaches the quota is applied
		version++
		require.Less(t, version, uint64(20), "the quota is not reached")
	}
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	for _, key := range []persist.Key{a, b} {
		r, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, version, r.Version)
	}
	client, err := etcdtest.NewClient(c.Members[0].Client)
	require.NoError(t, err)
	defer client.Close()
	status, err := client.Status(t.Context(), c.Members[0].Client)
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), status.Header.Revision)
	require.NoError(t, err)
	_, err = client.Defragment(t.Context(), c.Members[0].Client)
	require.NoError(t, err)
	alarms, err := client.AlarmList(t.Context())
	require.NoError(t, err)
	for _, alarm := range alarms.Alarms {
		_, err := client.AlarmDisarm(t.Context(), (*clientv3.AlarmMember)(alarm))
		require.NoError(t, err)
	}
	require.NoError(t, commit())
}

// A history that is compacted while it is read hides no record and no change.
//
// Proves STORE-1.
func TestCompaction(t *testing.T) {
	location := place(t, 1)
	store, err := open(location)
	require.NoError(t, err)
	defer store.Close()
	client, err := etcdtest.NewClient(cluster(t, 1).Endpoints()...)
	require.NoError(t, err)
	defer client.Close()
	const records = 300
	for i := range records {
		_, err := store.Commit(t.Context(), persist.Commit{ID: fmt.Sprint("c.", i), Writes: []persist.Write{
			{Key: persist.Key{Kind: "k", ID: fmt.Sprintf("%03d", i)}, Version: 1, Doc: []byte("1"), Label: "x"},
		}})
		require.NoError(t, err)
	}
	watching, stop := context.WithCancel(t.Context())
	hinted, ended := make(chan persist.Hint, 10*records), make(chan error, 1)
	go func() { ended <- store.(persist.Watcher).Watch(watching, func(h persist.Hint) { hinted <- h }) }()
	require.Equal(t, persist.Hint{}, <-hinted)

	compacting, compacted := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-compacting:
				compacted <- n
				return
			default:
			}
			if answer, err := client.Get(t.Context(), "nothing"); err == nil {
				_, _ = client.Compact(t.Context(), answer.Header.Revision)
			}
		}
	}()
	changed := persist.Key{Kind: "changed", ID: "1"}
	for version := range uint64(30) {
		_, err := store.Commit(t.Context(), persist.Commit{ID: fmt.Sprint("d.", version), Writes: []persist.Write{
			{Key: changed, Expected: version, Version: version + 1, Doc: []byte("1")},
		}})
		require.NoError(t, err)
		found := 0
		for q := (persist.Query{Kind: "k", Labels: []string{"x"}, Limit: 100}); ; {
			page, err := store.List(t.Context(), q)
			require.NoError(t, err)
			for _, r := range page.Records {
				require.Equal(t, "1", string(r.Doc))
			}
			found += len(page.Records)
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		require.Equal(t, records, found)
		all, err := store.(persist.Reader).LoadAll(t.Context(), manyKeys(records))
		require.NoError(t, err)
		require.Len(t, all, records)
	}
	close(compacting)
	require.Greater(t, <-compacted, 30)
	for h := range hinted {
		if h.Key == changed && h.Version == 30 || h == (persist.Hint{}) {
			break
		}
	}
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func manyKeys(n int) (keys []persist.Key) {
	for i := range n {
		keys = append(keys, persist.Key{Kind: "k", ID: fmt.Sprintf("%03d", i)})
	}
	return keys
}
