package pawl_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A function that is slow in its turn is left behind: the others commit, and it runs again by itself.
//
// Proves TX-7.
func TestSlowFunctionLeavesItsGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		resume := make(chan struct{})
		runs, slowDone := 0, false
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		var slow sync.WaitGroup
		slow.Go(func() {
			assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if runs++; runs == 2 {
					<-resume // longer than a turn may take
				}
				return pay(ctx, tx, "a", "b", 1)
			}))
			slowDone = true
		})
		synctest.Wait()
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		began := time.Now()
		c.open()
		c.wg.Wait()
		require.Less(t, time.Since(began), time.Second)
		require.False(t, slowDone)
		c.requirePaid(3)
		close(resume)
		slow.Wait()
		require.Equal(t, 3, runs)
		c.requirePaid(4)
	})
}

// A caller that leaves after its turn is part of the commit all the same, and its callbacks run. One
// that leaves before its turn is not.
//
// Proves TX-5, CAS-9.
func TestCallerLeavesItsGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		waiting, leaveWaiting := context.WithCancel(t.Context())
		defer leaveWaiting()
		running, leaveRunning := context.WithCancel(t.Context())
		defer leaveRunning()
		after, late := 0, make(chan struct{})
		runs := 0
		c.add(func() {
			err := pawl.Transact(running, c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				tx.AfterCommit(func() { after++; close(late) })
				return pay(ctx, tx, "a", "b", 10)
			})
			requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
		})
		c.add(func() {
			assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if runs++; runs == 2 { // in its turn; the first member waits for the commit
					leaveRunning()
					synctest.Wait()
				}
				return pay(ctx, tx, "a", "b", 100)
			}))
		})
		c.add(func() { requireLeft(t, c.pay(waiting, 500), pawl.PhaseQueued, context.Canceled) })
		leaveWaiting()
		synctest.Wait()
		c.open()
		c.wg.Wait()
		<-late
		require.Equal(t, 1, after)
		c.requirePaid(111)
	})
}

// Callbacks of callers that left run each by itself: one that ends its goroutine keeps no other from
// running, and Close returns. A panic reaches its caller even after that caller's context has ended.
//
// Proves TX-5.
func TestCallbacksOfCallersThatLeft(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ran := make(chan struct{}, 2)
		for range 2 {
			c.add(func() {
				err := pawl.Transact(ctx, c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					tx.AfterCommit(func() {
						ran <- struct{}{}
						runtime.Goexit()
					})
					return pay(ctx, tx, "a", "b", 1)
				})
				requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
			})
		}
		var recovered any
		runs := 0
		c.add(func() {
			defer func() { recovered = recover() }()
			_ = pawl.Transact(ctx, c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if err := pay(ctx, tx, "a", "b", 1); err != nil {
					return err
				}
				if runs++; runs == 2 {
					panic("in its turn")
				}
				return nil
			})
		})
		leaving := 0
		c.add(func() {
			assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if leaving++; leaving == 2 {
					leave()
					synctest.Wait()
				}
				return pay(ctx, tx, "a", "b", 1)
			}))
		})
		c.open()
		c.wg.Wait()
		<-ran
		<-ran
		require.IsType(t, &pawl.PanicError{}, recovered)
		c.requirePaid(4)
	})
}
