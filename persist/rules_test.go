package persist_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// stored returns a record at version 3 as a store keeps it, after change if that is not nil.
func stored(change func(*persist.Record)) persist.Record {
	now := noon.UTC().Truncate(time.Microsecond)
	r := persist.Record{Key: thing, Version: 3, Born: 1, Doc: []byte(`{}`), Updated: now.Add(-time.Hour)}
	if change != nil {
		change(&r)
	}
	return r
}

var (
	past   = noon.UTC().Truncate(time.Microsecond).Add(-time.Minute)
	future = past.Add(time.Hour)
	held   = persist.Lease{Holder: "me", Token: 2, Until: future}
)

// on applies a write and guards to r at noon.
func on(r persist.Record, change func(*persist.Write), guards ...persist.Guard) (persist.Record, error) {
	w := persist.Write{Key: thing, Expected: r.Version, Gone: r.Gone(noon), Version: r.Version + 1, Doc: []byte(`{"new":true}`)}
	if r.Absent() {
		w.Expected, w.Gone = 0, false
	}
	change(&w)
	next, err := persist.Apply(persist.Commit{ID: "w.1", Writes: []persist.Write{w}, Guards: guards}, map[persist.Key]persist.Record{thing: r}, noon)
	if err != nil {
		return persist.Record{}, err
	}
	return next[0], nil
}

func expired(r *persist.Record) { r.Expires = past }

func sweeps(w *persist.Write) { w.Deleted, w.Swept, w.Doc = true, true, nil }

// TestApplySweeps: the tombstone of a swept record keeps Expires. The tombstone of a deleted record
// does not.
//
// Proves SCOPE-14.
func TestApplySweeps(t *testing.T) {
	swept, err := on(stored(expired), sweeps)
	require.NoError(t, err)
	require.True(t, swept.Deleted)
	require.Equal(t, past, swept.Expires)
	require.Nil(t, swept.Doc)
	require.EqualValues(t, 4, swept.Version)
	require.EqualValues(t, 1, swept.Born)

	deleted, err := on(stored(expired), func(w *persist.Write) { w.Deleted, w.Doc = true, nil })
	require.NoError(t, err)
	require.Zero(t, deleted.Expires)

	again, err := on(swept, func(*persist.Write) {})
	require.NoError(t, err)
	require.Zero(t, again.Expires, "a document that is created again does not keep the old expiry")
	twice, err := on(swept, sweeps)
	require.NoError(t, err)
	require.Equal(t, past, twice.Expires)
	plain, err := on(deleted, sweeps)
	require.NoError(t, err)
	require.Zero(t, plain.Expires, "a deleted record has no expiry to keep")

	for name, r := range map[string]persist.Record{
		"alive": stored(func(r *persist.Record) { r.Expires = future }),
		"held":  stored(func(r *persist.Record) { r.Expires, r.Lease = past, held }),
	} {
		_, err := on(r, func(w *persist.Write) { sweeps(w); w.Gone = true })
		var conflict *persist.Conflict
		require.ErrorAs(t, err, &conflict, name)
	}
}

// TestTombstonesNeverExpire: a tombstone that keeps Expires is not an expired record.
//
// Proves SCOPE-14.
func TestTombstonesNeverExpire(t *testing.T) {
	states := map[string]persist.Record{
		"alive":   stored(nil),
		"expired": stored(expired),
		"deleted": stored(func(r *persist.Record) { r.Deleted, r.Doc = true, nil }),
		"swept":   stored(func(r *persist.Record) { r.Deleted, r.Doc, r.Expires = true, nil, past }),
		"future":  stored(func(r *persist.Record) { r.Deleted, r.Doc, r.Expires = true, nil, future }),
	}
	for name, r := range states {
		tombstone := name == "deleted" || name == "swept" || name == "future"
		require.Equal(t, name == "expired", r.Expired(noon), name)
		require.Equal(t, name != "alive", r.Gone(noon), name)
		require.Equal(t, tombstone, persist.Query{Deleted: true}.Match(r, noon), name)
		require.Equal(t, name == "expired", persist.Query{Expired: true}.Match(r, noon), name)
		require.Equal(t, name == "alive", persist.Query{}.Match(r, noon), name)
		require.False(t, persist.Query{Deleted: true, Expired: true}.Match(r, noon), name)
	}
}

// TestApplyKeepsExpiry: KeepTTL keeps the expiry of a record that is alive, also if only its lease
// keeps it alive, and of no other record.
//
// Proves SCOPE-14.
func TestApplyKeepsExpiry(t *testing.T) {
	for name, c := range map[string]struct {
		before persist.Record
		want   time.Time
	}{
		"alive":       {stored(func(r *persist.Record) { r.Expires = future }), future},
		"forever":     {stored(nil), time.Time{}},
		"by lease":    {stored(func(r *persist.Record) { r.Expires, r.Lease = past, held }), past},
		"expired":     {stored(expired), time.Time{}},
		"swept":       {stored(func(r *persist.Record) { r.Deleted, r.Doc, r.Expires = true, nil, past }), time.Time{}},
		"absent":      {persist.Record{Key: thing}, time.Time{}},
		"above floor": {persist.Record{Key: thing, Version: 9}, time.Time{}},
	} {
		got, err := on(c.before, func(w *persist.Write) { w.TTL = persist.KeepTTL })
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.Expires, name)
	}
	touched, err := on(stored(func(r *persist.Record) { r.Expires = future }),
		func(w *persist.Write) { w.TTL = persist.KeepTTL }, persist.Guard{Key: thing, Read: true, Version: 3, TTL: time.Second})
	require.NoError(t, err)
	require.Equal(t, past.Add(time.Minute+time.Second), touched.Expires, "a guard is applied after the write")
}

// TestApplyEndsLease: a write with EndLease ends the existing lease and may acquire a new one.
//
// Proves STORE-13.
func TestApplyEndsLease(t *testing.T) {
	leased := stored(func(r *persist.Record) { r.Lease = held })
	kept, err := on(leased, func(*persist.Write) {})
	require.NoError(t, err)
	require.Equal(t, held, kept.Lease)
	ended, err := on(leased, func(w *persist.Write) { w.EndLease = true })
	require.NoError(t, err)
	require.Zero(t, ended.Lease)

	take := func(w *persist.Write) { w.Acquire = &persist.Acquire{Holder: "you", For: time.Minute} }
	_, err = on(leased, take)
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	taken, err := on(leased, func(w *persist.Write) { take(w); w.EndLease = true })
	require.NoError(t, err)
	require.Equal(t, persist.Lease{Holder: "you", Token: 4, Until: past.Add(2 * time.Minute)}, taken.Lease)

	_, err = on(leased, func(w *persist.Write) { w.EndLease = true }, persist.Guard{Key: thing, Token: 2})
	require.NoError(t, err, "the token is tested on the record before the commit")
	_, err = on(ended, func(w *persist.Write) { w.EndLease = true }, persist.Guard{Key: thing, Token: 2})
	var fenced *persist.Fenced
	require.ErrorAs(t, err, &fenced)
	free, err := on(stored(nil), func(w *persist.Write) { w.EndLease = true })
	require.NoError(t, err)
	require.Zero(t, free.Lease)
}

// TestValidateNewRules: Validate and Apply refuse writes and guards whose Swept, KeepTTL or
// EndLease contradicts another field.
//
// Proves SCOPE-14, STORE-13.
func TestValidateNewRules(t *testing.T) {
	document := []byte(`{}`)
	for name, c := range map[string]struct {
		write persist.Write
		guard persist.Guard
		ok    bool
	}{
		"swept":                  {write: persist.Write{Expected: 1, Gone: true, Deleted: true, Swept: true}, ok: true},
		"swept, not gone":        {write: persist.Write{Expected: 1, Deleted: true, Swept: true}},
		"swept, not deleted":     {write: persist.Write{Expected: 1, Gone: true, Swept: true, Doc: document}},
		"swept only":             {write: persist.Write{Expected: 1, Swept: true, Doc: document}},
		"keeps":                  {write: persist.Write{Expected: 1, Doc: document, TTL: persist.KeepTTL}, ok: true},
		"keeps nothing":          {write: persist.Write{Doc: document, TTL: persist.KeepTTL}, ok: true},
		"negative":               {write: persist.Write{Expected: 1, Doc: document, TTL: -1}},
		"very negative":          {write: persist.Write{Expected: 1, Doc: document, TTL: persist.KeepTTL + 1}},
		"due in KeepTTL":         {write: persist.Write{Expected: 1, Doc: document, DueIn: persist.KeepTTL}},
		"guard that keeps":       {guard: persist.Guard{Read: true, Version: 1, TTL: persist.KeepTTL}},
		"guard extends KeepTTL":  {guard: persist.Guard{Token: 1, Extend: persist.KeepTTL}},
		"ends":                   {write: persist.Write{Expected: 1, Doc: document, EndLease: true}, ok: true},
		"ends in a delete":       {write: persist.Write{Expected: 1, Deleted: true, EndLease: true}, ok: true},
		"ends, guarded":          {persist.Write{Expected: 1, Doc: document, EndLease: true}, persist.Guard{Token: 1}, true},
		"ends and extends":       {persist.Write{Expected: 1, Doc: document, EndLease: true}, persist.Guard{Token: 1, Extend: 1}, false},
		"ends and releases":      {persist.Write{Expected: 1, Doc: document, EndLease: true}, persist.Guard{Token: 1, Release: true}, false},
		"writes and releases":    {persist.Write{Expected: 1, Doc: document}, persist.Guard{Token: 1, Release: true}, true},
		"ends, acquires, frees":  {persist.Write{Expected: 1, Doc: document, EndLease: true, Acquire: &persist.Acquire{For: time.Hour}}, persist.Guard{Token: 1, Release: true}, false},
		"ends one, frees others": {persist.Write{Expected: 1, Doc: document, EndLease: true}, persist.Guard{Key: persist.Key{Kind: "other", ID: "1"}, Token: 1, Release: true}, true},
	} {
		commit := persist.Commit{ID: "w.1"}
		if c.write.Doc != nil || c.write.Deleted {
			c.write.Key, c.write.Version = thing, c.write.Expected+1
			commit.Writes = []persist.Write{c.write}
		}
		if c.guard != (persist.Guard{}) {
			if c.guard.Key == (persist.Key{}) {
				c.guard.Key = thing
			}
			commit.Guards = []persist.Guard{c.guard}
		}
		_, applied := persist.Apply(commit, nil, noon)
		if c.ok {
			require.NoError(t, commit.Validate(), name)
			require.NotErrorIs(t, applied, persist.ErrNotApplied, name)
			continue
		}
		require.ErrorIs(t, commit.Validate(), persist.ErrNotApplied, name)
		require.ErrorIs(t, applied, persist.ErrNotApplied, name)
	}
}
