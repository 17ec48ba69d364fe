package pawl_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// A scope is created from data by one commit, without a read. If it exists already, the commit is
// refused, and nothing else is asked or tried. Proves SCOPE-12, CAS-1.
func TestCreationAsksTheStoreOnce(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		asked := func() []int64 { return []int64{h.Loads.Load(), h.Commits.Load()} }
		snap, err := s.SetState(t.Context(), counts{N: 7}, pawl.IfAbsent())
		require.NoError(t, err)
		require.EqualValues(t, 1, snap.Version)
		require.Equal(t, []int64{0, 1}, asked())

		other := openAnother(t, h)
		defer func() { require.NoError(t, other.Close(context.Background())) }()
		_, err = pawl.Session[counts](other, "a").SetState(t.Context(), counts{N: 8}, pawl.IfAbsent())
		require.ErrorIs(t, err, pawl.ErrExists)
		require.Equal(t, []int64{0, 2}, asked())
		state, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, state.N)
	})
}

// A function with IfAbsent does not run on a scope that exists, also if this process has not seen
// the scope. Proves SCOPE-12.
func TestFunctionOfACreationFindsItsConditionTrue(t *testing.T) {
	ran := false
	run := pawl.Atomic(func(context.Context, *counts) error { ran = true; return nil })
	for _, m := range []pawl.Mutation{run, pawl.All{pawl.Inc{Field: "n", By: 1}, run}} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			foreign(t, h, s.Key(), 7)
			_, err := s.Apply(t.Context(), m, pawl.IfAbsent())
			require.ErrorIs(t, err, pawl.ErrExists)
			require.False(t, ran)
		})
	}
}

// A scope that was deleted, or purged, is created again in the same sequence of versions. After the
// first such scope, the process knows which versions were purged, and asks the store once again.
// Proves SCOPE-12.
func TestCreationAfterAPurge(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		for range 3 {
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		}
		require.NoError(t, s.Delete(t.Context()))
		other := openAnother(t, h)
		defer func() { require.NoError(t, other.Close(context.Background())) }()
		again := pawl.Session[counts](other, "a")
		snap, err := again.SetState(t.Context(), counts{N: 8}, pawl.IfAbsent())
		require.NoError(t, err)
		require.EqualValues(t, 5, snap.Version)

		require.NoError(t, again.Delete(t.Context()))
		require.Equal(t, 1, purge(t, h))
		third := openAnother(t, h)
		defer func() { require.NoError(t, third.Close(context.Background())) }()
		for i, id := range []string{"a", "b"} {
			before := h.Commits.Load()
			snap, err = pawl.Session[counts](third, id).SetState(t.Context(), counts{N: 9}, pawl.IfAbsent())
			require.NoError(t, err)
			require.EqualValues(t, 7, snap.Version)
			require.EqualValues(t, 2-i, h.Commits.Load()-before)
		}
	})
}
