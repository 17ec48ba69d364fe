package pawl_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// TestCreationInDoubt: the answer to a creation is lost, and somebody else's creation, with a higher version, is found when it is sent again. Nothing was
// ever purged, so that it cannot have followed on ours: the mutation is done once more.
//
// Proves CAS-6, CAS-7.
func TestCreationInDoubt(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := visits.Scope(p.rt, "a")
		var calls atomic.Int32
		p.store.onCommit(func(ctx context.Context, c persist.Commit) error {
			if calls.Add(1) > 1 {
				return nil
			}
			_, err := p.store.Store.Commit(ctx, persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Version: 3, Doc: []byte(`{"n":3}`)}}})
			require.NoError(t, err)
			return errAnswerLost
		})
		snap, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		require.EqualValues(t, 4, snap.Version)
		require.Equal(t, 4, snap.ReadOnly().N)
	})
}

// TestCreationInDoubtAfterAPurge: where something was purged since, nobody can tell, and nobody pretends to.
//
// Proves CAS-6.
func TestCreationInDoubtAfterAPurge(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, other := visits.Scope(p.rt, "a"), visits.Scope(p.another(t), "other")
		for range 5 {
			_, err := other.IncState(ctx, "n", 1)
			require.NoError(t, err)
		}
		require.NoError(t, other.Delete(ctx))
		var calls atomic.Int32
		p.store.onCommit(func(ctx context.Context, c persist.Commit) error {
			if calls.Add(1) > 1 {
				return nil
			}
			_, err := p.store.Store.(persist.Purger).Purge(ctx, persist.Query{})
			require.NoError(t, err)
			_, err = p.store.Store.Commit(ctx, persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Version: 9, Doc: []byte(`{"n":3}`)}}})
			require.NoError(t, err)
			return errAnswerLost
		})
		_, err := s.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
	})
}
