package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
)

func TestMain(m *testing.M) {
	if os.Getenv(envWorker) != "" {
		main()
		return
	}
	testkit.Main(m.Run, stores.Stop)
}

// The demo runs on an SQLite file.
func Example() {
	folder, _ := os.MkdirTemp("", "invoice")
	defer os.RemoveAll(folder)
	if err := demo(context.Background(), os.Stdout, filepath.Join(folder, "billing.db")); err != nil {
		fmt.Println(err)
	}
	// Output:
	// regenerate, 50 callers in 3 processes: 1 done, 49 refused, 1 clone
	// apply_payment, 50 callers in 3 processes: 1 done, 49 refused, captured 1 time, credit 100
	// receipts sent: 1
	// a worker was killed: the status of its invoice is applying_payment_from_sent
	// the next caller gets: another operation is already in progress
	// the janitor reverted applying_payment_from_sent to sent
	// the next caller gets: paid, credit 200
}

// Callers branch on the outcome of a step.
func ExampleBilling_Pay() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	defer rt.Close(ctx)
	engine := machine.NewEngine(rt, machine.Config{})
	billing, _ := NewBilling(engine, silent{}, machine.JanitorConfig{})
	if err := engine.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Stop(ctx)

	_, _ = billing.invoices.Create(ctx, "1", Invoice{Number: "2026-1", Customer: "ann", Total: 100, Status: "sent"})
	fmt.Println(billing.Pay(ctx, "1", Payment{Ref: "transfer-1", Amount: 50}))
	fmt.Println(billing.Pay(ctx, "1", Payment{Ref: "transfer-1", Amount: 100}))
	fmt.Println(billing.Pay(ctx, "1", Payment{Ref: "transfer-2", Amount: 100}))
	fmt.Println(billing.Pay(ctx, "2", Payment{Ref: "transfer-2", Amount: 100}))
	// Output:
	// rejected: payment of 50 is less than the total of 100 <nil>
	// paid <nil>
	// wrong_status: the step starts from "sent", and the status is "paid" <nil>
	//  pawl: not found: invoice/2
}

const story = `regenerate, 50 callers in 3 processes: 1 done, 49 refused, 1 clone
apply_payment, 50 callers in 3 processes: 1 done, 49 refused, captured 1 time, credit 100
receipts sent: 1
a worker was killed: the status of its invoice is applying_payment_from_sent
the next caller gets: another operation is already in progress
the janitor reverted applying_payment_from_sent to sent
the next caller gets: paid, credit 200
`

// The demo prints the same lines on every store. Proves CLAIM-4, CLAIM-7, EFFECT-1.
func TestStory(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		var output strings.Builder
		require.NoError(t, demo(t.Context(), &output, stores.Flag(location)))
		require.Equal(t, story, output.String())
	})
}
