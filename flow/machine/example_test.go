package machine_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/memory"
)

type Order struct {
	Status string `json:"status"`
	Item   string `json:"item"`
}

var Orders = pawl.Kind[Order]{Name: "order", Label: "status"}

const orders = `{
	"workflow": "order", "module": "shop", "entity_kind": "order", "initial_status": "paid",
	"status_types": ["paid", "shipping", "shipped"],
	"steps": [{
		"step_id": 10, "step_key": "ship", "status": "paid",
		"successful_claim_state": {"clerk": ["shipping", "paid"]},
		"successful_state": {"clerk": "shipped"},
		"action": {"clerk": "Ship"},
		"success_after_effect": {"clerk": ["Tell"]}
	}]
}`

// A step claims its entity, runs its action once, and commits the action's writes with the final
// status. The after-effect follows the commit.
func Example() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Orders}})
	defer rt.Close(ctx)
	engine := machine.NewEngine(rt, machine.Config{})

	w, err := machine.Load([]byte(orders))
	if err != nil {
		fmt.Println(err)
		return
	}
	m := machine.Add(engine, Orders, w)
	machine.Handle(m, "Ship", func(ctx context.Context, a *machine.Action[Order], van string) error {
		if van == "" {
			return machine.Reject("no van")
		}
		fmt.Println("loading the", a.Entity.Item) // printed once
		a.OnCommit(func(ctx context.Context, tx *pawl.Tx, o *Order) error {
			o.Item += " in " + van
			return nil
		})
		return nil
	})
	told := make(chan string)
	machine.Effect(m, "Tell", func(ctx context.Context, d *machine.Delivery[Order]) error {
		told <- "the " + d.Entity.ReadOnly().Item + " has left"
		return nil
	})
	engine.AddJanitor(machine.JanitorConfig{Module: "shop"})
	if err := engine.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Stop(ctx)

	_, _ = m.Create(ctx, "7", Order{Item: "lamp"})
	for _, van := range []string{"", "the red van", "the blue van"} {
		out, err := m.Fire(ctx, machine.Trigger{ID: "7", Step: "ship", By: "clerk", Input: van})
		fmt.Println(out.Result, out.Reasons, err)
		if out.Result == machine.Done {
			fmt.Println(<-told)
		}
	}
	// Output:
	// rejected [no van] <nil>
	// loading the lamp
	// done [] <nil>
	// the lamp in the red van has left
	// wrong_status [the step starts from "paid", and the status is "shipped"] <nil>
}

// Start reports a claim state that no janitor would free after a crash.
func ExampleEngine_Start() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := machine.NewEngine(rt, machine.Config{})
	w, _ := machine.Load([]byte(orders))
	m := machine.Add(engine, Orders, w)
	machine.Handle(m, "Ship", func(context.Context, *machine.Action[Order], machine.NoInput) error { return nil })
	machine.Effect(m, "Tell", func(context.Context, *machine.Delivery[Order]) error { return nil })

	err := engine.Start(ctx)
	var uncovered *machine.UncoveredError
	fmt.Println(errors.As(err, &uncovered), uncovered.Module, uncovered.State)

	engine.AddJanitor(machine.JanitorConfig{Module: "shop"})
	fmt.Println(engine.Start(ctx))
	fmt.Println(engine.Stop(ctx))
	// Output:
	// true shop shipping
	// <nil>
	// <nil>
}

// Sweep reverts a claim whose holder is gone.
func ExampleJanitor_Sweep() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := machine.NewEngine(rt, machine.Config{})
	w, _ := machine.Load([]byte(orders))
	machine.Add(engine, Orders, w)
	janitor := engine.AddJanitor(machine.JanitorConfig{Module: "shop", Age: time.Millisecond, Reverted: func(machine.Revert) {}})

	dying, die := context.WithCancel(ctx) // a process claims the order and dies
	_, _ = Orders.Scope(rt, "7").Acquire(dying, pawl.LeaseFor(10*time.Millisecond), pawl.WithMutation(pawl.Set{State: Order{Status: "shipping"}}))
	die()
	for {
		reverts, err := janitor.Sweep(ctx)
		for _, r := range reverts {
			fmt.Println(r.ID, r.From, "back to", r.To)
		}
		if err != nil || len(reverts) > 0 {
			break
		}
	}
	// Output: 7 shipping back to paid
}
