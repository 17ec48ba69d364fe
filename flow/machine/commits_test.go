package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// TestCommits: a step that claims is two commits, the claim and its end. A step without a claim is
// one.
//
// Proves CLAIM-2, CLAIM-5.
func TestCommits(t *testing.T) {
	stores.EachCounted(t, func(t *testing.T, location string) {
		d, err := build(stores.OpenFor(t, location), settings{})
		require.NoError(t, err)
		require.NoError(t, d.e.Start(t.Context()))
		defer func() {
			require.NoError(t, d.e.Stop(t.Context()))
			require.NoError(t, d.rt.Close(t.Context()))
		}()
		_, err = d.m.Create(t.Context(), "a", parcel{})
		require.NoError(t, err)
		count := stores.Commits(t, location)
		for _, step := range []struct {
			step, by string
			input    any
			want     int
		}{{"ship", "cron", "x", 1}, {"return", "admin", nil, 2}} {
			before := count()
			out, err := d.m.Fire(t.Context(), machine.Trigger{ID: "a", Step: step.step, By: step.by, Input: step.input})
			require.NoError(t, err)
			require.Equal(t, machine.Done, out.Result)
			require.Equal(t, step.want, count()-before, step.step)
		}
	})
}
