package pawl_test

import (
	"math"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
)

type visit struct {
	Page string `json:"page"`
	N    int    `json:"n"`
}

var visits = pawl.Kind[visit]{Name: "visit"}

// An expired scope reads as absent before and after a sweep, and its next write continues the
// versions. A deleted scope stays deleted. Proves SCOPE-14, SCOPE-10.
func TestSweptScopesStartOver(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		a, b, c, gone := visits.Scope(p.rt, "a"), visits.Scope(p.rt, "b"), visits.Scope(p.rt, "c"), visits.Scope(p.rt, "gone")
		for _, s := range []pawl.Scope[visit]{a, b} {
			_, err := s.SetState(ctx, visit{Page: "home"}, pawl.WithTTL(time.Millisecond))
			require.NoError(t, err)
		}
		seed(t, c, visit{Page: "stays"})
		seed(t, gone, visit{Page: "gone"})
		require.NoError(t, gone.Delete(ctx))
		testkit.Eventually(t, func() bool { s, err := b.Snapshot(ctx); return err == nil && !s.Exists() })
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		swept, err := sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, pawl.Swept{Cleared: 2}, swept)
		swept, err = sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Zero(t, swept, "no scope is swept twice")
		r := p.record(t, a.Key())
		require.Nil(t, r.Doc)
		require.EqualValues(t, 2, r.Version)

		for _, rt := range []*pawl.Runtime{p.rt, p.another(t)} { // the first has seen the scope before it expired
			s := visits.Scope(rt, map[bool]string{true: "a", false: "b"}[rt == p.rt])
			snap, err := s.Snapshot(ctx)
			require.NoError(t, err)
			require.False(t, snap.Exists())
			_, err = s.PatchState(ctx, pawl.Patch{"n": 1}, pawl.IfVersion(1))
			require.ErrorIs(t, err, pawl.ErrExpired)
			_, err = s.PatchState(ctx, pawl.Patch{"n": 1}, pawl.IfExists())
			require.ErrorIs(t, err, pawl.ErrNotFound)
			require.NoError(t, s.Delete(ctx), "there is nothing to delete")
			snap, err = s.IncState(ctx, "n", 5)
			require.NoError(t, err, "the scope is expired, not deleted")
			require.EqualValues(t, 3, snap.Version)
			require.Equal(t, visit{N: 5}, snap.State())
		}
		requireState(t, p, c, 1, visit{Page: "stays"})
		_, err = gone.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// The longest possible TTL does not overflow: the scope exists.
func TestMaximumTTL(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		_, err := s.IncState(t.Context(), "count", 1, pawl.WithTTL(math.MaxInt64))
		require.NoError(t, err)
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.True(t, snap.Exists())
	})
}
