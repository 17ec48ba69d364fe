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

// benchApply prepares op and applies it, each time to the last result.
func benchApply[T any](b *testing.B, cur *T, op func(i int) Op) {
	t := benchType[T](b)
	ops := make([]Op, 1)
	var tail Tail
	// Two states alternate, because the caller allocates.
	pair := [2]*T{new(T), new(T)}
	*pair[0] = *cur
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ops[0] = op(i)
		p, err := t.Prepare(ops)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := applyTo(&p, pair[i%2], pair[(i+1)%2], &tail); err != nil {
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
				if _, err := applyTo(&p, cur, pair[i%2], &tail); err != nil {
					b.Fatal(err)
				}
				cur = pair[i%2]
				if len(cur.Items) >= 4*size+1_000_000 {
					// The list starts over before it takes too much memory.
					cur = full
				}
			}
		})
	}
}

// benchCounter has five scalar fields.
type benchCounter struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	Count int64  `json:"count"`
	Last  int64  `json:"last"`
	Open  bool   `json:"open"`
}

// benchBoard has a map of 16 keys.
type benchBoard struct {
	Name  string           `json:"name"`
	Tasks map[string]int64 `json:"tasks"`
}

// benchThread has a list of structs.
type benchThread struct {
	Title    string         `json:"title"`
	Messages []benchMessage `json:"messages"`
}

type benchMessage struct {
	Role string `json:"role"`
	Text string `json:"text"`
}

func newBenchCounter() *benchCounter {
	return &benchCounter{Name: "visits", Owner: "ann", Count: 7, Open: true}
}

func newBenchBoard() *benchBoard {
	b := &benchBoard{Name: "release", Tasks: map[string]int64{}}
	for i := range 16 {
		b.Tasks[fmt.Sprintf("task%02d", i)] = int64(i)
	}
	return b
}

func newBenchDoc() *doc {
	d := &doc{"title": "tides", "tags": []any{"a", "b"}, "owner": map[string]any{"name": "ann", "age": int64(7)}}
	for i := len(*d); i < 16; i++ {
		(*d)[fmt.Sprintf("key%02d", i)] = int64(i)
	}
	return d
}

func newBenchThread() *benchThread {
	t := &benchThread{Title: "tides"}
	for range 100 {
		t.Messages = append(t.Messages, benchMessage{Role: "user", Text: "What is the tide like tomorrow?"})
	}
	return t
}

func benchClone[T any](b *testing.B, src *T) {
	t := benchType[T](b)
	b.ReportAllocs()
	for b.Loop() {
		dst := new(T)
		if err := cloneTo(t, src, dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClone(b *testing.B) {
	b.Run("counter", func(b *testing.B) { benchClone(b, newBenchCounter()) })
	b.Run("board", func(b *testing.B) { benchClone(b, newBenchBoard()) })
	b.Run("doc", func(b *testing.B) { benchClone(b, newBenchDoc()) })
	b.Run("thread", func(b *testing.B) { benchClone(b, newBenchThread()) })
}

// benchSettle settles a copy of old after change.
func benchSettle[T any](b *testing.B, old *T, change func(*T)) {
	t := benchType[T](b)
	draft := new(T)
	if err := cloneTo(t, old, draft); err != nil {
		b.Fatal(err)
	}
	change(draft)
	b.ReportAllocs()
	for b.Loop() {
		dst := new(T)
		if changed, err := settleTo(t, old, draft, dst); err != nil || !changed {
			b.Fatal(changed, err)
		}
	}
}

func BenchmarkSettle(b *testing.B) {
	b.Run("counter", func(b *testing.B) { benchSettle(b, newBenchCounter(), func(c *benchCounter) { c.Count++ }) })
	b.Run("board", func(b *testing.B) { benchSettle(b, newBenchBoard(), func(s *benchBoard) { s.Tasks["task03"]++ }) })
	b.Run("doc", func(b *testing.B) { benchSettle(b, newBenchDoc(), func(d *doc) { (*d)["key07"] = int64(8) }) })
	b.Run("thread", func(b *testing.B) {
		benchSettle(b, newBenchThread(), func(t *benchThread) { t.Messages = append(t.Messages, benchMessage{Role: "assistant"}) })
	})
}
