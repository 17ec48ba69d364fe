package persisttest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) leases() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a live lease is not taken again":             s.leaseIsExclusive,
		"one of many contenders acquires":             s.oneContender,
		"extending moves no version":                  s.extendMovesNothing,
		"releasing frees the record":                  s.release,
		"a token is tested inside the write":          s.tokenInWrite,
		"a lease that ran out commits nothing":        s.expiredLease,
		"a lost lease is reported before a conflict":  s.fencedFirst,
		"a delete ends the lease":                     s.deleteEndsLease,
		"other writers may write a leased record":     s.writeBesideHolder,
		"a document that starts over ends the lease":  s.endLease,
		"starting over can take a lease that is live": s.endAndAcquire,
		"Take acquires matching records without one":  s.take,
		"Take takes the longest due first":            s.takeLongestDue,
		"Take gives each record to one caller":        s.takeRace,
		"Take stores what a change makes of a record": s.takeChanged,
		"Take with a change gives a record once":      s.takeChangedRace,
	}
}

// acquire returns the write of the version after expected that takes the lease.
func acquire(k persist.Key, expected uint64, holder string, d time.Duration) persist.Write {
	w := update(k, expected)
	w.Acquire = &persist.Acquire{Holder: holder, For: d}
	return w
}

// leaseIsExclusive: a lease is identified by its token, so a holder of the same name conflicts too.
//
// Proves STORE-1.
func (s suite) leaseIsExclusive(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	before := f.load(thing)
	for _, holder := range []string{"you", "me"} {
		_, err := f.write(acquire(thing, 1, holder, time.Hour))
		same(t, before, lost(t, err)[0])
	}
}

// Proves STORE-2.
func (s suite) oneContender(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	const contenders = 16
	errs := make([]error, contenders)
	together(contenders, func(i int) {
		_, errs[i] = f.write(acquire(thing, 1, fmt.Sprint(i), time.Hour))
	})
	winner := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, winner, "two contenders hold the lease")
			winner = i
			continue
		}
		current := lost(t, err)[0]
		require.True(t, current.Held(current.Now))
	}
	r := f.load(thing)
	require.Equal(t, fmt.Sprint(winner), r.Lease.Holder)
	require.Equal(t, r.Version, r.Lease.Token)
}

// Proves STORE-1.
func (s suite) extendMovesNothing(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Minute))
	before := f.load(thing)
	at, err := f.guard(persist.Guard{Key: thing, Token: 1, Extend: time.Hour})
	require.NoError(t, err)
	after := f.load(thing)
	require.True(t, after.Lease.Until.Equal(at.Add(time.Hour)))
	after.Lease.Until = before.Lease.Until
	same(t, before, after)
}

// Proves STORE-1.
func (s suite) release(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	before := f.load(thing)
	_, err := f.guard(persist.Guard{Key: thing, Token: 1, Release: true})
	require.NoError(t, err)
	after := f.load(thing)
	require.Zero(t, after.Lease)
	after.Lease = before.Lease
	same(t, before, after)
	f.must(acquire(thing, 1, "you", time.Hour))
}

// tokenInWrite: a holder whose lease another holder has taken commits nothing.
//
// Proves STORE-2.
func (s suite) tokenInWrite(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	_, err := f.guard(persist.Guard{Key: thing, Token: 1, Release: true})
	require.NoError(t, err)
	f.must(acquire(thing, 1, "you", time.Hour))
	before := f.load(thing)
	_, err = f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{update(thing, 2)},
		Guards: []persist.Guard{{Key: thing, Token: 1}},
	})
	same(t, before, fenced(t, err))
	same(t, before, f.load(thing))
	_, err = f.guard(persist.Guard{Key: key("absent"), Token: 1})
	require.True(t, fenced(t, err).Absent())
}

// Proves STORE-8.
func (s suite) expiredLease(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", 5*time.Millisecond))
	f.eventually(thing, "free", func(r persist.Record) bool { return !r.Held(r.Now) })
	for _, guard := range []persist.Guard{
		{Key: thing, Token: 1},
		{Key: thing, Token: 1, Extend: time.Hour},
		{Key: thing, Token: 1, Release: true},
	} {
		_, err := f.guard(guard)
		fenced(t, err)
	}
	_, err := f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{update(thing, 1)},
		Guards: []persist.Guard{{Key: thing, Token: 1}},
	})
	fenced(t, err)
	require.EqualValues(t, 1, f.load(thing).Version)
	f.must(acquire(thing, 1, "you", time.Hour))
}

// Proves STORE-1.
func (s suite) fencedFirst(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	_, err := f.store.Commit(f.Context(), persist.Commit{
		ID:     commitID(),
		Writes: []persist.Write{update(thing, 7)},
		Guards: []persist.Guard{{Key: thing, Token: 3}},
	})
	fenced(t, err)
}

// Proves STORE-1.
func (s suite) deleteEndsLease(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	f.must(remove(thing, 1))
	require.Zero(t, f.load(thing).Lease)
	_, err := f.guard(persist.Guard{Key: thing, Token: 1, Extend: time.Hour})
	fenced(t, err)
}

// Proves STORE-1.
func (s suite) writeBesideHolder(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	f.must(update(thing, 1))
	r := f.load(thing)
	require.EqualValues(t, 1, r.Lease.Token)
	_, err := f.guard(persist.Guard{Key: thing, Token: 1})
	require.NoError(t, err)
}

// endLease: a document that starts over has no lease, and the old holder gets *Fenced.
//
// Proves STORE-13.
func (s suite) endLease(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	w := update(thing, 1)
	w.EndLease = true
	f.must(w)
	r := f.load(thing)
	require.Zero(t, r.Lease)
	require.EqualValues(t, 2, r.Version)
	_, err := f.guard(persist.Guard{Key: thing, Token: 1})
	same(t, r, fenced(t, err))
	_, err = f.guard(persist.Guard{Key: thing, Token: 1, Extend: time.Hour})
	fenced(t, err)
	require.Equal(t, []string{"1"}, f.ids(persist.Query{Kind: "thing", Unheld: true}))
	w = update(thing, 2)
	w.EndLease = true
	f.must(w) // EndLease without a lease has no effect
	require.Zero(t, f.load(thing).Lease)

	f.must(acquire(key("mine"), 0, "me", time.Hour))
	w = update(key("mine"), 1)
	w.EndLease = true
	_, err = f.store.Commit(t.Context(), persist.Commit{
		ID: commitID(), Writes: []persist.Write{w}, Guards: []persist.Guard{{Key: key("mine"), Token: 1}},
	})
	require.NoError(t, err, "the holder may end its own lease")
	require.Zero(t, f.load(key("mine")).Lease)
}

// Proves STORE-13.
func (s suite) endAndAcquire(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(thing, 0, "me", time.Hour))
	w := acquire(thing, 1, "you", time.Minute)
	_, err := f.write(w)
	lost(t, err)
	w.EndLease = true
	at := f.must(w)
	require.Equal(t, persist.Lease{Holder: "you", Token: 2, Until: at.Add(time.Minute)}, f.load(thing).Lease)
	_, err = f.guard(persist.Guard{Key: thing, Token: 1})
	require.EqualValues(t, 2, fenced(t, err).Lease.Token)
	w = acquire(thing, 1, "late", time.Minute)
	w.EndLease = true
	_, err = f.write(w)
	lost(t, err)
	_, err = f.guard(persist.Guard{Key: thing, Token: 2})
	require.NoError(t, err)
}

// leaser returns the store as a Leaser.
func (f *fixture) leaser() persist.Leaser {
	leaser, ok := f.store.(persist.Leaser)
	if !ok {
		f.Skip("the store is not a persist.Leaser")
	}
	return leaser
}

// Proves STORE-1.
func (s suite) take(t *testing.T) {
	f := s.fresh(t)
	leaser := f.leaser()
	for i, id := range []string{"late", "early", "later", "other"} {
		w := create(key(id))
		w.Label = map[bool]string{true: "other", false: "open"}[id == "other"]
		w.Due = time.Now().Add(-time.Duration([]int{2, 3, 1, 4}[i]) * time.Hour)
		f.must(w)
	}
	f.must(acquire(key("held"), 0, "you", time.Hour))
	before := f.load(key("early"))

	q := persist.Query{Kind: "thing", Labels: []string{"open"}, Due: true, Limit: 2}
	taken, err := leaser.Take(f.Context(), q, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	for _, r := range taken {
		require.EqualValues(t, 2, r.Version)
		require.Equal(t, persist.Lease{Holder: "me", Token: 2, Until: r.Updated.Add(time.Hour)}, r.Lease)
		same(t, r, f.load(r.Key))
		_, err := f.guard(persist.Guard{Key: r.Key, Token: 2})
		require.NoError(t, err)
		if r.ID == "early" {
			sameDoc(t, before.Doc, r.Doc)
			require.Equal(t, before.Commits, r.Commits)
		}
	}
	taken, err = leaser.Take(f.Context(), q, persist.Acquire{Holder: "you", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	taken, err = leaser.Take(f.Context(), q, persist.Acquire{Holder: "you", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Empty(t, taken)

	_, err = leaser.Take(f.Context(), persist.Query{Deleted: true}, persist.Acquire{For: time.Hour}, nil)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	_, err = leaser.Take(f.Context(), q, persist.Acquire{}, nil)
	require.ErrorIs(t, err, persist.ErrNotApplied)
}

// takeLongestDue: records are listed and taken in the order of their due times, not in that of their
// ids or of their creation.
//
// Proves STORE-17.
func (s suite) takeLongestDue(t *testing.T) {
	f := s.fresh(t)
	leaser := f.leaser()
	const records = 23
	past := time.Now().Add(-24 * time.Hour)
	var want []string
	for i := range records {
		place := i * 7 % records // the i-th in the order of ids and creation
		w := create(key(fmt.Sprintf("%02d", i)))
		w.Due, w.Label = past.Add(time.Duration(place)*time.Second), []string{"odd", "even"}[i%2]
		f.must(w)
	}
	for place := range records {
		want = append(want, fmt.Sprintf("%02d", place*10%records)) // 7*10 is 1 modulo 23
	}
	require.Equal(t, want, f.ordered(persist.Query{Kind: thing.Kind, Due: true, Limit: 4}))
	require.Equal(t, want, f.ordered(persist.Query{Kind: thing.Kind, Due: true, Limit: 5, Labels: []string{"odd", "even"}}))
	got := []string{}
	for {
		taken, err := leaser.Take(f.Context(), persist.Query{Kind: thing.Kind, Due: true, Limit: 4}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
		require.NoError(t, err)
		if len(taken) == 0 {
			break
		}
		for _, r := range taken {
			got = append(got, r.ID)
		}
	}
	require.Equal(t, want, got)
}

// takeChanged: a change sets the content of the record in the version that has the lease. A record
// that it declines stays as it is.
//
// Proves STORE-1.
func (s suite) takeChanged(t *testing.T) {
	f := s.fresh(t)
	leaser := f.leaser()
	for _, id := range []string{"a", "b", "c", "malformed"} {
		w := create(key(id))
		w.Label, w.Due, w.TTL = "open", time.Now().Add(-time.Hour), time.Hour
		f.must(w)
	}
	before := map[string]persist.Record{"b": f.load(key("b")), "c": f.load(key("c")), "malformed": f.load(key("malformed"))}
	change := func(r persist.Record) (persist.Record, bool) {
		switch r.ID {
		case "b":
			return r, false
		case "malformed":
			r.Doc = []byte("{")
			return r, true
		case "c": // only the lease changes
			return r, true
		}
		r.Version, r.Born, r.Deleted, r.Commits = 77, 77, true, nil // ignored
		r.Key, r.Lease = key("z"), persist.Lease{Token: 5}
		r.Doc, r.Schema, r.Label = doc(9), 3, "busy"
		r.Due, r.Expires = r.Now.Add(time.Minute), time.Time{}
		return r, true
	}
	taken, err := leaser.Take(f.Context(), persist.Query{Kind: "thing", Limit: 9}, persist.Acquire{Holder: "me", For: time.Hour}, change)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	for _, r := range taken {
		require.EqualValues(t, 2, r.Version)
		require.Equal(t, persist.Lease{Holder: "me", Token: 2, Until: r.Updated.Add(time.Hour)}, r.Lease)
		same(t, r, f.load(r.Key))
	}
	a := f.load(key("a"))
	sameDoc(t, doc(9), a.Doc)
	require.Equal(t, 3, a.Schema)
	require.Equal(t, "busy", a.Label)
	require.True(t, a.Due.Equal(a.Updated.Add(time.Minute)))
	require.Zero(t, a.Expires)
	require.EqualValues(t, 1, a.Born)
	require.Equal(t, []string{"a"}, f.ids(persist.Query{Kind: "thing", Labels: []string{"busy"}}))
	c := f.load(key("c"))
	c.Version, c.Updated, c.Lease = before["c"].Version, before["c"].Updated, before["c"].Lease
	same(t, before["c"], c)
	same(t, before["b"], f.load(key("b")))
	same(t, before["malformed"], f.load(key("malformed")))
	taken, err = leaser.Take(f.Context(), persist.Query{Kind: "absent"}, persist.Acquire{Holder: "me", For: time.Hour}, change)
	require.NoError(t, err)
	require.Empty(t, taken)
}

// Proves STORE-2.
func (s suite) takeRace(t *testing.T) { s.raceTakes(t, nil) }

// takeChangedRace: no two calls compute a change of the same record.
//
// Proves STORE-2.
func (s suite) takeChangedRace(t *testing.T) {
	var changes atomic.Int64
	records := s.raceTakes(t, func(r persist.Record) (persist.Record, bool) {
		changes.Add(1)
		r.Doc = doc(int(r.Version) + 1)
		return r, true
	})
	require.EqualValues(t, records, changes.Load())
}

// raceTakes lets several goroutines take all records, and returns their number.
func (s suite) raceTakes(t *testing.T, change persist.Change) int {
	f := s.fresh(t)
	leaser := f.leaser()
	const records = 30
	for i := range records {
		f.must(create(key(fmt.Sprint(i))))
	}
	var mu sync.Mutex // protects owners
	owners := map[string]string{}
	own := func(me string, taken []persist.Record) bool {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range taken {
			if owners[r.ID] != "" {
				t.Errorf("%s was given to %s and %s", r.ID, owners[r.ID], me)
				return false
			}
			owners[r.ID] = me
		}
		return true
	}
	together(6, func(i int) {
		me := fmt.Sprint(i)
		for {
			taken, err := leaser.Take(f.Context(), persist.Query{Kind: "thing", Limit: 3}, persist.Acquire{Holder: me, For: time.Hour}, change)
			if err != nil {
				t.Error(err)
			}
			if len(taken) == 0 || !own(me, taken) {
				return
			}
		}
	})
	require.Len(t, owners, records)
	for i := range records {
		r := f.load(key(fmt.Sprint(i)))
		require.Equal(t, owners[r.ID], r.Lease.Holder)
		require.EqualValues(t, 2, r.Version)
	}
	return records
}

// together runs n goroutines that start at the same moment, and waits for them.
func together(n int, run func(i int)) {
	var workers sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		workers.Go(func() {
			<-start
			run(i)
		})
	}
	close(start)
	workers.Wait()
}
