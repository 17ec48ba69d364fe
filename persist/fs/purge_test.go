package fs

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestPurgeSkipsDamagedRecords: Purge skips damaged records, and removes nothing if the version
// floor is damaged.
//
// Proves STORE-6.
func TestPurgeSkipsDamagedRecords(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	for i := range 5 {
		_, err := s.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing(fmt.Sprint(i)), Version: 1, Deleted: true}}})
		require.NoError(t, err)
	}
	var set stripeSet
	set.add(stripeOf(thing("1")))
	journal := s.newJournal(set)
	require.NoError(t, os.WriteFile(journal, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(s.file(thing("3")), []byte("x"), 0o600))
	removed, err := s.Purge(t.Context(), persist.Query{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, 2, removed)
	removed, err = s.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	require.FileExists(t, s.file(thing("1")))
	require.FileExists(t, s.file(thing("3")))

	require.NoError(t, os.Remove(journal))
	require.NoError(t, os.WriteFile(s.floorFile(), []byte("x"), 0o600))
	_, err = s.Purge(t.Context(), persist.Query{})
	damaged(t, err, s.floorFile())
	require.FileExists(t, s.file(thing("1")))
}
