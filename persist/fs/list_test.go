package fs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestNamesAreReadInPeace: nobody renames a record while others read names, and nobody reads names
// while others rename.
//
// Proves STORE-3.
func TestNamesAreReadInPeace(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	foreign := newLocks(s.locks.folder, time.Minute)

	release := take(t, foreign, wanted{namesLock: exclusive})
	_, err = s.Commit(t.Context(), put("a", 1))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.EqualValues(t, 1, load(t, s, thing("a")).Version)
	require.Empty(t, inFolder(t, s.journals, ""))
	doubt(t, s, thing("a"))
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.True(t, doubted(t, s, thing("a")))
	require.Empty(t, tempsOf(t, s))
	release()
	require.EqualValues(t, 1, load(t, s, thing("a")).Version)

	release = take(t, foreign, wanted{namesLock: shared})
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	_, err = s.List(t.Context(), persist.Query{})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	release()
	_, err = s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
}

// TestListShowsEachRecordOnce: a record that is there all the time is in every list, once, whoever
// writes to it meanwhile.
func TestListShowsEachRecordOnce(t *testing.T) {
	const count, looks = 300, 10
	dir := scratch(t) // tmpfs, where a name may be missed while it is renamed over
	s, other := openAt(t, dir, Config{LockTimeout: time.Minute}), openAt(t, dir, Config{LockTimeout: time.Minute})
	id := func(i int) string { return fmt.Sprintf("some-long-name-to-fill-the-folder-%d", i) }
	for i := range count {
		_, err := s.Commit(t.Context(), put(id(i), 0))
		require.NoError(t, err)
	}
	var done atomic.Bool
	var writer sync.WaitGroup
	defer writer.Wait()
	defer done.Store(true)
	writer.Go(func() {
		for n := 0; !done.Load(); n++ {
			if _, err := other.Commit(context.Background(), put(id(n%count), uint64(n/count)+1)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range looks {
		page, err := s.List(t.Context(), persist.Query{Kind: "thing", Limit: 2 * count})
		require.NoError(t, err)
		seen := map[string]int{}
		for _, r := range page.Records {
			seen[r.ID]++
		}
		for i := range count {
			require.Equal(t, 1, seen[id(i)], "%s in a list of %d records", id(i), len(page.Records))
		}
	}
}
