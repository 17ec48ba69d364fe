package state_test

import (
	"fmt"
	"reflect"

	"github.com/pawl-go/pawl/internal/state"
)

type thread struct {
	Title    string         `json:"title"`
	Messages []string       `json:"messages"`
	Votes    map[string]int `json:"votes"`
}

// A data verb makes a new state from a committed one, which does not change.
func ExamplePrepared_Apply() {
	typ, err := state.Of(reflect.TypeFor[thread]())
	if err != nil {
		panic(err)
	}
	change, err := typ.Prepare([]state.Op{
		{Verb: state.Push, Field: "messages", Values: []any{"hello"}},
		{Verb: state.Inc, Field: "votes.ann", By: 1},
	})
	if err != nil {
		panic(err)
	}
	committed := &thread{Title: "Tides"}
	next := *committed // the caller copies, Apply replaces the parts that differ
	changed, err := change.Apply(committed, &next, nil)
	fmt.Println(changed, err)
	fmt.Println(*committed)
	fmt.Println(next)
	// Output:
	// true <nil>
	// {Tides [] map[]}
	// {Tides [hello] map[ann:1]}
}

// A function changes a private draft. Settle makes a state of it that shares no memory with the
// draft, and reports whether anything differs.
func ExampleType_Settle() {
	typ, err := state.Of(reflect.TypeFor[thread]())
	if err != nil {
		panic(err)
	}
	committed := &thread{Title: "Tides", Messages: []string{"hello"}}
	draft := *committed
	if err := typ.Detach(&draft); err != nil {
		panic(err)
	}
	draft.Messages[0] = "good morning"
	next := draft
	changed, err := typ.Settle(committed, &next)
	draft.Messages[0] = "too late"
	fmt.Println(changed, err)
	fmt.Println(committed.Messages, next.Messages)

	next.Title = "\x00"
	_, err = typ.Settle(committed, &next)
	fmt.Println(err)
	// Output:
	// true <nil>
	// [hello] [good morning]
	// state: "title": strings cannot contain U+0000
}
