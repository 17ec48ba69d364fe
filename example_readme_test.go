package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/pawl-go/pawl/stream"
)

// The samples of README.md and docs/transactions.md. internal/source compares them.

// Thread is a document: the part of a conversation that changes.
type Thread struct {
	Title  string `json:"title"`
	Turns  int64  `json:"turns"`
	Tokens int64  `json:"tokens"`
}

// Message is an event: the part that only grows. The messages of a thread are a stream.
type Message struct {
	Role string `json:"role"`
	Text string `json:"text"`
}

var Threads = pawl.Kind[Thread]{Name: pawl.KindSession}

var ErrTooLong = errors.New("thread is too long")

// addMessage counts a message and appends it, in one commit. It may run again after a conflict.
func addMessage(ctx context.Context, rt *pawl.Runtime, messages *stream.Log, id string, m Message, tokens int64) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		thread := Threads.Scope(tx, id) // no I/O; get a handle per call
		_, err := thread.AtomicState(ctx, func(_ context.Context, t *Thread) error {
			if t.Tokens+tokens > 10_000 {
				return ErrTooLong // returned to the caller unchanged; nothing is written
			}
			t.Turns++
			t.Tokens += tokens
			return nil
		})
		if err != nil {
			return err
		}
		_, err = messages.In(tx).Append(ctx, id, stream.Any, m)
		return err
	})
}

func runThreads(ctx context.Context, file string) error {
	store, err := sqlite.Open(ctx, file, sqlite.Config{})
	if err != nil {
		return err
	}
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Threads}})
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	messages, err := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[Message]("message")}})
	if err != nil {
		return err
	}

	if err := addMessage(ctx, rt, messages, "s1", Message{Role: "user", Text: "Hi"}, 12); err != nil {
		return err
	}
	// Data verbs say what to change, and the library changes it: all of them or none.
	snap, err := Threads.Scope(rt, "s1").Apply(ctx, pawl.All{
		pawl.Patch{"title": "Greetings"},
		pawl.Inc{Field: "tokens", By: 30},
	})
	if err != nil {
		return err
	}
	last, err := messages.Last(ctx, "s1", 20) // for the next prompt, however long the thread is
	if err != nil {
		return err
	}
	fmt.Println(snap.Version, snap.ReadOnly().Title, snap.ReadOnly().Tokens, len(last)) // 2 Greetings 42 1
	return nil
}

// A thread is a document with a title and counters, and a stream of messages.
func Example_thread() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "pawl")
	defer os.RemoveAll(dir)
	if err := runThreads(ctx, filepath.Join(dir, "chat.db")); err != nil {
		panic(err)
	}
	rt, _ := start()
	messages, _ := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[Message]("message")}})
	for i := range 25 {
		_ = addMessage(ctx, rt, messages, "s2", Message{Role: "user", Text: fmt.Sprint(i)}, 1)
	}
	fmt.Println(addMessage(ctx, rt, messages, "s2", Message{}, 10_000) == ErrTooLong)
	long, _ := Threads.Scope(rt, "s2").State(ctx)
	last, _ := messages.Last(ctx, "s2", 20)
	fmt.Println(long.Turns, len(last), last[0].Data.(Message).Text)
	// Output:
	// 2 Greetings 42 1
	// true
	// 25 20 5
}

type Wallet struct {
	Balance int64 `json:"balance"`
}

var Wallets = pawl.Kind[Wallet]{Name: "wallet"}

var ErrPoor = errors.New("balance is too low")

func transfer(ctx context.Context, rt *pawl.Runtime, from, to string, amount int64) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		w, err := Wallets.Scope(tx, from).State(ctx) // the commit tests this read
		if err != nil {
			return err // the store failed: this is no statement about the balance
		}
		if w.Balance < amount {
			return ErrPoor // returned unchanged; nothing is written
		}
		if _, err := Wallets.Scope(tx, from).IncState(ctx, "balance", -amount); err != nil {
			return err
		}
		_, err = Wallets.Scope(tx, to).IncState(ctx, "balance", amount)
		return err
	})
}

func transferStatus(err error) int {
	if errors.Is(err, ErrPoor) {
		return http.StatusPaymentRequired // a refusal: the same call is refused again
	}
	return pawl.HTTPStatus(err) // 200 for nil, 409 for a conflict, 503 for an outage, 500 for an unknown outcome
}

// noReads is a store whose reads fail.
type noReads struct{ persist.Store }

func (noReads) Load(context.Context, persist.Key) (persist.Record, error) {
	return persist.Record{}, persist.ErrUnavailable
}

// A refusal and an outage are different answers to the caller.
func ExampleTransact_errors() {
	rt, ctx := start()
	Wallets.Scope(rt, "ann").IncState(ctx, "balance", 10)
	fmt.Println(transferStatus(transfer(ctx, rt, "ann", "bob", 10)))
	fmt.Println(transferStatus(transfer(ctx, rt, "ann", "bob", 10)))
	down, _ := pawl.Open(pawl.Config{Store: noReads{memory.New()}})
	fmt.Println(transferStatus(transfer(ctx, down, "ann", "bob", 10)))
	// Output:
	// 200
	// 402
	// 503
}
