package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
)

// worker is a child process of this program.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startWorker starts a worker, which waits for a line on its standard input.
func startWorker(env ...string) (*worker, error) {
	w := &worker{cmd: exec.Command(os.Args[0])}
	w.cmd.Env = append(os.Environ(), env...)
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	if !w.out.Scan() || w.out.Text() != "ready" {
		return nil, fmt.Errorf("worker did not start, it printed %q", w.out.Text())
	}
	return w, nil
}

// runCallers lets 50 callers in three processes fire one step. It counts the lines that they print.
func runCallers(location string, env ...string) (map[string]int, error) {
	var workers []*worker
	for _, callers := range []string{"17", "17", "16"} {
		w, err := startWorker(append(env, envStore+"="+location, envCallers+"="+callers)...)
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	printed := map[string]int{}
	for _, w := range workers {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return nil, err
		}
	}
	for _, w := range workers {
		for w.out.Scan() {
			printed[w.out.Text()]++
		}
		if err := w.cmd.Wait(); err != nil {
			return nil, err
		}
	}
	return printed, nil
}

// demo runs the three parts of the example and prints their results to w.
func demo(ctx context.Context, w io.Writer, location string) error {
	p, err := start(ctx, location, silent{}, pawl.DefaultLease)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // a busy machine starts processes slowly
	defer cancel()
	for _, part := range []func(context.Context, io.Writer, string) error{p.regenerate, p.pay, p.crash} {
		if err := part(ctx, w, location); err != nil {
			return errors.Join(err, p.stop())
		}
	}
	return p.stop()
}

// createSent creates an invoice and sends it.
func (p *process) createSent(ctx context.Context, id string) error {
	_, err := p.billing.invoices.Create(ctx, id, Invoice{Number: "2026-" + id, Customer: "ann", Total: 100})
	if err == nil {
		_, err = p.billing.invoices.Fire(ctx, machine.Trigger{ID: id, Step: "send", By: "admin"})
	}
	return err
}

// refused returns how many callers were refused.
func refused(printed map[string]int) int {
	return printed["result claim_failed"] + printed["result wrong_status"]
}

// regenerate lets 50 callers regenerate one invoice.
func (p *process) regenerate(ctx context.Context, w io.Writer, location string) error {
	if err := p.createSent(ctx, "1"); err != nil {
		return err
	}
	printed, err := runCallers(location, envWorker+"=regenerate", envInvoice+"=1")
	if err != nil {
		return err
	}
	clones := 0
	for snap, err := range Invoices.List(ctx, p.rt, pawl.Query{}) {
		if err != nil {
			return err
		}
		if snap.ReadOnly().Replaces == "1" {
			clones++
		}
	}
	fmt.Fprintf(w, "regenerate, 50 callers in 3 processes: %d done, %d refused, %d clone\n",
		printed["result done"], refused(printed), clones)
	return nil
}

// pay lets 50 callers apply one payment to one invoice.
func (p *process) pay(ctx context.Context, w io.Writer, location string) error {
	if err := p.createSent(ctx, "2"); err != nil {
		return err
	}
	printed, err := runCallers(location, envWorker+"=apply_payment", envInvoice+"=2", envPayment+"=transfer-7")
	if err != nil {
		return err
	}
	ann, err := Customers.Scope(p.rt, "ann").State(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "apply_payment, 50 callers in 3 processes: %d done, %d refused, captured %d time, credit %d\n",
		printed["result done"], refused(printed), printed["captured transfer-7 100"], ann.Credit)
	for out, err := range Postbox.Scope(p.rt, "out").Watch(ctx) { // any process may deliver the after-effect
		if err != nil {
			return err
		}
		if n := out.State().Sent["apply_payment"]; n > 0 {
			fmt.Fprintf(w, "receipts sent: %d\n", n)
			break
		}
	}
	return nil
}

// crash kills a worker during an action, and lets the janitor revert its claim.
func (p *process) crash(ctx context.Context, w io.Writer, location string) error {
	if err := p.createSent(ctx, "3"); err != nil {
		return err
	}
	victim, err := startWorker(envWorker+"=apply_payment", envInvoice+"=3", envPayment+"=transfer-8",
		envStore+"="+location, envCallers+"=1", envHangs+"=yes")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(victim.in, "go\n"); err != nil {
		return err
	}
	for victim.out.Scan() && !strings.HasPrefix(victim.out.Text(), "captured") {
	}
	if err := victim.cmd.Process.Kill(); err != nil { // during the action
		return err
	}
	_ = victim.cmd.Wait()
	inv, err := Invoices.Scope(p.rt, "3").State(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "a worker was killed: the status of its invoice is %s\n", inv.Status)
	payment := Payment{Ref: "transfer-8", Amount: 100}
	answer, err := p.billing.Pay(ctx, "3", payment)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "the next caller gets: %s\n", answer)
	for reverted := false; !reverted; time.Sleep(50 * time.Millisecond) { // until the lease has run out
		reverts, err := p.billing.janitor.Sweep(ctx)
		if err != nil {
			return err
		}
		for _, r := range reverts {
			fmt.Fprintf(w, "the janitor reverted %s to %s\n", r.From, r.To)
			reverted = true
		}
	}
	if answer, err = p.billing.Pay(ctx, "3", payment); err != nil {
		return err
	}
	ann, err := Customers.Scope(p.rt, "ann").State(ctx)
	fmt.Fprintf(w, "the next caller gets: %s, credit %d\n", answer, ann.Credit)
	return err
}
