package persisttest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) names() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"ids with special characters are distinct":   s.hostileIDs,
		"kinds with special characters are distinct": s.hostileKinds,
		"kind and id are kept separate":              s.kindAndID,
		"labels and holders are verbatim":            s.verbatim,
	}
}

// hostile are names that a file system, a URL, a pattern or a collation might change or confuse. A
// store keeps each of them.
var hostile = []string{
	"../x", "..", ".", "a/b", "a//b", "/abs", `a\b`, "a%2Fb", "a%b", "a_b", "a'b", `a"b`, "a;--", "a\nb", "a\tb", "\u007f",
	"🦫", "👩‍👩‍👧", "Twin", "twin", "TWIN", "x.", "x..", "x ", " x", "x", "CON", "con", "NUL.txt", "aux", "COM1",
	"\u00e9", "e\u0301", "ß", "SS", "ı", "I", "i", "\u202eabc", "\ufeffx", "~", "$HOME", "*", "?", "<>|:", "-rf",
	strings.Repeat("n", 255), strings.Repeat("n", 254) + "N", strings.Repeat("é", 127), "null", "0", "00",
}

// Proves STORE-1, STORE-12.
func (s suite) hostileIDs(t *testing.T) {
	s.keptApart(t, func(name string) persist.Key { return persist.Key{Kind: "thing", ID: name} })
}

// Proves STORE-1, STORE-12.
func (s suite) hostileKinds(t *testing.T) {
	s.keptApart(t, func(name string) persist.Key { return persist.Key{Kind: name, ID: "1"} })
}

func (s suite) keptApart(t *testing.T, key func(string) persist.Key) {
	f := s.fresh(t)
	for i, name := range hostile {
		w := create(key(name))
		w.Doc = doc(i)
		f.must(w)
	}
	for i, name := range hostile {
		sameDoc(t, doc(i), f.load(key(name)).Doc)
		page, err := f.store.List(f.Context(), persist.Query{Kind: key(name).Kind, Prefix: key(name).ID, Limit: 1000})
		require.NoError(t, err)
		found := 0
		for _, r := range page.Records {
			if r.Key == key(name) {
				found++
			}
		}
		require.Equal(t, 1, found, "%q in its list", name)
	}
}

// Proves STORE-1.
func (s suite) kindAndID(t *testing.T) {
	f := s.fresh(t)
	keys := []persist.Key{{Kind: "a", ID: "b/c"}, {Kind: "a/b", ID: "c"}, {Kind: "a.b", ID: "c"}, {Kind: "a", ID: "b.c"}, {Kind: "ab", ID: "c"}, {Kind: "a", ID: "bc"}}
	for i, k := range keys {
		w := create(k)
		w.Doc = doc(i)
		f.must(w)
	}
	for i, k := range keys {
		sameDoc(t, doc(i), f.load(k).Doc)
	}
}

// Proves STORE-1.
func (s suite) verbatim(t *testing.T) {
	f := s.fresh(t)
	for i, name := range hostile {
		k := key(fmt.Sprint(i))
		w := create(k)
		w.Label, w.Acquire = name, &persist.Acquire{Holder: name, For: 1 << 40}
		f.must(w)
		r := f.load(k)
		require.Equal(t, name, r.Label)
		require.Equal(t, name, r.Lease.Holder)
		require.Equal(t, []string{k.ID}, f.ids(persist.Query{Kind: "thing", Labels: []string{name}}))
	}
}
