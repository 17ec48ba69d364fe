package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
)

// The samples of docs/model.md. internal/source compares them.

// summarize stands for a call that takes long, such as one to a model.
func summarize(context.Context, Thread) (string, error) { return "Greetings", nil }

// retitle works outside of the mutation, and writes only if the thread has not changed meanwhile.
func retitle(ctx context.Context, thread pawl.Scope[Thread]) error {
	snap, err := thread.Snapshot(ctx)
	if err != nil {
		return err
	}
	title, err := summarize(ctx, snap.State()) // long, and holds up no writer
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
		title, err := summarize(ctx, t)
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

type Payment struct {
	User   string `json:"user"`
	Amount int64  `json:"amount"`
}

var Payments = pawl.Kind[Payment]{Name: "payment"}

// addOnce adds a payment once, however often it is called. The payment has a document of its own,
// which the same commit creates.
func addOnce(ctx context.Context, rt *pawl.Runtime, id string, p Payment) error {
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := Payments.Scope(tx, id).SetState(ctx, p, pawl.IfAbsent()); err != nil {
			return err
		}
		_, err := Wallets.Scope(tx, p.User).IncState(ctx, "balance", p.Amount)
		return err
	})
	if errors.Is(err, pawl.ErrExists) {
		return nil // an earlier call has added it
	}
	return err
}

func ExampleTransact_once() {
	rt, ctx := start()
	for range 3 {
		fmt.Println(addOnce(ctx, rt, "p1", Payment{User: "ann", Amount: 10}))
	}
	w, err := Wallets.Scope(rt, "ann").State(ctx)
	fmt.Println(w.Balance, err)
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// 10 <nil>
}

// In memory, a function that is late is not lost: its result is committed when it returns.
func ExampleOutcomeUnknown() {
	rt, ctx := start()
	wallet := pawl.Memory[Wallet](rt, "ann")
	resume := make(chan struct{})
	_, err := wallet.AtomicState(ctx, func(_ context.Context, w *Wallet) error {
		<-resume // for longer than the budget
		w.Balance += 10
		return nil
	}, pawl.WithTimeout(50*time.Millisecond))
	fmt.Println(errors.Is(err, pawl.ErrTimeout), pawl.IsRetryable(err), pawl.OutcomeUnknown(err))

	close(resume)
	snap, err := wallet.IncState(ctx, "balance", 1) // waits its turn behind the late function
	fmt.Println(snap.State().Balance, err)
	// Output:
	// true false true
	// 11 <nil>
}
