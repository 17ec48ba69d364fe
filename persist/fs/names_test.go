package fs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/persist"
)

// awkward lists characters that some file system would change or merge.
var awkward = []rune("abcABC019-_.+%/\\ :*?\"<>|~$'\x01\n\u007fßıİKſéÉ\u0301\u00e9🦫\u202e\ufeff")

// checkName asserts that every file system can store the encoding of name, and that it can be
// decoded.
func checkName(t require.TestingT, name string) {
	pieces := encode(name)
	for i, piece := range pieces {
		require.LessOrEqual(t, len(piece)+len(extension), 143, "%q", name)
		require.NotContains(t, reserved, strings.TrimSuffix(piece, continued))
		if i < len(pieces)-1 {
			require.True(t, strings.HasSuffix(piece, continued))
			piece = strings.TrimSuffix(piece, continued)
		}
		require.Regexp(t, `^[a-z0-9_%-]+$`, piece, "%q", name)
	}
	decoded, ok := decode(pieces)
	require.True(t, ok, "%q", name)
	require.Equal(t, name, decoded)
}

// TestNamesAreKeptApart: the encodings of two names differ in more than the case of letters.
//
// Proves SCOPE-11.
func TestNamesAreKeptApart(t *testing.T) {
	name := rapid.OneOf(
		rapid.StringN(1, 255, 255),
		rapid.StringOfN(rapid.SampledFrom(awkward), 1, 255, 255),
		rapid.SampledFrom([]string{"con", "CON", "nul", "aux", "com1", "lpt9", "com10", "..", ".", "a+", "+", strings.Repeat("n", 125) + "con", strings.Repeat("n", 128) + "con"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		one := name.Draw(t, "one")
		for _, two := range []string{name.Draw(t, "two"), strings.ToUpper(one), strings.ToLower(one), one + "."} {
			checkName(t, one)
			checkName(t, two)
			if one != two {
				require.NotEqual(t, fold(encode(one)), fold(encode(two)))
			}
		}
	})
}

func fold(pieces []string) string { return strings.ToLower(strings.Join(pieces, "/")) }

func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "CON", "../x", strings.Repeat("é", 127)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name != "" {
			checkName(t, name)
		}
	})
}

// TestForeignNamesAreIgnored: a file that no store made is not a record.
func TestForeignNamesAreIgnored(t *testing.T) {
	for _, pieces := range [][]string{
		{"Ann"}, {"con"}, {"%"}, {"%4"}, {"%zz"}, {"%61"}, {"%4A"}, {"a copy"}, {".a"}, {"a+", "b"}, {"%63on+", "x"}, {strings.Repeat("n", 129)},
	} {
		_, ok := decode(pieces)
		require.False(t, ok, "%q", pieces)
	}
}

// TestLongNames: records with ids of 255 bytes are kept apart on the real file system, also if the
// ids differ in their last byte only.
//
// Proves SCOPE-11.
func TestLongNames(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	var ids []string
	for _, start := range []string{strings.Repeat("n", 254), strings.Repeat("N", 254), strings.Repeat("é", 127), strings.Repeat("/", 254), "..", strings.Repeat("n", 127)} {
		for _, end := range []string{"x", "X", ".", "+"} {
			ids = append(ids, start+end)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		_, err := s.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{
			setTo(thing(id), 0, 1), setTo(persist.Key{Kind: id, ID: id}, 0, 1),
		}})
		require.NoError(t, err, "%q", id)
	}
	var found []string
	for q := (persist.Query{Kind: "thing", Limit: 5}); ; {
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		for _, r := range page.Records {
			found = append(found, r.ID)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	require.Equal(t, ids, found)
	page, err := s.List(t.Context(), persist.Query{Limit: 1000})
	require.NoError(t, err)
	require.Len(t, page.Records, 2*len(ids))
	for _, id := range ids {
		rel, err := filepath.Rel(s.dir, s.file(persist.Key{Kind: id, ID: id}))
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(rel))
		require.True(t, strings.HasPrefix(rel, "records"))
	}
}
