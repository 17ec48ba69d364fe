package persisttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) clocks() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"times are kept in microseconds":         s.microseconds,
		"no record is from the future":           s.notFromTheFuture,
		"hosts with wrong clocks judge alike":    s.skewedHosts,
		"a wrong clock moves no other process's": s.skewedOpener,
	}
}

// microseconds: times are whole microseconds, and a duration has the length that is left then.
//
// Proves STORE-1.
func (s suite) microseconds(t *testing.T) {
	f := s.fresh(t)
	for i, d := range []time.Duration{time.Microsecond, 1999 * time.Nanosecond, time.Second + 1} {
		k := key(string(rune('a' + i)))
		w := acquire(k, 0, "me", d)
		w.DueIn, w.TTL = d, d
		at := f.must(w)
		require.True(t, at.Equal(at.Truncate(time.Microsecond)), "%s is not a whole number of microseconds", at)
		r := f.load(k)
		for _, got := range []time.Time{r.Due, r.Expires, r.Lease.Until} {
			require.True(t, got.Equal(at.Add(d.Truncate(time.Microsecond))), "%s after %s gives %s", d, at, got)
		}
	}
}

// notFromTheFuture: no answer has a Now before the Updated of its record, whichever handle wrote it.
//
// Proves STORE-8.
func (s suite) notFromTheFuture(t *testing.T) {
	one := s.fresh(t)
	two := one
	if !s.options.Volatile {
		two = s.at(t, one.location)
	}
	for version := range uint64(20) {
		at := one.must(update(thing, version))
		check := func(r persist.Record) {
			t.Helper()
			require.True(t, r.Updated.Equal(at))
			require.False(t, r.Now.Before(at), "Now %s is before the commit at %s", r.Now, at)
		}
		check(two.load(thing))
		page, err := two.store.List(t.Context(), persist.Query{Kind: thing.Kind})
		require.NoError(t, err)
		check(page.Records[0])
		_, err = two.write(update(thing, version))
		check(lost(t, err)[0])
		one, two = two, one
	}
}

// skew is how wrong the clocks of the hosts are, in both directions.
const skew = time.Hour

// skewed returns handles of a host whose clock is behind, of a host whose clock is ahead, and of this
// one.
func (s suite) skewed(t *testing.T) (behind, ahead, right *fixture) {
	if s.options.Skewed == nil {
		t.Skip("Options.Skewed: the store does not depend on the clocks of several hosts")
	}
	right = s.fresh(t)
	open := func(off time.Duration) *fixture {
		store, err := s.options.Skewed(right.location, off)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		return &fixture{T: t, store: store, location: right.location}
	}
	return open(-skew), open(skew), right
}

// skewedHosts: leases, expiry, due times and ages are the same for all handles.
//
// Proves STORE-17.
func (s suite) skewedHosts(t *testing.T) {
	behind, ahead, right := s.skewed(t)
	handles := []*fixture{behind, ahead, right}
	for i, writer := range handles {
		leased, lasting := key("leased"+string(rune('a'+i))), key("lasting"+string(rune('a'+i)))
		writer.must(acquire(leased, 0, "me", skew/2))
		w := create(lasting)
		w.TTL, w.DueIn, w.Label = skew/2, skew/2, "lasting"
		writer.must(w)
		for _, reader := range handles {
			r := reader.load(leased)
			require.True(t, r.Held(r.Now), "the lease of another host ran out early")
			_, err := reader.write(acquire(leased, 1, "you", time.Minute))
			lost(t, err)
			_, err = reader.guard(persist.Guard{Key: leased, Token: 1, Extend: skew / 2})
			require.NoError(t, err)
			r = reader.load(lasting)
			require.False(t, r.Gone(r.Now), "the document of another host expired early")
			_, err = reader.guard(persist.Guard{Key: lasting, Read: true, Version: 1})
			require.NoError(t, err)
			require.Empty(t, reader.ids(persist.Query{Kind: thing.Kind, Prefix: lasting.ID, Due: true}))
			require.Empty(t, reader.ids(persist.Query{Kind: thing.Kind, Prefix: lasting.ID, Expired: true}))
			require.Empty(t, reader.ids(persist.Query{Kind: thing.Kind, Prefix: lasting.ID, Age: skew / 2}))
		}
	}
	short := key("short")
	ahead.must(acquire(short, 0, "me", 5*time.Millisecond))
	behind.eventually(short, "free", func(r persist.Record) bool { return !r.Held(r.Now) })
	_, err := ahead.guard(persist.Guard{Key: short, Token: 1})
	fenced(t, err) // what one host has seen, no other host judges otherwise later
}

// skewedOpener: a host whose clock is wrong opens the store and writes. The time of the other hosts
// does not jump.
//
// Proves STORE-17.
func (s suite) skewedOpener(t *testing.T) {
	behind, ahead, right := s.skewed(t)
	for i, f := range []*fixture{right, ahead, behind} {
		at := f.must(update(thing, uint64(i)))
		r := right.load(thing)
		require.True(t, r.Updated.Equal(at))
		require.Less(t, r.Now.Sub(at).Abs(), skew/2)
	}
}
