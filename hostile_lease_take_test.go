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
