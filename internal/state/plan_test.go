package state

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type level int16

type label string

type inside struct {
	On    bool    `json:"on"`
	Ratio float32 `json:"ratio"`
	Codes []level `json:"codes,omitempty"`
}

type planned struct {
	Count  int64                     `json:"count"`
	Small  level                     `json:"small"`
	Wide   uint32                    `json:"wide"`
	Score  float64                   `json:"score"`
	Name   label                     `json:"name"`
	At     time.Time                 `json:"at"`
	Tags   []label                   `json:"tags"`
	Notes  []string                  `json:"notes,omitempty"`
	Photo  []byte                    `json:"photo"`
	Flags  []bool                    `json:"flags"`
	Sizes  []uint64                  `json:"sizes"`
	Words  []uint32                  `json:"words"`
	In     inside                    `json:"in"`
	Counts map[string]int            `json:"counts"`
	Levels map[label]level           `json:"levels,omitempty"`
	Lights map[string]bool           `json:"lights"`
	Shares map[string]float32        `json:"shares"`
	Scores map[string]float64        `json:"scores"`
	Names  map[label]label           `json:"names"`
	Next   *inside                   `json:"next"`
	Free   any                       `json:"free"`
	Pairs  []inside                  `json:"pairs"`
	Rooms  map[string]inside         `json:"rooms"`
	Boards map[int]map[string]uint32 `json:"boards"`
}

func drawPlanned(t *rapid.T, name string) planned {
	texts, numbers := []string{"", "a", "b"}, []float64{0, 1, -1, math.Copysign(0, -1)}
	moments := []time.Time{{}, time.Unix(1, 0), time.Unix(1, 0).UTC(), time.Unix(1, 0).In(time.FixedZone("", 30))}
	keys := []string{"a", "b", "c", "d", "a.b", "e", "f", "g", "h", "i", "j", ""}
	if rapid.IntRange(0, 2).Draw(t, "odd") == 0 { // what is refused
		texts, numbers = append(texts, "\xff", "x\x00"), append(numbers, math.NaN(), math.Inf(1))
		moments, keys = append(moments, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), append(keys, "x\x00")
	}
	text, number, moment, key := rapid.SampledFrom(texts), rapid.SampledFrom(numbers), rapid.SampledFrom(moments), rapid.SampledFrom(keys)
	in := rapid.Custom(func(t *rapid.T) inside {
		return inside{rapid.Bool().Draw(t, "on"), float32(number.Draw(t, "ratio")), rapid.SampledFrom([][]level{nil, {}, {1}, {2}}).Draw(t, "codes")}
	})
	p := planned{
		Count: rapid.Int64Range(0, 2).Draw(t, name), Small: level(rapid.IntRange(0, 1).Draw(t, "small")), Wide: uint32(rapid.IntRange(0, 1).Draw(t, "wide")),
		Score: number.Draw(t, "score"), Name: label(text.Draw(t, "name")), At: moment.Draw(t, "at"),
		Notes: rapid.SampledFrom([][]string{nil, {}, {"a"}, {"b", "c"}}).Draw(t, "notes"),
		Photo: rapid.SampledFrom([][]byte{nil, {}, {1}, {2}}).Draw(t, "photo"),
		Flags: rapid.SampledFrom([][]bool{nil, {}, {true}, {true, false}}).Draw(t, "flags"),
		Sizes: rapid.SampledFrom([][]uint64{nil, {}, {1 << 40}, {1, 2}}).Draw(t, "sizes"),
		Words: rapid.SampledFrom([][]uint32{nil, {}, {7}, {7, 8}}).Draw(t, "words"),
		In:    in.Draw(t, "in"), Free: rapid.SampledFrom([]any{nil, int64(1), "a"}).Draw(t, "free"),
		Counts: drawMap(t, key, rapid.IntRange(0, 2)),
		Levels: renamed(drawMap(t, key, rapid.Int16Range(0, 1)), func(n int16) level { return level(n) }),
		Lights: drawMap(t, key, rapid.Bool()),
		Shares: drawMap(t, key, rapid.Map(number, func(f float64) float32 { return float32(f) })),
		Scores: drawMap(t, key, number),
		Names:  renamed(drawMap(t, key, text), func(s string) label { return label(s) }),
		Rooms:  drawMap(t, key, in),
	}
	if board := drawMap(t, key, rapid.Uint32Range(0, 1)); board != nil {
		p.Boards = map[int]map[string]uint32{1: board, 2: nil}
	}
	for range rapid.IntRange(0, 2).Draw(t, "tags") {
		p.Tags = append(p.Tags, label(text.Draw(t, "tag")))
	}
	if rapid.Bool().Draw(t, "next") {
		next := in.Draw(t, "next")
		p.Next = &next
		p.Pairs = []inside{next}
	}
	return p
}

// drawMap returns a map, which now and then is nil.
func drawMap[V any](t *rapid.T, key *rapid.Generator[string], value *rapid.Generator[V]) map[string]V {
	if rapid.IntRange(0, 4).Draw(t, "absent") == 0 {
		return nil
	}
	return rapid.MapOfN(key, value, 0, 11).Draw(t, "map")
}

func renamed[V, W any](m map[string]V, f func(V) W) map[label]W {
	if m == nil {
		return nil
	}
	out := map[label]W{}
	for k, v := range m {
		out[label(k)] = f(v)
	}
	return out
}

// byReflection returns a type that has no plan, nor has anything inside it.
func byReflection[T any]() *Type {
	c := compiler{made: map[reflect.Type]*node{}}
	root := c.compile(reflect.TypeFor[T](), "")
	c.propagate()
	for _, n := range c.order {
		n.plan, n.entries = nil, nil
	}
	return &Type{root: root, zero: root.zero.Addr()}
}

// A plan copies and settles exactly like reflection, and shares nothing with what it was given.
func TestPlanDoesWhatReflectionDoes(t *testing.T) {
	typ, err := Of(reflect.TypeFor[planned]())
	require.NoError(t, err)
	require.NotNil(t, typ.plan)
	require.Len(t, typ.plan.rest, 5, "the pointer, the any, the list of structs, the map of structs and that of maps")
	slow := byReflection[planned]()
	rapid.Check(t, func(t *rapid.T) {
		var old any
		was := drawPlanned(t, "old")
		settled := new(planned)
		if _, err := slow.Settle(nil, &was, settled); err == nil && rapid.Bool().Draw(t, "present") {
			old = settled
		}
		draft := drawPlanned(t, "draft")
		if old != nil && rapid.Bool().Draw(t, "alike") {
			require.NoError(t, slow.Clone(old, &draft))
			draft.Tags = append(draft.Tags, "more")
			delete(draft.Names, "a")
			if draft.Scores != nil {
				draft.Scores["b"]++
			}
		}
		want, got := new(planned), new(planned)
		wantChanged, wantErr := slow.Settle(old, &draft, want)
		gotChanged, gotErr := typ.Settle(old, &draft, got)
		require.Equal(t, wantErr == nil, gotErr == nil, "%v, not %v", gotErr, wantErr)
		if wantErr != nil {
			return
		}
		require.Equal(t, wantChanged, gotChanged)
		require.Equal(t, want, got)
		for i := range draft.Tags {
			draft.Tags[i] = "changed later"
		}
		for i := range draft.Photo {
			draft.Photo[i]++
		}
		for k := range draft.Counts {
			draft.Counts[k]++
		}
		require.Equal(t, want, got, "the draft is not the state")

		wantCopy, gotCopy := new(planned), new(planned)
		require.NoError(t, slow.Clone(got, wantCopy))
		require.NoError(t, typ.Clone(got, gotCopy))
		require.Equal(t, wantCopy, gotCopy)
		for i := range gotCopy.Tags {
			gotCopy.Tags[i] = "changed later"
		}
		for i := range gotCopy.Sizes {
			gotCopy.Sizes[i]++
		}
		for k := range gotCopy.Levels {
			gotCopy.Levels[k]++
		}
		require.Equal(t, want, got, "the copy is not the state")
	})
}

// Raw JSON has no spare capacity either: who appends to what it reads gets memory of its own.
func TestRawHasNoSpareCapacity(t *testing.T) {
	type state struct {
		Raw json.RawMessage `json:"raw"`
	}
	typ, err := Of(reflect.TypeFor[state]())
	require.NoError(t, err)
	var got state
	_, err = typ.Settle(nil, &state{json.RawMessage(`{"a": 1}`)}, &got)
	require.NoError(t, err)
	require.Equal(t, len(got.Raw), cap(got.Raw))
}
