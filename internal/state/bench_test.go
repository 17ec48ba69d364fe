package state

import (
	"fmt"
	"reflect"
	"testing"
)

type benchState struct {
	Name  string   `json:"name"`
	Count int      `json:"count"`
	Items []string `json:"items"`
}

func benchType[T any](b *testing.B) *Type {
	b.Helper()
	t, err := Of(reflect.TypeFor[T]())
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// benchApply prepares and applies op over and over, each time to the last result.
func benchApply[T any](b *testing.B, cur *T, op func(i int) Op) {
	t := benchType[T](b)
	ops := make([]Op, 1)
	var tail Tail
	// Two states in turn stand for the one allocation that the caller owns.
	pair := [2]*T{new(T), new(T)}
	*pair[0] = *cur
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ops[0] = op(i)
		p, err := t.Prepare(ops)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Apply(pair[i%2], pair[(i+1)%2], &tail); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInc(b *testing.B) {
	benchApply(b, &benchState{}, func(int) Op { return Op{Verb: Inc, Field: "count", By: 1} })
}

func BenchmarkIncDynamic(b *testing.B) {
	doc := map[string]any{"count": int64(0), "name": "a"}
	benchApply(b, &doc, func(int) Op { return Op{Verb: Inc, Field: "count", By: 1} })
}

func BenchmarkPatch(b *testing.B) {
	values := [2]any{"odd", "even"}
	benchApply(b, &benchState{}, func(i int) Op { return Op{Verb: Patch, Field: "name", Value: values[i%2]} })
}

func BenchmarkPush(b *testing.B) {
	values := []any{"item"}
	for _, size := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			full := &benchState{Items: make([]string, size)}
			t := benchType[benchState](b)
			ops := []Op{{Verb: Push, Field: "items", Values: values}}
			var tail Tail
			cur := full
			pair := [2]*benchState{{}, {}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p, err := t.Prepare(ops)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := p.Apply(cur, pair[i%2], &tail); err != nil {
					b.Fatal(err)
				}
				cur = pair[i%2]
				if len(cur.Items) >= 4*size+1_000_000 {
					// Memory is finite; the list starts over, one copy in many.
					cur = full
				}
			}
		})
	}
}

func BenchmarkClone(b *testing.B) {
	b.Run("struct", func(b *testing.B) {
		type flat struct {
			A, B string
			N    int
		}
		t := benchType[flat](b)
		src, dst := &flat{A: "a", N: 3}, &flat{}
		b.ReportAllocs()
		for b.Loop() {
			if err := t.Clone(src, dst); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("map16", func(b *testing.B) {
		src := map[string]any{}
		for i := range 16 {
			src[fmt.Sprint("key", i)] = int64(i)
		}
		t := benchType[map[string]any](b)
		b.ReportAllocs()
		for b.Loop() {
			var dst map[string]any
			if err := t.Clone(&src, &dst); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("typed16", func(b *testing.B) {
		src := map[string]int{}
		for i := range 16 {
			src[fmt.Sprint("key", i)] = i
		}
		t := benchType[map[string]int](b)
		b.ReportAllocs()
		for b.Loop() {
			var dst map[string]int
			if err := t.Clone(&src, &dst); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSettle(b *testing.B) {
	b.Run("struct", func(b *testing.B) {
		t := benchType[benchState](b)
		old := &benchState{Name: "a", Items: []string{"x", "y", "z"}}
		draft := &benchState{Name: "a", Count: 1, Items: []string{"x", "y", "z"}}
		dst := &benchState{}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := t.Settle(old, draft, dst); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("map16", func(b *testing.B) {
		old, draft := map[string]any{}, map[string]any{}
		for i := range 16 {
			old[fmt.Sprint("key", i)] = int64(i)
			draft[fmt.Sprint("key", i)] = int64(i)
		}
		draft["key3"] = int64(4)
		t := benchType[map[string]any](b)
		var dst map[string]any
		b.ReportAllocs()
		for b.Loop() {
			if _, err := t.Settle(&old, &draft, &dst); err != nil {
				b.Fatal(err)
			}
		}
	})
}
