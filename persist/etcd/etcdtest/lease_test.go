package etcdtest_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
)

// The context of a lease that is not renewed has ended when another holder gets the lease, also where
// the store's clock moves in the longest steps that package persist allows. A lease that was taken just
// before a step is shorter by almost that step.
//
// Proves STORE-13.
func TestLeaseContextEndsFirst(t *testing.T) {
	t.Parallel()
	const step = 200 * time.Millisecond
	location := place(t, 1)
	var cut atomic.Bool // renewals are refused
	moved := make(chan time.Time)
	opened := func(refuse *atomic.Bool) *etcd.Store {
		return openRefused(t.Context(), t, location, etcd.Config{Tick: step}, func(request any) bool {
			if movesClock(request) {
				select {
				case moved <- time.Now():
				default:
				}
				return false
			}
			txn, ok := request.(*etcdserverpb.TxnRequest)
			return refuse.Load() && ok && len(txn.Success) > 0 && bytes.Contains(txn.Success[0].GetRequestPut().GetKey(), []byte("/m\x00"))
		})
	}
	one, two := opened(&cut), opened(new(atomic.Bool))
	scope := func(store persist.Store) pawl.Scope[counter] {
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{counters}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = rt.Close(t.Context()) })
		return counters.Scope(rt, "a")
	}
	first, second := scope(one), scope(two)

	time.Sleep(time.Until((<-moved).Add(step * 17 / 20)))
	l, err := first.Acquire(t.Context(), pawl.LeaseFor(5*step))
	require.NoError(t, err)
	cut.Store(true)
	for {
		next, err := second.Acquire(t.Context())
		if err == nil {
			require.Error(t, l.Context().Err(), "two holders")
			require.NoError(t, next.Release(t.Context()))
			return
		}
		require.ErrorIs(t, err, pawl.ErrHeld)
	}
}
