package state

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// apply prepares and applies ops to cur, and checks that cur stays unchanged.
func apply[T any](t testing.TB, cur *T, ops ...Op) (*T, bool, error) {
	t.Helper()
	ty := typeOf[T](t)
	before, err := ty.Encode(cur)
	require.NoError(t, err)
	p, err := ty.Prepare(ops)
	if err != nil {
		return nil, false, err
	}
	dst := new(T)
	var tail Tail
	changed, err := applyTo(&p, cur, dst, &tail)
	after, _ := ty.Encode(cur)
	require.Equal(t, string(before), string(after), "cur was modified")
	return dst, changed, err
}

func patch(field string, v any) Op    { return Op{Verb: Patch, Field: field, Value: v} }
func inc(field string, by int64) Op   { return Op{Verb: Inc, Field: field, By: by} }
func push(field string, vs ...any) Op { return Op{Verb: Push, Field: field, Values: vs} }
func record(field, key string, v any) Op {
	return Op{Verb: SetRecord, Field: field, Key: key, Value: v}
}
func remove(field, key string) Op { return Op{Verb: DeleteRecord, Field: field, Key: key} }

type name string

func TestVerbsOnTypedState(t *testing.T) {
	born := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	none := func(*person) {}
	for title, c := range map[string]struct {
		op   Op
		want func(*person)
	}{
		"patch a string":                {patch("name", "Bo"), func(p *person) { p.Name = "Bo" }},
		"patch with the same value":     {patch("name", "Ann"), none},
		"patch with a named type":       {patch("name", name("Bo")), func(p *person) { p.Name = "Bo" }},
		"patch nil clears":              {patch("tags", nil), func(p *person) { p.Tags = nil }},
		"patch a promoted field":        {patch("label", "x"), func(p *person) { p.Label = "x" }},
		"patch a pointer's pointee":     {patch("home", address{Street: "n"}), func(p *person) { p.Home = &address{Street: "n"} }},
		"patch through a pointer":       {patch("home.zip", 9), func(p *person) { p.Home = &address{Street: "s", Zip: 9} }},
		"patch a struct from a map":     {patch("home", map[string]any{"street": "m"}), func(p *person) { p.Home = &address{Street: "m"} }},
		"patch a list from []any":       {patch("tags", []any{"a"}), func(p *person) { p.Tags = []string{"a"} }},
		"patch int8 from uint64":        {patch("visits", uint64(127)), func(p *person) { p.Visits = 127 }},
		"patch int8 from a whole float": {patch("visits", 5.0), func(p *person) { p.Visits = 5 }},
		"patch int8 from json.Number":   {patch("visits", json.Number("5e0")), func(p *person) { p.Visits = 5 }},
		"patch a float from an int":     {patch("score", 1<<53), func(p *person) { p.Score = 1 << 53 }},
		"patch a time from RFC 3339":    {patch("born", "2001-02-03T04:05:06Z"), func(p *person) { p.Born = born }},
		"patch an entry":                {patch("counts.n", 2), func(p *person) { p.Counts["n"] = 2 }},
		"patch removes an entry":        {patch("counts.n", nil), func(p *person) { delete(p.Counts, "n") }},
		"patch removes an absent entry": {patch("counts.zz", nil), none},
		"patch in an entry":             {patch("places.a.zip", 5), func(p *person) { p.Places["a"] = address{Zip: 5} }},
		"patch in a new entry":          {patch("places.new.zip", 0), func(p *person) { p.Places["new"] = address{} }},
		"patch an integer key":          {patch("byYear.2000", "z"), func(p *person) { p.ByYear[2000] = "z" }},
		"patch an any":                  {patch("extra", []int{1}), func(p *person) { p.Extra = []any{int64(1)} }},
		"patch below an any":            {patch("extra.a.b", uint8(1)), func(p *person) { p.Extra.(map[string]any)["a"] = map[string]any{"b": int64(1)} }},
		"patch bytes":                   {patch("photo", []byte{9}), func(p *person) { p.Photo = []byte{9} }},
		"inc":                           {inc("visits", 2), func(p *person) { p.Visits += 2 }},
		"inc by zero":                   {inc("visits", 0), none},
		"inc a float":                   {inc("score", 1), func(p *person) { p.Score = 2.5 }},
		"inc a pointer's number":        {inc("maybe", -8), func(p *person) { p.Maybe = new(-1) }},
		"inc an absent entry":           {inc("counts.new", 3), func(p *person) { p.Counts["new"] = 3 }},
		"inc an absent entry by zero":   {inc("counts.new", 0), none},
		"push":                          {push("tags", "z", name("w")), func(p *person) { p.Tags = append(p.Tags, "z", "w") }},
		"push nothing":                  {push("notes"), none},
		"push onto an absent list":      {push("notes", "n"), func(p *person) { p.Notes = []string{"n"} }},
		"push a struct":                 {push("past", address{Zip: 3}), func(p *person) { p.Past = append(p.Past, address{Zip: 3}) }},
		"push onto a dynamic list":      {push("extra.list", 1.5, nil), func(p *person) { m := p.Extra.(map[string]any); m["list"] = append(m["list"].([]any), 1.5, nil) }},
		"push onto an absent entry":     {push("free.new", 1), func(p *person) { p.Free["new"] = []any{int64(1)} }},
		"set a record":                  {record("places", "x.y", address{Zip: 1}), func(p *person) { p.Places["x.y"] = address{Zip: 1} }},
		"set a record to its value":     {record("counts", "n", 1), none},
		"set a dynamic record":          {record("free.deep", "a.b", true), func(p *person) { p.Free["deep"].(map[string]any)["a.b"] = true }},
		"delete a record":               {remove("counts", "n"), func(p *person) { delete(p.Counts, "n") }},
		"delete an absent record":       {remove("counts", "zz"), none},
		"delete from an absent map":     {remove("free.no.such", "zz"), none},
		"delete a dynamic record":       {remove("free", "deep"), func(p *person) { delete(p.Free, "deep") }},
		"set":                           {Op{Verb: Set, Value: person{Name: "only"}}, func(p *person) { *p = person{Name: "only"} }},
		"set by pointer":                {Op{Verb: Set, Value: &person{Name: "only"}}, func(p *person) { *p = person{Name: "only"} }},
	} {
		t.Run(title, func(t *testing.T) {
			cur, want := committed(t), committed(t)
			c.want(want)
			got, changed, err := apply(t, cur, c.op)
			require.NoError(t, err)
			ty := typeOf[person](t)
			if assert.Equal(t, !ty.Equal(cur, want), changed) && changed {
				assert.Equal(t, want, got)
			}
		})
	}
}

func committed(t testing.TB) *person {
	t.Helper()
	p := &person{}
	_, err := settleTo(typeOf[person](t), nil, samplePerson(), p)
	require.NoError(t, err)
	return p
}

func TestVerbsOnAbsentState(t *testing.T) {
	got, changed, err := apply(t, (*person)(nil),
		inc("visits", 1), push("tags", "a"), record("counts", "k", 1), patch("home.zip", 3), inc("extra.n", 2), inc("maybe", 1), patch("free.a.b", 1))
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, &person{Visits: 1, Tags: []string{"a"}, Counts: map[string]int{"k": 1}, Home: &address{Zip: 3},
		Extra: map[string]any{"n": int64(2)}, Maybe: new(1), Free: map[string]any{"a": map[string]any{"b": int64(1)}}}, got)

	d, changed, err := apply(t, (*doc)(nil), record("", "k", 1), push("list", 1), inc("n", 1))
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, &doc{"k": int64(1), "list": []any{int64(1)}, "n": int64(1)}, d)

	for _, op := range []Op{patch("name", ""), patch("name", nil), inc("visits", 0), push("tags"), remove("free", "x"), patch("home.zip", nil)} {
		_, changed, err := apply(t, (*person)(nil), op)
		require.NoError(t, err)
		assert.False(t, changed, "%v", op)
	}
}

func TestVerbsRefuseInvalidInput(t *testing.T) {
	cyclic := map[string]any{}
	cyclic["x"] = cyclic
	for title, op := range map[string]Op{
		"unknown field":            patch("nope", 1),
		"unknown nested field":     patch("home.nope", 1),
		"hidden field":             patch("Secret", "x"),
		"no field":                 patch("", 1),
		"empty name":               patch("home..zip", 1),
		"bad escape":               patch(`a\b`, 1),
		"into a list":              patch("past.0", 1),
		"into a scalar":            patch("name.x", 1),
		"through a dynamic list":   patch("extra.list.x", 1),
		"through a dynamic scalar": inc("free.deep.er.x", 1),
		"wrong type":               patch("name", 1),
		"string for a number":      patch("visits", "1"),
		"out of range":             patch("visits", 128),
		"negative for unsigned":    patch("quota", -1),
		"fraction for an int":      patch("visits", 1.5),
		"inexact for a float":      patch("score", 1<<53+1),
		"NaN":                      patch("score", math.NaN()),
		"U+0000":                   patch("name", "\x00"),
		"invalid UTF-8 in any":     patch("extra", []string{"\xff"}),
		"unknown field in a map":   patch("home", map[string]any{"nope": 1}),
		"wrong type inside":        patch("home", map[string]any{"zip": "x"}),
		"not an int key":           patch("byYear.x", "y"),
		"not a time":               patch("born", "yesterday"),
		"a channel":                patch("extra", make(chan int)),
		"inc a string":             inc("name", 1),
		"inc a list":               inc("tags", 1),
		"inc a dynamic object":     inc("extra", 1),
		"inc overflow":             inc("visits", 127),
		"inc overflow of int64":    inc("visits", math.MinInt64),
		"inc underflow":            inc("quota", -1),
		"inc inexact":              inc("score", math.MaxInt64),
		"push onto a string":       push("name", "x"),
		"push onto bytes":          push("photo", 1),
		"push onto an array":       push("pair", 1),
		"push the wrong type":      push("tags", 1),
		"push onto an object":      push("extra", 1),
		"record in a struct":       record("home", "zip", 1),
		"record in a list":         record("tags", "0", "x"),
		"record of the wrong type": record("counts", "k", "x"),
		"record null":              record("counts", "k", nil),
		"record with a bad key":    record("free", "\x00", 1),
		"record in a dynamic list": record("extra.list", "k", 1),
		"delete in a struct":       remove("home", "zip"),
		"delete in a dynamic list": remove("extra.list", "0"),
		"set to another type":      {Verb: Set, Value: address{}},
		"set to nil":               {Verb: Set},
		"set to an invalid value":  {Verb: Set, Value: person{Name: "\x00"}},
		"no verb":                  {Field: "name"},
	} {
		t.Run(title, func(t *testing.T) {
			// The valid change before it must not remain.
			_, _, err := apply(t, committed(t), push("tags", "x"), op)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, op.Verb, e.Verb)
			assert.True(t, strings.HasPrefix(e.Path, op.Field), "path %q", e.Path)
			assert.NotEmpty(t, e.Reason)
			assert.False(t, e.Limit)
		})
	}
	t.Run("too deep", func(t *testing.T) {
		for _, op := range []Op{patch("extra", cyclic), push("free.l", cyclic), patch("free"+strings.Repeat(".x", MaxDepth), 1)} {
			_, _, err := apply(t, committed(t), op)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.True(t, e.Limit)
		}
	})
}

func TestOverlappingPatchesAreRefused(t *testing.T) {
	together := func(ops ...Op) []Op {
		for i := range ops[1:] {
			ops[i+1].Joins = true
		}
		return ops
	}
	_, _, err := apply(t, &doc{}, together(patch("a.b", 1), patch("x", 1), patch("a", 1))...)
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "a.b", e.Path)
	_, _, err = apply(t, &doc{}, together(patch("a", 1), patch("ab", 1), patch(`a\.b`, 1))...)
	assert.NoError(t, err, "parsed names are compared, not the text of the path")
	got, _, err := apply(t, &doc{}, patch("a", 1), patch("a", doc{"b": 1}), patch("a.b", 2))
	require.NoError(t, err)
	assert.Equal(t, &doc{"a": map[string]any{"b": int64(2)}}, got, "separate patches may overlap")
}

func TestChangesThatCancelOutChangeNothing(t *testing.T) {
	_, changed, err := apply(t, committed(t), inc("visits", 1), push("tags", "x"), inc("visits", -1), patch("tags", []string{"x", "y"}))
	require.NoError(t, err)
	assert.False(t, changed)
	_, changed, err = apply(t, (*doc)(nil), record("", "k", 1), remove("", "k"))
	require.NoError(t, err)
	assert.False(t, changed)
}

func TestIncIsExactOverAllIntegers(t *testing.T) {
	for _, c := range []struct {
		from any
		by   int64
		want any
	}{
		{nil, 5, int64(5)},
		{int64(math.MaxInt64), 1, uint64(math.MaxInt64) + 1},
		{int64(math.MaxInt64), math.MaxInt64, uint64(math.MaxUint64) - 1},
		{uint64(math.MaxInt64) + 1, -1, int64(math.MaxInt64)},
		{uint64(math.MaxUint64), math.MinInt64, int64(math.MaxInt64)},
		{int64(math.MinInt64), math.MaxInt64, int64(-1)},
		{0.5, 1, 1.5},
		{uint64(math.MaxUint64), 1, nil},
		{int64(math.MinInt64), -1, nil},
		{json.Number("1e400"), 1, nil},
		{1e300, 1, nil},
		{"1", 1, nil},
	} {
		got, changed, err := apply(t, &doc{"n": c.from}, inc("n", c.by))
		if c.want == nil {
			assert.Error(t, err, "%v%+d", c.from, c.by)
			continue
		}
		require.NoError(t, err)
		assert.True(t, changed)
		assert.Equal(t, c.want, (*got)["n"])
	}
}

func TestPreparedCopiesItsInput(t *testing.T) {
	value := map[string]any{"list": []any{1}}
	ty := typeOf[doc](t)
	p, err := ty.Prepare([]Op{patch("a", value), push("l", value)})
	require.NoError(t, err)
	value["list"].([]any)[0] = 2
	value["more"] = true
	var got doc
	_, err = p.Apply(nil, &got, nil)
	require.NoError(t, err)
	want := map[string]any{"list": []any{int64(1)}}
	assert.Equal(t, doc{"a": want, "l": []any{want}}, got)
}

func TestApplySharesUnchangedParts(t *testing.T) {
	cur := committed(t)
	got, _, err := apply(t, cur, patch("places.a.zip", 77))
	require.NoError(t, err)
	assert.Same(t, cur.Home, got.Home)
	assert.Same(t, &cur.Tags[0], &got.Tags[0])
	assert.Equal(t, reflect.ValueOf(cur.Free).Pointer(), reflect.ValueOf(got.Free).Pointer())
}

func TestPlainFindsUserCode(t *testing.T) {
	ty := typeOf[doc](t)
	type wrap struct{ V any }
	assert.True(t, ty.Plain([]Op{patch("a", 1), push("l", map[string]any{"x": []string{"y"}}, time.Now(), wrap{V: 1})}))
	for _, v := range []any{upper{}, &upper{}, []upper{}, map[string]any{"x": []any{upper{}}}, wrap{V: upper{}}, map[string]wrap{"k": {V: []any{upper{}}}}} {
		assert.False(t, ty.Plain([]Op{patch("a", v)}), "%T", v)
		assert.False(t, ty.Plain([]Op{push("a", v)}), "%T", v)
	}
	type state struct {
		U upper `json:"u"`
		N int   `json:"n"`
	}
	partly := typeOf[state](t)
	assert.True(t, partly.Plain([]Op{inc("n", 1), patch("nope", 1)}), "no user code runs for these fields")
	assert.False(t, partly.Plain([]Op{patch("u", "<a>")}))
	assert.False(t, partly.Plain([]Op{{Verb: Set, Value: state{}}}))
}

func TestConvertedValuesFitExactly(t *testing.T) {
	type inner struct {
		Count int `json:"count"`
	}
	type outer struct {
		List []string          `json:"list"`
		Map  map[string]int    `json:"map"`
		Ptrs []*int            `json:"ptrs"`
		Nest inner             `json:"nest"`
		Free map[string]any    `json:"free"`
		Deep map[string][]bool `json:"deep"`
	}
	for _, op := range []Op{
		patch("list", []any{"a", nil}),
		patch("map", map[string]any{"a": nil}),
		patch("nest", map[string]any{"COUNT": 4}),
		patch("nest", map[string]any{"count": nil}),
		patch("deep", map[string]any{"a": []any{true, nil}}),
	} {
		_, _, err := apply(t, &outer{}, op)
		var e *Error
		require.ErrorAs(t, err, &e, "%v", op.Value)
	}
	got, _, err := apply(t, &outer{}, patch("ptrs", []any{nil, 1}), patch("free", map[string]any{"a": nil}), patch("deep", map[string]any{"a": nil}))
	require.NoError(t, err)
	one := 1
	assert.Equal(t, &outer{Ptrs: []*int{nil, &one}, Free: map[string]any{"a": nil}, Deep: map[string][]bool{"a": nil}}, got)
}
