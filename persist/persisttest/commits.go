package persisttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) commits() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a record keeps the last commits of the last writers": func(t *testing.T) { s.ring(t, false) },
		"the same with Write.Recent":                          func(t *testing.T) { s.ring(t, true) },
		"several keys change together or not at all":          s.allOrNothing,
		"many keys change together":                           s.manyKeys,
		"a malformed commit is refused":                       s.malformed,
		"a single-key store refuses several keys":             s.singleKey,
	}
}

// ring: the id of a commit whose answer was lost is found in the record, also after commits of
// other writers.
//
// Proves STORE-1.
func (s suite) ring(t *testing.T, recent bool) {
	f := s.fresh(t)
	version := uint64(0)
	commit := func(id string) {
		t.Helper()
		w := update(thing, version)
		if recent && version > 0 {
			w.Recent = f.load(thing).Commits
		}
		_, err := f.store.Commit(f.Context(), persist.Commit{ID: id, Writes: []persist.Write{w}})
		require.NoError(t, err)
		version++
	}
	for i := range 6 {
		commit(fmt.Sprintf("a.b.%d", i))
	}
	require.Equal(t, []string{"a.b.2", "a.b.3", "a.b.4", "a.b.5"}, f.load(thing).Commits)
	for writer := range 15 {
		commit(fmt.Sprintf("w%d.1", writer))
	}
	require.Contains(t, f.load(thing).Commits, "a.b.2")
	commit("w15.1")
	commits := f.load(thing).Commits
	require.Len(t, commits, 16, "the 17th writer replaces the writer of the oldest commit")
	require.NotContains(t, commits, "a.b.5")
	require.Equal(t, "w0.1", commits[0])
	require.Equal(t, "w15.1", commits[15])
	commit(strings.Repeat("l", 126) + ".1")
	require.Len(t, f.load(thing).Commits, 16)
}

// Proves STORE-2.
func (s suite) allOrNothing(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	at := f.must(create(key("b")), create(key("a")), create(persist.Key{Kind: "other", ID: "a"}))
	for _, k := range []persist.Key{key("a"), key("b"), {Kind: "other", ID: "a"}} {
		r := f.load(k)
		require.True(t, r.Updated.Equal(at))
		require.Equal(t, f.load(key("a")).Commits, r.Commits)
	}
	_, err := f.write(update(key("a"), 1), create(key("b")), create(key("c")))
	require.Len(t, lost(t, err), 1)
	require.EqualValues(t, 1, f.load(key("a")).Version)
	f.floor(key("c"))
	f.must(update(key("a"), 1), remove(key("b"), 1), create(key("c")))
	require.True(t, f.load(key("b")).Deleted)
}

// Proves STORE-2.
func (s suite) manyKeys(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	n := 200
	if most := f.stated().MaxKeys; most > 0 {
		n = min(n, most)
	}
	var writes []persist.Write
	for i := range n {
		writes = append(writes, create(key(fmt.Sprintf("%03d", n-1-i))))
	}
	f.must(writes...)
	require.Len(t, f.ids(persist.Query{Kind: "thing"}), n)
	_, err := f.write(writes...)
	require.Len(t, lost(t, err), n)
}

// malformed: a malformed commit is refused and writes nothing.
//
// Proves STORE-1.
func (s suite) malformed(t *testing.T) {
	f := s.fresh(t)
	f.must(acquire(key("leased"), 0, "me", time.Hour))
	ok := create(thing)
	with := func(change func(*persist.Write)) persist.Commit {
		w := ok
		change(&w)
		return persist.Commit{ID: "w.1", Writes: []persist.Write{w}}
	}
	guarding := func(g persist.Guard) persist.Commit { return persist.Commit{ID: "w.1", Guards: []persist.Guard{g}} }
	ending := func(g persist.Guard) persist.Commit {
		w := update(key("leased"), 1)
		w.EndLease, g.Key, g.Token = true, w.Key, 1
		return persist.Commit{ID: "w.1", Writes: []persist.Write{w}, Guards: []persist.Guard{g}}
	}
	for name, c := range map[string]persist.Commit{
		"empty":               {ID: "w.1"},
		"no id":               {Writes: []persist.Write{ok}},
		"long id":             {ID: strings.Repeat("x", 129), Writes: []persist.Write{ok}},
		"id of two lines":     {ID: "w\n.1", Writes: []persist.Write{ok}},
		"key written twice":   {ID: "w.1", Writes: []persist.Write{ok, ok}},
		"key guarded twice":   {ID: "w.1", Guards: []persist.Guard{{Key: thing, Read: true}, {Key: thing, Read: true}}},
		"no kind":             with(func(w *persist.Write) { w.Kind = "" }),
		"no key id":           with(func(w *persist.Write) { w.Key.ID = "" }),
		"key not UTF-8":       with(func(w *persist.Write) { w.Key.ID = "\xff" }),
		"key with U+0000":     with(func(w *persist.Write) { w.Key.ID = "a\x00b" }),
		"label with U+0000":   with(func(w *persist.Write) { w.Label = "a\x00b" }),
		"version 0":           with(func(w *persist.Write) { w.Version = 0 }),
		"version not growing": with(func(w *persist.Write) { w.Expected, w.Version = 4, 4 }),
		"no document":         with(func(w *persist.Write) { w.Doc = nil }),
		"not JSON":            with(func(w *persist.Write) { w.Doc = []byte(`{"n": 1`) }),
		"two documents":       with(func(w *persist.Write) { w.Doc = []byte(`{} {}`) }),
		"delete with a doc":   with(func(w *persist.Write) { w.Deleted = true }),
		"negative TTL":        with(func(w *persist.Write) { w.TTL = -1 }),
		"due twice":           with(func(w *persist.Write) { w.Due, w.DueIn = time.Now(), 1 }),
		"lease of no length":  with(func(w *persist.Write) { w.Acquire = &persist.Acquire{Holder: "me"} }),
		"delete with lease": with(func(w *persist.Write) {
			w.Deleted, w.Doc, w.Acquire = true, nil, &persist.Acquire{Holder: "me", For: time.Hour}
		}),
		"swept, not deleted":    with(func(w *persist.Write) { w.Swept, w.Gone, w.Expected, w.Version = true, true, 1, 2 }),
		"swept, not gone":       with(func(w *persist.Write) { w.Swept, w.Deleted, w.Doc = true, true, nil }),
		"TTL below KeepTTL + 1": with(func(w *persist.Write) { w.TTL = persist.KeepTTL + 1 }),
		"extended and ended":    ending(persist.Guard{Extend: time.Hour}),
		"released and ended":    ending(persist.Guard{Release: true}),
		"guard that keeps TTL":  guarding(persist.Guard{Key: key("leased"), Read: true, Version: 1, TTL: persist.KeepTTL}),
		"guard without a test":  guarding(persist.Guard{Key: thing}),
		"extend without token":  guarding(persist.Guard{Key: key("leased"), Read: true, Version: 1, Extend: time.Hour}),
		"release without token": guarding(persist.Guard{Key: key("leased"), Read: true, Version: 1, Release: true}),
		"extend and release":    guarding(persist.Guard{Key: key("leased"), Token: 1, Extend: 1, Release: true}),
		"TTL without reading":   guarding(persist.Guard{Key: key("leased"), Token: 1, TTL: time.Hour}),
		"TTL of a gone record":  guarding(persist.Guard{Key: key("leased"), Read: true, Version: 1, Gone: true, TTL: time.Hour}),
	} {
		_, err := f.store.Commit(f.Context(), c)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
	}
	require.Equal(t, []string{"leased"}, f.ids(persist.Query{}))
}

// Proves STORE-1.
func (s suite) singleKey(t *testing.T) {
	if !s.options.SingleKey {
		t.Skip("the store commits several keys")
	}
	f := s.fresh(t)
	_, err := f.write(create(key("a")), create(key("b")))
	require.ErrorIs(t, err, persist.ErrUnsupported)
	f.floor(key("a"))
}
