package persisttest

import (
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
	}
}

// expiring is a record that has expired by the store's clock.
func (f *fixture) expiring(k persist.Key) persist.Record {
	f.Helper()
	w := create(k)
	w.TTL = 2 * time.Millisecond
	f.must(w)
	return f.eventually(k, "expired", func(r persist.Record) bool { return r.Expired(r.Now) })
}

// expiredIsGone: the store's clock decides inside the write, and a writer that still thinks the
// record alive conflicts.
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
	require.Len(t, r.Commits, 2, "the ring outlives the document")
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
