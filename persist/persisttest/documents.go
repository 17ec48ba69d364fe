package persisttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) documents() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a document of a mebibyte":                s.largeDocument,
		"numbers keep every digit":                s.exactNumbers,
		"any JSON is a document":                  s.anyJSON,
		"what a store returns is the caller's":    s.returnedIsACopy,
		"what a caller passes stays the caller's": s.passedIsCopied,
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

// anyJSON: only what is no Unicode text may be refused, as databases do, and then it says so.
//
// Proves STORE-1.
func (s suite) anyJSON(t *testing.T) {
	f := s.fresh(t)
	for i, text := range []string{`"\u0000"`, `"\ud800"`} {
		w := create(key(fmt.Sprintf("odd-%d", i)))
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

// Proves STORE-1.
func (s suite) passedIsCopied(t *testing.T) {
	f := s.fresh(t)
	w := create(thing)
	w.Doc = doc(1)
	f.must(w)
	for i := range w.Doc {
		w.Doc[i] = 'x'
	}
	sameDoc(t, doc(1), f.load(thing).Doc)
}
