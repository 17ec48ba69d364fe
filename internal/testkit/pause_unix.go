//go:build unix

package testkit

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// Pause stops the child at a moment when it holds none of the locks that other users of its store
// need: a process that is stopped with such a lock blocks all others, whatever its leases. unlocked
// fails while the child holds one; see stores.Unlocked. Each attempt takes less than a lease of a second.
// From then on the child may live for five minutes.
func (p *Process) Pause(unlocked func(ctx context.Context) error) {
	p.t.Helper()
	var err error
	for try := range 20 {
		p.stop()
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Duration(400+25*try)*time.Millisecond)
		err = unlocked(ctx)
		cancel()
		if err == nil {
			p.Limit(5 * time.Minute)
			return
		}
		p.Resume()
		time.Sleep(20 * time.Millisecond << min(try, 4)) // on a busy machine the lock is held longer
	}
	p.t.Fatalf("the store stays locked whenever the child is stopped: %v", err)
}

// stop sends SIGSTOP and waits until all threads of the child have stopped. A thread that writes to
// the disk delays that, and the others run on meanwhile.
func (p *Process) stop() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	Eventually(p.t, func() bool {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) || pid > 0 && !status.Stopped() {
			p.t.Fatalf("the child ended: status %v, %v", status, err)
		}
		return pid > 0
	}, "the child is stopped")
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
