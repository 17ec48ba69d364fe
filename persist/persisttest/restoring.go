package persisttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) restoring() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a restored record has all fields":           s.restored,
		"a restored record is read, listed, written": s.restoredInUse,
		"a restored record replaces an older one":    s.restoredOver,
		"a newer record is not replaced":             s.notRestored,
		"the version floor is raised, never lowered": s.restoredFloor,
		"a malformed record is refused":              s.restoreMalformed,
		"an opened store has the restored records":   s.restoredAndReopened,
		"an ended context and Close stop Restore":    s.restoreEnds,
		"Copy copies records in every state":         s.copied,
		"a copied store continues like its source":   s.copiedInUse,
	}
}

// restorer returns the store as a Restorer.
func (f *fixture) restorer() persist.Restorer {
	f.Helper()
	restorer, ok := f.store.(persist.Restorer)
	if !ok {
		f.Skip("the store is not a persist.Restorer")
	}
	return restorer
}

// restore restores records and fails the test on an error.
func (f *fixture) restore(records ...persist.Record) {
	f.Helper()
	require.NoError(f, f.restorer().Restore(f.Context(), records, 0))
}

// everyState returns one record in each state, with an id that names the state.
func everyState() []persist.Record {
	now := time.Now().UTC().Truncate(time.Microsecond)
	ago, later := now.Add(-time.Hour), now.Add(time.Hour)
	live := persist.Lease{Holder: "me", Token: 8, Until: later}
	record := func(id string, change func(*persist.Record)) persist.Record {
		r := persist.Record{
			Key: key(id), Version: 9, Born: 3, Doc: doc(9), Updated: ago.Add(-time.Minute),
			Commits: []string{"a.1", "b.c.7"},
		}
		change(&r)
		return r
	}
	return []persist.Record{
		record("alive", func(*persist.Record) {}),
		record("full", func(r *persist.Record) {
			r.Schema, r.Label, r.Due, r.Expires, r.Lease = 4, "open", ago, later, live
		}),
		record("lease ran out", func(r *persist.Record) { r.Lease = persist.Lease{Holder: "me", Token: 9, Until: ago} }),
		record("expired", func(r *persist.Record) { r.Expires = ago }),
		record("expired and leased", func(r *persist.Record) { r.Expires, r.Lease = ago, live }),
		record("deleted", func(r *persist.Record) { r.Doc, r.Deleted = nil, true }),
		record("swept", func(r *persist.Record) { r.Doc, r.Deleted, r.Expires = nil, true, ago }),
		record("no commits", func(r *persist.Record) { r.Commits = nil }),
	}
}

// Proves STORE-15.
func (s suite) restored(t *testing.T) {
	f := s.fresh(t)
	records := everyState()
	for i, name := range hostile {
		records = append(records, persist.Record{Key: persist.Key{Kind: name, ID: name}, Version: 1, Born: 1, Doc: doc(i), Updated: records[0].Updated})
	}
	f.restore(records...)
	for _, want := range records {
		same(t, want, f.load(want.Key))
		require.Equal(t, want.Doc == nil, f.load(want.Key).Doc == nil)
	}
	f.restore(records...) // a second time
	for _, want := range records {
		same(t, want, f.load(want.Key))
	}
	require.Zero(t, f.floor(key("absent")))
	f.restore()
}

// restoredInUse: lists, guards and writes treat a restored record like one that was committed.
//
// Proves STORE-15.
func (s suite) restoredInUse(t *testing.T) {
	f := s.fresh(t)
	f.restore(everyState()...)
	for _, c := range []struct {
		q    persist.Query
		want []string
	}{
		{persist.Query{}, []string{"alive", "expired and leased", "full", "lease ran out", "no commits"}},
		{persist.Query{Kind: "thing", Expired: true}, []string{"expired"}},
		{persist.Query{Kind: "thing", Deleted: true}, []string{"deleted", "swept"}},
		{persist.Query{Kind: "thing", Labels: []string{"open"}}, []string{"full"}},
		{persist.Query{Kind: "thing", Due: true}, []string{"full"}},
		{persist.Query{Kind: "thing", Unheld: true}, []string{"alive", "lease ran out", "no commits"}},
		{persist.Query{Kind: "thing", Age: 30 * time.Minute, Prefix: "al"}, []string{"alive"}},
	} {
		require.Equal(t, c.want, f.ids(c.q), "%+v", c.q)
	}

	_, err := f.write(update(key("alive"), 8))
	require.EqualValues(t, 9, lost(t, err)[0].Version)
	_, err = f.store.Commit(t.Context(), persist.Commit{ID: "b.c.8", Writes: []persist.Write{update(key("alive"), 9)}})
	require.NoError(t, err)
	r := f.load(key("alive"))
	require.Equal(t, []string{"a.1", "b.c.7", "b.c.8"}, r.Commits)
	require.EqualValues(t, 3, r.Born)

	_, err = f.write(acquire(key("full"), 9, "you", time.Hour))
	lost(t, err)
	_, err = f.guard(persist.Guard{Key: key("full"), Token: 8, Extend: 2 * time.Hour})
	require.NoError(t, err)
	_, err = f.guard(persist.Guard{Key: key("lease ran out"), Token: 9})
	fenced(t, err)
	_, err = f.guard(persist.Guard{Key: key("expired and leased"), Token: 8, Release: true})
	require.NoError(t, err)
	r = f.load(key("expired and leased"))
	require.True(t, r.Expired(r.Now))
	f.must(sweep(f.load(key("expired"))))
	for _, id := range []string{"deleted", "swept"} {
		_, err = f.write(create(key(id)))
		require.True(t, lost(t, err)[0].Deleted)
		again := update(key(id), 9)
		again.Gone = true
		f.must(again)
	}
}

// restoredOver: Restore replaces a record of a lower or the same version in every field, also one
// that was deleted or leased.
//
// Proves STORE-15.
func (s suite) restoredOver(t *testing.T) {
	f := s.fresh(t)
	f.restorer()
	for _, want := range everyState() {
		w := acquire(want.Key, 0, "you", time.Hour)
		w.Label, w.DueIn, w.TTL, w.Schema, w.Version = "closed", time.Hour, time.Hour, 2, 5
		f.must(w)
		f.restore(want)
		same(t, want, f.load(want.Key))
	}
	for _, want := range everyState() {
		for _, before := range everyState() {
			before.Key = want.Key
			f.restore(before)
			f.restore(want)
			same(t, want, f.load(want.Key))
		}
	}
	require.Empty(t, f.ids(persist.Query{Kind: "thing", Labels: []string{"closed"}}))
}

// notRestored: Restore returns a conflict with the newer record, alive or deleted, and keeps it.
//
// Proves STORE-15.
func (s suite) notRestored(t *testing.T) {
	f := s.fresh(t)
	f.restorer()
	old := everyState()[0]
	for i, newer := range everyState() {
		newer.Version = 10
		f.restore(newer)
		old.Key = newer.Key
		err := f.restorer().Restore(t.Context(), []persist.Record{old}, 0)
		winners := lost(t, err)
		require.Len(t, winners, 1)
		same(t, newer, winners[0])
		same(t, newer, f.load(newer.Key))

		other := old
		other.Key = key(fmt.Sprint("other ", i))
		err = f.restorer().Restore(t.Context(), []persist.Record{other, old}, 0)
		same(t, newer, lost(t, err)[0])
		same(t, newer, f.load(newer.Key))
	}
}

// Proves STORE-15.
func (s suite) restoredFloor(t *testing.T) {
	f := s.fresh(t)
	restorer := f.restorer()
	require.NoError(t, restorer.Restore(t.Context(), nil, 41))
	require.EqualValues(t, 41, f.floor(thing))
	require.NoError(t, restorer.Restore(t.Context(), nil, 7))
	require.EqualValues(t, 41, f.floor(thing))
	_, err := f.write(create(thing))
	require.EqualValues(t, 41, lost(t, err)[0].Version)

	// A restored record may be below the floor, as in a store that has purged other records.
	r := everyState()[0]
	require.NoError(t, restorer.Restore(t.Context(), []persist.Record{r}, 43))
	same(t, r, f.load(r.Key))
	require.EqualValues(t, 43, f.floor(thing))
	f.must(update(r.Key, 9))
}

// Proves STORE-15.
func (s suite) restoreMalformed(t *testing.T) {
	f := s.fresh(t)
	restorer := f.restorer()
	ok := everyState()[1]
	with := func(change func(*persist.Record)) []persist.Record {
		r := ok
		change(&r)
		return []persist.Record{r}
	}
	for name, records := range map[string][]persist.Record{
		"no id":              with(func(r *persist.Record) { r.ID = "" }),
		"version 0":          with(func(r *persist.Record) { r.Version = 0 }),
		"absent":             with(func(r *persist.Record) { r.Updated = time.Time{} }),
		"not JSON":           with(func(r *persist.Record) { r.Doc = []byte(`{`) }),
		"tombstone with doc": with(func(r *persist.Record) { r.Deleted, r.Lease = true, persist.Lease{} }),
		"nanoseconds":        with(func(r *persist.Record) { r.Due = r.Due.Add(1) }),
		"same key twice":     {ok, ok},
	} {
		require.ErrorIs(t, restorer.Restore(t.Context(), records, 0), persist.ErrNotApplied, name)
	}
	require.Empty(t, f.ids(persist.Query{}))
}

// Proves STORE-15.
func (s suite) restoredAndReopened(t *testing.T) {
	s.needsSharing(t)
	f := s.fresh(t)
	records := everyState()
	require.NoError(t, f.restorer().Restore(t.Context(), records, 41))
	other := s.at(t, f.location)
	require.NoError(t, f.store.Close())
	for _, f := range []*fixture{other, s.at(t, f.location)} {
		for _, want := range records {
			same(t, want, f.load(want.Key))
		}
		require.EqualValues(t, 41, f.floor(key("absent")))
	}
}

// Proves STORE-15.
func (s suite) restoreEnds(t *testing.T) {
	f := s.fresh(t)
	restorer := f.restorer()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := restorer.Restore(ended, everyState(), 7)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, f.ids(persist.Query{}))
	require.Zero(t, f.floor(thing))
	require.NoError(t, f.store.Close())
	require.ErrorIs(t, restorer.Restore(t.Context(), everyState(), 7), persist.ErrClosed)
}

// used fills the store by commits: records in every state on several pages, in several kinds, and a
// version floor if the store can purge.
func (f *fixture) used() {
	f.Helper()
	if purger, ok := f.store.(persist.Purger); ok {
		w := create(key("purged"))
		w.Version = 41
		f.must(w)
		f.must(remove(w.Key, 41))
		_, err := purger.Purge(f.Context(), persist.Query{})
		require.NoError(f, err)
	}
	floor := f.floor(key("purged"))
	first := func(w persist.Write) persist.Write {
		w.Version = floor + 1
		return w
	}
	for i, name := range hostile {
		w := first(create(persist.Key{Kind: fmt.Sprint("kind", i%3), ID: name}))
		w.Doc = doc(i)
		f.must(w)
		if i%4 == 0 {
			f.must(remove(w.Key, w.Version))
		}
	}
	full := first(acquire(key("full"), 0, "me", time.Hour))
	full.Label, full.DueIn, full.TTL, full.Schema = "open", time.Hour, time.Hour, 3
	f.must(full)
	f.must(update(key("full"), floor+1))
	short := first(create(key("expired")))
	short.TTL = time.Millisecond
	f.must(short)
	short.Key = key("swept")
	f.must(short)
	leased := first(acquire(key("expired and leased"), 0, "me", time.Hour))
	leased.TTL = time.Millisecond
	f.must(leased)
	f.must(first(acquire(key("lease ran out"), 0, "me", time.Millisecond)))
	f.eventually(key("lease ran out"), "free", func(r persist.Record) bool { return !r.Held(r.Now) })
	f.must(sweep(f.eventually(key("swept"), "expired", func(r persist.Record) bool { return r.Expired(r.Now) })))
	f.eventually(key("expired"), "expired", func(r persist.Record) bool { return r.Expired(r.Now) })
}

// all returns the records in the store.
func (f *fixture) all() (records []persist.Record) {
	f.Helper()
	for _, q := range []persist.Query{{Limit: 1000}, {Limit: 1000, Expired: true}, {Limit: 1000, Deleted: true}} {
		page, err := f.store.List(f.Context(), q)
		require.NoError(f, err)
		require.Empty(f, page.Next)
		records = append(records, page.Records...)
	}
	return records
}

// copied: Copy to an empty store keeps every record and the floor, and the second run writes none.
//
// Proves STORE-15.
func (s suite) copied(t *testing.T) {
	from, to := s.fresh(t), s.fresh(t)
	to.restorer()
	from.used()
	records := from.all()
	n := len(records)
	report, err := persist.Copy(t.Context(), from.store, to.store, persist.CopyOptions{PageSize: 7})
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Copied: n, Verified: n}, report)
	for _, want := range records {
		same(t, want, to.load(want.Key))
	}
	require.Len(t, to.all(), n)
	require.Equal(t, from.floor(key("purged")), to.floor(key("purged")))

	report, err = persist.Copy(t.Context(), from.store, to.store, persist.CopyOptions{PageSize: 7})
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Unchanged: n, Verified: n}, report)
}

// copiedInUse: a client of the source continues with the copy: its versions, its lease and its
// commit ids are still those of the records.
//
// Proves STORE-15.
func (s suite) copiedInUse(t *testing.T) {
	from, to := s.fresh(t), s.fresh(t)
	to.restorer()
	from.used()
	_, err := persist.Copy(t.Context(), from.store, to.store, persist.CopyOptions{})
	require.NoError(t, err)
	for _, f := range []*fixture{from, to} {
		full := f.load(key("full"))
		w := update(full.Key, full.Version)
		w.Recent = full.Commits
		_, err := f.store.Commit(t.Context(), persist.Commit{
			ID: "client.1", Writes: []persist.Write{w}, Guards: []persist.Guard{{Key: full.Key, Token: full.Lease.Token, Extend: time.Hour}},
		})
		require.NoError(t, err)
		require.Equal(t, append(full.Commits, "client.1"), f.load(full.Key).Commits)
		_, err = f.write(acquire(key("expired and leased"), f.load(key("expired and leased")).Version, "you", time.Hour))
		lost(t, err)
		f.must(sweep(f.load(key("expired"))))
	}
}
