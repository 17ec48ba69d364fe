package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/persist/memory"
)

// Order is the state of a run. The input of the run is its first state.
type Order struct {
	ID      string `json:"id"`
	Cents   int64  `json:"cents"`
	Payment string `json:"payment,omitempty"`
}

// Account counts the money that was charged.
type Account struct {
	Cents int64 `json:"cents"`
}

var Accounts = pawl.Kind[Account]{Name: "account"}

// charge charges a card. The bank recognises a repeated call by the key of the step.
func charge(ctx context.Context, a *run.Attempt[Order]) (run.Next, error) {
	payment, err := bank(ctx, a.Key(), a.State.Cents)
	if err != nil {
		return run.Next{}, err // retried by Step.Retry
	}
	a.State.Payment = payment // committed with the step
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Accounts.Scope(tx, "shop").IncState(ctx, "cents", a.State.Cents)
		return err
	})
	return run.Continue(), a.Output(payment)
}

func ship(_ context.Context, a *run.Attempt[Order]) (run.Next, error) {
	fmt.Println("ship", a.State.ID, a.State.Payment)
	return run.Continue(), nil
}

// bank charges a card, once for each key.
func bank(_ context.Context, _ string, cents int64) (string, error) {
	fmt.Println("charge", cents)
	return "payment-1", nil
}

// newOrders registers the runs of orders. Every process that starts, reads or works on them does so.
func newOrders(engine *run.Engine) *run.Runs[Order] {
	return run.Register(engine, run.Definition[Order]{Name: "order", Steps: []run.Step[Order]{
		{Name: "charge", Do: charge, Retry: pawl.Retry{Attempts: 10}, Timeout: time.Minute},
		{Name: "ship", Do: ship},
	}})
}

// waitFor returns a run when it is over.
func waitFor[S any](ctx context.Context, runs *run.Runs[S], id string) (run.Run[S], error) {
	for r, err := range runs.Watch(ctx, id) {
		if err != nil || r.Status.Finished() {
			return r, err
		}
	}
	return run.Run[S]{}, ctx.Err()
}

// Two requests with one key start one run.
func Example() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Accounts}})
	defer rt.Close(ctx)
	engine := run.NewEngine(rt, run.Config{})
	orders := newOrders(engine)

	var id string
	for range 2 { // a webhook that arrives twice
		r, created, err := orders.Start(ctx, Order{ID: "789", Cents: 4200}, run.WithKey("order-789"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("created:", created, r.Status)
		id = r.ID
	}
	if err := engine.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	r, err := waitFor(ctx, orders, id)
	fmt.Println(r.Status, r.State.Payment, err)
	fmt.Println("stopped:", engine.Stop(ctx))
	// Output:
	// created: true PENDING
	// created: false PENDING
	// charge 4200
	// ship 789 payment-1
	// COMPLETED payment-1 <nil>
	// stopped: <nil>
}

// Refund is the state of a run that a person approves.
type Refund struct {
	Cents    int64  `json:"cents"`
	Approved bool   `json:"approved"`
	By       string `json:"by,omitempty"`
}

// approve waits for a person, for three days at most.
func approve(_ context.Context, a *run.Attempt[Refund]) (run.Next, error) {
	switch {
	case !a.Resumed:
		return run.Await("decision", 72*time.Hour), nil
	case a.Signal == nil:
		return run.End(), nil // no decision came in time
	}
	a.State.Approved = true
	return run.Continue(), json.Unmarshal(a.Signal.Data, &a.State.By)
}

// A step waits for a signal, which any process can send.
func ExampleEngine_Signal() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := run.NewEngine(rt, run.Config{})
	refunds := run.Register(engine, run.Definition[Refund]{Name: "refund", Steps: []run.Step[Refund]{
		{Name: "approve", Do: approve},
	}})
	if err := engine.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Stop(ctx)
	r, _, err := refunds.Start(ctx, Refund{Cents: 500})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A signal that arrives before the step awaits it is kept for it.
	if err := engine.Signal(ctx, r.ID, "decision", "ann"); err != nil {
		fmt.Println(err)
	}
	r, err = waitFor(ctx, refunds, r.ID)
	fmt.Println(r.Status, r.State.Approved, r.State.By, err)
	fmt.Println(engine.Signal(ctx, r.ID, "decision", "bob") != nil)
	// Output:
	// COMPLETED true ann <nil>
	// true
}

// A schedule starts a run at each tick, once in all processes together.
func ExampleEngine_Schedule() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := run.NewEngine(rt, run.Config{})
	made := make(chan string, 100)
	run.Register(engine, run.Definition[Order]{Name: "report", Steps: []run.Step[Order]{
		{Name: "make", Do: func(_ context.Context, a *run.Attempt[Order]) (run.Next, error) {
			made <- a.Workspace + " " + a.State.ID
			return run.Continue(), nil
		}},
	}})
	engine.Schedule(
		job.Schedule{Name: "report", Every: 20 * time.Millisecond}, // in a program: Cron: "0 9 * * MON-FRI"
		run.Request{Definition: "report", Workspace: "acme", Input: json.RawMessage(`{"id":"daily"}`)})
	if err := engine.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-made)
	fmt.Println("stopped:", engine.Stop(ctx))
	// Output:
	// acme daily
	// stopped: <nil>
}

// deleteOld deletes runs that ended long ago.
func deleteOld(ctx context.Context, engine *run.Engine, orders *run.Runs[Order], age time.Duration) error {
	ended := run.Filter{Statuses: []run.Status{run.Completed, run.Canceled}, Age: age}
	for r, err := range orders.List(ctx, ended) {
		if err == nil {
			err = engine.Delete(ctx, r.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Runs are kept until they are deleted, and so are their keys.
func ExampleFilter() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := run.NewEngine(rt, run.Config{})
	orders := newOrders(engine)
	r, _, err := orders.Start(ctx, Order{ID: "1"}, run.WithKey("order-1"))
	if err == nil {
		err = engine.Signal(ctx, r.ID, "hurry", nil) // no step awaits it
	}
	if err == nil {
		err = engine.Cancel(ctx, r.ID)
	}
	if err == nil {
		err = deleteOld(ctx, engine, orders, 0)
	}
	fmt.Println(err)
	_, err = orders.Get(ctx, r.ID)
	fmt.Println(errors.Is(err, pawl.ErrNotFound))
	_, created, err := orders.Start(ctx, Order{ID: "2"}, run.WithKey("order-1"))
	fmt.Println(created, err)
	// Output:
	// <nil>
	// true
	// true <nil>
}
