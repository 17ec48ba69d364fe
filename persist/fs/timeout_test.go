package fs

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// held returns a store with records whose stripes another store holds.
func held(t *testing.T, dir string, ids ...string) (s *Store, release map[string]func()) {
	t.Helper()
	s = openAt(t, dir, Config{LockTimeout: time.Second})
	foreign := newLocks(s.locks.folder, time.Minute)
	release = map[string]func(){}
	for _, id := range ids {
		_, err := s.Commit(t.Context(), put(id, 0))
		require.NoError(t, err)
		release[id] = take(t, foreign, wanted{stripeOf(thing(id)): exclusive})
	}
	return s, release
}

// TestLockTimeoutOfCommit: a commit waits for all of its locks together no longer than the lock
// timeout.
//
// Proves STORE-14.
func TestLockTimeoutOfCommit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, release := held(t, dir, "a")
		list := take(t, newLocks(s.locks.folder, time.Minute), wanted{listLock: shared})
		defer list()
		time.AfterFunc(900*time.Millisecond, release["a"])
		both := put("a", 1)
		both.Writes = append(both.Writes, setTo(thing("b"), 0, 1))
		begun := time.Now()
		_, err := s.Commit(t.Context(), both)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.Less(t, time.Since(begun), 1100*time.Millisecond)
	})
}

// TestLockTimeoutOfTake: a Take waits for all busy records together no longer than the lock
// timeout.
//
// Proves STORE-14.
func TestLockTimeoutOfTake(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ids := []string{"a", "b", "c", "d"}
		s, release := held(t, dir, ids...)
		for i, id := range ids { // the holder of the lock takes the lease
			_, end, err := s.begin(t.Context())
			require.NoError(t, err)
			time.AfterFunc(time.Duration(i+1)*800*time.Millisecond, func() {
				defer end()
				defer release[id]()
				found, err := s.read(thing(id))
				if err == nil {
					r, _ := persist.Acquire{Holder: "other", For: time.Hour}.Take(found.Record, hostTime(), nil)
					err = s.write(context.Background(), []persist.Record{r}, map[persist.Key]stored{r.Key: found}, always)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		begun := time.Now()
		_, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.Less(t, time.Since(begun), 1100*time.Millisecond)
		time.Sleep(time.Minute) // until all of them are released
	})
}

// TestTakeSkipsDamagedRecords: Take skips a damaged record, also after it waited for its lock.
func TestTakeSkipsDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, release := held(t, dir, "a", "b")
		time.AfterFunc(100*time.Millisecond, func() {
			if err := os.WriteFile(s.file(thing("a")), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			release["a"]()
			release["b"]()
		})
		taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, thing("b"), taken[0].Key)
	})
}
