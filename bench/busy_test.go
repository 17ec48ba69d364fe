package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Busy processes end when the run closes them. A process that ends earlier is reported.
func TestBusyProcesses(t *testing.T) {
	b := newBench(t.Context(), true)
	closed := false
	defer func() {
		if !closed {
			b.close()
		}
	}()
	require.NoError(t, b.startBusy(3))
	require.Len(t, b.busy, 3)
	require.NoError(t, b.stillBusy())

	killed := b.busy[1]
	require.NoError(t, killed.Process.Kill())
	_, err := killed.Process.Wait() // its pipes are closed then
	require.NoError(t, err)
	require.ErrorIs(t, b.stillBusy(), errIdle)

	closed = true
	b.close()
	for i, c := range b.busy {
		if i != 1 {
			require.True(t, c.ProcessState.Success(), "the process exits when its stdin ends")
			require.Positive(t, c.ProcessState.UserTime())
		}
	}
}

// A busy process ends when its time is over, even if its parent still runs.
func TestBusyIsBounded(t *testing.T) {
	c, err := startChild(t.Context(), childTask{Busy: 10 * time.Millisecond})
	require.NoError(t, err)
	_, err = c.stdout.ReadByte() // ends with the process
	require.Error(t, err)
	require.NoError(t, c.end())
}
