package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/idempotency"
)

// tools are what the model may ask for.
var tools = []Tool{
	{"charge_card", "Charges the user's card and adds as many credits.",
		json.RawMessage(`{"type":"object","properties":{"amount":{"type":"integer","minimum":1,"maximum":100}},"required":["amount"]}`)},
	{"send_email", "Sends an email.",
		json.RawMessage(`{"type":"object","properties":{"to":{"type":"string"},"text":{"type":"string"}},"required":["to","text"]}`)},
	{"transfer", "Gives some of the user's credits to another user.",
		json.RawMessage(`{"type":"object","properties":{"to":{"type":"string"},"credits":{"type":"integer","minimum":1}},"required":["to","credits"]}`)},
	{"search", "Looks up several terms at once.",
		json.RawMessage(`{"type":"object","properties":{"queries":{"type":"array","items":{"type":"string"},"maxItems":8}},"required":["queries"]}`)},
}

// runTool runs one call. Its id stays the same if a crash makes it run again, and each tool knows by it what was done already. What is wrong with the
// call is a result, for the model to read; an error says that it has to be done again.
func (s *server) runTool(ctx context.Context, c *flow.Call, call Call) (string, error) {
	var in struct {
		Amount, Credits int64
		To, Text        string
		Queries         []string
	}
	if err := json.Unmarshal([]byte(call.Args), &in); err != nil {
		return "these are no arguments of " + call.Name, nil
	}
	switch call.Name {
	case "charge_card":
		return s.chargeCard(ctx, c, call.ID, in.Amount)
	case "send_email":
		return s.sendEmail(ctx, c, call.ID, in.To, in.Text)
	case "transfer":
		return s.transfer(ctx, c, call.ID, in.To, in.Credits)
	case "search":
		return s.search(ctx, c, in.Queries)
	}
	return "there is no tool " + call.Name, nil
}

// Charge is a status machine: new, charging (a claim), paid.
type Charge struct {
	User   string `json:"user"`
	Amount int64  `json:"amount"`
	Status string `json:"status"`
}

// Mail is one, too: draft, sent.
type Mail struct {
	To        string `json:"to"`
	Text      string `json:"text"`
	Status    string `json:"status"`
	Delivered bool   `json:"delivered"`
}

// addMachines declares both, with what they do, and the janitor that frees the claims of the dead. Faults come out of Engine.Start.
func (s *server) addMachines(e *machine.Engine) {
	s.charges = machine.Add(e, Charges, machine.Workflow{
		Name: "charge", Module: "chat", Kind: "charge", Statuses: []string{"new", "charging", "paid"}, Initial: "new",
		Steps: []machine.Step{{ID: 1, Key: "pay", Status: "new", Claim: map[string]machine.Claim{"agent": {"charging", "new"}},
			To: map[string]string{"agent": "paid"}, Action: map[string]string{"agent": "Pay"}}},
	})
	s.mails = machine.Add(e, Mails, machine.Workflow{
		Name: "mail", Module: "chat", Kind: "mail", Statuses: []string{"draft", "sent"}, Initial: "draft",
		Steps: []machine.Step{{ID: 1, Key: "send", Status: "draft", To: map[string]string{"agent": "sent"},
			Action: map[string]string{"agent": "Send"}, Effects: map[string][]string{"agent": {"Deliver"}}}},
	})
	machine.Handle(s.charges, "Pay", s.pay)
	machine.Handle(s.mails, "Send", func(context.Context, *machine.Action[Mail], machine.NoInput) error { return nil })
	machine.Effect(s.mails, "Deliver", s.deliver)
	e.AddJanitor(machine.JanitorConfig{Module: "chat", Interval: s.lease / 2, Age: s.lease / 5})
}

// chargeCard charges once, under a claim: whoever else tries finds it paid, or is told to wait.
func (s *server) chargeCard(ctx context.Context, c *flow.Call, id string, amount int64) (string, error) {
	if amount < 1 || amount > 100 {
		return "refused: between 1 and 100", nil
	}
	id = c.User + "/" + id
	if _, err := s.charges.Create(ctx, id, Charge{User: c.User, Amount: amount}); err != nil && !errors.Is(err, pawl.ErrExists) {
		return "", err
	}
	for {
		out, err := s.charges.Fire(ctx, machine.Trigger{ID: id, Step: "pay", By: "agent"})
		switch {
		case err != nil:
			return "", err
		case out.Entity.ReadOnly().Status == "paid":
			return fmt.Sprintf("charged %d, and added as many credits", amount), nil
		case out.Result != machine.ClaimFailed:
			return "refused: " + strings.Join(out.Reasons, ", "), nil
		}
		if err := sleep(ctx, s.lease/20); err != nil { // its server died while it was being charged: the janitor frees it
			return "", err
		}
	}
}

// endCharges brings the charges of a stopped turn to their end that were claimed at some time: the bank may have captured them.
func (s *server) endCharges(ctx context.Context, c *flow.Call, t Turn) error {
	if len(t.Steps) == 0 {
		return nil
	}
	calls := t.Steps[len(t.Steps)-1].Calls
	for i, call := range calls {
		if call.Done || call.Name != "charge_card" {
			continue
		}
		charge, err := Charges.Scope(c, c.User+"/"+call.ID).Snapshot(ctx)
		if err == nil && charge.Version > 1 {
			calls[i].Result, err = s.runTool(ctx, c, call)
			calls[i].Done = err == nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pay is the body of the claimed step: it runs once, unless its server dies in it; then the bank knows the charge again by its id.
func (s *server) pay(ctx context.Context, a *machine.Action[Charge], _ machine.NoInput) error {
	if err := s.capture(ctx, a.ID, a.Entity.Amount); err != nil {
		return err
	}
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx, ch *Charge) error {
		_, err := Accounts.Scope(tx, ch.User).IncState(ctx, credits, ch.Amount, pawl.IfExists())
		return err
	})
	return nil
}

// Capture is what the bank knows of a charge.
type Capture struct {
	Amount int64 `json:"amount"`
	Asked  int64 `json:"asked"` // how often
}

// capture stands for a call to a bank, which takes a while.
func (s *server) capture(ctx context.Context, ref string, amount int64) error {
	if err := sleep(ctx, s.toolDelay); err != nil {
		return err
	}
	_, err := Bank.Scope(s.rt, ref).Apply(context.Background(), pawl.All{pawl.Patch{"amount": amount}, pawl.Inc{Field: "asked", By: 1}})
	return err
}

// sendEmail sends a mail as an after-effect: it leaves once the step is committed, and survives a crash.
func (s *server) sendEmail(ctx context.Context, c *flow.Call, id, to, body string) (string, error) {
	if to == "" || len(to) > 200 {
		return "refused: to whom?", nil
	}
	id = c.User + "/" + id
	if _, err := s.mails.Create(ctx, id, Mail{To: to, Text: body}); err != nil && !errors.Is(err, pawl.ErrExists) {
		return "", err
	}
	_, err := s.mails.Fire(ctx, machine.Trigger{ID: id, Step: "send", By: "agent"}) // already sent: a wrong status, which is right
	return "the mail to " + to + " is on its way", err
}

// deliver hands a mail to the post, which knows it again by d.ID, and notes it.
func (s *server) deliver(ctx context.Context, d *machine.Delivery[Mail]) error {
	s.log.Info("mail", "to", d.Entity.ReadOnly().To, "id", d.ID, "attempt", d.Attempt)
	d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Mails.Scope(tx, d.Entity.ID).PatchState(ctx, pawl.Patch{"delivered": true})
		return err
	})
	return nil
}

// transfer moves credits between two users: both accounts and the memory of having done so are one commit.
func (s *server) transfer(ctx context.Context, c *flow.Call, id, to string, n int64) (string, error) {
	if n < 1 || to == c.User {
		return "refused: give at least one credit, to somebody else", nil
	}
	op := idempotency.Op{Principal: c.User, Name: "transfer", Key: id, Input: []any{to, n}}
	result, _, err := idempotency.DoTx(ctx, s.keys, op, func(ctx context.Context, tx *pawl.Tx) (string, error) {
		err := spend(ctx, Accounts.Scope(tx, c.User), n)
		if err == nil {
			_, err = Accounts.Scope(tx, to).IncState(ctx, credits, n, pawl.IfExists())
		}
		return fmt.Sprintf("gave %d to %s", n, to), err
	})
	if code := pawl.Code(err); code == "INSUFFICIENT_CREDITS" || errors.Is(err, pawl.ErrNotFound) {
		return "refused: " + code, nil
	}
	return result, err
}

// search looks up all terms at once. They meet on a board that lives in memory as long as the turn; a watcher copies it to where the page can see it.
func (s *server) search(all context.Context, c *flow.Call, queries []string) (string, error) {
	if len(queries) == 0 || len(queries) > 8 {
		return "refused: between 1 and 8 terms", nil
	}
	tasks := pawl.Sequencer[Board](c, "board")
	if _, err := tasks.IncState(all, "of", int64(len(queries))); err != nil {
		return "", err
	}
	g, ctx := errgroup.WithContext(all)
	g.Go(func() error {
		for now, err := range tasks.Watch(ctx) {
			if err != nil {
				return err
			}
			b := now.State()
			if _, err := Turns.Scope(c, c.Request).PatchState(ctx, pawl.Patch{board: b}); err != nil || b.Done == b.Of {
				return err
			}
		}
		return ctx.Err()
	})
	for i, q := range queries {
		g.Go(func() error {
			if err := sleep(ctx, time.Duration(i+1)*s.toolDelay/2); err != nil {
				return err
			}
			_, err := tasks.Apply(ctx, pawl.All{pawl.SetRecord{Field: "results", Key: q, Value: lookUp(q)}, pawl.Inc{Field: "done", By: 1}})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	b, err := tasks.State(all)
	found := []string{}
	for _, q := range slices.Compact(slices.Sorted(slices.Values(queries))) {
		found = append(found, q+": "+b.Results[q])
	}
	return strings.Join(found, "; "), err
}

// lookUp stands for a search engine.
func lookUp(term string) string {
	known := map[string]string{
		"pawl":    "the catch that lets a ratchet turn one way only",
		"ratchet": "a wheel whose teeth a pawl holds",
		"lease":   "a right that ends by itself when its holder falls silent",
		"fence":   "a test inside the write that keeps out those whose lease is over",
	}
	if found, ok := known[strings.ToLower(term)]; ok {
		return found
	}
	return "nothing found"
}
