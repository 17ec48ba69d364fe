package pawltest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// Gate holds commits up until it is opened. Its methods Before and After are faults:
//
//	gate := pawltest.NewGate()
//	store.Next(gate.Before)
//	... // start a mutation in another goroutine
//	gate.Wait(t) // its commit is at the gate
//	... // another process writes
//	gate.Open()
type Gate struct {
	arrived, opened chan struct{}
	arrive, open    sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{arrived: make(chan struct{}), opened: make(chan struct{})}
}

// Before is a Fault that holds the commit up before it reaches the store. If ctx ends first, the
// commit is not applied, and Pawl knows it.
func (g *Gate) Before(ctx context.Context, _ *Store, _ persist.Commit, commit func() error) error {
	if !g.pass(ctx) {
		return fmt.Errorf("%w: %w: pawltest: gate: %w", persist.ErrUnavailable, persist.ErrNotApplied, ctx.Err())
	}
	return commit()
}

// After is a Fault that lets the commit reach the store and holds its answer up. If ctx ends first,
// the answer is lost.
func (g *Gate) After(ctx context.Context, _ *Store, _ persist.Commit, commit func() error) error {
	err := commit()
	if !g.pass(ctx) {
		return fmt.Errorf("%w: %w", errLost, ctx.Err())
	}
	return err
}

// pass waits until the gate is open, and reports whether it was opened before ctx ended.
func (g *Gate) pass(ctx context.Context) bool {
	g.arrive.Do(func() { close(g.arrived) })
	select {
	case <-g.opened:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wait returns when a commit has arrived at the gate. It fails t after 30 seconds.
func (g *Gate) Wait(t testing.TB) {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-g.arrived:
	case <-timeout.C:
		t.Fatalf("pawltest: no commit at the gate within %v", patience)
	}
}

// Open lets all commits pass from now on. Calling it twice is safe.
func (g *Gate) Open() { g.open.Do(func() { close(g.opened) }) }
