package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// The load beside a run: one child process per core, in a busy loop.

// busyFor bounds the life of a busy process. A run that takes longer fails.
const busyFor = 2 * time.Hour

// startBusy starts n busy processes. They end with the run.
func (b *bench) startBusy(n int) error {
	for range n {
		c, err := startChild(b.ctx, childTask{Busy: busyFor})
		if err != nil {
			return fmt.Errorf("starting the load: %w", err)
		}
		b.busy = append(b.busy, c)
		b.cleanup(func() { _ = c.end() })
	}
	return nil
}

var errIdle = errors.New("a busy process has ended before the run")

// stillBusy returns errIdle if a busy process has ended. Figures measured after that would not be
// those of a loaded run.
func (b *bench) stillBusy() error {
	for _, c := range b.busy {
		if _, err := io.WriteString(c.stdin, "\n"); err != nil {
			return errIdle
		}
	}
	return nil
}

// spin keeps one processor busy until the time is over or stdin ends. Stdin ends when the parent
// closes it or dies.
func spin(lasts time.Duration) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Print(ready)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
	}
}
