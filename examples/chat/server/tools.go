package server

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

// tools are the tools that the model may call.
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

// runTool runs one call. A call that runs again after a crash has the same id, by which each tool
// recognises it. A fault of the call is a result, for the model to read. An error means that the
// call has to run again.
func (s *Server) runTool(ctx context.Context, c *flow.Call, call Call) (string, error) {
	var in struct {
		Amount, Credits int64
		To, Text        string
		Queries         []string
	}
	if err := json.Unmarshal([]byte(call.Args), &in); err != nil {
		return "refused: bad arguments for " + call.Name, nil
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
	return "refused: unknown tool " + call.Name, nil
}

// Charge is an entity with the statuses new, charging (a claim state) and paid.
type Charge struct {
	User   string `json:"user"`
	Amount int64  `json:"amount"`
	Status string `json:"status"`
}

// Mail is an entity with the statuses draft and sent.
type Mail struct {
	To        string `json:"to"`
	Text      string `json:"text"`
	Status    string `json:"status"`
	Delivered bool   `json:"delivered"`
}

// chargeWorkflow claims a charge while its payment is made.
var chargeWorkflow = machine.Workflow{
	Name: "charge", Module: "chat", Kind: "charge", Statuses: []string{"new", "charging", "paid"}, Initial: "new",
	Steps: []machine.Step{{ID: 1, Key: "pay", Status: "new", Claim: map[string]machine.Claim{"agent": {"charging", "new"}},
		To: map[string]string{"agent": "paid"}, Action: map[string]string{"agent": "Pay"}}},
}

// addMachines declares the workflows of charges and mails, their handlers, and the janitor that
// reverts the claims of dead servers. Engine.Start returns the faults.
func (s *Server) addMachines(e *machine.Engine) {
	s.charges = machine.Add(e, Charges, chargeWorkflow)
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

// chargeCard charges a card once, under a claim. It waits while another server holds the claim.
func (s *Server) chargeCard(ctx context.Context, c *flow.Call, id string, amount int64) (string, error) {
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
		// Another server claimed the charge. If it died, the janitor reverts the claim.
		if err := sleep(ctx, s.lease/20); err != nil {
			return "", err
		}
	}
}

// endCharges completes the charges of a stopped turn that were ever claimed: the bank may have
// captured them.
func (s *Server) endCharges(ctx context.Context, c *flow.Call, t Turn) error {
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

// pay is the body of the claimed step. It runs once, unless its server dies. In a second run, the
// bank recognises the charge by its id.
func (s *Server) pay(ctx context.Context, a *machine.Action[Charge], _ machine.NoInput) error {
	if err := s.capture(ctx, a.ID, a.Entity.Amount); err != nil {
		return err
	}
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx, ch *Charge) error {
		_, err := Accounts.Scope(tx, ch.User).IncState(ctx, credits, ch.Amount, pawl.IfExists())
		return err
	})
	return nil
}

// Capture is the bank's record of a charge.
type Capture struct {
	Amount int64 `json:"amount"`
	Asked  int64 `json:"asked"` // how often the capture was requested
}

// capture stands for a slow call to a bank.
func (s *Server) capture(ctx context.Context, ref string, amount int64) error {
	if err := sleep(ctx, s.toolDelay); err != nil {
		return err
	}
	_, err := Bank.Scope(s.rt, ref).Apply(context.Background(), pawl.All{pawl.Patch{"amount": amount}, pawl.Inc{Field: "asked", By: 1}})
	return err
}

// sendEmail sends a mail as an after-effect: it is delivered once the step is committed, and
// survives a crash.
func (s *Server) sendEmail(ctx context.Context, c *flow.Call, id, to, body string) (string, error) {
	if to == "" || len(to) > 200 {
		return "refused: the recipient must have 1 to 200 bytes", nil
	}
	id = c.User + "/" + id
	if _, err := s.mails.Create(ctx, id, Mail{To: to, Text: body}); err != nil && !errors.Is(err, pawl.ErrExists) {
		return "", err
	}
	// In a repeated call the result is WrongStatus: the mail was sent before.
	_, err := s.mails.Fire(ctx, machine.Trigger{ID: id, Step: "send", By: "agent"})
	return "the mail to " + to + " is on its way", err
}

// deliver stands for a call to a mail provider, which recognises a repeated mail by d.ID, and
// records the delivery.
func (s *Server) deliver(ctx context.Context, d *machine.Delivery[Mail]) error {
	s.log.Info("mail", "to", d.Entity.ReadOnly().To, "id", d.ID, "attempt", d.Attempt)
	d.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Mails.Scope(tx, d.Entity.ID).PatchState(ctx, pawl.Patch{"delivered": true})
		return err
	})
	return nil
}

// transfer moves credits between two users. One commit changes both accounts and records the
// operation.
func (s *Server) transfer(ctx context.Context, c *flow.Call, id, to string, n int64) (string, error) {
	if n < 1 || to == c.User {
		return "refused: transfer at least 1 credit, to another user", nil
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

// search looks up all terms in parallel. The results are collected on an in-memory board. A watcher
// copies the board to the turn, for the page.
func (s *Server) search(all context.Context, c *flow.Call, queries []string) (string, error) {
	if len(queries) == 0 || len(queries) > 8 {
		return "refused: search takes 1 to 8 terms", nil
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
		"fence":   "a test inside the write that refuses a holder whose lease is over",
	}
	if found, ok := known[strings.ToLower(term)]; ok {
		return found
	}
	return "nothing found"
}
