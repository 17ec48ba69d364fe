package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
)

// The samples of docs/model.md. internal/source compares them.

var Messages = pawl.Kind[Message]{Name: "message"}

// record counts a message in its thread and stores it in a document of its own, in one commit.
func record(ctx context.Context, rt *pawl.Runtime, id string, m Message) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		head, err := Threads.Scope(tx, id).State(ctx)
		if err != nil {
			return err
		}
		if _, err := Threads.Scope(tx, id).IncState(ctx, "turns", 1); err != nil {
			return err
		}
		n := fmt.Sprintf("%s/%08d", id, head.Turns) // List yields a prefix in any order: sort by id
		_, err = Messages.Scope(tx, n).SetState(ctx, m, pawl.IfAbsent())
		return err
	})
}

func ExampleKind_List_prefix() {
	rt, ctx := start()
	for _, text := range []string{"Hi", "Hello", "Bye"} {
		if err := record(ctx, rt, "s1", Message{Role: "user", Text: text}); err != nil {
			panic(err)
		}
	}
	for m, err := range Messages.List(ctx, rt, pawl.Query{Prefix: "s1/"}) {
		fmt.Println(m.ID, m.ReadOnly().Text, err)
	}
	// Output:
	// s1/00000000 Hi <nil>
	// s1/00000001 Hello <nil>
	// s1/00000002 Bye <nil>
}

// summarize stands for a call that takes long, such as one to a model.
func summarize(context.Context, []Message) (string, error) { return "Greetings", nil }

// retitle works outside of the mutation, and writes only if the thread has not changed meanwhile.
func retitle(ctx context.Context, thread pawl.Scope[Thread]) error {
	snap, err := thread.Snapshot(ctx)
	if err != nil {
		return err
	}
	title, err := summarize(ctx, snap.State().Recent) // long, and holds up no writer
	if err != nil {
		return err
	}
	_, err = thread.PatchState(ctx, pawl.Patch{"title": title}, pawl.IfVersion(snap.Version))
	return err // *ConcurrencyError: read again, and decide again
}

// retitleAlone does the same under a lease: in all processes, one caller at a time.
func retitleAlone(ctx context.Context, thread pawl.Scope[Thread]) error {
	return thread.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
		t, err := thread.State(ctx)
		if err != nil {
			return err
		}
		title, err := summarize(ctx, t.Recent)
		if err != nil {
			return err
		}
		_, err = thread.PatchState(ctx, pawl.Patch{"title": title}) // refused if the lease was lost
		return err
	}, pawl.WaitForLease())
}

func ExampleScope_PatchState_slowWork() {
	rt, ctx := start()
	thread := Threads.Scope(rt, "s1")
	thread.IncState(ctx, "turns", 1)
	fmt.Println(retitle(ctx, thread), retitleAlone(ctx, thread))
	t, err := thread.State(ctx)
	fmt.Println(t.Title, err)
	// Output:
	// <nil> <nil>
	// Greetings <nil>
}

// addOnce counts a payment once, however often it is called: the payment's id is part of the state.
func addOnce(ctx context.Context, wallet pawl.Scope[Purse], payment string, amount int64) error {
	_, err := wallet.AtomicState(ctx, func(_ context.Context, p *Purse) error {
		if p.Seen[payment] {
			return nil
		}
		if p.Seen == nil {
			p.Seen = map[string]bool{}
		}
		p.Seen[payment] = true
		p.Balance += amount
		return nil
	})
	return err
}

type Purse struct {
	Balance int64           `json:"balance"`
	Seen    map[string]bool `json:"seen"`
}

// After a timeout of a running function, the function may still commit. A mutation that recognises
// its own repetition can be called again.
func ExampleOutcomeUnknown() {
	rt, ctx := start()
	wallet := pawl.Memory[Purse](rt, "ann")
	resume := make(chan struct{})
	_, err := wallet.AtomicState(ctx, func(_ context.Context, p *Purse) error {
		<-resume // hangs, for longer than its budget
		p.Balance, p.Seen = p.Balance+10, map[string]bool{"p1": true}
		return nil
	}, pawl.WithTimeout(50*time.Millisecond))
	fmt.Println(errors.Is(err, pawl.ErrTimeout), pawl.IsRetryable(err), pawl.OutcomeUnknown(err))

	close(resume) // the function returns late, and its result is committed
	fmt.Println(addOnce(ctx, wallet, "p1", 10))
	p, err := wallet.State(ctx)
	fmt.Println(p.Balance, err)
	// Output:
	// true false true
	// <nil>
	// 10 <nil>
}
