package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// misfit is a state for verbs that do not fit.
type misfit struct {
	Title string             `json:"title"`
	Flag  bool               `json:"flag"`
	Small int8               `json:"small"`
	Big   int64              `json:"big"`
	Un    uint64             `json:"un"`
	Real  float64            `json:"real"`
	Tags  []string           `json:"tags"`
	Nums  map[string]int8    `json:"nums"`
	ByNum map[int]string     `json:"byNum"`
	Any   any                `json:"any"`
	Doc   map[string]any     `json:"doc"`
	Inner inner              `json:"inner"`
	Float map[string]float64 `json:"float"`
	Hide  string             `json:"-"`
	Raw   json.RawMessage    `json:"raw,omitempty"`
}

func newMisfit() misfit {
	return misfit{
		Title: "t", Small: 100, Big: math.MaxInt64, Un: math.MaxUint64, Real: 1 << 60, Tags: []string{"a"}, Nums: map[string]int8{"k": 1}, ByNum: map[int]string{1: "x"},
		Any: "text", Doc: map[string]any{"s": "text", "n": uint64(math.MaxUint64), "l": []any{"x"}, "o": map[string]any{"k": int64(1)}}, Inner: inner{N: 1},
	}
}

// Each verb refuses what does not fit, says which verb and which field, and changes nothing. Proves SCOPE-9.
func TestFieldErrors(t *testing.T) {
	type fails struct {
		verb, field string
		m           pawl.Mutation
	}
	cases := []fails{
		// Fields that T does not have.
		{"Patch", "none", pawl.Patch{"none": 1}}, {"Patch", "inner.none", pawl.Patch{"inner.none": 1}}, {"Patch", "title.x", pawl.Patch{"title.x": 1}},
		{"Patch", "Hide", pawl.Patch{"Hide": "x"}}, {"Patch", "-", pawl.Patch{"-": "x"}}, {"Patch", "Title", pawl.Patch{"Title": "by its Go name"}},
		{"Patch", "", pawl.Patch{"": 1}}, {"Patch", "inner.", pawl.Patch{"inner.": 1}}, {"Patch", `a\b`, pawl.Patch{`a\b`: 1}}, {"Patch", "tags.0", pawl.Patch{"tags.0": "x"}},
		{"Push", "none", pawl.Push{Field: "none", Values: []any{1}}}, {"Inc", "none", pawl.Inc{Field: "none", By: 1}},
		{"SetRecord", "none", pawl.SetRecord{Field: "none", Key: "k", Value: 1}}, {"DeleteRecord", "none", pawl.DeleteRecord{Field: "none", Key: "k"}},
		// Verbs that do not fit their field.
		{"Inc", "title", pawl.Inc{Field: "title", By: 1}}, {"Inc", "flag", pawl.Inc{Field: "flag", By: 1}}, {"Inc", "tags", pawl.Inc{Field: "tags", By: 1}},
		{"Inc", "nums", pawl.Inc{Field: "nums", By: 1}}, {"Inc", "inner", pawl.Inc{Field: "inner", By: 1}}, {"Inc", "any", pawl.Inc{Field: "any", By: 1}},
		{"Inc", "doc", pawl.Inc{Field: "doc", By: 1}}, {"Inc", "doc.s", pawl.Inc{Field: "doc.s", By: 1}}, {"Inc", "doc.l", pawl.Inc{Field: "doc.l", By: 1}},
		{"Inc", "doc.s.x", pawl.Inc{Field: "doc.s.x", By: 1}},
		{"Push", "title", pawl.Push{Field: "title", Values: []any{"x"}}}, {"Push", "big", pawl.Push{Field: "big", Values: []any{1}}},
		{"Push", "nums", pawl.Push{Field: "nums", Values: []any{1}}}, {"Push", "any", pawl.Push{Field: "any", Values: []any{1}}},
		{"Push", "doc", pawl.Push{Field: "doc", Values: []any{1}}}, {"Push", "doc.o", pawl.Push{Field: "doc.o", Values: []any{1}}},
		{"SetRecord", "title", pawl.SetRecord{Field: "title", Key: "k", Value: 1}}, {"SetRecord", "tags", pawl.SetRecord{Field: "tags", Key: "0", Value: "x"}},
		{"SetRecord", "inner", pawl.SetRecord{Field: "inner", Key: "n", Value: 1}}, {"SetRecord", "any", pawl.SetRecord{Field: "any", Key: "k", Value: 1}},
		{"SetRecord", "doc.l", pawl.SetRecord{Field: "doc.l", Key: "0", Value: 1}}, {"SetRecord", "byNum", pawl.SetRecord{Field: "byNum", Key: "one", Value: "x"}},
		{"DeleteRecord", "title", pawl.DeleteRecord{Field: "title", Key: "k"}}, {"DeleteRecord", "tags", pawl.DeleteRecord{Field: "tags", Key: "0"}},
		{"DeleteRecord", "doc.s", pawl.DeleteRecord{Field: "doc.s", Key: "k"}},
		// Values that their field cannot hold.
		{"Patch", "title", pawl.Patch{"title": 1}}, {"Patch", "flag", pawl.Patch{"flag": 1}}, {"Patch", "small", pawl.Patch{"small": 128}},
		{"Patch", "small", pawl.Patch{"small": "1"}}, {"Patch", "big", pawl.Patch{"big": 1.5}}, {"Patch", "big", pawl.Patch{"big": uint64(math.MaxUint64)}},
		{"Patch", "un", pawl.Patch{"un": -1}}, {"Patch", "real", pawl.Patch{"real": int64(math.MaxInt64)}}, {"Patch", "tags", pawl.Patch{"tags": "a"}},
		{"Patch", "tags", pawl.Patch{"tags": []int{1}}}, {"Patch", "inner", pawl.Patch{"inner": map[string]any{"unknown": 1}}},
		{"Patch", "any", pawl.Patch{"any": func() {}}}, {"Patch", "any", pawl.Patch{"any": make(chan int)}},
		{"Patch", "raw", pawl.Patch{"raw": json.RawMessage("{")}},
		{"Push", "tags[1]", pawl.Push{Field: "tags", Values: []any{"x", 1}}},
		{"SetRecord", "nums.k", pawl.SetRecord{Field: "nums", Key: "k", Value: 1000}}, {"SetRecord", "nums.a\\.b", pawl.SetRecord{Field: "nums", Key: "a.b", Value: nil}},
		{"Set", "", pawl.Set{State: board{}}}, {"Set", "", pawl.Set{State: nil}}, {"Set", "", pawl.Set{}},
		// Overflow.
		{"Inc", "small", pawl.Inc{Field: "small", By: 28}}, {"Inc", "big", pawl.Inc{Field: "big", By: 1}}, {"Inc", "un", pawl.Inc{Field: "un", By: 1}},
		{"Inc", "small", pawl.Inc{Field: "small", By: math.MinInt64}}, {"Inc", "real", pawl.Inc{Field: "real", By: 1}}, {"Inc", "doc.n", pawl.Inc{Field: "doc.n", By: 1}},
		// Patches of which one contains the other.
		{"Patch", "inner.n", pawl.Patch{"inner": inner{}, "inner.n": 2}},
		// As part of more.
		{"All", "title", pawl.All{pawl.Inc{Field: "big", By: -1}, pawl.Inc{Field: "title", By: 1}}},
	}
	onPaths(t, func(t *testing.T, p path) {
		for i, c := range cases {
			t.Run(fmt.Sprint(i, " ", c.verb, " ", c.field), func(t *testing.T) {
				s := scopeOf[misfit](p, fmt.Sprint(i))
				seed(t, s, newMisfit())
				requireFieldError(t, s, c.verb, c.field, c.m)
				requireState(t, p, s, 1, newMisfit())
			})
		}
		if p.store != nil {
			require.EqualValues(t, len(cases), p.store.commits.Load(), "only the seeds were written")
		}
	})
}

func requireFieldError[T any](t *testing.T, s pawl.Scope[T], verb, field string, m pawl.Mutation) {
	t.Helper()
	snap, err := s.Apply(t.Context(), m)
	var e *pawl.FieldError
	require.ErrorAs(t, err, &e)
	require.Equal(t, s.Key(), e.Scope)
	require.Equal(t, verb, e.Verb)
	require.Equal(t, field, string(e.Field))
	require.NotEmpty(t, e.Reason)
	require.Equal(t, "FIELD", pawl.Code(err))
	require.Equal(t, 422, pawl.HTTPStatus(err))
	require.False(t, pawl.IsRetryable(err))
	require.False(t, snap.Exists())
}

// Numbers convert where they stay exact, and the edges of their range belong to it. Proves SCOPE-9, SCOPE-16.
func TestNumbersThatFit(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[misfit](p, "a")
		_, err := s.PatchState(t.Context(), pawl.Patch{"small": 127.0, "big": uint32(7), "un": json.Number("18446744073709551615"), "real": 3})
		require.NoError(t, err)
		for f, by := range map[pawl.Field]int64{"small": -255, "big": math.MaxInt64 - 7, "un": math.MinInt64} {
			_, err := s.IncState(t.Context(), f, by)
			require.NoError(t, err)
		}
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, misfit{Small: -128, Big: math.MaxInt64, Un: math.MaxInt64, Real: 3}, got)
	})
}

// strange are values that not every store could keep.
var strange = map[string]any{
	"NaN": math.NaN(), "infinity": math.Inf(1), "minus infinity": math.Inf(-1),
	"U+0000": "a\x00b", "invalid UTF-8": "a\xffb", "surrogate": "\xed\xa0\x80",
	"nested": map[string]any{"l": []any{map[string]any{"x": "\x00"}}}, "key": map[string]any{"\x00": 1}, "key of a typed map": map[string]int{"\xff": 1},
	"float32": []float32{float32(math.Inf(1))}, "raw": json.RawMessage("\"\\u0000\""), "raw surrogate": json.RawMessage("\"\\ud800\""),
}

// What not every store can keep is refused on every path and by every verb, AtomicState included. Proves SCOPE-16.
func TestStrangeValues(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for name, v := range strange {
			t.Run(name, func(t *testing.T) {
				s := scopeOf[pawl.Doc](p, name)
				start := pawl.Doc{"f": "was", "l": []any{"x"}, "m": map[string]any{"k": "v"}}
				seed(t, s, start)
				for verb, m := range map[string]pawl.Mutation{
					"Patch": pawl.Patch{"f": v}, "Push": pawl.Push{Field: "l", Values: []any{v}}, "SetRecord": pawl.SetRecord{Field: "m", Key: "k", Value: v},
					"Set": pawl.Set{State: pawl.Doc{"f": v}}, "Atomic": pawl.Atomic(func(_ context.Context, d *pawl.Doc) error { (*d)["f"] = v; return nil }),
					"All": pawl.All{pawl.Patch{"f": "other"}, pawl.Atomic(func(_ context.Context, d *pawl.Doc) error { (*d)["f"] = v; return nil })},
				} {
					_, err := s.Apply(t.Context(), m)
					var e *pawl.FieldError
					require.ErrorAs(t, err, &e, verb)
					require.Equal(t, verb, e.Verb)
					require.NotEmpty(t, string(e.Field))
					requireState(t, p, s, 1, start)
				}
			})
		}
		if p.store != nil {
			require.EqualValues(t, len(strange), p.store.commits.Load(), "only the seeds were written")
		}
	})
}

// Likewise in typed fields, and in what names a field or an entry. Proves SCOPE-16.
func TestStrangeValuesInTypedFields(t *testing.T) {
	atomic := func(f func(*misfit)) pawl.Mutation {
		return pawl.Atomic(func(_ context.Context, m *misfit) error { f(m); return nil })
	}
	cases := []struct {
		verb, field string
		m           pawl.Mutation
	}{
		{"Atomic", "title", atomic(func(m *misfit) { m.Title = "\x00" })}, {"Atomic", "title", atomic(func(m *misfit) { m.Title = "\xff" })},
		{"Atomic", "real", atomic(func(m *misfit) { m.Real = math.NaN() })}, {"Atomic", "real", atomic(func(m *misfit) { m.Real = math.Inf(-1) })},
		{"Atomic", "tags[1]", atomic(func(m *misfit) { m.Tags = append(m.Tags, "\x00") })}, {"Atomic", "nums", atomic(func(m *misfit) { m.Nums["\x00"] = 1 })},
		{"Atomic", "float.x", atomic(func(m *misfit) { m.Float = map[string]float64{"x": math.NaN()} })}, {"Atomic", "doc.o.k", atomic(func(m *misfit) { m.Doc["o"].(map[string]any)["k"] = "\xff" })},
		{"Atomic", "any", atomic(func(m *misfit) { m.Any = math.Inf(1) })},
		{"Patch", "title", pawl.Patch{"title": "\x00"}}, {"Patch", "real", pawl.Patch{"real": math.NaN()}}, {"Patch", "doc.\x00", pawl.Patch{"doc.\x00": 1}},
		{"Push", "tags[0]", pawl.Push{Field: "tags", Values: []any{"\xff"}}},
		{"SetRecord", "nums", pawl.SetRecord{Field: "nums", Key: "\x00", Value: 1}}, {"SetRecord", "doc", pawl.SetRecord{Field: "doc", Key: "\xff", Value: 1}},
		{"SetRecord", "float.x", pawl.SetRecord{Field: "float", Key: "x", Value: math.Inf(1)}},
		{"Set", "title", pawl.Set{State: misfit{Title: "\x00"}}}, {"Set", "float.a\\.b", pawl.Set{State: misfit{Float: map[string]float64{"a.b": math.NaN()}}}},
	}
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[misfit](p, "a")
		seed(t, s, newMisfit())
		for i, c := range cases {
			t.Run(fmt.Sprint(i, " ", c.verb), func(t *testing.T) {
				requireFieldError(t, s, c.verb, c.field, c.m)
				requireState(t, p, s, 1, newMisfit())
			})
		}
	})
}

// Integers stay exact to both ends of their range, typed and not, through the store and a restart. Proves SCOPE-16.
func TestIntegersAreExact(t *testing.T) {
	type typed struct {
		I []int64  `json:"i"`
		U []uint64 `json:"u"`
		A any      `json:"a"`
	}
	signed := []int64{math.MinInt64, math.MinInt64 + 1, -1<<53 - 1, -1, 0, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64}
	unsigned := []uint64{0, 1<<53 + 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64}
	onPaths(t, func(t *testing.T, p path) {
		list := []any{}
		for _, i := range signed {
			list = append(list, i)
		}
		for _, u := range unsigned[2:] { // below, they are int64
			list = append(list, u)
		}
		wantDoc, wantTyped := pawl.Doc{"list": list}, typed{I: signed, U: unsigned, A: list}
		doc, fixed := scopeOf[pawl.Doc](p, "doc"), scopeOf[typed](p, "typed")
		for _, v := range list {
			_, err := doc.PushState(t.Context(), "list", v)
			require.NoError(t, err)
		}
		_, err := fixed.SetState(t.Context(), wantTyped)
		require.NoError(t, err)
		requireNumbers := func(doc pawl.Scope[pawl.Doc], fixed pawl.Scope[typed]) {
			gotDoc, err := doc.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, wantDoc, gotDoc)
			gotTyped, err := fixed.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, wantTyped, gotTyped)
		}
		requireNumbers(doc, fixed)
		_, err = doc.AtomicState(t.Context(), func(_ context.Context, d *pawl.Doc) error {
			require.Equal(t, wantDoc, *d)
			(*d)["more"] = uint64(math.MaxUint64)
			return nil
		})
		require.NoError(t, err)
		snap, err := doc.IncState(t.Context(), "more", math.MinInt64)
		require.NoError(t, err)
		require.Equal(t, int64(math.MaxInt64), snap.State()["more"])
		snap, err = doc.IncState(t.Context(), "more", 1)
		require.NoError(t, err)
		require.Equal(t, uint64(1)<<63, snap.State()["more"], "beyond int64 the sum is exact as well")
		wantDoc["more"] = uint64(1) << 63
		requireNumbers(doc, fixed)
		if p.store == nil {
			return
		}
		raw := string(p.record(t, doc.Key()).Doc)
		for _, want := range []string{"-9223372036854775808", "9223372036854775807", "18446744073709551615", "9007199254740993"} {
			require.True(t, strings.Contains(raw, want), "%s is written as it is in %s", want, raw)
		}
		restarted := p.another(t)
		requireNumbers(pawl.Session[pawl.Doc](restarted, "doc"), pawl.Session[typed](restarted, "typed"))
	})
}
