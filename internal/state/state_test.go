package state

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// doc is a named dynamic map, like Doc of the root package.
type doc map[string]any

type address struct {
	Street string `json:"street"`
	Zip    int    `json:"zip,omitempty"`
}

type meta struct {
	Label string `json:"label"`
	Age   int    `json:"age"`
}

type person struct {
	meta
	Name   string             `json:"name"`
	Visits int8               `json:"visits"`
	Quota  uint8              `json:"quota"`
	Score  float64            `json:"score"`
	Home   *address           `json:"home"`
	Tags   []string           `json:"tags"`
	Notes  []string           `json:"notes,omitempty"`
	Past   []address          `json:"past"`
	Places map[string]address `json:"places"`
	Counts map[string]int     `json:"counts"`
	ByYear map[int]string     `json:"byYear"`
	Extra  any                `json:"extra"`
	Free   map[string]any     `json:"free"`
	Born   time.Time          `json:"born"`
	Photo  []byte             `json:"photo"`
	Pair   [2]int             `json:"pair"`
	Maybe  *int               `json:"maybe"`
	Secret string             `json:"-"`
	hidden []int
}

// upper has its own JSON form.
type upper struct{ text string }

func (u upper) MarshalJSON() ([]byte, error) { return json.Marshal("<" + u.text + ">") }
func (u *upper) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if len(s) < 2 {
		return errors.New("too short")
	}
	u.text = s[1 : len(s)-1]
	return nil
}

func typeOf[T any](t testing.TB) *Type {
	t.Helper()
	ty, err := Of(reflect.TypeFor[T]())
	require.NoError(t, err)
	return ty
}

// cloneTo fills *dst with a deep copy of *src.
func cloneTo[T any](ty *Type, src, dst *T) error {
	*dst = *src
	return ty.Detach(dst)
}

// settleTo fills *dst with the settled *draft.
func settleTo[T any](ty *Type, old any, draft, dst *T) (changed bool, err error) {
	*dst = *draft
	return ty.Settle(old, dst)
}

// applyTo fills *dst with the result of p on *cur. A nil cur is an absent state.
func applyTo[T any](p *Prepared, cur, dst *T, tail *Tail) (changed bool, err error) {
	if cur == nil {
		return p.Apply(nil, dst, tail)
	}
	*dst = *cur
	return p.Apply(cur, dst, tail)
}

func TestOfNamesEveryUnsupportedPart(t *testing.T) {
	type inner struct {
		Fn func() `json:"fn"`
	}
	type bad struct {
		Ch    chan int           `json:"ch"`
		C     complex128         `json:"c"`
		Err   error              `json:"err"`
		Keys  map[float64]string `json:"keys"`
		Inner []inner            `json:"in.ner"`
		Fine  int                `json:"fine"`
		skip  chan int
		Dash  func() `json:"-"`
	}
	_, err := Of(reflect.TypeFor[bad]())
	require.Error(t, err)
	for _, path := range []string{`"ch"`, `"c"`, `"err"`, `"keys"`, `"in\\.ner[].fn"`} {
		assert.ErrorContains(t, err, path)
	}
	assert.NotContains(t, err.Error(), "fine")
	assert.NotContains(t, err.Error(), "Dash")
	_ = bad{}.skip
}

func TestOfAcceptsRecursiveTypes(t *testing.T) {
	type node struct {
		Name string           `json:"name"`
		Kids []*node          `json:"kids"`
		By   map[string]*node `json:"by"`
	}
	ty := typeOf[node](t)
	src := &node{Name: "a", Kids: []*node{{Name: "b", Kids: []*node{{Name: "c"}}}}}
	var dst node
	require.NoError(t, cloneTo(ty, src, &dst))
	assert.Equal(t, src, &dst)
	assert.NotSame(t, src.Kids[0], dst.Kids[0])

	cyclic := &node{Name: "loop"}
	cyclic.Kids = []*node{cyclic}
	_, err := settleTo(ty, nil, cyclic, &node{})
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.True(t, e.Limit)
}

func TestCustomFindsUserCode(t *testing.T) {
	type std struct {
		T time.Time
		A netip.Addr
		N json.Number
		R json.RawMessage
		X any
	}
	type zeroer struct {
		U upperZero `json:",omitzero"`
	}
	type promoted struct {
		time.Time
		N int
	}
	assert.False(t, typeOf[std](t).Custom())
	assert.False(t, typeOf[doc](t).Custom())
	assert.True(t, typeOf[struct{ B big.Int }](t).Custom())
	assert.True(t, typeOf[map[string][]upper](t).Custom())
	assert.True(t, typeOf[struct{ P *upper }](t).Custom())
	assert.True(t, typeOf[zeroer](t).Custom())
	assert.True(t, typeOf[promoted](t).Custom(), "methods of an embedded type are promoted")
}

type upperZero struct{ S string }

func (upperZero) IsZero() bool { return false }

func TestZeroMapIsEmptyNotNil(t *testing.T) {
	d := typeOf[doc](t).Zero().(*doc)
	(*d)["k"] = 1
	p := typeOf[person](t).Zero().(*person)
	assert.Equal(t, &person{}, p)
}

func TestDetachSharesNoMutableMemory(t *testing.T) {
	ty := typeOf[person](t)
	src, want := committed(t), committed(t)
	assert.Empty(t, src.Secret, "JSON omits the field")
	assert.Nil(t, src.hidden)
	var dst person
	require.NoError(t, cloneTo(ty, src, &dst))
	assert.Equal(t, want, &dst)
	scramble(reflect.ValueOf(&dst).Elem())
	assert.Equal(t, want, src)
}

// secretive has fields that JSON omits.
type secretive struct {
	N      int    `json:"n"`
	Secret string `json:"-"`
	hidden []int
}

// Fields that JSON omits stay out of a state, wherever the struct is.
func TestSettleDropsFieldsOutsideJSON(t *testing.T) {
	type inner struct {
		secretive
		At time.Time `json:"at"`
	}
	type state struct {
		*Base
		secretive
		Value   inner                 `json:"value"`
		Pointer *inner                `json:"pointer"`
		List    []inner               `json:"list"`
		Array   [2]inner              `json:"array"`
		Map     map[string]inner      `json:"map"`
		Lists   map[string][]*inner   `json:"lists"`
		Dynamic any                   `json:"dynamic"`
		Maps    []map[int][1]struct{} `json:"maps"`
	}
	ty := typeOf[state](t)
	make1 := func(hide bool) *state {
		in := inner{secretive{N: 1}, time.Unix(1, 0).UTC()}
		if hide {
			in.Secret, in.hidden = "s", []int{1}
		}
		return &state{
			Base: &Base{ID: 3}, secretive: in.secretive, Value: in, Pointer: &in, List: []inner{in, in}, Array: [2]inner{in, in},
			Map: map[string]inner{"k": in}, Lists: map[string][]*inner{"k": {&in, nil}}, Maps: []map[int][1]struct{}{{1: {}}},
		}
	}
	want, got := make1(false), &state{}
	_, err := settleTo(ty, nil, make1(true), got)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	changed, err := settleTo(ty, got, make1(true), &state{})
	require.NoError(t, err)
	assert.False(t, changed)
	draft, next := make1(true), &state{}
	draft.List[1].N, draft.Map["l"], draft.Lists["k"][1] = 2, inner{}, draft.Pointer
	changed, err = settleTo(ty, got, draft, next)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Empty(t, next.List[1].Secret)
	assert.Empty(t, next.Lists["k"][1].Secret)
	assert.Equal(t, want, got)
	var copied state
	require.NoError(t, cloneTo(ty, got, &copied))
	scramble(reflect.ValueOf(&copied).Elem())
	assert.Equal(t, want, got)
}

func samplePerson() *person {
	return &person{
		meta: meta{Label: "l", Age: 3}, Name: "Ann", Visits: 1, Score: 1.5,
		Home: &address{Street: "s", Zip: 1}, Tags: []string{"x", "y"}, Past: []address{{Street: "p"}},
		Places: map[string]address{"a": {Zip: 2}}, Counts: map[string]int{"n": 1}, ByYear: map[int]string{1999: "y"},
		Extra: map[string]any{"list": []any{int64(1), map[string]any{"k": "v"}}},
		Free:  map[string]any{"deep": map[string]any{"er": []any{"x"}}},
		Born:  time.Date(2000, 1, 2, 3, 4, 5, 6, time.UTC), Photo: []byte{1, 2}, Maybe: new(7), Secret: "s", hidden: []int{1},
	}
}

func TestSettleSharesEqualParts(t *testing.T) {
	ty := typeOf[person](t)
	old := &person{}
	_, err := settleTo(ty, nil, samplePerson(), old)
	require.NoError(t, err)

	same := &person{}
	changed, err := settleTo(ty, old, samplePerson(), same)
	require.NoError(t, err)
	assert.False(t, changed)

	draft := samplePerson()
	draft.Free["deep"].(map[string]any)["er"] = []any{"changed"}
	draft.Places["b"] = address{}
	got := &person{}
	changed, err = settleTo(ty, old, draft, got)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Same(t, old.Home, got.Home)
	assert.Same(t, &old.Tags[0], &got.Tags[0])
	assert.Equal(t, reflect.ValueOf(old.Extra).Pointer(), reflect.ValueOf(got.Extra).Pointer())
	assert.Equal(t, []any{"x"}, old.Free["deep"].(map[string]any)["er"])
	assert.Len(t, old.Places, 1)
	assert.Len(t, got.Places, 2)

	scramble(reflect.ValueOf(draft).Elem())
	assert.Equal(t, []any{"changed"}, got.Free["deep"].(map[string]any)["er"])
}

func TestSettleTellsNilFromEmptyWhereJSONDoes(t *testing.T) {
	ty := typeOf[person](t)
	for name, c := range map[string]struct {
		change  func(*person)
		changed bool
	}{
		"null list becomes []":     {func(p *person) { p.Tags = []string{} }, true},
		"omitempty writes neither": {func(p *person) { p.Notes = []string{} }, false},
		"null map becomes {}":      {func(p *person) { p.Free = map[string]any{} }, true},
		"a field outside JSON":     {func(p *person) { p.Secret, p.hidden = "x", []int{1} }, false},
		"a promoted field":         {func(p *person) { p.Label = "x" }, true},
		"a pointer to zero":        {func(p *person) { p.Maybe = new(int) }, true},
		"an array's item":          {func(p *person) { p.Pair[1] = 1 }, true},
		"same instant, other zone": {func(p *person) { p.Born = time.Time{}.In(time.FixedZone("x", 3600)) }, true},
		"typed nil map in an any":  {func(p *person) { p.Extra = map[string]any(nil) }, false},
		"a whole float in an any":  {func(p *person) { p.Extra = 3.0 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			draft := &person{}
			c.change(draft)
			changed, err := settleTo(ty, nil, draft, &person{})
			require.NoError(t, err)
			assert.Equal(t, c.changed, changed)
		})
	}
	d := typeOf[doc](t)
	changed, err := settleTo(d, nil, &doc{}, new(doc))
	require.NoError(t, err)
	assert.False(t, changed, "at the top level a nil map is empty")
}

// Settle refuses every part that a state cannot hold, and names it.
func TestSettleRefusesInvalidValues(t *testing.T) {
	type state struct {
		S   string            `json:"s"`
		F   float32           `json:"f"`
		L   []string          `json:"l"`
		M   map[string]string `json:"m"`
		X   any               `json:"x"`
		N   json.Number       `json:"n"`
		R   json.RawMessage   `json:"r"`
		T   time.Time         `json:"t"`
		U   *upper            `json:"u"`
		Any []any             `json:"any"`
	}
	ty := typeOf[state](t)
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	var loop []any = make([]any, 1)
	loop[0] = loop
	for path, c := range map[string]state{
		"s":         {S: "a\x00"},
		"f":         {F: float32(math.Inf(1))},
		"l[1]":      {L: []string{"ok", "\xff"}},
		"m.k\\.1":   {M: map[string]string{"k.1": "\xff"}},
		"m":         {M: map[string]string{"\x00": ""}},
		"x":         {X: math.NaN()},
		"x.a[0].b":  {X: map[string]any{"a": []any{map[string]any{"b": "\x00"}}}},
		"x.y":       {X: map[string]any{"y": make(chan int)}},
		"n":         {N: "1x"},
		"r":         {R: json.RawMessage(`{"a":"\u0000"}`)},
		"t":         {T: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"u":         {U: &upper{"\x00"}},
		"any[0].fn": {Any: []any{map[string]any{"fn": func() {}}}},
	} {
		t.Run(path, func(t *testing.T) {
			_, err := settleTo(ty, nil, &c, &state{})
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, path, e.Path)
			assert.NotEmpty(t, e.Reason)
			assert.False(t, e.Limit)
		})
	}
	for name, c := range map[string]state{"object": {X: cyclic}, "list": {X: loop}, "raw": {R: deepRaw(MaxDepth)}} {
		t.Run("cyclic "+name, func(t *testing.T) {
			_, err := settleTo(ty, nil, &c, &state{})
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.True(t, e.Limit)
		})
	}
	_, err := settleTo(ty, nil, &state{R: deepRaw(MaxDepth - 1)}, &state{})
	assert.NoError(t, err)
}

func deepRaw(depth int) json.RawMessage {
	var b []byte
	for range depth {
		b = append(b, '[')
	}
	for range depth {
		b = append(b, ']')
	}
	return b
}

func TestCustomTypesAreCopiedByTheirJSON(t *testing.T) {
	type state struct {
		U    upper            `json:"u"`
		List []upper          `json:"list"`
		M    map[string]upper `json:"m"`
		N    int              `json:"n"`
	}
	ty := typeOf[state](t)
	src := &state{U: upper{"a"}, List: []upper{{"b"}}, M: map[string]upper{"k": {"c"}}}
	var dst state
	require.NoError(t, cloneTo(ty, src, &dst))
	assert.Equal(t, src, &dst)
	changed, err := settleTo(ty, src, &dst, &state{})
	require.NoError(t, err)
	assert.False(t, changed)
	dst.List = append(dst.List, upper{"z"})
	var next state
	changed, err = settleTo(ty, src, &dst, &next)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Equal(t, dst.List, next.List)
}

// scramble changes everything reachable from v.
func scramble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			scramble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() || f.Kind() == reflect.Struct {
				scramble(f)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			scramble(v.Index(i))
		}
		if v.Kind() == reflect.Slice && v.Len() > 0 && v.Index(0).CanSet() {
			v.Index(0).SetZero()
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			scramble(v.MapIndex(k))
			v.SetMapIndex(k, reflect.Zero(v.Type().Elem()))
		}
		if v.Type().Key().Kind() == reflect.String && !v.IsNil() {
			v.SetMapIndex(reflect.ValueOf("scrambled").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		}
	default:
		if v.CanSet() {
			v.SetZero()
		}
	}
}
