package main

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/pawl-go/pawl"
)

// The states of the contenders in memory, and the changes to them. All contenders make the same change
// to the same type.

// shape is a state and one change to it.
type shape[T any] struct {
	name   string
	start  func() *T
	clone  func(*T) *T               // returns a private copy, written by hand
	change func(s *T, writer, i int) // the i-th change of this writer, in place
	count  func(*T) int64            // returns the number of changes in the state

	verb string                                                          // the data verb that makes the same change
	data func(ctx context.Context, s pawl.Scope[T], writer, i int) error // calls it
}

// The three states: a small struct, a map of 16 entries, and a chat thread.
type (
	counter struct {
		Name  string `json:"name"`
		Owner string `json:"owner"`
		Count int64  `json:"count"`
		Last  int64  `json:"last"`
		Open  bool   `json:"open"`
	}
	board struct {
		Name  string           `json:"name"`
		Tasks map[string]int64 `json:"tasks"`
	}
	thread struct {
		Title    string    `json:"title"`
		Messages []message `json:"messages"`
		Tokens   int64     `json:"tokens"`
	}
	message struct {
		Role string `json:"role"`
		Text string `json:"text"`
	}
)

func newCounter() *counter { return &counter{Name: "visits", Owner: "ann", Open: true} }

// increments adds to one field of a small struct.
var increments = shape[counter]{
	name:   "small struct",
	start:  newCounter,
	clone:  func(s *counter) *counter { c := *s; return &c },
	change: func(s *counter, _, _ int) { s.Count++ },
	count:  func(s *counter) int64 { return s.Count },
	verb:   "IncState",
	data: func(ctx context.Context, s pawl.Scope[counter], _, _ int) error {
		_, err := s.IncState(ctx, "count", 1)
		return err
	},
}

// sleeps is increments with a function that takes a millisecond.
var sleeps = func() shape[counter] {
	s := increments
	s.change = func(c *counter, _, _ int) {
		time.Sleep(time.Millisecond)
		c.Count++
	}
	return s
}()

// patches: two fields of a small struct, by one writer, which counts by itself.
var patches = shape[counter]{
	name:   "small struct",
	start:  newCounter,
	clone:  increments.clone,
	change: func(s *counter, _, i int) { s.Count, s.Last = int64(i)+1, int64(i) },
	count:  increments.count,
	verb:   "PatchState",
	data: func(ctx context.Context, s pawl.Scope[counter], _, i int) error {
		_, err := s.PatchState(ctx, pawl.Patch{"count": int64(i) + 1, "last": int64(i)})
		return err
	},
}

var taskNames = func() (names []string) {
	for i := range 16 {
		names = append(names, fmt.Sprintf("task%02d", i))
	}
	return names
}()

func taskOf(writer, i int) string { return taskNames[(writer+i)%len(taskNames)] }

func newBoard() *board {
	b := &board{Name: "release", Tasks: map[string]int64{}}
	for _, name := range taskNames {
		b.Tasks[name] = 0
	}
	return b
}

func cloneBoard(s *board) *board { return &board{Name: s.Name, Tasks: maps.Clone(s.Tasks)} }

// steps increments one entry of a map.
var steps = shape[board]{
	name:   "map of 16",
	start:  newBoard,
	clone:  cloneBoard,
	change: func(s *board, w, i int) { s.Tasks[taskOf(w, i)]++ },
	count: func(s *board) (n int64) {
		for _, done := range s.Tasks {
			n += done
		}
		return n
	},
	verb: "IncState",
	data: func(ctx context.Context, s pawl.Scope[board], w, i int) error {
		_, err := s.IncState(ctx, pawl.Field("tasks").At(taskOf(w, i)), 1)
		return err
	},
}

var hello = message{Role: "user", Text: "What is the tide like in the harbour of Kiel tomorrow?"}

// messages appends a message to a thread.
var messages = shape[thread]{
	name:  "chat thread",
	start: func() *thread { return &thread{Title: "Tides"} },
	clone: func(s *thread) *thread { // with room for one more, so that append does not copy it again
		c := *s
		c.Messages = append(make([]message, 0, len(s.Messages)+1), s.Messages...)
		return &c
	},
	change: func(s *thread, _, _ int) { s.Messages = append(s.Messages, hello) },
	count:  func(s *thread) int64 { return int64(len(s.Messages)) },
	verb:   "PushState",
	data: func(ctx context.Context, s pawl.Scope[thread], _, _ int) error {
		_, err := s.PushState(ctx, "messages", hello)
		return err
	},
}

// longThread returns a thread of n messages.
func longThread(n int) *thread {
	t := &thread{Title: "Tides", Messages: make([]message, n)}
	for i := range t.Messages {
		t.Messages[i] = hello
	}
	return t
}

// Pawl in memory.

// inMemory returns a kind of in-memory scopes, with the default budget.
func inMemory[T any]() pawl.Kind[T] { return pawl.Kind[T]{Name: "bench", InMemory: true} }

// openScope returns a scope with the state start, on a new runtime.
func openScope[T any](ctx context.Context, k pawl.Kind[T], start *T) (pawl.Scope[T], func(), error) {
	rt, err := pawl.Open(pawl.Config{Kinds: []pawl.AnyKind{k}})
	if err != nil {
		return pawl.Scope[T]{}, nil, err
	}
	s := k.Scope(rt, "1")
	_, err = s.SetState(ctx, *start)
	return s, func() { _ = rt.Close(context.Background()) }, err
}

// pawlSide is Pawl: do makes the change of sh to a scope of kind k.
func pawlSide[T any](name string, sh shape[T], k pawl.Kind[T], do func(ctx context.Context, s pawl.Scope[T], writer, i int) error) side {
	return side{name: name, open: func(b *bench, _ load) (*instance, error) {
		s, closing, err := openScope(b.ctx, k, sh.start())
		if err != nil {
			return nil, err
		}
		return &instance{
			do: func(ctx context.Context, w, i int) error { return do(ctx, s, w, i) },
			present: func(ctx context.Context) (int64, error) {
				snap, err := s.Snapshot(ctx)
				if err != nil {
					return 0, err
				}
				return sh.count(snap.ReadOnly()), nil
			},
			close: closing,
		}, nil
	}}
}

// atomicSide makes the change by AtomicState: in turn, on a private copy, with a deadline, deadlock
// detection and recovery from panics.
func atomicSide[T any](sh shape[T]) side { return atomicSideOf("Pawl", sh, inMemory[T]()) }

func atomicSideOf[T any](name string, sh shape[T], k pawl.Kind[T]) side {
	change := sh.change // here and in the peers, so that no closure captures the whole shape
	return pawlSide(name, sh, k, func(ctx context.Context, s pawl.Scope[T], w, i int) error {
		_, err := s.AtomicState(ctx, func(_ context.Context, st *T) error {
			change(st, w, i)
			return nil
		})
		return err
	})
}

// dataSide makes the change by the data verb of the shape.
func dataSide[T any](sh shape[T]) side { return pawlSide("Pawl", sh, inMemory[T](), sh.data) }
