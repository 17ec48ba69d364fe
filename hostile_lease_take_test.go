package pawl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
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
