package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A number converts to another type if it stays exact, up to both ends of the range.
// Proves SCOPE-9, SCOPE-16.
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

// A list longer than its array and a number that a float cannot hold exactly are refused.
// Proves SCOPE-9, SCOPE-16.
func TestConversionsLoseNothing(t *testing.T) {
	type st struct {
		Pair [2]int             `json:"pair"`
		F    float64            `json:"f"`
		Fs   []float64          `json:"fs"`
		F32  map[string]float32 `json:"f32"`
	}
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[st](p, "a")
		var field *pawl.FieldError
		snap, err := s.PatchState(t.Context(), pawl.Patch{"pair": []int{1, 2, 3}})
		assert.ErrorAs(t, err, &field, "%+v", snap.ReadOnly())
		_, err = s.PatchState(t.Context(), pawl.Patch{"f": int64(1<<53 + 1)})
		assert.ErrorAs(t, err, &field, "scalar")
		snap, err = s.PatchState(t.Context(), pawl.Patch{"fs": []int64{1<<53 + 1}})
		assert.ErrorAs(t, err, &field, "list %+v", snap.ReadOnly())
		snap, err = s.PatchState(t.Context(), pawl.Patch{"f32": map[string]int{"a": 1<<24 + 1}})
		assert.ErrorAs(t, err, &field, "map %+v", snap.ReadOnly())
	})
}

// Integers stay exact up to both ends of their range, typed or dynamic, in the store and after a
// restart. Proves SCOPE-16.
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
		for _, u := range unsigned[2:] { // smaller values decode as int64
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
		require.Equal(t, uint64(1)<<63, snap.State()["more"], "a sum above int64 must be exact")
		wantDoc["more"] = uint64(1) << 63
		requireNumbers(doc, fixed)
		if p.store == nil {
			return
		}
		raw := string(p.record(t, doc.Key()).Doc)
		for _, want := range []string{"-9223372036854775808", "9223372036854775807", "18446744073709551615", "9007199254740993"} {
			require.True(t, strings.Contains(raw, want), "%s must occur unchanged in %s", want, raw)
		}
		restarted := p.another(t)
		requireNumbers(pawl.Session[pawl.Doc](restarted, "doc"), pawl.Session[typed](restarted, "typed"))
	})
}

// unstorable are values that some store cannot keep.
var unstorable = map[string]any{
	"NaN": math.NaN(), "infinity": math.Inf(1), "minus infinity": math.Inf(-1),
	"U+0000": "a\x00b", "invalid UTF-8": "a\xffb", "surrogate": "\xed\xa0\x80",
	"nested": map[string]any{"l": []any{map[string]any{"x": "\x00"}}}, "key": map[string]any{"\x00": 1}, "key of a typed map": map[string]int{"\xff": 1},
	"exponent": json.Number("1e200000"), "negative exponent": json.Number("-1e-16384"), "digits": json.Number(strings.Repeat("9", pawl.MaxDigits+1)),
	"raw number": json.RawMessage("[1e200000]"), "number in an object": map[string]any{"n": json.Number("1e-16384")},
	"float32": []float32{float32(math.Inf(1))}, "raw": json.RawMessage("\"\\u0000\""), "raw surrogate": json.RawMessage("\"\\ud800\""),
}

// Every verb refuses a value that some store cannot keep, with and without a store.
// Proves SCOPE-16, SCOPE-21.
func TestUnstorableValues(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for name, v := range unstorable {
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
			require.EqualValues(t, len(unstorable), p.store.Commits.Load(), "only the seeds may be written")
		}
	})
}

// Values that some store cannot keep are refused in typed fields, in field names and in map keys.
// Proves SCOPE-16.
func TestUnstorableValuesInTypedFields(t *testing.T) {
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

// A time keeps its instant in a zone whose offset has seconds, which RFC 3339 cannot express.
func TestTimeInAZoneWithSeconds(t *testing.T) {
	type timed struct {
		At time.Time `json:"at"`
	}
	at := time.Date(1890, 1, 1, 12, 0, 0, 0, time.FixedZone("LMT", 19*60+32))
	onPaths(t, func(t *testing.T, p path) {
		snap, err := scopeOf[timed](p, "a").SetState(t.Context(), timed{at})
		require.NoError(t, err)
		require.True(t, at.Equal(snap.ReadOnly().At))
		read, err := scopeOf[timed](p, "a").State(t.Context())
		require.NoError(t, err)
		require.True(t, at.Equal(read.At))
		if p.store != nil {
			other, err := pawl.Session[timed](p.another(t), "a").State(t.Context())
			require.NoError(t, err)
			require.True(t, at.Equal(other.At))
		}
	})
}
