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

// think is what a worker does between reading the board and writing it.
func think() { time.Sleep(100 * time.Microsecond) }

// 500 workers of one request write to one board at the same time, by data and by functions: all land, and none gives up. Proves FLOW-3.
func TestTaskBoard(t *testing.T) {
	f, rt := inMemory(t).flow(t, flow.Config{})
	a := flow.Define(f, "a", func(ctx context.Context, c *flow.Call, workers int) (board, error) {
		tasks := pawl.Sequencer[board](c, "board")
		errs := make([]error, workers)
		var wg sync.WaitGroup
		// One that comes while a function runs, and nobody else waits, has to wait, too.
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

// The same on a loop that compares and swaps, with as many attempts as a persisted mutation has: most workers give up. It is what the board is spared.
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
	t.Logf("%d of %d gave up", gaveUp.Load(), boardWorkers)
}
