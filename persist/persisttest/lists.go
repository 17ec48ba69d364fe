package persisttest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) lists() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"each field restricts":                      s.listFields,
		"a prefix is taken literally":               s.listPrefix,
		"age is judged by the store's clock":        s.listAge,
		"pages are complete and without repetition": s.listPages,
		"due records come in pages too":             s.listDuePages,
		"listed records have all fields":            s.listWhole,
		"an unknown cursor is refused":              s.listBadCursor,
		"ranges come in order, in both directions":  s.listRanges,
		"pages go on while records change":          s.listChanging,
	}
}

// ids returns the ids of all pages of q, sorted. It fails the test if an id comes twice.
func (f *fixture) ids(q persist.Query) []string {
	f.Helper()
	ids := []string{}
	for {
		page, err := f.store.List(f.Context(), q)
		require.NoError(f, err)
		for _, r := range page.Records {
			ids = append(ids, r.ID)
		}
		require.LessOrEqual(f, len(page.Records), q.PageSize())
		if page.Next == "" {
			break
		}
		q.After = page.Next
	}
	slices.Sort(ids)
	require.Equal(f, len(ids), len(slices.Compact(slices.Clone(ids))), "a record is listed twice: %v", ids)
	return ids
}

// Proves STORE-1.
func (s suite) listFields(t *testing.T) {
	f := s.fresh(t)
	open := create(key("open"))
	open.Label = "open"
	due := create(key("due"))
	due.Label, due.Due = "closed", time.Now().Add(-time.Hour)
	notYet := create(key("not yet"))
	notYet.DueIn = time.Hour
	f.must(open)
	f.must(due)
	f.must(notYet)
	f.must(acquire(key("held"), 0, "me", time.Hour))
	f.expiring(key("expired"))
	f.must(create(key("deleted")))
	f.must(remove(key("deleted"), 1))
	f.must(create(persist.Key{Kind: "other", ID: "elsewhere"}))

	for _, c := range []struct {
		name string
		q    persist.Query
		want []string
	}{
		{"kind", persist.Query{Kind: "thing"}, []string{"due", "held", "not yet", "open"}},
		{"every kind", persist.Query{}, []string{"due", "elsewhere", "held", "not yet", "open"}},
		{"no such kind", persist.Query{Kind: "nothing"}, []string{}},
		{"kinds are whole", persist.Query{Kind: "thin"}, []string{}},
		{"label", persist.Query{Kind: "thing", Labels: []string{"open"}}, []string{"open"}},
		{"labels", persist.Query{Kind: "thing", Labels: []string{"open", "closed", "none"}}, []string{"due", "open"}},
		{"no label", persist.Query{Kind: "thing", Labels: []string{""}}, []string{"held", "not yet"}},
		{"due", persist.Query{Kind: "thing", Due: true}, []string{"due"}},
		{"due soon", persist.Query{Kind: "thing", Due: true, DueIn: 2 * time.Hour}, []string{"not yet"}},
		{"due sooner", persist.Query{Kind: "thing", Due: true, DueIn: time.Minute}, []string{}},
		{"due of every kind", persist.Query{Due: true}, []string{"due"}},
		{"unheld", persist.Query{Kind: "thing", Unheld: true}, []string{"due", "not yet", "open"}},
		{"expired", persist.Query{Kind: "thing", Expired: true}, []string{"expired"}},
		{"deleted", persist.Query{Kind: "thing", Deleted: true}, []string{"deleted"}},
		{"due and label", persist.Query{Kind: "thing", Due: true, Labels: []string{"open"}}, []string{}},
		{"prefix and label", persist.Query{Kind: "thing", Prefix: "d", Labels: []string{"closed"}}, []string{"due"}},
	} {
		require.Equal(t, c.want, f.ids(c.q), c.name)
	}
}

// listPrefix: a prefix has no wildcards.
//
// Proves STORE-1.
func (s suite) listPrefix(t *testing.T) {
	f := s.fresh(t)
	ids := []string{"a%b", "a%c", "axb", "a_b", "a_c", `a\b`, `a\%`, "a*b", "a?b", "a[b]", "A%b", "é", "éa", "e\u0301", "\U0010FFFF", "\U0010FFFFx", "ÿ", "z"}
	for _, id := range ids {
		f.must(create(key(id)))
	}
	for _, prefix := range []string{"a", "a%", "a_", `a\`, `a\%`, "a*", "a?", "a[", "A", "é", "e", "\U0010FFFF", "ÿ", "nothing"} {
		want := []string{}
		for _, id := range ids {
			if len(id) >= len(prefix) && id[:len(prefix)] == prefix {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		require.Equal(t, want, f.ids(persist.Query{Kind: "thing", Prefix: prefix}), "prefix %q", prefix)
	}
}

// Proves STORE-8.
func (s suite) listAge(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	require.Empty(t, f.ids(persist.Query{Kind: "thing", Age: time.Hour}))
	f.eventually(thing, "old enough", func(r persist.Record) bool { return r.Now.Sub(r.Updated) >= 5*time.Millisecond })
	require.Equal(t, []string{"1"}, f.ids(persist.Query{Kind: "thing", Age: 5 * time.Millisecond}))
}

// Proves STORE-1.
func (s suite) listPages(t *testing.T) {
	f := s.fresh(t)
	var want []string
	for i := range 23 {
		id := fmt.Sprintf("%02d", i)
		want = append(want, id)
		f.must(create(key(id)))
		f.must(create(persist.Key{Kind: "another", ID: "x" + id}))
	}
	for _, limit := range []int{1, 7, 22, 23, 24} {
		require.Equal(t, want, f.ids(persist.Query{Kind: "thing", Limit: limit}), "limit %d", limit)
	}
	require.Len(t, f.ids(persist.Query{Limit: 5}), 46)
	page, err := f.store.List(f.Context(), persist.Query{Kind: "thing", Limit: 23})
	require.NoError(t, err)
	require.Empty(t, page.Next, "the last page has no next")
}

// Proves STORE-1.
func (s suite) listDuePages(t *testing.T) {
	f := s.fresh(t)
	past := time.Now().Add(-time.Hour)
	var want []string
	for i := range 9 {
		w := create(key(fmt.Sprint(i)))
		w.Due = past.Add(time.Duration(i/3) * time.Second) // some are due at the same time
		f.must(w)
		want = append(want, w.ID)
	}
	for _, limit := range []int{1, 2, 4, 9} {
		require.Equal(t, want, f.ids(persist.Query{Kind: "thing", Due: true, Limit: limit}), "limit %d", limit)
	}
}

// Proves STORE-1.
func (s suite) listWhole(t *testing.T) {
	f := s.fresh(t)
	w := acquire(thing, 0, "me", time.Hour)
	w.Label, w.DueIn, w.TTL, w.Schema = "open", time.Hour, time.Hour, 3
	f.must(w)
	page, err := f.store.List(f.Context(), persist.Query{Kind: "thing"})
	require.NoError(t, err)
	require.Len(t, page.Records, 1)
	same(t, f.load(thing), page.Records[0])
	require.False(t, page.Records[0].Now.IsZero(), "Record.Now is not set")
}

// Proves STORE-1.
func (s suite) listBadCursor(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	_, err := f.store.List(f.Context(), persist.Query{Kind: "thing", After: "\x00 not a cursor"})
	require.Error(t, err)
}

// ordered returns the ids of all pages of q, as they come.
func (f *fixture) ordered(q persist.Query) []string {
	f.Helper()
	ids := []string{}
	for {
		page, err := f.store.List(f.Context(), q)
		require.NoError(f, err)
		for _, r := range page.Records {
			ids = append(ids, r.ID)
		}
		if q.After = page.Next; q.After == "" {
			return ids
		}
	}
}

// listRanges compares ranges of ids with Query.Match and the order of bytes.
//
// Proves STORE-1.
func (s suite) listRanges(t *testing.T) {
	f := s.fresh(t)
	ids := []string{"", "a", "a0", "a1", "a10", "a2", "b", "B", "ba", "é", "éa", "z", "\U0010FFFF", "~"}
	past := time.Now().Add(-time.Hour)
	var all []persist.Record
	for i, id := range ids[1:] {
		for _, kind := range []string{"thing", "thing2", "thin"} {
			w := create(persist.Key{Kind: kind, ID: id})
			w.Label, w.Due = []string{"even", "odd"}[i%2], past.Add(time.Duration(i*7%5)*time.Second)
			f.must(w)
			all = append(all, f.load(w.Key))
		}
	}
	for _, bound := range ids {
		for _, q := range []persist.Query{
			{From: bound}, {Before: bound}, {From: "a1", Before: bound}, {From: bound, Before: "z"}, {Prefix: "a", From: bound},
			{Prefix: "a", Before: bound}, {Prefix: bound}, {From: bound, Labels: []string{"odd"}}, {From: bound, Labels: []string{"odd", "even"}},
			{From: bound, Due: true}, {Before: bound, Due: true},
		} {
			q.Kind = "thing"
			var want []string
			matching := slices.DeleteFunc(slices.Clone(all), func(r persist.Record) bool { return !q.Match(r, time.Now()) })
			slices.SortFunc(matching, func(a, b persist.Record) int {
				if q.Due {
					return cmp.Or(a.Due.Compare(b.Due), a.Key.Compare(b.Key))
				}
				return a.Key.Compare(b.Key)
			})
			for _, r := range matching {
				want = append(want, r.ID)
			}
			for _, limit := range []int{1, 3, 50} {
				q.Limit, q.Reverse = limit, false
				require.Equal(t, append([]string{}, want...), f.ordered(q), "%+v", q)
				q.Reverse = true
				backwards := append([]string{}, want...)
				slices.Reverse(backwards)
				require.Equal(t, backwards, f.ordered(q), "%+v", q)
			}
		}
	}
	require.Len(t, f.ordered(persist.Query{From: "b", Reverse: true, Limit: 2}), 3*7, "of every kind")
}

// listChanging: records that exist all the time are listed once, also when others are created and
// deleted between two pages.
//
// Proves STORE-1.
func (s suite) listChanging(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		f := s.fresh(t)
		var want []string
		for i := range 20 {
			f.must(create(key(fmt.Sprintf("%02d", i))))
			if i%2 == 0 {
				want = append(want, fmt.Sprintf("%02d", i))
			}
		}
		var got []string
		q := persist.Query{Kind: "thing", Limit: 3, Reverse: reverse}
		for i := 0; ; i++ {
			page, err := f.store.List(f.Context(), q)
			require.NoError(t, err)
			for _, r := range page.Records {
				if r.ID[0] < '2' && len(r.ID) == 2 && (r.ID[1]-'0')%2 == 0 {
					got = append(got, r.ID)
				}
			}
			if q.After = page.Next; q.After == "" {
				break
			}
			odd := key(fmt.Sprintf("%02d", 2*i+1))
			f.must(remove(odd, 1))
			f.must(create(key(odd.ID + "+")))
		}
		slices.Sort(got)
		require.Equal(t, want, got)
	}
}
