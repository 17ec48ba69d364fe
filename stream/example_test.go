package stream_test

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// Opened, Assigned and Solved are the events of a ticket.
type (
	Opened struct {
		Title string `json:"title"`
	}
	Assigned struct {
		To string `json:"to"`
	}
	Solved struct{}
)

// Ticket is the state that the events of a ticket lead to.
type Ticket struct {
	Title, Assignee string
	Solved          bool
}

// ticketFold makes a Ticket of its events.
var ticketFold = stream.Fold[Ticket]{Name: "ticket", Apply: func(t *Ticket, e stream.Event) error {
	switch data := e.Data.(type) {
	case Opened:
		t.Title = data.Title
	case Assigned:
		t.Assignee = data.To
	case Solved:
		t.Solved = true
	}
	return nil
}}

var errSolved = errors.New("the ticket is solved")

// assign gives a ticket to a user, unless it is solved.
func assign(ctx context.Context, log *stream.Log, ticket, user string) (Ticket, error) {
	return stream.Act(ctx, log, ticket, stream.Any, ticketFold, func(_ context.Context, t Ticket) ([]any, error) {
		if t.Solved {
			return nil, errSolved
		}
		return []any{Assigned{To: user}}, nil
	})
}

// openTickets returns a log of tickets in memory.
func openTickets() (*pawl.Runtime, *stream.Log) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	log, err := stream.New(rt, stream.Config{Name: "ticket", Events: []stream.Type{
		stream.Of[Opened]("opened"), stream.Of[Assigned]("assigned"), stream.Of[Solved]("solved"),
	}})
	if err != nil {
		panic(err)
	}
	return rt, log
}

// A ticket is a stream of events. Writers assert what they have seen, or decide on the state that the
// events lead to.
func Example() {
	ctx := context.Background()
	rt, log := openTickets()
	defer rt.Close(ctx)

	made, err := log.Append(ctx, "ticket-7", stream.Absent, Opened{Title: "It is broken"})
	fmt.Println("version", made[0].Version, err)
	_, err = log.Append(ctx, "ticket-7", stream.Absent, Opened{Title: "It is broken, too"})
	fmt.Println(err)

	ticket, err := assign(ctx, log, "ticket-7", "ada")
	fmt.Printf("%+v %v\n", ticket, err)
	_, err = log.Append(ctx, "ticket-7", stream.At(1), Solved{})
	fmt.Println(err)
	_, err = assign(ctx, log, "ticket-7", "bob")
	fmt.Println(err)

	for e, err := range log.Read(ctx, "ticket-7", stream.Query{}) {
		fmt.Println(e.Version, e.Type, string(e.Raw), err)
	}
	// Output:
	// version 0 <nil>
	// stream: "ticket-7": expected last version -1, found 0
	// {Title:It is broken Assignee:ada Solved:false} <nil>
	// <nil>
	// the ticket is solved
	// 0 opened {"title":"It is broken"} <nil>
	// 1 assigned {"to":"ada"} <nil>
	// 2 solved {} <nil>
}

// Counters counts the tickets of a user.
type Counters struct {
	Open int `json:"open"`
}

// Events and documents are one commit.
func ExampleLog_In() {
	ctx := context.Background()
	rt, log := openTickets()
	defer rt.Close(ctx)

	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := pawl.User[Counters](tx, "ada").IncState(ctx, "open", 1); err != nil {
			return err
		}
		_, err := log.In(tx).Append(ctx, "ticket-8", stream.Any, Opened{Title: "No sound"})
		return err
	})
	counters, _ := pawl.User[Counters](rt, "ada").State(ctx)
	head, _ := log.Head(ctx, "ticket-8")
	fmt.Println(counters.Open, head.Last, err)
	// Output: 1 0 <nil>
}

// ReadAll follows all streams. A reader that goes on after the last position misses nothing.
func ExampleLog_ReadAll() {
	ctx := context.Background()
	rt, log := openTickets()
	defer rt.Close(ctx)

	after := uint64(0)
	follow := func() {
		for e, err := range log.ReadAll(ctx, stream.AllQuery{After: after}) {
			fmt.Println(e.Stream, e.Version, e.Type, err)
			after = e.Position // keep it with what was made of the events
		}
	}
	for _, ticket := range []string{"ticket-1", "ticket-2"} {
		if _, err := log.Append(ctx, ticket, stream.Any, Opened{Title: "Help"}); err != nil {
			panic(err)
		}
	}
	follow()
	if _, err := assign(ctx, log, "ticket-1", "ada"); err != nil {
		panic(err)
	}
	follow()
	// Output:
	// ticket-1 0 opened <nil>
	// ticket-2 0 opened <nil>
	// ticket-1 1 assigned <nil>
}

// CloseStream archives the events of a stream. The stream goes on with a seed.
func ExampleLog_CloseStream() {
	ctx := context.Background()
	rt, log := openTickets()
	defer rt.Close(ctx)
	if _, err := log.Append(ctx, "ticket-9", stream.Any, Opened{Title: "Slow"}, Assigned{To: "ada"}); err != nil {
		panic(err)
	}

	toFile := func(_ context.Context, events iter.Seq2[stream.Event, error]) error {
		for e, err := range events {
			if err != nil {
				return err
			}
			fmt.Println("archive:", e.Version, e.Type)
		}
		return nil
	}
	err := log.CloseStream(ctx, "ticket-9", stream.At(1), toFile, Opened{Title: "Slow, continued"})
	fmt.Println(err)
	for e, err := range log.Read(ctx, "ticket-9", stream.Query{}) {
		fmt.Println(e.Version, e.Data, err)
	}
	// Output:
	// archive: 0 opened
	// archive: 1 assigned
	// <nil>
	// 2 {Slow, continued} <nil>
}
