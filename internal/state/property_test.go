package state

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	genKey    = rapid.SampledFrom([]string{"a", "b", "c", "A", "k.1", `b\s`, "ü"})
	genString = rapid.StringMatching(`[a-c<&ü"\\ ]{0,4}`)
)

// genScalar draws Go scalars, most of them not in normal form.
func genScalar(t *rapid.T) any {
	switch rapid.IntRange(0, 9).Draw(t, "scalar") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64().Draw(t, "int64")
	case 3:
		return rapid.Uint64().Draw(t, "uint64")
	case 4:
		return rapid.Float64().Draw(t, "float64")
	case 5:
		return rapid.Float32().Draw(t, "float32")
	case 6:
		return float64(rapid.Int64().Draw(t, "whole"))
	case 7:
		return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?`).Draw(t, "number"))
	case 8:
		return name(genString.Draw(t, "name"))
	}
	return genString.Draw(t, "string")
}

type wild struct {
	N   int8           `json:"n,omitempty"`
	F   float32        `json:"f"`
	Q   int64          `json:"q,string"`
	S   []string       `json:"s,omitempty"`
	X   any            `json:"x"`
	P   *wild          `json:"p,omitempty"`
	M   map[uint]name  `json:"m"`
	T   time.Time      `json:"t,omitzero"`
	B   []byte         `json:"b"`
	Doc doc            `json:"doc"`
	Num json.Number    `json:"num"`
	Arr [2]any         `json:"arr"`
	Obj map[string]doc `json:"obj"`
}

// genValue draws Go values that a dynamic part accepts.
func genValue(t *rapid.T, depth int) any {
	if depth == 0 {
		return genScalar(t)
	}
	size := rapid.IntRange(0, 3).Draw(t, "size")
	switch rapid.IntRange(0, 8).Draw(t, "value") {
	case 0, 1:
		out := map[string]any{}
		for range size {
			out[genKey.Draw(t, "key")] = genValue(t, depth-1)
		}
		return out
	case 2:
		out := []any{}
		for range size {
			out = append(out, genValue(t, depth-1))
		}
		return out
	case 3:
		return rapid.SliceOfN(rapid.Int32(), 0, 3).Draw(t, "ints")
	case 4:
		return rapid.MapOfN(rapid.Int8(), genString, 0, 3).Draw(t, "map")
	case 5:
		w := genWild(t, depth-1)
		return w
	case 6:
		w := genWild(t, depth-1)
		return &w
	}
	return genScalar(t)
}

func genWild(t *rapid.T, depth int) wild {
	w := wild{
		N: rapid.Int8().Draw(t, "n"), F: rapid.Float32().Draw(t, "f"), Q: rapid.Int64().Draw(t, "q"),
		S: rapid.SliceOfN(genString, 0, 2).Draw(t, "s"), X: genValue(t, depth), B: rapid.SliceOfN(rapid.Byte(), -1, 3).Draw(t, "b"),
		T: time.Unix(rapid.Int64Range(0, 1e9).Draw(t, "t"), 5).UTC(), Num: json.Number(fmt.Sprint(rapid.Int16().Draw(t, "num"))),
	}
	if depth > 0 && rapid.Bool().Draw(t, "more") {
		p := genWild(t, depth-1)
		w.P = &p
		w.M = map[uint]name{1: name(genString.Draw(t, "m"))}
		w.Doc = doc{genKey.Draw(t, "k"): genValue(t, depth-1)}
		w.Obj = map[string]doc{genKey.Draw(t, "o"): {"x": genValue(t, depth-1)}}
		w.Arr[1] = genValue(t, depth-1)
	}
	return w
}

func TestNormalizeAgreesWithDecodeDoc(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genValue(t, 3)
		got, err := normalize(v, 0)
		require.NoError(t, err)
		text, err := json.Marshal(v)
		require.NoError(t, err)
		want, err := decodeDoc(text, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
		again, err := normalize(got, 0)
		require.NoError(t, err)
		require.Equal(t, got, again, "normal form is final")
	})
}

func TestSettledStatesAreIsolated(t *testing.T) {
	ty := typeOf[wild](t)
	rapid.Check(t, func(rt *rapid.T) {
		settled := func(w wild, old *wild) (*wild, string) {
			out := &wild{}
			_, err := settleTo(ty, anyOf(old), &w, out)
			require.NoError(rt, err)
			doc, err := ty.Encode(out)
			require.NoError(rt, err)
			return out, string(doc)
		}
		first := genWild(rt, 2)
		a, textA := settled(first, nil)

		// A draft starts as a clone. Parts of it are replaced, then all of it is scrambled.
		var draft wild
		require.NoError(rt, cloneTo(ty, a, &draft))
		same, err := settleTo(ty, a, &draft, &wild{})
		require.NoError(rt, err)
		require.False(rt, same, "a clone is equal")
		if rapid.Bool().Draw(rt, "x") {
			draft.X = genValue(rt, 2)
		}
		if rapid.Bool().Draw(rt, "s") {
			draft.S = append(draft.S, "more")
		}
		if draft.P != nil && rapid.Bool().Draw(rt, "p") {
			draft.P.X = genValue(rt, 1)
		}
		b, textB := settled(draft, a)
		want, err := json.Marshal(draft)
		require.NoError(rt, err)
		wantDoc, err := decodeDoc(want, 0)
		require.NoError(rt, err)
		gotDoc, err := decodeDoc([]byte(textB), 0)
		require.NoError(rt, err)
		require.Equal(rt, wantDoc, gotDoc)

		scramble(reflect.ValueOf(&first).Elem())
		scramble(reflect.ValueOf(&draft).Elem())
		var view wild
		require.NoError(rt, cloneTo(ty, b, &view))
		scramble(reflect.ValueOf(&view).Elem())
		after, _ := ty.Encode(a)
		require.Equal(rt, textA, string(after))
		after, _ = ty.Encode(b)
		require.Equal(rt, textB, string(after))

		var back wild
		lossy, err := ty.Decode([]byte(textB), &back)
		require.NoError(rt, err)
		require.False(rt, lossy)
		require.True(rt, ty.Equal(b, &back), "a settled state survives its JSON")
	})
}

func anyOf(w *wild) any {
	if w == nil {
		return nil
	}
	return w
}

// model applies op to tree, which it owns, in the simplest way.
func model(tree map[string]any, op Op) (ok bool) {
	names, err := parsePath(op.Field)
	if err != nil {
		return false
	}
	obj := tree
	var create []func()
	for _, name := range names[:len(names)-1] {
		next, has := obj[name].(map[string]any)
		if !has {
			if obj[name] != nil {
				return false
			}
			next = map[string]any{}
			parent := obj
			create = append(create, func() { parent[name] = next })
		}
		obj = next
	}
	last := names[len(names)-1]
	write := func(v any) bool {
		for _, f := range create {
			f()
		}
		obj[last], _ = normalize(v, 0)
		return true
	}
	cur := obj[last]
	switch op.Verb {
	case Patch:
		if op.Value == nil {
			delete(obj, last)
			return true
		}
		return write(op.Value)
	case Push:
		list, is := cur.([]any)
		if cur != nil && !is {
			return false
		}
		return len(op.Values) == 0 || write(append(slices.Clone(list), op.Values...))
	case Inc:
		return modelInc(cur, op.By, write)
	}
	m, is := cur.(map[string]any)
	if cur != nil && !is {
		return false
	}
	if op.Verb == DeleteRecord {
		delete(m, op.Key)
		return true
	}
	m = maps.Clone(m)
	if m == nil {
		m = map[string]any{}
	}
	m[op.Key] = op.Value
	return write(m)
}

func modelInc(cur any, by int64, write func(any) bool) bool {
	sum := big.NewInt(by)
	switch x := cur.(type) {
	case nil:
	case int64:
		sum.Add(sum, big.NewInt(x))
	case uint64:
		sum.Add(sum, new(big.Int).SetUint64(x))
	case float64:
		return x == math.Trunc(x) && by == 0 || x != math.Trunc(x) && write(x+float64(by))
	default:
		return false
	}
	if !sum.IsInt64() && !sum.IsUint64() {
		return false
	}
	return by == 0 || write(json.Number(sum.String()))
}

func genOp(t *rapid.T) Op {
	names := rapid.SliceOfN(genKey, 1, 3).Draw(t, "path")
	for i := range names {
		names[i] = Escape(names[i])
	}
	op := Op{Verb: Verb(rapid.SampledFrom([]int{int(Patch), int(Push), int(Inc), int(SetRecord), int(DeleteRecord)}).Draw(t, "verb")),
		Field: strings.Join(names, "."), Key: genKey.Draw(t, "key")}
	switch op.Verb {
	case Inc:
		op.By = rapid.OneOf(rapid.Int64Range(-3, 3), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64})).Draw(t, "by")
	case Push:
		for range rapid.IntRange(0, 2).Draw(t, "count") {
			op.Values = append(op.Values, genValue(t, 1))
		}
	default:
		op.Value = genValue(t, 2)
	}
	return op
}

func TestApplyAgreesWithModel(t *testing.T) {
	ty := typeOf[doc](t)
	rapid.Check(t, func(rt *rapid.T) {
		var tail Tail
		cur := &doc{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			op := genOp(rt)
			if op.Verb == Inc && op.By != int64(float64(op.By)) {
				op.By = 1
			}
			want := cloneObject(*cur)
			before, err := ty.Encode(cur)
			require.NoError(rt, err)
			fine := model(want, op)
			p, err := ty.Prepare([]Op{op})
			require.NoError(rt, err)
			next := new(doc)
			changed, err := applyTo(&p, cur, next, &tail)
			require.Equal(rt, fine, err == nil, "%v: %v", op, err)
			after, _ := ty.Encode(cur)
			require.Equal(rt, string(before), string(after))
			if err != nil {
				continue
			}
			require.Equal(rt, !equalObject(*cur, want), changed, "%v", op)
			if changed {
				require.Equal(rt, want, map[string]any(*next))
				cur = next
			}
		}
	})
}

// Fields that a newer release wrote next to known ones survive a write by this release, wherever
// they are in the document. Proves SCOPE-8.
func TestMergeKeepsEveryUnknownField(t *testing.T) {
	type item struct {
		ID   int     `json:"id"`
		Sub  *item   `json:"sub,omitempty"`
		List []*item `json:"list,omitempty"`
	}
	ty := typeOf[item](t)
	next := 0
	var gen func(rt *rapid.T, depth int) *item
	gen = func(rt *rapid.T, depth int) *item {
		next++
		it := &item{ID: next}
		if depth > 0 {
			if rapid.Bool().Draw(rt, "sub") {
				it.Sub = gen(rt, depth-1)
			}
			for range rapid.IntRange(0, 3).Draw(rt, "list") {
				it.List = append(it.List, gen(rt, depth-1))
			}
		}
		return it
	}
	rapid.Check(t, func(rt *rapid.T) {
		next = 0
		state := gen(rt, 3)
		was, err := ty.Encode(state)
		require.NoError(rt, err)
		// The newer release stored a copy of its id in each object.
		tree, err := decodeTree(was)
		require.NoError(rt, err)
		var mark func(x any)
		mark = func(x any) {
			switch x := x.(type) {
			case map[string]any:
				for _, v := range x {
					mark(v)
				}
				x["newer"] = x["id"]
			case []any:
				for _, v := range x {
					mark(v)
				}
			}
		}
		mark(tree)
		stored, err := json.Marshal(tree)
		require.NoError(rt, err)

		// Lists lose and gain elements and are shuffled; ids stay.
		var edit func(it *item)
		edit = func(it *item) {
			if it.Sub != nil {
				edit(it.Sub)
			}
			switch rapid.IntRange(0, 3).Draw(rt, "edit") {
			case 0:
				it.List = rapid.Permutation(it.List).Draw(rt, "order")
			case 1:
				if len(it.List) > 0 {
					it.List = slices.Delete(it.List, 0, 1)
				}
			case 2:
				if it.Sub == nil {
					it.Sub = &item{ID: -1}
				}
			}
		}
		edit(state)
		now, err := ty.Encode(state)
		require.NoError(rt, err)
		merged, err := Merge(stored, was, now)
		require.NoError(rt, err)

		var back item
		_, err = ty.Decode(merged, &back)
		require.NoError(rt, err)
		require.True(rt, ty.Equal(state, &back), "known fields are as T wrote them")
		got, err := decodeTree(merged)
		require.NoError(rt, err)
		var check func(x any)
		check = func(x any) {
			switch x := x.(type) {
			case map[string]any:
				if x["id"] != json.Number("-1") {
					require.Equal(rt, x["id"], x["newer"])
				}
				for _, v := range x {
					check(v)
				}
			case []any:
				for _, v := range x {
					check(v)
				}
			}
		}
		check(got)
	})
}
