package pawl_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// TestTakeRefusesApplying: a mutation that Take would not make is refused, whatever it is.
func TestTakeRefusesApplying(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := errands.Scope(p.rt, "one")
		seed(t, s, errand{})
		for _, m := range []pawl.Mutation{pawl.Inc{Field: "runs", By: 1}, pawl.All{pawl.Inc{Field: "runs", By: 1}}, pawl.All{}} {
			taken, err := errands.Take(t.Context(), p.rt, pawl.Query{}, pawl.Applying(m))
			var argument *pawl.ArgumentError
			require.ErrorAs(t, err, &argument)
			require.Empty(t, taken)
		}
		requireState(t, p, s, 1, errand{})
	})
}

// TestTakeUnderALostLease: what is taken under a lease is fenced by it like every other commit.
//
// Proves STORE-13.
func TestTakeUnderALostLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		job := errands.Scope(p.rt, "one")
		seed(t, job, errand{})
		leader, err := ships.Scope(p.rt, "leader").Acquire(ctx)
		require.NoError(t, err)
		taken, err := errands.Take(leader.Context(), p.rt, pawl.Query{})
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.NoError(t, taken[0].Lease.Release(ctx))
		// The lease is ended behind its holder's back.
		require.NoError(t, ships.Scope(p.another(t), "leader").Delete(ctx))
		taken, err = errands.Take(leader.Context(), p.rt, pawl.Query{})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.Empty(t, taken)
		requireState(t, p, job, 2, errand{})
	})
}

// oddStore is a store whose values cannot be compared, although its type looks as if they could.
type oddStore struct{ persist.Store }

type funcStore struct {
	persist.Store
	_ func()
}

// TestLeaseOfAStoreThatCannotBeCompared: under a lease of another runtime such a store is another one.
func TestLeaseOfAStoreThatCannotBeCompared(t *testing.T) {
	store := oddStore{funcStore{Store: memory.New()}}
	one, other := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store})
	l, err := ships.Scope(one, "argo").Acquire(t.Context())
	require.NoError(t, err)
	_, err = ships.Scope(other, "argo").IncState(l.Context(), "miles", 1)
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
	require.NoError(t, l.Release(t.Context()))
}

// TestLeaseLostWhileInMemory: what runs on state in memory under a lease is not committed once this process knows that the lease is lost.
func TestLeaseLostWhileInMemory(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		lock, m := ships.Scope(p.rt, "lock"), pawl.Memory[ship](p.rt, "argo")
		l, err := lock.Acquire(ctx)
		require.NoError(t, err)
		_, err = m.AtomicState(context.WithoutCancel(l.Context()), func(_ context.Context, s *ship) error {
			s.Miles++
			return l.Release(ctx)
		})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		snap, err := m.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists())
	})
}

// TestTakeStepsOverWhatItCannotRead: scopes that this release cannot read do not keep workers from those that it can, and stay as they are to others.
func TestTakeStepsOverWhatItCannotRead(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // a store that can take several at once, and one that cannot
			config := p.config
			if plain {
				config.Store = plainStore{p.store}
			}
			prefix := fmt.Sprint(plain)
			rt := openRuntime(t, config)
			for i := range 3 {
				p.put(t, errands.Scope(rt, fmt.Sprint(prefix, i)).Key(), `{}`, 9)
			}
			seed(t, errands.Scope(rt, prefix+"4"), errand{})
			taken, err := errands.Take(t.Context(), rt, pawl.Query{Prefix: prefix, Limit: 2})
			var newer *pawl.SchemaError
			require.ErrorAs(t, err, &newer)
			require.Len(t, taken, 1)
			require.Equal(t, prefix+"4", taken[0].ID)
			require.NoError(t, taken[0].Lease.Release(t.Context()))
			for i := range 3 {
				require.Zero(t, p.record(t, errands.Scope(rt, fmt.Sprint(prefix, i)).Key()).Lease)
			}
		}
	})
}
