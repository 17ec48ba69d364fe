package state

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"encoding/json"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPathsAreDotted(t *testing.T) {
	for field, want := range map[string][]string{
		"a":       {"a"},
		"a.b":     {"a", "b"},
		`a\.b.c`:  {"a.b", "c"},
		`a\\.b`:   {`a\`, "b"},
		`\\\.`:    {`\.`},
		"ключ.日本": {"ключ", "日本"},
	} {
		got, err := parsePath(field)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, field := range []string{"", ".", "a.", ".a", "a..b", `a\`, `\a`, "a\x00", "\xff"} {
		_, err := parsePath(field)
		assert.Error(t, err, "%q", field)
	}
}

func TestCheckAndLookup(t *testing.T) {
	ty := typeOf[person](t)
	for _, field := range []string{"name", "label", "home.zip", "places.x.zip", "extra.any.thing", "free.x", "byYear.5"} {
		assert.NoError(t, ty.Check(field), field)
	}
	for _, field := range []string{"", "nope", "home.nope", "meta", "tags.0", "byYear.x", "born.x"} {
		var e *Error
		assert.ErrorAs(t, ty.Check(field), &e, field)
	}
	p := committed(t)
	for field, want := range map[string]any{
		"name": "Ann", "label": "l", "home.zip": 1, "counts.n": 1, "maybe": 7, "born": p.Born, "free.deep.er": []any{"x"}, "places.a.zip": 2,
	} {
		got, ok := ty.Lookup(p, field)
		assert.True(t, ok, field)
		assert.Equal(t, want, got)
	}
	for _, field := range []string{"nope", "counts.zz", "free.zz", "free.deep.er.x", "places.zz.zip"} {
		_, ok := ty.Lookup(p, field)
		assert.False(t, ok, field)
	}
	_, ok := ty.Lookup(nil, "home.zip")
	assert.False(t, ok)
	got, ok := ty.Lookup(nil, "name")
	assert.True(t, ok)
	assert.Equal(t, "", got)
}

func TestPathCacheIsBounded(t *testing.T) {
	type bounded map[string]any
	ty := typeOf[bounded](t)
	for i := range 3 * maxPaths {
		require.NoError(t, ty.Check("k"+strings.Repeat("x", i)))
	}
	assert.Len(t, *ty.paths.Load(), maxPaths)
}

func TestDecodeReportsUnknownFields(t *testing.T) {
	ty := typeOf[person](t)
	for document, lossy := range map[string]bool{
		`{"name":"a","extra":{"any":{"thing":1}},"free":{"x":1}}`: false,
		`{"NAME":"a"}`:                    false,
		`null`:                            false,
		` {} `:                            false,
		`{"nope":1}`:                      true,
		`{"home":{"nope":1}}`:             true,
		`{"past":[{"zip":1},{"nope":1}]}`: true,
		`{"places":{"a":{"nope":1}}}`:     true,
		`{"Secret":"s"}`:                  true,
	} {
		got, err := ty.Decode([]byte(document), &person{Name: "left over"})
		require.NoError(t, err)
		assert.Equal(t, lossy, got, document)
	}
	for _, document := range []string{``, `{`, `{} {}`, `{}x`, `[]`, `{"name":1}`, `{"nope":1}]`} {
		_, err := ty.Decode([]byte(document), &person{})
		assert.Error(t, err, document)
	}
	lossy, err := typeOf[struct{ U upper }](t).Decode([]byte(`{"U":"<a>"}`), &struct{ U upper }{})
	require.NoError(t, err)
	assert.True(t, lossy, "user code may know other fields")
	var d doc
	_, err = typeOf[doc](t).Decode([]byte(`null`), &d)
	require.NoError(t, err)
	assert.Equal(t, doc{}, d)
}

func TestDecodedListsHaveNoSpareCapacity(t *testing.T) {
	var p person
	_, err := typeOf[person](t).Decode([]byte(`{"tags":["a","b","c"],"past":[{},{},{}],"extra":[1,2,3],"photo":"AQID","free":{"l":[1,2,3,4,5]}}`), &p)
	require.NoError(t, err)
	assert.Equal(t, 3, cap(p.Tags))
	assert.Equal(t, 3, cap(p.Past))
	assert.Equal(t, 3, cap(p.Extra.([]any)))
	assert.Equal(t, 3, cap(p.Photo))
	assert.Equal(t, 5, cap(p.Free["l"].([]any)))
}

func TestNumbersInDynamicPartsAreExact(t *testing.T) {
	for text, want := range map[string]any{
		"0": int64(0), "-0": int64(0), "3.0": int64(3), "1e2": int64(100), "12.50e1": int64(125), "0e999999999999": int64(0),
		"9223372036854775807": int64(math.MaxInt64), "-9223372036854775808": int64(math.MinInt64),
		"9223372036854775808": uint64(math.MaxInt64) + 1, "18446744073709551615": uint64(math.MaxUint64),
		"9007199254740993.0": int64(9007199254740993), "1e19": uint64(1e19),
		"18446744073709551616": json.Number("18446744073709551616"), "-9223372036854775809": json.Number("-9223372036854775809"),
		"1e20": 1e20, "0.1": 0.1, "0.10": 0.1, "1.5e300": 1.5e300, "-2.5": -2.5,
		"0.10000000000000000001": json.Number("0.10000000000000000001"), "1e400": json.Number("1e400"), "1e-400": json.Number("1e-400"),
		"1e4095": json.Number("1e4095"),
	} {
		got, err := decodeDoc([]byte(text), 0)
		require.NoError(t, err)
		assert.Equal(t, want, got, text)
		again, err := normalize(json.Number(text), 0)
		require.NoError(t, err)
		assert.Equal(t, want, again, text)
		encoded, err := marshal(got)
		require.NoError(t, err)
		back, err := decodeDoc(encoded, 0)
		require.NoError(t, err)
		assert.Equal(t, want, back, text)
	}
	for _, text := range []json.Number{"01", "1.", ".5", "+1", "1e", "0x1", "NaN", " 1", "-"} {
		_, err := normalize(text, 0)
		assert.Error(t, err, text)
	}
}

// A number has at most MaxDigits digits without its exponent, wherever it enters the state. A number
// that is stored already stays readable, and does not keep other fields from changing.
//
// Proves SCOPE-16, SCOPE-21.
func TestDigitsOfANumberAreLimited(t *testing.T) {
	type state struct {
		N json.Number     `json:"n"`
		R json.RawMessage `json:"r"`
		X any             `json:"x"`
		C bigNumber       `json:"c"`
		S string          `json:"s"`
	}
	ty := typeOf[state](t)
	fits := []string{
		"1e4095", "-1e4095", "1E+4095", "1e-4095", "0.1e-4094", "1.5e4095", strings.Repeat("9", MaxDigits),
		fmt.Sprint(math.MaxFloat64), fmt.Sprint(math.SmallestNonzeroFloat64), "10e4094", "0",
	}
	beyond := []string{
		"1e4096", "-1e4096", "1e-4096", "1e200000", "1e-16384", "1e99999999999999999999", "-1e-99999999999999999999",
		strings.Repeat("9", MaxDigits+1), "0." + strings.Repeat("1", MaxDigits),
	}
	states := func(s string) map[string]state {
		return map[string]state{
			"n": {N: json.Number(s)}, "r.a[0]": {R: json.RawMessage(`{"a":[` + s + `]}`)},
			"x.a": {X: map[string]any{"a": json.Number(s)}}, "x[0].b": {X: []any{json.RawMessage(`{"b":` + s + `}`)}}, "c": {C: bigNumber(s)},
		}
	}
	for _, s := range fits {
		for path, draft := range states(s) {
			_, err := ty.Settle(nil, &draft)
			require.NoError(t, err, "%s: %s", path, s)
		}
	}
	for _, s := range beyond {
		for path, draft := range states(s) {
			var e *Error
			_, err := ty.Settle(nil, &draft)
			require.ErrorAs(t, err, &e, "%s: %s", path, s)
			require.Contains(t, e.Reason, "limit 4096", path)
			require.False(t, e.Limit)
			old, next := states(s)[path], states(s)[path]
			next.S = "changed"
			changed, err := ty.Settle(&old, &next)
			if path == "x[0].b" {
				continue // old has no normal form
			}
			require.NoError(t, err, "the number is stored already")
			require.True(t, changed)
		}
		_, err := decodeDoc([]byte(s), 0)
		require.NoError(t, err)
	}
}

// bigNumber is a number with a MarshalJSON of its own.
type bigNumber string

func (b bigNumber) MarshalJSON() ([]byte, error) { return []byte(cmp.Or(string(b), "0")), nil }

func (b *bigNumber) UnmarshalJSON(text []byte) error {
	*b = bigNumber(text)
	return nil
}

// Two values are equal if their JSON is, in whatever form a store returns it.
//
// Proves SCOPE-7.
func TestEqualInAnotherForm(t *testing.T) {
	type state struct {
		N json.Number     `json:"n"`
		E json.Number     `json:"e,omitempty"`
		R json.RawMessage `json:"r"`
		O json.RawMessage `json:"o,omitempty"`
		X any             `json:"x"`
		C bigNumber       `json:"c"`
	}
	ty := typeOf[state](t)
	for _, c := range []struct {
		name string
		a, b state
		same bool
	}{
		{"exponent", state{N: "1e2"}, state{N: "100"}, true},
		{"fraction", state{N: "1.50"}, state{N: "15e-1"}, true},
		{"empty", state{N: ""}, state{N: "0"}, true},
		{"another number", state{N: "1e2"}, state{N: "101"}, false},
		{"sign", state{N: "-1e2"}, state{N: "100"}, false},
		{"left out", state{E: ""}, state{E: "0"}, false},
		{"raw", state{R: json.RawMessage(`{"b":1e2,"a":[1.0]}`)}, state{R: json.RawMessage(`{ "a": [1], "b": 100 }`)}, true},
		{"raw null", state{R: nil}, state{R: json.RawMessage(`null`)}, true},
		{"raw left out", state{O: nil}, state{O: json.RawMessage(`null`)}, false},
		{"another raw", state{R: json.RawMessage(`{"b":1,"a":[1]}`)}, state{R: json.RawMessage(`{"a":[1,1],"b":1}`)}, false},
		{"dynamic", state{X: json.Number("1e400")}, state{X: json.Number("1" + strings.Repeat("0", 400))}, true},
		{"another dynamic", state{X: json.Number("1e400")}, state{X: json.Number("2" + strings.Repeat("0", 400))}, false},
		{"code of its own", state{C: "1e2"}, state{C: "100"}, true},
		{"another with code of its own", state{C: "1e2"}, state{C: "101"}, false},
	} {
		for _, swap := range []bool{false, true} {
			a, b := c.a, c.b
			if swap {
				a, b = b, a
			}
			var old state
			_, err := settleTo(ty, nil, &a, &old)
			require.NoError(t, err, c.name)
			require.Equal(t, c.same, ty.Equal(&old, &b), c.name)
			var next state
			changed, err := settleTo(ty, &old, &b, &next)
			require.NoError(t, err, c.name)
			require.Equal(t, !c.same, changed, c.name)
			if changed {
				require.True(t, ty.Equal(&next, &b), c.name)
			}
		}
	}
}

func TestNormalizeAcceptsGoValues(t *testing.T) {
	type inner struct {
		A int8 `json:"a"`
		B *int `json:"b,omitempty"`
		C any
	}
	when := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ in, want any }{
		{int8(-3), int64(-3)},
		{uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{float32(0.1), 0.1},
		{name("x"), "x"},
		{[]byte("abc"), "YWJj"},
		{[]string(nil), nil},
		{map[int]bool{5: true}, map[string]any{"5": true}},
		{[2]uint{1, 2}, []any{int64(1), int64(2)}},
		{&inner{A: 1, C: 2.0}, map[string]any{"a": int64(1), "C": int64(2)}},
		{(*inner)(nil), nil},
		{when, "2020-01-01T00:00:00Z"},
		{json.RawMessage(`{"x": 1.0}`), map[string]any{"x": int64(1)}},
		{upper{"q"}, "<q>"},
		{doc{"x": doc{"y": 1}}, map[string]any{"x": map[string]any{"y": int64(1)}}},
	} {
		got, err := normalize(c.in, 0)
		require.NoError(t, err)
		assert.Equal(t, c.want, got)
	}
}

func TestEncodeDoesNotEscapeHTML(t *testing.T) {
	got, err := typeOf[doc](t).Encode(&doc{"a": "<&>"})
	require.NoError(t, err)
	assert.Equal(t, `{"a":"<&>"}`, string(got))
	got, err = typeOf[doc](t).Encode(nil)
	require.NoError(t, err)
	assert.Equal(t, `{}`, string(got))
}

func TestMergeKeepsUnknownFields(t *testing.T) {
	for title, c := range map[string]struct{ stored, was, now, want string }{
		"top level":               {`{"a":1,"u":{"x":[1]}}`, `{"a":1}`, `{"a":2}`, `{"a":2,"u":{"x":[1]}}`},
		"nested":                  {`{"o":{"a":1,"u":9}}`, `{"o":{"a":1}}`, `{"o":{"a":2}}`, `{"o":{"a":2,"u":9}}`},
		"known key removed":       {`{"m":{"k":{"u":1},"l":{}}}`, `{"m":{"k":{},"l":{}}}`, `{"m":{"l":{}}}`, `{"m":{"l":{}}}`},
		"known key added":         {`{"u":1}`, `{}`, `{"a":1}`, `{"a":1,"u":1}`},
		"another case":            {`{"NAME":"x","u":1}`, `{"name":"x"}`, `{"name":"y"}`, `{"name":"y","u":1}`},
		"another case, removed":   {`{"NAME":"x","u":1}`, `{"name":"x"}`, `{}`, `{"u":1}`},
		"another case, nested":    {`{"O":{"u":1}}`, `{"o":{}}`, `{"o":{"a":1}}`, `{"o":{"a":1,"u":1}}`},
		"another case, omitted":   {`{"NOTE":""}`, `{}`, `{"note":"x"}`, `{"note":"x"}`},
		"struct omitted":          {`{"s":{"u":1}}`, `{}`, `{"s":{"a":1}}`, `{"s":{"a":1,"u":1}}`},
		"object becomes scalar":   {`{"o":{"u":1}}`, `{"o":{}}`, `{"o":3}`, `{"o":3}`},
		"numbers as written":      {`{"u":12345678901234567890123,"a":1}`, `{"a":1}`, `{"a":1.50}`, `{"a":1.50,"u":12345678901234567890123}`},
		"no HTML escapes":         {`{"u":"<"}`, `{}`, `{}`, `{"u":"<"}`},
		"nothing stored":          {``, ``, `{"a":1}`, `{"a":1}`},
		"list, changed in place":  {`[{"a":1,"u":1},{"a":2,"u":2}]`, `[{"a":1},{"a":2}]`, `[{"a":9},{"a":2}]`, `[{"a":9,"u":1},{"a":2,"u":2}]`},
		"list, first removed":     {`[{"a":1,"u":1},{"a":2,"u":2}]`, `[{"a":1},{"a":2}]`, `[{"a":2}]`, `[{"a":2,"u":2}]`},
		"list, last removed":      {`[{"a":1,"u":1},{"a":2,"u":2}]`, `[{"a":1},{"a":2}]`, `[{"a":1}]`, `[{"a":1,"u":1}]`},
		"list, inserted at head":  {`[{"a":1,"u":1}]`, `[{"a":1}]`, `[{"a":0},{"a":1}]`, `[{"a":0},{"a":1,"u":1}]`},
		"list, appended":          {`[{"a":1,"u":1}]`, `[{"a":1}]`, `[{"a":1},{"a":1}]`, `[{"a":1,"u":1},{"a":1}]`},
		"list, reordered":         {`[{"a":1,"u":1},{"a":2,"u":2},{"a":3,"u":3}]`, `[{"a":1},{"a":2},{"a":3}]`, `[{"a":3},{"a":1},{"a":2}]`, `[{"a":3,"u":3},{"a":1,"u":1},{"a":2,"u":2}]`},
		"list, removed and edit":  {`[{"a":1,"u":1},{"a":2,"u":2},{"a":3,"u":3}]`, `[{"a":1},{"a":2},{"a":3}]`, `[{"a":2},{"a":4}]`, `[{"a":2,"u":2},{"a":4,"u":3}]`},
		"list of lists":           {`[[{"a":1,"u":1}]]`, `[[{"a":1}]]`, `[[{"a":2}]]`, `[[{"a":2,"u":1}]]`},
		"list emptied":            {`{"l":[{"u":1}]}`, `{"l":[{}]}`, `{"l":[]}`, `{"l":[]}`},
		"equal twins keep places": {`[{"a":1,"u":1},{"a":1,"u":2}]`, `[{"a":1},{"a":1}]`, `[{"a":1},{"a":1},{"a":3}]`, `[{"a":1,"u":1},{"a":1,"u":2},{"a":3}]`},
	} {
		t.Run(title, func(t *testing.T) {
			got, err := Merge([]byte(c.stored), []byte(c.was), []byte(c.now))
			require.NoError(t, err)
			assert.Equal(t, c.want, string(got))
		})
	}
	_, err := Merge([]byte(`{`), []byte(`{}`), []byte(`{}`))
	assert.Error(t, err)
}
