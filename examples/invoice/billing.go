package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
)

// Invoice is the entity. Its status is the label that stores index.
type Invoice struct {
	Number   string `json:"number"`
	Status   string `json:"status"`
	Customer string `json:"customer"`
	Total    int64  `json:"total"`
	Replaces string `json:"replaces,omitempty"`
}

// Payment is the input of the step apply_payment, and a document of its own.
type Payment struct {
	// Ref is the customer's reference. It identifies the payment in every attempt to apply it.
	Ref    string `json:"ref"`
	Amount int64  `json:"amount"`
}

// Customer has a credit, which payments increase.
type Customer struct {
	Credit int64 `json:"credit"`
}

// Mails counts the mails that were sent.
type Mails struct {
	Sent map[string]int64 `json:"sent"`
}

var (
	Invoices  = pawl.Kind[Invoice]{Name: "invoice", Label: "status"}
	Payments  = pawl.Kind[Payment]{Name: "payment"}
	Customers = pawl.Kind[Customer]{Name: "customer"}
	Postbox   = pawl.Kind[Mails]{Name: "postbox"}
)

//go:embed workflow.json
var workflow []byte

// Bank captures payments. It recognises a repeated payment by its reference.
type Bank interface {
	Capture(ctx context.Context, ref string, amount int64) error
}

// errDeclined is returned by a Bank that declines a payment.
var errDeclined = errors.New("declined")

// Billing is the module that owns invoices.
type Billing struct {
	bank     Bank
	invoices *machine.Machine[Invoice]
	janitor  *machine.Janitor
}

// NewBilling declares the module's workflow, actions, after-effects and janitor. It returns the
// errors of machine.Load; Engine.Start returns all other faults.
func NewBilling(e *machine.Engine, bank Bank, janitor machine.JanitorConfig) (*Billing, error) {
	w, err := machine.Load(workflow)
	if err != nil {
		return nil, err
	}
	b := &Billing{bank: bank, invoices: machine.Add(e, Invoices, w)}
	noop := func(context.Context, *machine.Action[Invoice], machine.NoInput) error { return nil }
	machine.Handle(b.invoices, "Send", noop)
	machine.Handle(b.invoices, "MarkOverdue", noop)
	machine.Handle(b.invoices, "Regenerate", b.regenerate)
	machine.Handle(b.invoices, "ApplyPayment", b.applyPayment)
	machine.Effect(b.invoices, "MailInvoice", b.mail)
	machine.Effect(b.invoices, "MailReceipt", b.mail)
	janitor.Module = w.Module
	b.janitor = e.AddJanitor(janitor)
	return b, nil
}

// regenerate clones the invoice under the same number. One commit writes the clone and the final
// status.
func (b *Billing) regenerate(_ context.Context, a *machine.Action[Invoice], _ machine.NoInput) error {
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx, old *Invoice) error {
		clone := Invoice{Number: old.Number, Status: "sent", Customer: old.Customer, Total: old.Total, Replaces: a.ID}
		_, err := b.invoices.In(tx).Create(ctx, a.ID+"-again", clone)
		return err
	})
	return nil
}

// applyPayment captures the money. The final commit records the payment together with the status.
func (b *Billing) applyPayment(ctx context.Context, a *machine.Action[Invoice], p Payment) error {
	if p.Amount < a.Entity.Total {
		return machine.Reject(fmt.Sprintf("payment of %d is less than the total of %d", p.Amount, a.Entity.Total))
	}
	switch err := b.bank.Capture(ctx, p.Ref, p.Amount); {
	case errors.Is(err, errDeclined):
		return machine.Fail("the bank declined the payment")
	case err != nil:
		return err
	}
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx, inv *Invoice) error {
		if _, err := Payments.Scope(tx, p.Ref).SetState(ctx, p, pawl.IfAbsent()); err != nil {
			return err
		}
		_, err := Customers.Scope(tx, inv.Customer).IncState(ctx, "credit", p.Amount)
		return err
	})
	return nil
}

// mail runs after the commit, at least once; a mail provider deduplicates by d.ID. The writes of
// OnCommit are committed exactly once.
func (b *Billing) mail(_ context.Context, d *machine.Delivery[Invoice]) error {
	d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Postbox.Scope(tx, "out").IncState(ctx, pawl.Field("sent").At(d.Step), 1)
		return err
	})
	return nil
}

// Pay applies a payment to an invoice, as an HTTP handler would. It returns the outcome as text,
// and the errors of machine.Machine.Fire.
func (b *Billing) Pay(ctx context.Context, invoice string, p Payment) (string, error) {
	out, err := b.invoices.Fire(ctx, machine.Trigger{ID: invoice, Step: "apply_payment", By: "admin", Input: p})
	if err != nil {
		return "", err
	}
	switch out.Result {
	case machine.Done:
		return "paid", nil
	case machine.ClaimFailed:
		return machine.InProgress, nil
	default:
		return fmt.Sprint(out.Result, ": ", out.Reasons[0]), nil
	}
}
