package recipes

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/memory"
)

// The sample of docs/claims.md.

type Invoice struct {
	Status   string `json:"status"`
	Customer string `json:"customer"`
	Total    int64  `json:"total"`
}

type Payment struct {
	Ref    string `json:"ref"`
	Amount int64  `json:"amount"`
}

type Customer struct {
	Credit int64 `json:"credit"`
}

var (
	Invoices  = pawl.Kind[Invoice]{Name: "invoice", Label: "status"}
	Customers = pawl.Kind[Customer]{Name: "customer"}
)

const invoiceWorkflow = `{
  "workflow": "invoice", "module": "billing", "entity_kind": "invoice", "initial_status": "sent",
  "status_types": ["sent", "applying_payment", "paid"],
  "steps": [{
    "step_id": 40, "step_key": "apply_payment", "status": "sent",
    "successful_claim_state": { "admin": ["applying_payment", "sent"] },
    "successful_state": { "admin": "paid", "cron": "paid" },
    "action": { "admin": "ApplyPayment", "cron": "ApplyPayment" },
    "success_after_effect": { "admin": ["MailReceipt"] }
  }]
}`

// startBilling declares the workflow and starts the engine.
func startBilling(ctx context.Context, rt *pawl.Runtime, bank Bank) (*machine.Engine, *machine.Machine[Invoice], error) {
	w, err := machine.Load([]byte(invoiceWorkflow)) // or a machine.Workflow literal
	if err != nil {
		return nil, nil, err
	}
	engine := machine.NewEngine(rt, machine.Config{})
	invoices := machine.Add(engine, Invoices, w)
	machine.Handle(invoices, "ApplyPayment", func(ctx context.Context, a *machine.Action[Invoice], p Payment) error {
		if p.Amount < a.Entity.Total {
			return machine.Reject("the payment is too small")
		}
		if err := bank.Capture(ctx, p.Ref, p.Amount); err != nil { // calls to other systems: once per claim
			return err
		}
		a.OnCommit(func(ctx context.Context, tx *pawl.Tx, inv *Invoice) error { // writes: repeated on a conflict
			_, err := Customers.Scope(tx, inv.Customer).IncState(ctx, "credit", p.Amount)
			return err
		})
		return nil
	})
	machine.Effect(invoices, "MailReceipt", bank.MailReceipt)
	engine.AddJanitor(machine.JanitorConfig{Module: "billing"})
	return engine, invoices, engine.Start(ctx) // Start returns all faults of the declarations
}

// pay applies a payment, and returns the result as text for the user.
func pay(ctx context.Context, invoices *machine.Machine[Invoice], id string, p Payment) (string, error) {
	out, err := invoices.Fire(ctx, machine.Trigger{ID: id, Step: "apply_payment", By: "admin", Input: p})
	if err != nil {
		return "", err // a fault, such as an outage
	}
	switch out.Result {
	case machine.Done:
		return "paid", nil
	case machine.ClaimFailed:
		return machine.InProgress, nil // another caller is at it: try again later
	}
	return out.Reasons[0], nil // Rejected, Failed or WrongStatus
}

type Bank interface {
	Capture(ctx context.Context, ref string, amount int64) error
	MailReceipt(ctx context.Context, d *machine.Delivery[Invoice]) error
}

type testBank struct {
	captured int64
	mailed   chan string
}

func (b *testBank) Capture(_ context.Context, _ string, amount int64) error {
	b.captured += amount
	return nil
}

func (b *testBank) MailReceipt(_ context.Context, d *machine.Delivery[Invoice]) error {
	b.mailed <- d.Entity.ID
	return nil
}

func TestClaims(t *testing.T) {
	ctx := t.Context()
	rt := open(t, memory.New())
	bank := &testBank{mailed: make(chan string, 1)}
	engine, invoices, err := startBilling(ctx, rt, bank)
	require.NoError(t, err)
	defer engine.Stop(ctx)
	_, err = invoices.Create(ctx, "7", Invoice{Customer: "ann", Total: 100})
	require.NoError(t, err)
	for _, step := range []struct {
		amount int64
		want   string
	}{{50, "the payment is too small"}, {100, "paid"}, {100, `the step starts from "sent", and the status is "paid"`}} {
		got, err := pay(ctx, invoices, "7", Payment{Ref: "p1", Amount: step.amount})
		require.NoError(t, err)
		require.Equal(t, step.want, got)
	}
	require.EqualValues(t, 100, bank.captured)
	ann, err := Customers.Scope(rt, "ann").State(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 100, ann.Credit)
	require.Equal(t, "7", <-bank.mailed)
}
