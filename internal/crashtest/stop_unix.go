//go:build unix

package crashtest

import (
	"context"
	"syscall"
	"testing"
	"time"
)

// Stop stops the process pid, at a moment when it has none of the locks that all of its store's writers need: who is stopped with one of those holds up
// everybody, whatever its leases. Free writes something to the store. No try takes as long as a lease of a second.
func Stop(t testing.TB, pid int, free func(ctx context.Context) error) {
	t.Helper()
	for try := range 20 {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		err := free(ctx)
		cancel()
		if err == nil {
			return
		}
		Resume(t, pid)
		time.Sleep(20 * time.Millisecond << min(try, 4)) // on a busy machine it takes a while to let go
	}
	t.Fatal("there was no moment to stop the process at: the store stays locked")
}

// Resume lets a process go on.
func Resume(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
