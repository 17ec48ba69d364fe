package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
)

// Order is the state of a run. The webhook sets the first three fields.
type Order struct {
	ID    string `json:"order"`
	Item  string `json:"item"`
	Cents int64  `json:"cents"`

	Payment string `json:"payment,omitempty"` // set by charge
	Parcel  string `json:"parcel,omitempty"`  // set by pack
}

// Ledger counts what was charged.
type Ledger struct {
	Charges int   `json:"charges"`
	Cents   int64 `json:"cents"`
}

// Ledgers has one document: "shop".
var Ledgers = pawl.Kind[Ledger]{Name: "ledger"}

// Shop sells things.
type Shop struct {
	out  io.Writer // of the steps; one run has one step at a time
	runs *run.Runs[Order]
}

// definition returns the steps of an order.
func (s *Shop) definition() run.Definition[Order] {
	return run.Definition[Order]{Name: "order", Steps: []run.Step[Order]{
		{Name: "charge", Do: s.charge},
		{Name: "pack", Do: s.pack},
		{Name: "ship", Do: s.ship},
	}}
}

// Answer is the answer to a webhook.
type Answer struct {
	Run    string     `json:"run"`
	Status run.Status `json:"status"`
}

// webhook starts the run of an order. The sender repeats a webhook until it gets an answer, always
// with the same id. The id is the key, so a repeated webhook gets the run that it started before.
func (s *Shop) webhook(w http.ResponseWriter, r *http.Request) {
	var order Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&order); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	message := r.Header.Get("Webhook-Id")
	if message == "" {
		http.Error(w, "the header Webhook-Id is missing", http.StatusBadRequest)
		return
	}
	started, created, err := s.runs.Start(r.Context(), order, run.WithKey("webhook/"+message))
	if err != nil {
		http.Error(w, err.Error(), pawl.HTTPStatus(err)) // 422: the same id with another order
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if created {
		w.WriteHeader(http.StatusAccepted)
	}
	_ = json.NewEncoder(w).Encode(Answer{started.ID, started.Status})
}

// charge charges the card. The key is the same in every attempt, so the bank charges once, also if
// this process dies after the call. The ledger changes with the commit that completes the step.
func (s *Shop) charge(_ context.Context, a *run.Attempt[Order]) (run.Next, error) {
	order := a.State
	order.Payment = "payment of " + a.Key() // from the bank, which gets the key
	fmt.Fprintf(s.out, "charge: %d cents for order %s\n", order.Cents, order.ID)
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Ledgers.Scope(tx, "shop").Apply(ctx, pawl.All{
			pawl.Inc{Field: "charges", By: 1},
			pawl.Inc{Field: "cents", By: order.Cents},
		})
		return err
	})
	return run.Continue(), nil
}

func (s *Shop) pack(_ context.Context, a *run.Attempt[Order]) (run.Next, error) {
	a.State.Parcel = "P-" + a.State.ID
	fmt.Fprintf(s.out, "pack: %s into parcel %s\n", a.State.Item, a.State.Parcel)
	return run.Continue(), nil
}

func (s *Shop) ship(_ context.Context, a *run.Attempt[Order]) (run.Next, error) {
	fmt.Fprintf(s.out, "ship: parcel %s\n", a.State.Parcel)
	return run.Continue(), a.Output(map[string]string{"parcel": a.State.Parcel})
}
