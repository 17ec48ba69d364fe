package persisttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) guards() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a guard passes on the version it read":      s.guardPasses,
		"a guard fails on another version":           s.guardFails,
		"a guard tests absence":                      s.guardAbsence,
		"a guard tests gone and alive":               s.guardGone,
		"a failed guard stops the write beside it":   s.guardStopsWrite,
		"a guard on a written key sees it unwritten": s.guardOnWritten,
		"every failure has a winner":                 s.everyFailure,
	}
}

// Proves STORE-2.
func (s suite) guardPasses(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	before := f.load(thing)
	at, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1})
	require.NoError(t, err)
	require.False(t, at.IsZero())
	same(t, before, f.load(thing))
}

// Proves STORE-2, STORE-5.
func (s suite) guardFails(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	f.must(update(thing, 1))
	_, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1})
	same(t, f.load(thing), lost(t, err)[0])
	_, err = f.guard(persist.Guard{Key: key("absent"), Read: true, Version: 1})
	require.True(t, lost(t, err)[0].Absent())
}

// Proves STORE-2.
func (s suite) guardAbsence(t *testing.T) {
	f := s.fresh(t)
	absent := persist.Guard{Key: thing, Read: true}
	_, err := f.guard(absent)
	require.NoError(t, err)
	f.must(create(thing))
	_, err = f.guard(absent)
	require.EqualValues(t, 1, lost(t, err)[0].Version)
	f.must(remove(thing, 1))
	_, err = f.guard(absent)
	require.True(t, lost(t, err)[0].Deleted, "a tombstone is not absent")
}

// Proves STORE-2.
func (s suite) guardGone(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	_, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1, Gone: true})
	lost(t, err)
	f.must(remove(thing, 1))
	_, err = f.guard(persist.Guard{Key: thing, Read: true, Version: 2, Gone: true})
	require.NoError(t, err)
	_, err = f.guard(persist.Guard{Key: thing, Read: true, Version: 2})
	lost(t, err)
}

// Proves STORE-2.
func (s suite) guardStopsWrite(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	f.must(create(key("read")))
	f.must(update(key("read"), 1))
	_, err := f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{create(key("written"))},
		Guards: []persist.Guard{{Key: key("read"), Read: true, Version: 1}},
	})
	winners := lost(t, err)
	require.Len(t, winners, 1)
	require.Equal(t, key("read"), winners[0].Key)
	f.floor(key("written"))
}

// guardOnWritten: a guard tests the record before the commit. Its changes are applied after the
// write.
//
// Proves STORE-2.
func (s suite) guardOnWritten(t *testing.T) {
	f := s.fresh(t)
	leased := create(thing)
	leased.Acquire = &persist.Acquire{Holder: "me", For: time.Minute}
	f.must(leased)
	at, err := f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{update(thing, 1)},
		Guards: []persist.Guard{{Key: thing, Read: true, Version: 1, Token: 1, Extend: time.Hour, TTL: 2 * time.Hour}},
	})
	require.NoError(t, err)
	r := f.load(thing)
	require.EqualValues(t, 2, r.Version)
	require.True(t, r.Lease.Until.Equal(at.Add(time.Hour)))
	require.True(t, r.Expires.Equal(at.Add(2*time.Hour)))

	_, err = f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{update(thing, 2)},
		Guards: []persist.Guard{{Key: thing, Token: 1, Release: true}},
	})
	require.NoError(t, err)
	r = f.load(thing)
	require.EqualValues(t, 3, r.Version)
	require.Zero(t, r.Lease)
}

// everyFailure: a conflict has one winner for each key that failed, and none for the others.
//
// Proves STORE-2.
func (s suite) everyFailure(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	f.must(create(key("a")), create(key("b")), create(key("c")))
	_, err := f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{create(key("a")), update(key("b"), 1), update(key("d"), 4)},
		Guards: []persist.Guard{{Key: key("a"), Read: true, Version: 9}, {Key: key("c"), Read: true, Version: 9}},
	})
	var names []string
	for _, winner := range lost(t, err) {
		names = append(names, winner.ID)
	}
	require.ElementsMatch(t, []string{"a", "c", "d"}, names)
	require.EqualValues(t, 1, f.load(key("b")).Version)
}
