package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// TestReleaseWithItsOwnContext: a lease can be released with the context that ends by it.
func TestReleaseWithItsOwnContext(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
		defer cancel()
		require.NoError(t, l.Release(ctx))
		require.Zero(t, p.record(t, s.Key()).Lease)
	})
}
