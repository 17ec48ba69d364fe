package fs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestTakeSkipsBusyRecords: Take skips a record whose lock is held, and waits for it only if it
// takes no other.
func TestTakeSkipsBusyRecords(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	for _, id := range []string{"a", "b"} {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
	}
	me := persist.Acquire{Holder: "me", For: time.Hour}
	release := take(t, newLocks(s.locks.folder, time.Minute), wanted{stripeOf(thing("a")): shared})
	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, me, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, thing("b"), taken[0].Key)
	_, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, me, nil)
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	release()
	taken, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, me, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, thing("a"), taken[0].Key)
}

// TestNothingToTake: Take does not skip a held record before its lease is durable.
//
// Proves STORE-6.
func TestNothingToTake(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	makeTentative(t, s, thing("a")) // the holder was killed before the sync
	taken, err = s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{For: time.Hour}, nil)
	require.NoError(t, err)
	require.Empty(t, taken)
	require.False(t, isTentativeFile(t, s, thing("a")), "Take skipped a record because of a lease that is not durable")
}
