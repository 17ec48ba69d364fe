package pawl_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// misfit is a state with many types of fields, for verbs and values that do not fit them.
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

// A verb or value that does not fit its field is refused with an error that names verb and field.
// Nothing changes. Proves SCOPE-9.
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
		// A patch with a field and a part of that field.
		{"Patch", "inner.n", pawl.Patch{"inner": inner{}, "inner.n": 2}},
		// One part of an All.
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
			require.EqualValues(t, len(cases), p.store.Commits.Load(), "only the seeds were written")
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

// MustField panics for a field that does not exist, and Field.At quotes its argument.
// Proves SCOPE-9.
func TestMustField(t *testing.T) {
	kind := pawl.Kind[misfit]{Name: "misfit"}
	require.Equal(t, pawl.Field("inner.n"), kind.MustField("inner.n"))
	require.PanicsWithValue(t, `pawl: kind "misfit": MustField: state: "inner.none": pawl_test.inner has no field "none"`, func() { kind.MustField("inner.none") })
	require.Panics(t, func() { kind.MustField("") })
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[misfit](p, "a")
		_, err := s.Apply(t.Context(), pawl.All{pawl.Inc{Field: pawl.Field("nums").At("a.b"), By: 1}, pawl.Inc{Field: pawl.Field("doc").At(`c\d.e`).At("f"), By: 2}})
		require.NoError(t, err)
		requireState(t, p, s, 1, misfit{Nums: map[string]int8{"a.b": 1}, Doc: map[string]any{`c\d.e`: map[string]any{"f": int64(2)}}})
	})
}
