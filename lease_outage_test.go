package pawl_test

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// proxiedLease is a lease whose holder reaches PostgreSQL through a proxy. A second runtime is
// connected directly.
type proxiedLease struct {
	proxy        *pgproxy.Proxy
	here, there  pawl.Scope[ship] // through the proxy; direct
	rt           *pawl.Runtime
	lease        *pawl.Lease
	lostRenewals *atomic.Int64
	direct       persist.Store
}

// acquireThroughProxy acquires a lease of this length through a new proxy.
func acquireThroughProxy(t *testing.T, length time.Duration) proxiedLease {
	t.Helper()
	stores.Need(t, "postgres")
	location := pgtest.URL(t)
	u, err := url.Parse(location)
	require.NoError(t, err)
	proxy := pgproxy.Start(t, "tcp", u.Host, "write", "write_together", "create_records", "replace_records", "touch_records")
	tapped := &stores.Tap{Store: stores.OpenFor(t, proxy.URL(location))}
	l := proxiedLease{proxy: proxy, direct: stores.OpenFor(t, location), lostRenewals: new(atomic.Int64)}
	tapped.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
		if err != nil {
			l.lostRenewals.Add(1)
		}
		return at, err
	})
	l.rt = openRuntime(t, pawl.Config{Store: tapped})
	l.here, l.there = ships.Scope(l.rt, "argo"), ships.Scope(openRuntime(t, pawl.Config{Store: l.direct}), "argo")
	l.lease, err = l.here.Acquire(context.Background(), pawl.LeaseFor(length))
	require.NoError(t, err)
	return l
}

// until returns the end of the lease in the store.
func (l proxiedLease) until(t *testing.T) time.Time {
	t.Helper()
	r, err := l.direct.Load(context.Background(), l.here.Key())
	require.NoError(t, err)
	require.Equal(t, l.lease.Token(), r.Lease.Token)
	return r.Lease.Until
}

// requireLost acquires the lease over the direct connection, and asserts that the old holder knows
// by then that it has lost the lease.
func (l proxiedLease) requireLost(t *testing.T) {
	t.Helper()
	other, err := l.there.Acquire(context.Background(), pawl.WaitForLease(), pawl.LeaseFor(time.Minute))
	require.NoError(t, err)
	_, err = ships.Scope(l.rt, "other").IncState(context.WithoutCancel(l.lease.Context()), "miles", 1)
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	require.ErrorIs(t, context.Cause(l.lease.Context()), pawl.ErrLeaseLost)
	require.Greater(t, other.Token(), l.lease.Token())
	_, err = l.there.IncState(other.Context(), "miles", 1)
	require.NoError(t, err)
	require.NoError(t, l.lease.Release(context.Background()))
	r, err := l.direct.Load(context.Background(), l.here.Key())
	require.NoError(t, err)
	require.Equal(t, other.Token(), r.Lease.Token, "releasing a lost lease must not end the new holder's lease")
	require.NoError(t, other.Release(context.Background()))
}

// A holder whose connections are cut knows that its lease is lost when another holder gets it. A
// cut shorter than the lease costs nothing.
//
// Proves STORE-13.
func TestLeaseAndCutConnections(t *testing.T) {
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		l := acquireThroughProxy(t, 1500*time.Millisecond)
		l.proxy.Refuse(true)
		l.requireLost(t)
		l.proxy.Refuse(false)
		_, err := l.here.IncState(l.lease.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		testkit.Eventually(t, func() bool {
			_, err := l.here.IncState(context.Background(), "miles", 1)
			return err == nil
		}, "without the lease the process can write again")
	})
	t.Run("no answer", func(t *testing.T) { // the server renews the lease, but its answer is held back
		t.Parallel()
		l := acquireThroughProxy(t, 1500*time.Millisecond)
		release := make(chan struct{})
		l.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(release) })
		l.requireLost(t)
		close(release)
		require.Positive(t, l.lostRenewals.Load())
	})
	t.Run("brief cut", func(t *testing.T) {
		t.Parallel()
		l := acquireThroughProxy(t, 6*time.Second)
		first := l.until(t)
		l.proxy.Refuse(true)
		testkit.Eventually(t, func() bool { return l.lostRenewals.Load() > 0 })
		l.proxy.Refuse(false)
		testkit.Eventually(t, func() bool { return l.until(t).After(first) })
		require.NoError(t, l.lease.Context().Err())
		_, err := l.here.IncState(l.lease.Context(), "miles", 1)
		require.NoError(t, err)
		require.NoError(t, l.lease.Release(context.Background()))
	})
}
