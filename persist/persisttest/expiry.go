package persisttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) expiry() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"an expired record is gone but keeps its version": s.expiredIsGone,
		"an expired record starts over":                   s.startsOver,
		"a lease keeps an expired record alive":           s.leaseKeepsAlive,
		"a write without TTL never expires":               s.ttlIsReplaced,
		"touching moves the expiry and nothing else":      s.touch,
		"an expired record is not touched":                s.touchTooLate,
		"a write can keep the expiry":                     s.keepTTL,
		"a record that is gone has no expiry to keep":     s.keepNothing,
		"a swept record is a tombstone with an expiry":    s.swept,
		"a record that is alive is not swept":             s.notSwept,
		"a swept record starts over, and can be purged":   s.afterSweep,
		"one of sweepers and creators wins":               s.sweepRace,
	}
}

// expiring creates a record and waits until it has expired by the store's clock.
func (f *fixture) expiring(k persist.Key) persist.Record {
	f.Helper()
	w := create(k)
	w.TTL = 2 * time.Millisecond
	f.must(w)
	return f.eventually(k, "expired", func(r persist.Record) bool { return r.Expired(r.Now) })
}

// expiredIsGone: the write itself judges expiry by the store's clock. A writer that expects the
// record to be alive conflicts.
//
// Proves STORE-2, STORE-8.
func (s suite) expiredIsGone(t *testing.T) {
	f := s.fresh(t)
	r := f.expiring(thing)
	require.True(t, r.Gone(r.Now))
	require.EqualValues(t, 1, r.Version)
	_, err := f.write(update(thing, 1))
	same(t, r, lost(t, err)[0])
	_, err = f.write(create(thing))
	lost(t, err)
}

// Proves STORE-2.
func (s suite) startsOver(t *testing.T) {
	f := s.fresh(t)
	f.expiring(thing)
	again := update(thing, 1)
	again.Gone = true
	at := f.must(again)
	r := f.load(thing)
	require.False(t, r.Gone(r.Now))
	require.Len(t, r.Commits, 2, "commit ids are kept")
	require.True(t, r.Updated.Equal(at))
	again = update(thing, 2)
	again.Gone = true
	_, err := f.write(again)
	require.EqualValues(t, 2, lost(t, err)[0].Version, "a live record is not gone")
}

// Proves STORE-8.
func (s suite) leaseKeepsAlive(t *testing.T) {
	f := s.fresh(t)
	w := acquire(thing, 0, "me", time.Hour)
	w.TTL = 2 * time.Millisecond
	f.must(w)
	f.eventually(thing, "past its expiry", func(r persist.Record) bool { return r.Now.After(r.Expires) })
	r := f.load(thing)
	require.False(t, r.Gone(r.Now))
	_, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1})
	require.NoError(t, err)
	_, err = f.guard(persist.Guard{Key: thing, Token: 1, Release: true})
	require.NoError(t, err)
	r = f.load(thing)
	require.True(t, r.Gone(r.Now))
}

// Proves STORE-1.
func (s suite) ttlIsReplaced(t *testing.T) {
	f := s.fresh(t)
	w := create(thing)
	w.TTL = time.Hour
	at := f.must(w)
	require.True(t, f.load(thing).Expires.Equal(at.Add(time.Hour)))
	f.must(update(thing, 1))
	require.Zero(t, f.load(thing).Expires)
}

// Proves STORE-1.
func (s suite) touch(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	before := f.load(thing)
	at, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1, TTL: time.Hour})
	require.NoError(t, err)
	after := f.load(thing)
	require.True(t, after.Expires.Equal(at.Add(time.Hour)))
	after.Expires = time.Time{}
	same(t, before, after)
}

// Proves STORE-8.
func (s suite) touchTooLate(t *testing.T) {
	f := s.fresh(t)
	f.expiring(thing)
	_, err := f.guard(persist.Guard{Key: thing, Read: true, Version: 1, TTL: time.Hour})
	lost(t, err)
}

// Proves SCOPE-14.
func (s suite) keepTTL(t *testing.T) {
	f := s.fresh(t)
	w := create(thing)
	w.TTL = time.Hour
	at := f.must(w)
	for version := uint64(1); version < 4; version++ {
		w := update(thing, version)
		w.TTL = persist.KeepTTL
		f.must(w)
		require.True(t, f.load(thing).Expires.Equal(at.Add(time.Hour)))
	}
	f.must(create(key("forever")))
	w = update(key("forever"), 1)
	w.TTL = persist.KeepTTL
	f.must(w)
	require.Zero(t, f.load(key("forever")).Expires)
	// A record past its expiry is alive while its lease is live, and expired afterwards.
	w = acquire(key("held"), 0, "me", time.Hour)
	w.TTL = 2 * time.Millisecond
	expires := f.must(w).Add(w.TTL)
	f.eventually(key("held"), "past its expiry", func(r persist.Record) bool { return r.Now.After(r.Expires) })
	w = update(key("held"), 1)
	w.TTL = persist.KeepTTL
	f.must(w)
	require.True(t, f.load(key("held")).Expires.Equal(expires))
	_, err := f.guard(persist.Guard{Key: key("held"), Token: 1, Release: true})
	require.NoError(t, err)
	r := f.load(key("held"))
	require.True(t, r.Expired(r.Now))
}

// keepNothing: a document that is created again does not keep the old expiry.
//
// Proves SCOPE-14.
func (s suite) keepNothing(t *testing.T) {
	f := s.fresh(t)
	keep := func(w persist.Write) {
		t.Helper()
		w.TTL = persist.KeepTTL
		f.must(w)
		r := f.load(w.Key)
		require.Zero(t, r.Expires)
		require.False(t, r.Gone(r.Now))
	}
	keep(create(key("absent")))
	f.expiring(key("expired"))
	again := update(key("expired"), 1)
	again.Gone = true
	keep(again)
	f.must(sweep(f.expiring(key("swept"))))
	again = update(key("swept"), 2)
	again.Gone = true
	keep(again)
}

// sweep returns the write that replaces an expired record by its tombstone.
func sweep(r persist.Record) persist.Write {
	w := remove(r.Key, r.Version)
	w.Gone, w.Swept = true, true
	return w
}

// swept: the tombstone keeps the time at which the record expired. Lists and guards treat it as
// deleted, not as expired.
//
// Proves SCOPE-14, STORE-8.
func (s suite) swept(t *testing.T) {
	f := s.fresh(t)
	r := f.expiring(thing)
	at := f.must(sweep(r))
	tombstone := f.load(thing)
	require.Len(t, tombstone.Commits, 2)
	want := persist.Record{Key: thing, Version: 2, Born: 1, Updated: at, Deleted: true, Expires: r.Expires, Commits: tombstone.Commits}
	same(t, want, tombstone)
	require.Nil(t, tombstone.Doc)
	require.False(t, tombstone.Expired(tombstone.Now))

	f.expiring(key("expired"))
	f.must(create(key("deleted")))
	f.must(remove(key("deleted"), 1))
	require.Zero(t, f.load(key("deleted")).Expires)
	f.expiring(key("deleted late"))
	late := remove(key("deleted late"), 1)
	late.Gone = true
	f.must(late)
	require.Zero(t, f.load(key("deleted late")).Expires, "the record was deleted, not swept")
	f.must(create(key("alive")))
	require.ElementsMatch(t, []string{"1", "deleted", "deleted late"}, f.ids(persist.Query{Kind: "thing", Deleted: true}))
	require.Equal(t, []string{"expired"}, f.ids(persist.Query{Kind: "thing", Expired: true}))
	require.Empty(t, f.ids(persist.Query{Kind: "thing", Expired: true, Deleted: true}))
	require.Equal(t, []string{"alive"}, f.ids(persist.Query{Kind: "thing"}))
	page, err := f.store.List(t.Context(), persist.Query{Kind: "thing", Prefix: "1", Deleted: true})
	require.NoError(t, err)
	require.Len(t, page.Records, 1)
	same(t, tombstone, page.Records[0])

	_, err = f.guard(persist.Guard{Key: thing, Read: true, Version: 2, Gone: true})
	require.NoError(t, err)
	_, err = f.write(update(thing, 2))
	same(t, tombstone, lost(t, err)[0])
	if reader, ok := f.store.(persist.Reader); ok {
		records, err := reader.LoadAll(t.Context(), []persist.Key{thing})
		require.NoError(t, err)
		same(t, tombstone, records[0])
	}
}

// notSwept: a sweeper that read an old page cannot remove a record that is alive again.
//
// Proves SCOPE-14, STORE-2.
func (s suite) notSwept(t *testing.T) {
	f := s.fresh(t)
	w := create(key("touched"))
	w.TTL = time.Hour
	f.must(w)
	_, err := f.write(sweep(f.load(key("touched"))))
	require.False(t, lost(t, err)[0].Deleted)

	w = acquire(key("held"), 0, "me", time.Hour)
	w.TTL = 2 * time.Millisecond
	f.must(w)
	r := f.eventually(key("held"), "past its expiry", func(r persist.Record) bool { return r.Now.After(r.Expires) })
	_, err = f.write(sweep(r))
	same(t, r, lost(t, err)[0])

	r = f.expiring(key("over"))
	again := update(key("over"), 1)
	again.Gone = true
	f.must(again)
	_, err = f.write(sweep(r))
	require.EqualValues(t, 2, lost(t, err)[0].Version)
	_, err = f.write(sweep(persist.Record{Key: key("absent"), Version: 1}))
	require.True(t, lost(t, err)[0].Absent())
}

// Proves SCOPE-14.
func (s suite) afterSweep(t *testing.T) {
	f := s.fresh(t)
	f.must(sweep(f.expiring(thing)))
	again := update(thing, 2)
	again.Gone = true
	f.must(again)
	r := f.load(thing)
	require.False(t, r.Gone(r.Now))
	require.Zero(t, r.Expires)
	require.EqualValues(t, 1, r.Born)
	f.must(sweep(f.expiring(key("purged"))))
	removed, err := f.purger().Purge(t.Context(), persist.Query{Kind: "thing"})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	require.GreaterOrEqual(t, f.floor(key("purged")), uint64(2))
}

// Proves SCOPE-14, STORE-2.
func (s suite) sweepRace(t *testing.T) {
	f := s.fresh(t)
	const contenders, rounds = 6, 5
	for round := range rounds {
		k := key(fmt.Sprint(round))
		swept := sweep(f.expiring(k))
		again := update(k, 1)
		again.Gone = true
		errs := make([]error, contenders)
		together(contenders, func(i int) { _, errs[i] = f.write([]persist.Write{swept, again}[i%2]) })
		winner := -1
		for i, err := range errs {
			if err == nil {
				require.Equal(t, -1, winner, "two writes follow one version")
				winner = i
			}
		}
		require.NotEqual(t, -1, winner)
		r := f.load(k)
		for i, err := range errs {
			if i != winner {
				same(t, r, lost(t, err)[0])
			}
		}
		require.Equal(t, winner%2 == 0, r.Deleted)
		require.Equal(t, winner%2 == 0, !r.Expires.IsZero())
	}
}
