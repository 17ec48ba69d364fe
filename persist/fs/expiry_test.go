package fs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestJudgedAfterAWait: a record or a lease that runs out while its writer waits for the last lock of
// its commit has run out: nothing is written.
//
// Proves SCOPE-14, STORE-2, STORE-8.
func TestJudgedAfterAWait(t *testing.T) {
	const lifetime = time.Second
	expired := func(t *testing.T, err error) {
		var conflict *persist.Conflict
		require.ErrorAs(t, err, &conflict)
		require.NotErrorIs(t, err, persist.ErrNotApplied)
		require.True(t, conflict.Winners[0].Expired(conflict.Winners[0].Now))
	}
	both := put("a", 1)
	both.Writes = append(both.Writes, setTo(thing("b"), 0, 1))
	leased := put("a", 0)
	leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: lifetime}
	mortal := put("a", 0)
	mortal.Writes[0].TTL = lifetime
	asHolder := put("a", 1)
	asHolder.Guards = []persist.Guard{{Key: thing("a"), Token: 1}}
	for name, c := range map[string]struct {
		before, commit persist.Commit
		refused        func(t *testing.T, err error)
	}{
		"one record":      {mortal, put("a", 1), expired},
		"several records": {mortal, both, expired},
		"lease": {leased, asHolder, func(t *testing.T, err error) {
			var fenced *persist.Fenced
			require.ErrorAs(t, err, &fenced)
			require.NotErrorIs(t, err, persist.ErrNotApplied)
			require.False(t, fenced.Current.Held(fenced.Current.Now))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			afterAWait(t, c.before, lifetime, func(t *testing.T, s *Store) {
				_, err := s.Commit(t.Context(), c.commit)
				c.refused(t, err)
			})
		})
	}
	t.Run("Take", func(t *testing.T) {
		afterAWait(t, mortal, lifetime, func(t *testing.T, s *Store) {
			ctx := s.locks.withBudget(t.Context())
			// Not Take, which reads names first: the test holds the names lock.
			r, err := s.takeOne(ctx, ctx, thing("a"), persist.Query{Unheld: true}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
			require.NoError(t, err)
			require.True(t, r.Absent())
		})
	})
}

// afterAWait makes the commit before, and calls write while another store holds, for longer than
// lifetime, the locks that a commit takes last. Then it tests that write has left nothing behind.
func afterAWait(t *testing.T, before persist.Commit, lifetime time.Duration, write func(t *testing.T, s *Store)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, dir, Config{})
		_, err := s.Commit(t.Context(), before)
		require.NoError(t, err)
		release := take(t, newLocks(s.locks.folder, time.Minute), wanted{listLock: exclusive, namesLock: exclusive})
		begun := time.Now()
		time.AfterFunc(2*lifetime, release)
		write(t, s)
		require.GreaterOrEqual(t, time.Since(begun), 2*lifetime)
		require.EqualValues(t, 1, load(t, s, thing("a")).Version)
		_, err = s.Load(t.Context(), thing("b"))
		require.ErrorIs(t, err, persist.ErrNotFound)
		require.Empty(t, tempsOf(t, s))
		require.Empty(t, inFolder(t, s.journals, ""))
	})
}
