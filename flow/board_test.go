package flow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
)

const boardWorkers = 500

type board struct {
	Done  int            `json:"done"`
	Tasks map[string]int `json:"tasks"`
}

// think simulates the work of a worker between reading the board and writing it.
func think() { time.Sleep(100 * time.Microsecond) }

// 500 workers of one request write to one board at the same time, with data verbs and functions.
// All mutations commit, and no worker gives up. Proves FLOW-3.
func TestTaskBoard(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{})
	a := flow.Define(f, "a", func(ctx context.Context, c *flow.Call, workers int) (board, error) {
		tasks := pawl.Sequencer[board](c, "board")
		errs := make([]error, workers)
		var wg sync.WaitGroup
		// A mutation that arrives while a function runs waits, even if the queue is empty.
		running, early := make(chan struct{}), make(chan error, 2)
		wg.Go(func() {
			_, err := tasks.AtomicState(ctx, func(_ context.Context, b *board) error {
				close(running)
				select {
				case err := <-early:
					early <- err
				case <-time.After(20 * time.Millisecond):
				}
				b.Done++
				return nil
			})
			if err != nil {
				early <- err
			}
		})
		<-running
		_, err := tasks.SetStateRecord(ctx, "tasks", "early", 1)
		early <- err
		wg.Wait()
		for i := range workers {
			wg.Go(func() {
				_, one := tasks.AtomicState(ctx, func(_ context.Context, b *board) error { think(); b.Done++; return nil })
				_, two := tasks.SetStateRecord(ctx, "tasks", fmt.Sprint(i), i)
				errs[i] = errors.Join(one, two)
			})
		}
		wg.Wait()
		b, err := tasks.State(ctx)
		return b, errors.Join(append(errs, err, <-early)...)
	})
	b, err := a.Do(t.Context(), flow.IDs{}, boardWorkers)
	require.NoError(t, err)
	require.Equal(t, boardWorkers+1, b.Done)
	require.Len(t, b.Tasks, boardWorkers+1)
	nothingLeft(t, rt)
}

// The same workload on a compare-and-swap loop, with the default number of attempts of a persisted
// mutation: some workers give up. A board avoids this.
func TestTaskBoardOnAPlainLoop(t *testing.T) {
	var current atomic.Pointer[board]
	current.Store(&board{})
	var landed, gaveUp atomic.Int64
	var wg sync.WaitGroup
	for range boardWorkers {
		wg.Go(func() {
			for range pawl.DefaultRetry.Attempts {
				was := current.Load()
				think()
				if current.CompareAndSwap(was, &board{Done: was.Done + 1}) {
					landed.Add(1)
					return
				}
			}
			gaveUp.Add(1)
		})
	}
	wg.Wait()
	require.EqualValues(t, landed.Load(), current.Load().Done)
	require.NotZero(t, gaveUp.Load())
	t.Logf("%d of %d workers gave up", gaveUp.Load(), boardWorkers)
}
