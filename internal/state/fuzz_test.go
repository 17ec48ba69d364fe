package state

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzPath(f *testing.F) {
	for _, s := range []string{"", "a", "a.b", `a\.b`, `a\\`, `\`, ".", "a..b", "\xff", "a\x00.b"} {
		f.Add(s)
	}
	ty := typeOf[person](f)
	f.Fuzz(func(t *testing.T, field string) {
		_ = ty.Check(field)
		_, _ = ty.Lookup(nil, field)
		names, err := parsePath(field)
		if err != nil {
			return
		}
		escaped := make([]string, len(names))
		for i, name := range names {
			escaped[i] = Escape(name)
		}
		require.Equal(t, field, strings.Join(escaped, "."))
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"name":"a","extra":[1,2.0,1e400],"free":{"a":{}}}`, `{"u":1}`, `[`, `{"a":18446744073709551615}`,
		`{"born":"2020-01-01T00:00:00+23:59","photo":"AQ==","pair":[1,2,3],"byYear":{"1":"x"}}`, `{"extra":` + string(deepRaw(MaxDepth)) + `}`} {
		f.Add([]byte(s))
	}
	people, docs := typeOf[person](f), typeOf[doc](f)
	f.Fuzz(func(t *testing.T, document []byte) {
		var p, back person
		if _, err := people.Decode(document, &p); err == nil {
			text, err := people.Encode(&p)
			require.NoError(t, err)
			lossy, err := people.Decode(text, &back)
			require.NoError(t, err)
			require.False(t, lossy)
			require.True(t, people.Equal(&p, &back))
		}
		var d, again doc
		if _, err := docs.Decode(document, &d); err == nil {
			text, err := docs.Encode(&d)
			require.NoError(t, err)
			_, err = docs.Decode(text, &again)
			require.NoError(t, err)
			require.Equal(t, d, again)
		}
	})
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":1,"u":2}`), []byte(`{"a":1}`), []byte(`{"a":2}`))
	f.Add([]byte(`[{"a":1,"u":2},{"b":[1]}]`), []byte(`[{"a":1},{"b":[]}]`), []byte(`[{"b":[]},{"a":1}]`))
	f.Add([]byte(`{"A":{"x":1}}`), []byte(`{"a":{}}`), []byte(`{"a":{"y":1}}`))
	f.Fuzz(func(t *testing.T, stored, was, now []byte) {
		merged, err := Merge(stored, was, now)
		if err != nil {
			return
		}
		require.True(t, json.Valid(merged))
		// If T knows all stored fields, the result is the JSON that T wrote.
		if len(stored) > 0 {
			known, err := Merge(stored, stored, now)
			require.NoError(t, err)
			tree, err := decodeTree(now)
			require.NoError(t, err)
			want, err := marshal(tree)
			require.NoError(t, err)
			require.Equal(t, string(want), string(known))
		}
		// A second merge adds nothing.
		again, err := Merge(merged, merged, merged)
		require.NoError(t, err)
		require.Equal(t, string(merged), string(again))
	})
}
