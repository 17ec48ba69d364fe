package persisttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) tombstones() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a floor that another handle raised counts": s.purgedElsewhere,
		"a delete leaves a tombstone":               s.tombstone,
		"a recreated record has a higher version":   s.recreate,
		"purged tombstones raise the floor":         s.purgeRaisesFloor,
		"purge removes matching tombstones only":    s.purgeMatches,
		"purge stops at its limit":                  s.purgeLimit,
	}
}

// Proves STORE-1.
func (s suite) tombstone(t *testing.T) {
	f := s.fresh(t)
	w := acquire(thing, 0, "me", time.Hour)
	w.Label, w.DueIn, w.TTL, w.Schema = "open", time.Hour, time.Hour, 3
	f.must(w)
	at := f.must(remove(thing, 1))
	r := f.load(thing)
	require.Len(t, r.Commits, 2)
	r.Commits = nil
	same(t, persist.Record{Key: thing, Version: 2, Born: 1, Updated: at, Deleted: true}, r)
	require.Nil(t, r.Doc)
}

// recreate: a version is never used twice, also not by a document that is created again.
//
// Proves STORE-2.
func (s suite) recreate(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	f.must(remove(thing, 1))
	tombstone := f.load(thing)
	_, err := f.write(create(thing))
	same(t, tombstone, lost(t, err)[0])
	_, err = f.write(update(thing, 2))
	same(t, tombstone, lost(t, err)[0])
	again := update(thing, 2)
	again.Gone = true
	f.must(again)
	require.EqualValues(t, 3, f.load(thing).Version)
}

// purger returns the store as a Purger.
func (f *fixture) purger() persist.Purger {
	purger, ok := f.store.(persist.Purger)
	if !ok {
		f.Skip("the store is not a persist.Purger")
	}
	return purger
}

// purgeRaisesFloor: a document that is created under a purged key has a version above all versions
// that an old reader may have.
//
// Proves STORE-2.
func (s suite) purgeRaisesFloor(t *testing.T) {
	f := s.fresh(t)
	purger := f.purger()
	w := create(thing)
	w.Version = 41
	f.must(w)
	f.must(remove(thing, 41))
	removed, err := purger.Purge(f.Context(), persist.Query{Kind: "thing"})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	require.GreaterOrEqual(t, f.floor(thing), uint64(42))

	for _, k := range []persist.Key{thing, key("never written")} {
		_, err = f.write(create(k))
		winner := lost(t, err)[0]
		require.True(t, winner.Absent())
		require.GreaterOrEqual(t, winner.Version, uint64(42), "the winner carries the floor")
		w := create(k)
		w.Version = winner.Version + 1
		f.must(w)
		require.Equal(t, w.Version, f.load(k).Born, "a record above the floor is a new record")
		f.must(remove(k, w.Version))
		w.Expected, w.Version, w.Gone = w.Version+1, w.Version+2, true
		f.must(w)
		require.Equal(t, w.Version-2, f.load(k).Born, "a document that follows a tombstone is the same record")
	}
	_, err = f.guard(persist.Guard{Key: key("absent"), Read: true})
	require.NoError(t, err, "a guard tests absence without regard to the floor")
	_, err = f.write(update(thing, 42))
	lost(t, err)
}

// Proves STORE-8.
func (s suite) purgeMatches(t *testing.T) {
	f := s.fresh(t)
	purger := f.purger()
	other := persist.Key{Kind: "other", ID: "a1"}
	for _, k := range []persist.Key{key("a1"), key("a2"), key("b1"), other} {
		f.must(create(k))
		f.must(remove(k, 1))
	}
	f.must(create(key("a3")))
	f.expiring(key("a4"))

	removed, err := purger.Purge(f.Context(), persist.Query{Kind: "thing", Prefix: "a", Age: time.Hour})
	require.NoError(t, err)
	require.Zero(t, removed, "tombstones below Age")
	removed, err = purger.Purge(f.Context(), persist.Query{Kind: "thing", Prefix: "a"})
	require.NoError(t, err)
	require.Equal(t, 2, removed)
	f.floor(key("a1"))
	f.load(key("b1"))
	f.load(other)
	f.load(key("a3"))
	f.load(key("a4"))
	removed, err = purger.Purge(f.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, 2, removed)
}

// Proves STORE-1.
func (s suite) purgeLimit(t *testing.T) {
	f := s.fresh(t)
	purger := f.purger()
	for _, id := range []string{"a", "b", "c"} {
		f.must(create(key(id)))
		f.must(remove(key(id), 1))
	}
	for _, want := range []int{2, 1, 0} {
		removed, err := purger.Purge(f.Context(), persist.Query{Kind: "thing", Limit: 2})
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
}

// purgedElsewhere: no version is used again by a handle that has not heard of a purge.
//
// Proves STORE-1, STORE-3.
func (s suite) purgedElsewhere(t *testing.T) {
	s.needsSharing(t)
	one := s.fresh(t)
	two := s.at(t, one.location)
	two.purger()
	one.must(create(key("other"))) // so that it may remember the floor
	two.must(create(thing))
	two.must(remove(thing, 1))
	removed, err := two.purger().Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	_, err = one.write(create(thing))
	winner := lost(t, err)[0]
	require.True(t, winner.Absent())
	require.GreaterOrEqual(t, winner.Version, uint64(2), "the winner has the floor")
	w := create(thing)
	w.Version = winner.Version + 1
	one.must(w)
}
