package persisttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) limits() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a commit of the most keys takes effect":  s.mostKeys,
		"a commit of too many keys is refused":    s.tooManyKeys,
		"a commit of the most bytes takes effect": s.mostBytes,
		"a commit of too many bytes is refused":   s.tooManyBytes,
		"a log counts towards the limit of bytes": s.tooManyLogBytes,
	}
}

// stated returns the limits of the store, zero if it has none.
func (f *fixture) stated() persist.Limits {
	if limiter, ok := f.store.(persist.Limiter); ok {
		return limiter.Limits()
	}
	return persist.Limits{}
}

// refusedByLimit asserts that err is a *LimitError after which nothing was written.
func refusedByLimit(t *testing.T, err error, what string, limit int) {
	t.Helper()
	var refused *persist.LimitError
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.Equal(t, what, refused.What)
	require.Equal(t, limit, refused.Limit)
	require.Greater(t, refused.Got, limit)
}

// manyWrites returns writes of n keys that set every index, with values that depend on the version.
func manyWrites(n int, expected uint64) (writes []persist.Write) {
	for i := range n {
		w := update(key(fmt.Sprintf("%05d", i)), expected)
		w.Label, w.TTL = fmt.Sprint("label", expected), time.Duration(expected+1)*time.Hour
		w.Due = time.Now().Add(time.Duration(expected) * time.Hour)
		writes = append(writes, w)
	}
	return writes
}

// mostKeys: a commit with the largest number of keys is accepted, also if each of its writes changes
// every index, and one that guards them all.
//
// Proves STORE-16.
func (s suite) mostKeys(t *testing.T) {
	f := s.fresh(t)
	n := f.stated().MaxKeys
	if n == 0 {
		t.Skip("the store states no limit of keys")
	}
	f.must(manyWrites(n, 0)...)
	f.must(manyWrites(n, 1)...)
	require.Len(t, f.ids(persist.Query{Kind: thing.Kind, Labels: []string{"label1"}}), n)
	var guards []persist.Guard
	var deletes []persist.Write
	for _, w := range manyWrites(n, 2) {
		guards = append(guards, persist.Guard{Key: w.Key, Read: true, Version: 2, TTL: time.Minute})
		deletes = append(deletes, remove(w.Key, 2))
	}
	_, err := f.guard(guards...)
	require.NoError(t, err)
	_, err = f.write(manyWrites(n, 1)...)
	require.Len(t, lost(t, err), n, "every key has a winner")
	f.must(deletes...)
	require.Empty(t, f.ids(persist.Query{Kind: thing.Kind}))
}

// Proves STORE-16.
func (s suite) tooManyKeys(t *testing.T) {
	f := s.fresh(t)
	n := f.stated().MaxKeys
	if n == 0 {
		t.Skip("the store states no limit of keys")
	}
	_, err := f.write(manyWrites(n+1, 0)...)
	refusedByLimit(t, err, "keys", n)
	require.Empty(t, f.ids(persist.Query{Kind: thing.Kind}))
	w := create(key("written"))
	var guards []persist.Guard
	for i := range n {
		guards = append(guards, persist.Guard{Key: key(fmt.Sprint(i)), Read: true})
	}
	_, err = f.store.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: []persist.Write{w}, Guards: guards})
	refusedByLimit(t, err, "keys", n)
	f.floor(w.Key)
}

// sized returns a write whose commit has the given size.
func sized(size int) persist.Write {
	w := create(thing)
	w.Doc = fmt.Appendf(nil, "%q", strings.Repeat("x", size-len(w.Kind)-len(w.ID)-2))
	return w
}

// Proves STORE-16.
func (s suite) mostBytes(t *testing.T) {
	f := s.fresh(t)
	n := f.stated().MaxBytes
	if n == 0 {
		t.Skip("the store states no limit of bytes")
	}
	w := sized(n)
	require.Equal(t, n, persist.Commit{Writes: []persist.Write{w}}.Size())
	f.must(w)
	sameDoc(t, w.Doc, f.load(thing).Doc)
}

// Proves STORE-16.
func (s suite) tooManyBytes(t *testing.T) {
	f := s.fresh(t)
	n := f.stated().MaxBytes
	if n == 0 {
		t.Skip("the store states no limit of bytes")
	}
	_, err := f.write(sized(n + 1))
	refusedByLimit(t, err, "bytes", n)
	f.floor(thing)
}

// Proves STORE-16.
func (s suite) tooManyLogBytes(t *testing.T) {
	f := s.fresh(t)
	n := f.stated().MaxBytes
	logger, ok := f.store.(persist.Logger)
	if n == 0 || !ok {
		t.Skip("the store states no limit of bytes, or is not a persist.Logger")
	}
	w := create(thing)
	w.Log = &persist.LogWrite{First: 1, Entries: nil}
	for range 3 {
		w.Log.Entries = append(w.Log.Entries, fmt.Appendf(nil, "%q", strings.Repeat("x", n/3)))
	}
	_, err := logger.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: []persist.Write{w}})
	refusedByLimit(t, err, "bytes", n)
	f.floor(thing)
}
