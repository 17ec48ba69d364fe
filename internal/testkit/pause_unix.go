//go:build unix

package testkit

import (
	"context"
	"syscall"
	"time"
)

// Pause stops the child at a moment when it holds none of the locks that other users of its store
// need: a process that is stopped with such a lock blocks all others, whatever its leases. unlocked
// fails while the child holds one; see stores.Unlocked. Each attempt takes less than a lease of a second.
func (p *Process) Pause(unlocked func(ctx context.Context) error) {
	p.t.Helper()
	for try := range 20 {
		p.Signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(p.t.Context(), 400*time.Millisecond)
		err := unlocked(ctx)
		cancel()
		if err == nil {
			return
		}
		p.Resume()
		time.Sleep(20 * time.Millisecond << min(try, 4)) // on a busy machine the lock is held longer
	}
	p.t.Fatal("the store stays locked whenever the child is stopped")
}

// Resume lets a stopped child continue.
func (p *Process) Resume() {
	p.t.Helper()
	p.Signal(syscall.SIGCONT)
}

// Signal sends a signal to the child.
func (p *Process) Signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}
