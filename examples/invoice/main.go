// Invoice shows a status machine whose actions must not run twice. 50 callers in three processes
// regenerate an invoice and apply a payment, and a worker is killed during an action.
//
//	go run ./examples/invoice
//	go run ./examples/invoice -store dir:./data
//	go run ./examples/invoice -store postgres://user:secret@localhost/billing
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist/open"
)

func main() {
	if os.Getenv(envWorker) != "" {
		if err := work(context.Background()); err != nil {
			log.Fatal(err)
		}
		return
	}
	location := flag.String("store", "", "an SQLite file, dir:FOLDER or postgres://...; empty: a temporary file")
	flag.Parse()
	if err := run(*location); err != nil {
		log.Fatal(err)
	}
}

// run runs the demo on the store at location, or on a temporary one.
func run(location string) error {
	if location == "" {
		folder, err := os.MkdirTemp("", "invoice")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		location = filepath.Join(folder, "billing.db")
	}
	return demo(context.Background(), os.Stdout, location)
}

// process holds the runtime and the module of one process of this program.
type process struct {
	rt      *pawl.Runtime
	billing *Billing
	stop    func() error
}

// start opens the store and starts the engine.
func start(ctx context.Context, location string, bank Bank, lease time.Duration) (*process, error) {
	store, err := open.Store(ctx, location, open.Options{Scheme: "sqlite"})
	if err != nil {
		return nil, err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Invoices, Payments, Customers, Postbox}})
	if err != nil {
		return nil, err
	}
	engine := machine.NewEngine(rt, machine.Config{Lease: lease})
	janitor := machine.JanitorConfig{Interval: time.Hour, Reverted: func(machine.Revert) {}} // the demo sweeps itself
	billing, err := NewBilling(engine, bank, janitor)
	if err == nil {
		err = engine.Start(ctx) // fails if a claim state has no janitor
	}
	if err != nil {
		return nil, err
	}
	return &process{rt, billing, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return errors.Join(engine.Stop(ctx), rt.Close(ctx), store.Close())
	}}, nil
}

// The environment of a worker process.
const (
	envWorker  = "INVOICE_WORKER"  // the step to fire
	envStore   = "INVOICE_STORE"   // the location of the store
	envInvoice = "INVOICE_ID"      // the invoice
	envPayment = "INVOICE_PAYMENT" // the reference of the payment; empty: none
	envCallers = "INVOICE_CALLERS" // the number of concurrent callers
	envHangs   = "INVOICE_HANGS"   // if set, the bank does not answer
)

// bank prints each capture, so that the parent process can count them.
type bank struct{ hangs bool }

func (b bank) Capture(ctx context.Context, ref string, amount int64) error {
	fmt.Println("captured", ref, amount)
	if b.hangs {
		<-ctx.Done() // the process is killed first
	}
	return ctx.Err()
}

// silent is the bank of the parent process. It accepts every payment and prints nothing.
type silent struct{}

func (silent) Capture(context.Context, string, int64) error { return nil }

// work is the main function of a worker process: concurrent callers fire one step.
func work(ctx context.Context) error {
	lease := pawl.DefaultLease
	if os.Getenv(envHangs) != "" {
		lease = time.Second // so that the janitor can revert the claim soon after the kill
	}
	p, err := start(ctx, os.Getenv(envStore), bank{os.Getenv(envHangs) != ""}, lease)
	if err != nil {
		return err
	}
	t := machine.Trigger{ID: os.Getenv(envInvoice), Step: os.Getenv(envWorker), By: "admin"}
	if ref := os.Getenv(envPayment); ref != "" {
		t.Input = Payment{Ref: ref, Amount: 100}
	}
	callers := 0
	if _, err := fmt.Sscan(os.Getenv(envCallers), &callers); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // all workers begin together
		return err
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for range callers {
		wg.Go(func() {
			out, err := p.billing.invoices.Fire(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			fmt.Println("result", out.Result)
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(append(errs, p.stop())...)
}
