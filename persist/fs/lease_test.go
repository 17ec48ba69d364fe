package fs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestTakePassesOverTheBusy: a record whose lock somebody keeps does not keep others from being
// taken, and is waited for only if there is no other.
func TestTakePassesOverTheBusy(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	for _, id := range []string{"a", "b"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	me := persist.Acquire{Holder: "me", For: time.Hour}
	release := take(t, newLocks(s.locks.folder, time.Minute), wanted{stripeOf(thing("a")): shared})
	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, me)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, thing("b"), taken[0].Key)
	_, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, me)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	release()
	taken, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, me)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, thing("a"), taken[0].Key)
}
