package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist"
)

// TestFire: a step claims, runs, and commits its writes with the final status; the lease is over with the commit.
//
// Proves CLAIM-2, CLAIM-5.
func TestFire(t *testing.T) {
	onStores(t, func(t *testing.T, store persist.Store) {
		d := open(t, store, settings{})
		d.pack(t, "1")
		out, err := d.fire(t.Context(), "1", "first")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		want := parcel{Status: "shipped", Log: []string{"first"}}
		require.Equal(t, want, out.Entity.State())
		require.Equal(t, want, d.parcel(t, "1"))
		r := d.record(t, "1")
		require.Equal(t, r.Version, out.Entity.Version)
		require.EqualValues(t, 3, r.Version, "created, claimed, committed")
		require.Zero(t, r.Lease)
		require.EqualValues(t, 1, d.shipped(t))
	})
}
