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

// leaseOnCutLine is a holder whose way to PostgreSQL leads through a proxy, and somebody else who has another way.
type leaseOnCutLine struct {
	proxy        *pgproxy.Proxy
	here, there  pawl.Scope[ship]
	rt           *pawl.Runtime
	lease        *pawl.Lease
	lostRenewals *atomic.Int64
	direct       persist.Store
}

func cutLine(t *testing.T, length time.Duration) leaseOnCutLine {
	t.Helper()
	stores.Need(t, "postgres")
	location := pgtest.URL(t)
	u, err := url.Parse(location)
	require.NoError(t, err)
	proxy := pgproxy.Start(t, "tcp", u.Host, "write", "create_records", "replace_records", "touch_records")
	tapped := &stores.Tap{Store: stores.OpenFor(t, proxy.URL(location))}
	l := leaseOnCutLine{proxy: proxy, direct: stores.OpenFor(t, location), lostRenewals: new(atomic.Int64)}
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

func (l leaseOnCutLine) until(t *testing.T) time.Time {
	t.Helper()
	r, err := l.direct.Load(context.Background(), l.here.Key())
	require.NoError(t, err)
	require.Equal(t, l.lease.Token(), r.Lease.Token)
	return r.Lease.Until
}

// requireLost takes the lease on the other way and asserts that the holder knows by then, without asking anybody, that it has lost it.
func (l leaseOnCutLine) requireLost(t *testing.T) {
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
	require.Equal(t, other.Token(), r.Lease.Token, "releasing what is lost takes nothing from others")
	require.NoError(t, other.Release(context.Background()))
}

// TestLeaseAndCutConnections: a holder whose connections are cut has lost its lease, and knows it, when another gets it. A cut that is shorter than the
// lease costs nothing.
//
// Proves STORE-13.
func TestLeaseAndCutConnections(t *testing.T) {
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		l := cutLine(t, 1500*time.Millisecond)
		l.proxy.Refuse(true)
		l.requireLost(t)
		l.proxy.Refuse(false)
		_, err := l.here.IncState(l.lease.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		testkit.Eventually(t, func() bool {
			_, err := l.here.IncState(context.Background(), "miles", 1)
			return err == nil
		}, "without the lease it may write again")
	})
	t.Run("no answer", func(t *testing.T) { // The server renews it, and nobody hears of that.
		t.Parallel()
		l := cutLine(t, 1500*time.Millisecond)
		release := make(chan struct{})
		l.proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.HoldUntil(release) })
		l.requireLost(t)
		close(release)
		require.Positive(t, l.lostRenewals.Load())
	})
	t.Run("short", func(t *testing.T) {
		t.Parallel()
		l := cutLine(t, 6*time.Second)
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
