package persisttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) documents() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a document has one mebibyte":             s.largeDocument,
		"numbers keep every digit":                s.exactNumbers,
		"any JSON is a document":                  s.anyJSON,
		"a returned record belongs to the caller": s.returnedIsACopy,
		"a store does not change a commit":        s.commitIsUnchanged,
	}
}

// Proves STORE-1.
func (s suite) largeDocument(t *testing.T) {
	f := s.fresh(t)
	for version, letter := range []string{"a", "ü", `\u2028`} {
		w := update(thing, uint64(version))
		w.Doc = json.RawMessage(`{"text": "` + strings.Repeat(letter, 1<<20/len(letter)) + `"}`)
		f.must(w)
		sameDoc(t, w.Doc, f.load(thing).Doc)
	}
}

// Proves STORE-1.
func (s suite) exactNumbers(t *testing.T) {
	f := s.fresh(t)
	w := create(thing)
	w.Doc = json.RawMessage(`{"a": 9007199254740993, "b": 18446744073709551615, "c": -9223372036854775808, "d": 123456789012345678901234567890, "e": 0.1}`)
	f.must(w)
	sameDoc(t, w.Doc, f.load(thing).Doc)
}

// anyJSON: a store may refuse only text that is not Unicode, with an error that wraps
// ErrNotApplied.
//
// Proves STORE-1.
func (s suite) anyJSON(t *testing.T) {
	f := s.fresh(t)
	for i, text := range []string{`"\u0000"`, `"\ud800"`} {
		w := create(key(fmt.Sprintf("not-unicode-%d", i)))
		w.Doc = json.RawMessage(text)
		if _, err := f.write(w); err != nil {
			require.ErrorIs(t, err, persist.ErrNotApplied)
			f.floor(w.Key)
			continue
		}
		sameDoc(t, w.Doc, f.load(w.Key).Doc)
	}
	for i, text := range []string{
		`null`, `true`, `0`, `""`, `[]`, `{}`, `{"": {"": []}}`, `{"<&>": "<&>\u2028"}`, ` [1, 2] `, `"🦫"`, `[[[[[[[[[[]]]]]]]]]]`,
	} {
		w := create(key(fmt.Sprint(i)))
		w.Doc = json.RawMessage(text)
		f.must(w)
		sameDoc(t, w.Doc, f.load(w.Key).Doc)
	}
}

// Proves STORE-1.
func (s suite) returnedIsACopy(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	before := f.load(thing)
	spoil := func(text []byte, ids []string) {
		for i := range text {
			text[i] = 'x'
		}
		ids[0] = "spoilt"
	}
	loaded := f.load(thing)
	spoil(loaded.Doc, loaded.Commits)
	_, err := f.write(create(thing))
	winner := lost(t, err)[0]
	spoil(winner.Doc, winner.Commits)
	page, err := f.store.List(f.Context(), persist.Query{Kind: "thing"})
	require.NoError(t, err)
	spoil(page.Records[0].Doc, page.Records[0].Commits)
	same(t, before, f.load(thing))
}

// commitIsUnchanged: a caller may read its commit, and send it again, after Commit has returned.
// The capacity of Recent is above its length, so that an append in place would be noticed.
//
// Proves STORE-1.
func (s suite) commitIsUnchanged(t *testing.T) {
	f := s.fresh(t)
	commit := func() persist.Commit {
		w := acquire(thing, 1, "me", time.Hour)
		w.Recent = append(make([]string, 0, 8), f.load(thing).Commits...)
		return persist.Commit{ID: "w.2", Writes: []persist.Write{w}, Guards: []persist.Guard{{Key: thing, Read: true, Version: 1}}}
	}
	f.must(create(thing))
	c, want := commit(), commit()
	_, err := f.store.Commit(f.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, c)
	require.Empty(t, c.Writes[0].Recent[:2][1])
	_, err = f.store.Commit(f.Context(), c)
	lost(t, err)
	require.Equal(t, want, c)
}
