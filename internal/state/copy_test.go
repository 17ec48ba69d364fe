package state

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
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

// mixed has a field of every shape with its own way of copying.
type mixed struct {
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

func drawMixed(t *rapid.T, name string) mixed {
	texts, numbers := []string{"", "a", "b"}, []float64{0, 1, -1}
	moments := []time.Time{{}, time.Unix(1, 0), time.Unix(1, 0).UTC(), time.Unix(1, 0).In(time.FixedZone("", 30))}
	keys := []string{"a", "b", "c", "d", "a.b", "e", "f", "g", "h", "i", "j", ""}
	if rapid.IntRange(0, 2).Draw(t, "refused") == 0 {
		texts, numbers = append(texts, "\xff", "x\x00"), append(numbers, math.NaN(), math.Inf(1))
		moments, keys = append(moments, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), append(keys, "x\x00")
	}
	text, number, moment, key := rapid.SampledFrom(texts), rapid.SampledFrom(numbers), rapid.SampledFrom(moments), rapid.SampledFrom(keys)
	in := rapid.Custom(func(t *rapid.T) inside {
		return inside{rapid.Bool().Draw(t, "on"), float32(number.Draw(t, "ratio")), rapid.SampledFrom([][]level{nil, {}, {1}, {2}}).Draw(t, "codes")}
	})
	p := mixed{
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

// drawMap returns a map that is sometimes nil.
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

// mixedJSON returns the JSON that encoding/json makes of the plain fields of m, or false if a state
// cannot hold m.
func mixedJSON(t require.TestingT, m mixed) (string, bool) {
	if _, offset := m.At.Zone(); offset%60 != 0 {
		m.At = m.At.UTC() // JSON would change the instant
	}
	doc, err := json.Marshal(m)
	if err != nil {
		return "", false // NaN, an infinity or a year that is too late
	}
	return string(doc), !strings.Contains(string(doc), `\ufffd`) && !strings.Contains(string(doc), `\u0000`)
}

// Settle and Clone agree with encoding/json on every shape, and share no memory with their input.
func TestSettleAndDetachAgreeWithJSON(t *testing.T) {
	ty := typeOf[mixed](t)
	rapid.Check(t, func(t *rapid.T) {
		text := func(m *mixed) string {
			doc, err := ty.Encode(m)
			require.NoError(t, err)
			return string(doc)
		}
		var old any
		oldText, _ := mixedJSON(t, mixed{})
		first, committed := drawMixed(t, "old"), new(mixed)
		if want, ok := mixedJSON(t, first); ok && rapid.Bool().Draw(t, "present") {
			_, err := settleTo(ty, nil, &first, committed)
			require.NoError(t, err)
			old, oldText = committed, want
		}
		draft := drawMixed(t, "draft")
		if old != nil && rapid.Bool().Draw(t, "alike") {
			require.NoError(t, cloneTo(ty, committed, &draft))
			draft.Tags = append(draft.Tags, "more")
			delete(draft.Names, "a")
			if draft.Scores != nil {
				draft.Scores["b"]++
			}
		}
		want, ok := mixedJSON(t, draft)
		got := new(mixed)
		changed, err := settleTo(ty, old, &draft, got)
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			return
		}
		require.Equal(t, want, text(got))
		require.Equal(t, want != oldText, changed)
		scramble(reflect.ValueOf(&draft).Elem())
		require.Equal(t, want, text(got), "changing the draft must not change the state")

		var copied mixed
		require.NoError(t, cloneTo(ty, got, &copied))
		require.Equal(t, got, &copied)
		scramble(reflect.ValueOf(&copied).Elem())
		require.Equal(t, want, text(got), "changing the copy must not change the state")
		if old != nil {
			require.Equal(t, oldText, text(committed), "the old state must not change")
		}
	})
}
