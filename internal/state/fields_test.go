package state

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type Base struct {
	ID   int            `json:"id"`
	Name string         `json:"name"`
	Tags []string       `json:"tags"`
	Bag  map[string]any `json:"bag"`
}

type other struct {
	Name  string `json:"name"`
	Title string
	Depth int `json:"depth"`
}

type deeper struct {
	other
	Depth int `json:"depth"`
}

type embeds struct {
	*Base
	deeper
	Title string `json:"title"`
	//lint:ignore SA5008 encoding/json ignores such a name, and so must we
	Bad string `json:"bad\"name"`
	Odd int    `json:",omitempty"`
	//lint:ignore SA5008 the comma makes it the name "-"
	Kept int `json:"-,"`
}

// twice has two fields Name at the same depth, which hide each other.
type twice struct {
	left
	right
}

type left struct{ Name, L string }

type right struct{ Name, R string }

// The fields of a type are those that encoding/json writes.
func TestFieldsMatchEncodingJSON(t *testing.T) {
	for _, v := range []any{
		embeds{Base: &Base{}, Odd: 1}, twice{}, deeper{}, *samplePerson(), wild{N: 1, S: []string{""}, P: &wild{}, T: samplePerson().Born},
	} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		var want map[string]any
		require.NoError(t, json.Unmarshal(text, &want))
		n, err := nodeOf(reflect.TypeOf(v))
		require.NoError(t, err)
		var names []string
		for name := range n.fields {
			if name != "notes" { // empty, so omitted
				names = append(names, name)
			}
		}
		var keys []string
		for k := range want {
			keys = append(keys, k)
		}
		assert.ElementsMatch(t, keys, names, "%T", v)
	}
}

func TestEmbeddedPointers(t *testing.T) {
	ty := typeOf[embeds](t)
	got, changed, err := apply(t, &embeds{}, patch("id", 3), push("tags", "a"), patch("bag.x.y", 1))
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, &Base{ID: 3, Tags: []string{"a"}, Bag: map[string]any{"x": map[string]any{"y": int64(1)}}}, got.Base)

	var draft, next embeds
	require.NoError(t, cloneTo(ty, got, &draft))
	assert.Equal(t, got, &draft)
	assert.NotSame(t, got.Base, draft.Base)
	draft.Title = "t"
	changed, err = settleTo(ty, got, &draft, &next)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Same(t, got.Base, next.Base)

	draft.Tags[0] = "b"
	changed, err = settleTo(ty, got, &draft, &next)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, []string{"a"}, got.Tags)
	assert.Equal(t, []string{"b"}, next.Tags)
	assert.False(t, ty.Equal(got, &next))
	assert.False(t, ty.Equal(got, &embeds{}))

	draft.Base = nil
	changed, err = settleTo(ty, got, &draft, &next)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Nil(t, next.Base)

	var back embeds
	text, err := ty.Encode(got)
	require.NoError(t, err)
	_, err = ty.Decode(text, &back)
	require.NoError(t, err)
	assert.True(t, ty.Equal(got, &back))

	type hidden struct{ *other }
	_, err = Of(reflect.TypeFor[hidden]())
	assert.ErrorContains(t, err, "unexported")
}

type unseen struct {
	Counts map[string]int `json:"counts"`
}

// encoding/json can decode an embedded struct of an unexported type under a name. Reflection can
// neither set nor return it, so Of refuses it.
func TestOfRefusesNamedEmbeddedUnexported(t *testing.T) {
	type byValue struct {
		unseen `json:"unseen"`
		N      int `json:"n"`
	}
	type byPointer struct {
		*unseen `json:"unseen"`
	}
	type inList struct {
		List []byValue `json:"list"`
	}
	type promoted struct {
		unseen
		N int `json:"n"`
	}
	for _, rt := range []reflect.Type{reflect.TypeFor[byValue](), reflect.TypeFor[byPointer](), reflect.TypeFor[inList]()} {
		_, err := Of(rt)
		require.ErrorContains(t, err, "unexported", rt)
		require.ErrorContains(t, err, "unseen", rt)
	}
	typ, err := Of(reflect.TypeFor[promoted]())
	require.NoError(t, err)
	var got, copied promoted
	_, err = settleTo(typ, nil, &promoted{unseen{map[string]int{"a": 1}}, 2}, &got)
	require.NoError(t, err)
	require.NoError(t, cloneTo(typ, &got, &copied))
	require.Equal(t, promoted{unseen{map[string]int{"a": 1}}, 2}, copied)
}

func TestVerbsOnMapsOfDynamicParts(t *testing.T) {
	type state map[string]map[string]any
	cur := &state{"k": {"x": int64(1), "y": int64(2)}}
	got, changed, err := apply(t, cur, patch("k.x", nil))
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, &state{"k": {"y": int64(2)}}, got, "the inner entry is deleted, not the outer one")
	got, _, err = apply(t, cur, patch("k", nil))
	require.NoError(t, err)
	assert.Equal(t, &state{}, got)
	got, _, err = apply(t, cur, patch("k", doc{"z": uint8(1)}))
	require.NoError(t, err)
	assert.Equal(t, &state{"k": {"z": int64(1)}}, got)
}

func TestNumbersConvertOnlyIfExact(t *testing.T) {
	type state struct {
		I64 int64   `json:"i64"`
		U64 uint64  `json:"u64"`
		F32 float32 `json:"f32"`
		F64 float64 `json:"f64"`
	}
	for _, c := range []struct {
		field string
		value any
		want  any
	}{
		{"i64", uint64(math.MaxInt64), int64(math.MaxInt64)},
		{"i64", uint64(math.MaxInt64) + 1, nil},
		{"i64", json.Number("9223372036854775807"), int64(math.MaxInt64)},
		{"i64", true, nil},
		{"i64", new(5), int64(5)},
		{"u64", uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{"u64", json.Number("18446744073709551615"), uint64(math.MaxUint64)},
		{"u64", int8(-1), nil},
		{"u64", 3.0, uint64(3)},
		{"f64", int64(math.MaxInt64), nil},
		{"f64", uint64(1) << 63, float64(1 << 63)},
		{"f64", uint64(math.MaxUint64), nil},
		{"f64", json.Number("0.5"), 0.5},
		{"f64", float32(0.5), 0.5},
		{"f64", math.Inf(-1), nil},
		{"f32", 1 << 24, float32(1 << 24)},
		{"f32", 1<<24 + 1, nil},
		{"f32", 1e300, nil},
		{"f32", json.Number("1e300"), nil},
		{"f32", json.Number("1e400"), nil},
	} {
		ty := typeOf[state](t)
		got, _, err := apply(t, &state{}, patch(c.field, c.value))
		if c.want == nil {
			assert.Error(t, err, "%s %v", c.field, c.value)
			continue
		}
		require.NoError(t, err, "%s %v", c.field, c.value)
		v, _ := ty.Lookup(got, c.field)
		assert.Equal(t, c.want, v)
	}
	_, _, err := apply(t, &state{F32: 1 << 24}, inc("f32", 1))
	assert.Error(t, err, "the count would be lost")
	_, _, err = apply(t, &state{F64: 1 << 53}, inc("f64", 1))
	assert.Error(t, err)
	got, _, err := apply(t, &state{F64: 1 << 53}, inc("f64", -1))
	require.NoError(t, err)
	assert.Equal(t, float64(1<<53-1), got.F64)
}

func TestErrorTexts(t *testing.T) {
	_, _, err := apply(t, &person{}, patch("home", map[string]any{"street": "\x00"}))
	assert.EqualError(t, err, `state: patch "home.street": strings cannot contain U+0000`)
	_, _, err = apply(t, &doc{}, patch("a", map[string]any{"a": "\xff"}))
	assert.EqualError(t, err, `state: patch "a.a": strings must be valid UTF-8`)
	_, _, err = apply(t, &person{}, inc("quota", -1))
	assert.EqualError(t, err, `state: inc "quota": 0-1 overflows uint8`)
	_, _, err = apply(t, &person{}, Op{Verb: Set, Value: person{Tags: []string{"\x00"}}})
	assert.EqualError(t, err, `state: set "tags[0]": strings cannot contain U+0000`)

	_, err = settleTo(typeOf[failing](t), nil, &failing{}, &failing{})
	assert.ErrorIs(t, err, errFailing, "the error of user code can be found")
}

var errFailing = errors.New("no")

type failing struct{ N int }

func (failing) MarshalJSON() ([]byte, error) { return nil, errFailing }

func TestRawMessagesAreCompact(t *testing.T) {
	type state struct {
		R json.RawMessage `json:"r"`
	}
	ty := typeOf[state](t)
	var a, b state
	_, err := settleTo(ty, nil, &state{R: json.RawMessage(`{ "x": "\ud83d\ude00" }`)}, &a)
	require.NoError(t, err)
	assert.Equal(t, `{"x":"\ud83d\ude00"}`, string(a.R))
	assert.Equal(t, len(a.R), cap(a.R), "a reader's append must not reach shared memory")
	changed, err := settleTo(ty, &a, &state{R: json.RawMessage(`{"x": "\ud83d\ude00"}`)}, &b)
	require.NoError(t, err)
	assert.False(t, changed)
	for _, raw := range []string{`"\ud83d"`, `"\ude00"`, `"\ud83dx"`, `"\u0000"`, "\"\xff\"", `{`, ``, `1 2`} {
		_, err := settleTo(ty, nil, &state{R: json.RawMessage(raw)}, &b)
		assert.Error(t, err, raw)
	}
}

// ident is a key with its own text form, which encoding/json uses.
type ident string

func (i ident) MarshalText() ([]byte, error) { return []byte(i), nil }

func TestOfRefusesKeysWithTextForm(t *testing.T) {
	for _, rt := range []reflect.Type{reflect.TypeFor[any](), reflect.TypeFor[map[ident]any](), reflect.TypeFor[struct{ M map[ident]string }]()} {
		_, err := Of(rt)
		assert.Error(t, err, "%s", rt)
	}
}
